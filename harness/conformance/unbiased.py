"""Unbiasedness: the mean over draws of a sampled aggregation is the full one (z-test, fixed seeds)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from harness.conformance import oracle
from harness.conformance.graphs import dense_adjacency
from harness.conformance.runs import Run, Subject
from harness.conformance.tiny import TinyGraphs
from harness.conformance.training import Moments
from harness.conformance.verdict import Check, Judged
from harness.models.spec import ModelSpec
from harness.runtime.method import Family
from harness.runtime.spec import TrainSpec

DRAWS: dict[Family, int] = {"full-graph": 400, "mini-batch": 150}  # a mini-batch method's are of many batches
GRAPHS: dict[Literal["sage", "gcn"], str] = {"sage": "drawn", "gcn": "drawn-weighted"}
SEEN = 30  # draws below which a node's mean says little
ENTRIES = 40
FURTHEST = 5.0
SPREAD = 0.2, 2.5  # of the mean of z^2, which is 1; wide, for many of the entries vary together
SPEC = TrainSpec(epochs=1, precision="float64", threads=1)


def unbiased_runs(
    subject: Subject, options: dict[str, Any], graphs: TinyGraphs, draws: int, world: int = 2
) -> Iterator[Run]:
    """Yield a run of one layer for each of the two weightings of edges, the mean and the symmetric one."""
    for model, name in GRAPHS.items():
        network = ModelSpec(name=model, layers=1, dropout=0)
        yield Run(subject, options, graphs.get(name, world), world, model, network, SPEC, draws)


def unbiased_check(runs: Sequence[Run], options: dict[str, Any]) -> Check:
    """Return the check that the aggregations of `runs`, with these options, are right on average."""
    words = ", ".join(f"{key}={value}" for key, value in options.items()) or "the defaults"
    draws = max(run.draws for run in runs)
    claim = f"{words}: the mean aggregation of {draws} epochs is the full one (z-test)"
    return Check("unbiased", claim, runs, _judge)


def _judge(results: Judged) -> list[str]:
    found = []
    for run, ranks in results:
        assert isinstance(ranks, list)
        moments = [rank for rank in ranks if isinstance(rank, Moments)]
        if wrong := bias(moments, full_aggregation(run)):
            found.append(f"{run}: {wrong}")
    return found


def full_aggregation(run: Run) -> NDArray[np.float64]:
    """Return the propagation matrix times the features, dense."""
    graph = run.tiny.graph
    matrix: NDArray[np.float64] = oracle.propagation_matrix(dense_adjacency(graph), run.network.name).numpy()
    return matrix @ graph.features.astype(np.float64)


def bias(ranks: list[Moments], want: NDArray[np.float64]) -> str:
    """Return what tells the means apart from `want` [N, F], in a few words; "" if nothing does."""
    scores, nodes = [np.empty(0)], [np.empty(0, int)]
    for rank in ranks:
        reached = np.flatnonzero(rank.times >= SEEN)
        error = (rank.mean - want)[reached]
        deviation = np.sqrt(np.maximum(rank.variance[reached], 0) / rank.times[reached, None])
        fixed = deviation < 1e-9
        where = np.broadcast_to(reached[:, None], error.shape)
        if np.abs(error[fixed]).max(initial=0) > 1e-8:
            node = int(where[fixed][np.abs(error[fixed]).argmax()])
            return f"node {node}'s aggregation never varies, and is not the full one"
        scores.append(error[~fixed] / deviation[~fixed])
        nodes.append(where[~fixed])
    z, of = np.concatenate(scores), np.concatenate(nodes)
    if z.size < ENTRIES:
        return f"only {z.size} of the aggregated values vary: these options sample next to nothing"
    worst = int(np.abs(z).argmax())
    if abs(z[worst]) >= FURTHEST:
        return (
            f"expected |z| < {FURTHEST:g}, seen {z[worst]:.1f} at node {of[worst]}: the mean is that many "
            "standard errors from the full aggregation"
        )
    spread = float(np.mean(z**2))
    if not SPREAD[0] < spread < SPREAD[1]:
        return f"expected a mean z^2 from {SPREAD[0]} to {SPREAD[1]}, seen {spread:.2f} over {z.size} values"
    return ""
