"""Bytes: what is counted is the method's closed form, and what one rank sends its peer receives."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from harness.conformance.runs import Result, Run
from harness.conformance.training import Outcome
from harness.conformance.verdict import Check, Judged
from harness.models.gnn import GNN
from harness.runtime.bytes_model import Bytes, BytesCase
from harness.runtime.method import Method
from harness.runtime.spec import PURPOSES

ITEMSIZE = {"float32": 4, "float64": 8}


def bytes_check(method: type[Method[Any]], runs: Sequence[Run]) -> Check | None:
    """Return the check of all that `runs` sent; None if the method states its bytes for none of them."""
    distinct = list({run.key: run for run in runs}.values())
    stated = {run.key for run in distinct if _stated(method, run, _case(run, 0, {}, 1)) is not None}
    if not stated:
        return None

    def judge(results: Judged) -> list[str]:
        found = []
        for run, ranks in results:
            found += bytes_differences(method, run, ranks) if run.key in stated else []
            found += lost_bytes(run, ranks)
        return found

    return Check("bytes", f"`bytes_per_epoch`, byte for byte ({len(stated)} runs)", distinct, judge)


def bytes_differences(method: type[Method[Any]], run: Run, ranks: Result) -> list[str]:
    """Return where a run's bytes are not the closed form, the trainer's own included; a line each epoch."""
    outcomes = _outcomes(ranks)
    parameters = sum(value.size for value in outcomes[0].before.values())
    found = []
    for epoch, row in enumerate(outcomes[0].rows):
        stats = Counter[str]()
        for outcome in outcomes:
            stats.update(outcome.rows[epoch]["stats"])
        case = _case(run, epoch, stats, row["steps"])
        want = _stated(method, run, case)
        if want is None:
            continue
        if isinstance(want, str):
            found.append(f"{run}, epoch {epoch}: {want}")
            continue
        model = 2 * (run.world - 1) * (parameters + 1) * case.itemsize * case.steps
        wanted = dict.fromkeys(PURPOSES, 0) | want | {"model": model}
        seen = {purpose: sum(o.rows[epoch][f"bytes_{purpose}"] for o in outcomes) for purpose in PURPOSES}
        apart = [
            f"{key} {value}, seen {seen.get(key)}" for key, value in wanted.items() if value != seen.get(key)
        ]
        if apart:
            found.append(f"{run}, epoch {epoch}: expected {'; '.join(apart)}")
    return found


def _stated(method: type[Method[Any]], run: Run, case: BytesCase) -> Bytes | str | None:
    """Return the method's closed form, or what is wrong with it."""
    try:
        return method.bytes_per_epoch(method.Options(**run.options), case)
    except Exception as error:  # the code is somebody else's
        return f"bytes_per_epoch raised {type(error).__name__}: {error}"


def lost_bytes(run: Run, ranks: Result) -> list[str]:
    """Return what ranks sent that their peers did not receive, a line for each kind."""
    flows: dict[tuple[object, ...], list[int]] = defaultdict(lambda: [0, 0])
    for rank, outcome in enumerate(_outcomes(ranks)):
        for row in outcome.traffic:
            if row["peer"] >= 0:
                kind = (row["scope"], row["purpose"], row["layer"], row["direction"])
                flows[*kind, rank, row["peer"]][0] += row["sent_bytes"]
                flows[*kind, row["peer"], rank][1] += row["received_bytes"]
    return [
        f"{run}: rank {sender} sent {sent} bytes ({purpose}, {scope}), rank {receiver} received {received}"
        for (scope, purpose, _, _, sender, receiver), (sent, received) in flows.items()
        if sent != received
    ]


def _case(run: Run, epoch: int, stats: Mapping[str, float], steps: int) -> BytesCase:
    graph, itemsize = run.tiny.graph, ITEMSIZE[run.spec.precision]
    return BytesCase(
        epoch=epoch,
        parts=run.world,
        boundary=run.tiny.boundary(),
        nodes=run.tiny.seen().size,
        model=GNN(run.network, graph.features.shape[1], graph.num_classes, seed=0, dtype=torch.float32),
        steps=steps,
        stats=stats,
        itemsize=itemsize,
        label_bytes=graph.num_classes * itemsize if graph.multilabel else 8,
    )


def _outcomes(ranks: Result) -> list[Outcome]:
    assert isinstance(ranks, list)
    return [rank for rank in ranks if isinstance(rank, Outcome)]
