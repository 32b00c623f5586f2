"""What a method is held to besides: that it runs and repeats itself, its bytes, and that it is unbiased."""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.check import oracle
from harness.check.graphs import LIMITS, MODELS, PAIRS, TROUBLES, TinyGraphs, dense_adjacency, is_inductive, tiny_graph
from harness.check.runs import Check, CheckFinding, CheckRun, Result, Subject, outcomes_of
from harness.check.training import Moments, RankOutcome
from harness.data.graph import GraphData
from harness.metrics import PURPOSES
from harness.models.gnn import GNN
from harness.models.layer import ModelSpec
from harness.runtime.cost_models import Bytes, BytesCase
from harness.runtime.method import Family, Method, bytes_apart
from harness.runtime.run_config import TrainSpec

# As a suite trains: with dropout, in single precision, timed.
NETWORKS = {
    "sage": ModelSpec(name="sage", layers=2, hidden=6, norm="layer"),
    "gcn": ModelSpec(name="gcn", layers=2, hidden=5),
    "gat": ModelSpec(name="gat", layers=2, hidden=6, heads=2),
    "mixhop": ModelSpec(name="mixhop", layers=2, hidden=6, order=2),
}
ON = {"sage": "transductive", "gcn": "inductive", "gat": "weighted", "mixhop": "multilabel"}
SPEC = TrainSpec(epochs=4, threads=1)
Options = dict[str, Any]


def options_finding(method: type[Method[Any]]) -> CheckFinding:
    """Check what a user reads of the method: its line, its options, their defaults."""
    fields = method.Options.model_fields
    what = "expected a description (Field(..., description=...)), seen none"
    problems = [f"option {name}: {what}" for name, field in fields.items() if not field.description]
    if method.summary() in ("", Method.summary()) or "__doc__" not in vars(method):
        problems.append("expected a docstring whose first line says what the method does, seen none")
    if getattr(method, "family", None) not in get_args(Family):
        problems.append(f"family: expected one of {', '.join(get_args(Family))}")
    declared = {"exact: expected valid options": method.exact, "unbiased: expected valid options": method.unbiased}
    for expects, options in (declared | {"expected valid defaults": {}}).items():
        if options is not None and (wrong := wrong_options(method, options)):
            problems.append(f"{expects}, seen: {wrong}")
    claim = f"{len(fields)} described, defaults valid"
    return CheckFinding("options", "FAIL" if problems else "ok", claim, tuple(problems))


def wrong_options(method: type[Method[Any]], options: Mapping[str, Any]) -> str:
    """Return why a method does not take options, in one line; "" if it does."""
    try:
        method.Options(**options)
    except (ValueError, TypeError) as error:
        return " ".join(str(error).split())
    return ""


def training_check(subject: Subject, options: Options, graphs: TinyGraphs, worlds: Sequence[int]) -> Check:
    """Return the check that every model, each on a graph of another kind, trains by the rules, alike on all ranks."""
    runs = [
        CheckRun(subject, options, graphs.get(ON[model], world), world, model, network, SPEC, timing="plain")
        for world in worlds
        for model, network in NETWORKS.items()
    ]
    claim = f"{', '.join(NETWORKS)} train, all ranks' replicas alike ({len(runs)} runs)"
    return Check("runs", claim, runs, _unlike)


def flags_check(runs: Sequence[CheckRun]) -> Check:
    """Return the check that in none of `runs` a rank used or sent what its numbers do not show."""

    def flagged(run: CheckRun, ranks: Result) -> list[str]:
        said = [(rank, flag) for rank, each in enumerate(outcomes_of(ranks)) for flag in each.flags]
        return [f"{run}: rank {rank}: {key}: {text}" for rank, (key, text) in said]

    return Check("flags", "nothing is flagged: cores, children, bytes, work during evaluations", runs, flagged)


def trouble_check(subject: Subject, settings: Sequence[Options], graphs: TinyGraphs, world: int) -> Check:
    """Return the check that no rank waits for one that has little to do."""
    runs = [
        CheckRun(subject, options, graphs.get(name, world), world, "sage", NETWORKS["sage"], SPEC)
        for options in settings
        for name in TROUBLES
    ]
    return Check("trouble", f"ends with {'; '.join(TROUBLES.values())} ({len(runs)} runs)", runs, _unlike)


def repeat_check(subject: Subject, settings: Sequence[Options], graphs: TinyGraphs, world: int) -> Check:
    """Return the check that a run of `training_check` is the same when it is done again, bit for bit."""
    tiny, once = graphs.get(ON["sage"], world), dict[str, RankOutcome]()
    runs = [
        CheckRun(subject, options, tiny, world, "sage", NETWORKS["sage"], SPEC, again=again, timing="plain")
        for options in settings
        for again in (0, 1)
    ]

    def unequal(run: CheckRun, ranks: Result) -> list[str]:
        two = outcomes_of(ranks)[0]
        one = once.setdefault(str(sorted(run.options.items())), two)
        for epoch, (a, b) in enumerate(zip(one.rows, two.rows, strict=True)):
            if a["loss"] != b["loss"]:
                return [f"{run}: loss of epoch {epoch} is {a['loss']!r}, and {b['loss']!r} when run again"]
        if all(np.array_equal(one.after[name], two.after[name]) for name in one.after):
            return []
        return [f"{run}: expected equal weights after {len(one.rows)} epochs, seen others"]

    return Check("deterministic", "one seed, the same losses and weights bit for bit", runs, unequal)


def resume_check(
    subject: Subject, settings: Sequence[Options], graphs: TinyGraphs, world: int, spec: TrainSpec = SPEC
) -> Check:
    """Return the check that a run of `repeat_check` that is cut off ends as if it had not been."""
    tiny, whole = graphs.get(ON["sage"], world), dict[str, list[RankOutcome]]()
    runs = [
        CheckRun(subject, options, tiny, world, "sage", NETWORKS["sage"], spec, timing="plain", cut=cut)
        for options in settings
        for cut in (0, spec.epochs // 2)
    ]

    def unequal(run: CheckRun, ranks: Result) -> list[str]:
        seen = outcomes_of(ranks)
        want = whole.setdefault(str(sorted(run.options.items())), seen)
        found = [_apart(one, two) for one, two in zip(want, seen, strict=True)]
        at = f"expected what an uncut run has, after {run.cut} epochs and a checkpoint seen another"
        return [f"{run}: rank {rank}: {at} {what}" for rank, what in enumerate(found) if what]

    return Check("resumes", "cut off, it goes on from a checkpoint with the same bits and bytes", runs, unequal)


def _apart(one: RankOutcome, two: RankOutcome) -> str:
    """Return in what two outcomes of the same bits would not differ, and these do; "" if in nothing."""
    for epoch, (a, b) in enumerate(zip(one.rows, two.rows, strict=True)):
        for name in ("loss", "steps", *(f"bytes_{purpose}" for purpose in PURPOSES)):
            if a[name] != b[name]:
                return f"{name} in epoch {epoch}: {b[name]!r}, not {a[name]!r}"
    kinds = [Counter({tuple(row.items()): 1 for row in each.traffic if row["scope"] == "epoch"}) for each in (one, two)]
    if kinds[0] != kinds[1]:
        return "traffic"
    return next((name for name in one.after if not np.array_equal(one.after[name], two.after[name])), "")


def _unlike(run: CheckRun, ranks: Result) -> list[str]:
    first, *others = outcomes_of(ranks)
    losses = [row["loss"] for row in first.rows]
    found = [] if all(map(math.isfinite, losses)) else [f"{run}: expected finite losses, seen {losses}"]
    found += [f"{run}: rank {rank}: {each.broken}" for rank, each in enumerate([first, *others]) if each.broken]
    for rank, other in enumerate(others, start=1):
        unlike = [name for name in first.after if not np.array_equal(first.after[name], other.after[name])]
        if unlike or [row["loss"] for row in other.rows] != losses:
            what = f"replicas of {unlike[0]}" if unlike else "losses"
            found.append(f"{run}: expected equal {what}, seen others at rank {rank} than at rank 0")
    return found


def bytes_check(method: type[Method[Any]], runs: Sequence[CheckRun]) -> Check | None:
    """Return the check of the bytes that `runs` sent; None if the method states its bytes for none of them."""
    distinct = list({run.key: run for run in runs}.values())
    stated = {run.key for run in distinct if _stated(method, run, _case(run)) is not None}
    if not stated:
        return None

    def judge(run: CheckRun, ranks: Result) -> list[str]:
        return (bytes_differences(method, run, ranks) if run.key in stated else []) + lost_bytes(run, ranks)

    return Check("bytes", f"`bytes_per_epoch`, byte for byte ({len(stated)} runs)", distinct, judge)


def bytes_differences(method: type[Method[Any]], run: CheckRun, ranks: Result) -> list[str]:
    """Return where a run's bytes are not the closed form, the trainer's own included; a line each epoch."""
    outcomes, case = outcomes_of(ranks), _case(run)
    parameters = sum(value.size for value in outcomes[0].before.values())
    found = []
    for epoch, row in enumerate(outcomes[0].rows):
        stats = Counter[str]()
        for outcome in outcomes:
            stats.update(outcome.rows[epoch]["stats"])
        case = replace(case, epoch=epoch, stats=stats, steps=row["steps"])
        seen = {purpose: sum(o.rows[epoch][f"bytes_{purpose}"] for o in outcomes) for purpose in PURPOSES}
        if apart := bytes_apart(method, method.Options(**run.options), case, seen, parameters):
            found.append(f"{run}, epoch {epoch}: expected {apart}")
    return found


def _stated(method: type[Method[Any]], run: CheckRun, case: BytesCase) -> Bytes | str | None:
    """Return the method's closed form, or what is wrong with it."""
    try:
        return method.bytes_per_epoch(method.Options(**run.options), case)
    except Exception as error:  # the method's code may raise anything
        return f"bytes_per_epoch raised {type(error).__name__}: {error}"


def lost_bytes(run: CheckRun, ranks: Result) -> list[str]:
    """Return what ranks sent that their peers did not receive, a line for each kind."""
    flows: dict[tuple[object, ...], list[int]] = defaultdict(lambda: [0, 0])
    for rank, outcome in enumerate(outcomes_of(ranks)):
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


def _case(run: CheckRun) -> BytesCase:
    """Return the sizes of a run, which are those of all its epochs; of an epoch nothing yet."""
    graph, itemsize = run.tiny.graph, run.spec.itemsize
    return BytesCase(
        epoch=0, parts=run.world, boundary=run.tiny.boundary(), nodes=run.tiny.seen().size, itemsize=itemsize,
        model=GNN(run.case.trained, graph.features.shape[1], graph.num_classes, seed=0, dtype=torch.float32),
        label_bytes=graph.num_classes * itemsize if graph.multilabel else 8, weighted=graph.weights is not None,
    )  # fmt: skip


DRAWS: dict[Family, int] = {"full-graph": 250, "mini-batch": 150}  # a mini-batch method's are of many batches
GRAPHS: dict[Literal["sage", "gcn"], str] = {"sage": "drawn", "gcn": "drawn-weighted"}
SEEN = 30  # draws below which a node's mean says little
ENTRIES = 40
FURTHEST = 5.0
SPREAD = 0.2, 2.5  # of the mean of z^2, which is 1; wide, for many of the entries vary together
DRAWN_SPEC = TrainSpec(epochs=1, precision="float64", threads=1)


def unbiased_runs(
    subject: Subject, options: dict[str, Any], graphs: TinyGraphs, draws: int, world: int = 2
) -> Iterator[CheckRun]:
    """Yield a run of one layer for each of the two weightings of edges, the mean and the symmetric one."""
    for model, name in GRAPHS.items():
        network = ModelSpec(name=model, layers=1, dropout=0)
        yield CheckRun(subject, options, graphs.get(name, world), world, model, network, DRAWN_SPEC, draws)


def unbiased_check(runs: Sequence[CheckRun], options: dict[str, Any]) -> Check:
    """Return the check that the aggregations of `runs`, with these options, are right on average."""
    words = ", ".join(f"{key}={value}" for key, value in options.items()) or "the defaults"
    draws = max(run.draws for run in runs)
    claim = f"{words}: the mean aggregation of {draws} epochs is the full one (z-test)"
    return Check("unbiased", claim, runs, _biased)


def _biased(run: CheckRun, ranks: Result) -> list[str]:
    assert isinstance(ranks, list)
    graph = run.tiny.graph
    matrix: NDArray[np.float64] = oracle.propagation_matrix(dense_adjacency(graph), run.network.name).numpy()
    full = matrix @ graph.features.astype(np.float64)
    wrong = bias([rank for rank in ranks if isinstance(rank, Moments)], full)
    return [f"{run}: {wrong}"] if wrong else []


def bias(ranks: list[Moments], want: NDArray[np.float64]) -> str:
    """Return what distinguishes the means from `want` [N, F], in a few words; "" if nothing does."""
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


TOLERANCE = 1e-9
EPOCHS = 3
EXACT_SPEC = TrainSpec(epochs=EPOCHS, precision="float64", threads=1)
DenseLogits = Callable[[NDArray[np.float64], Tensor, oracle.Weights], Tensor]


def limit_runs(
    subject: Subject, options: dict[str, Any], graphs: TinyGraphs, world: int, every_model: bool = False
) -> Iterator[CheckRun]:
    """Yield runs on every graph: two models each, in turn, or all of them."""
    for turn, name in enumerate(LIMITS):
        for model in MODELS if every_model else PAIRS[turn % len(PAIRS)]:
            yield CheckRun(subject, options, graphs.get(name, world), world, model, MODELS[model], EXACT_SPEC)


def exact_check(runs: Sequence[CheckRun], options: dict[str, Any]) -> Check:
    """Return the check that `runs`, with these options, are full-graph training."""
    words = ", ".join(f"{key}={value}" for key, value in options.items()) or "the defaults"
    claim = f"{words}: losses, gradients and scores of full-graph training, to {TOLERANCE:g} ({len(runs)} runs)"
    return Check("exact", claim, runs, _inexact)


def _inexact(run: CheckRun, ranks: Result) -> list[str]:
    want = expected(run.tiny.name, run.case.trained.model_dump_json())
    wrong = next(filter(None, (difference(outcome, want) for outcome in outcomes_of(ranks))), "")
    return [f"{run}: {wrong}"] if wrong else []


@dataclass(frozen=True)
class Expected:
    """What full-graph training does: as `RankOutcome`, the losses by epoch."""

    losses: list[float]
    gradients: dict[str, NDArray[Any]]
    scores: dict[str, float]
    after: dict[str, NDArray[Any]]


@functools.cache
def expected(graph_name: str, spec: str) -> Expected:
    """Train the dense oracle of a `ModelSpec`, as JSON, on a tiny graph, from the weights that seed 0 gives."""
    graph, model = tiny_graph(graph_name), ModelSpec.model_validate_json(spec)
    mean, last = model.options.get("propagation") == "mean", model.options.get("powers") == "last"

    def logits(adjacency: NDArray[np.float64], x: Tensor, weights: oracle.Weights) -> Tensor:
        return oracle.logits(
            oracle.propagation_matrix(adjacency, "sage" if mean else model.name), x, weights,
            model=model.name, layers=model.layers, linear=model.linear_layers,
            norm=model.norm == "layer", residual=model.residual, order=model.order, last=last,
        )  # fmt: skip

    network = GNN(model, graph.features.shape[1], graph.num_classes, seed=0, dtype=torch.float64)
    return train_dense(graph, is_inductive(graph_name), network, logits)


@oracle.one_thread()
def train_dense(graph: GraphData, inductive: bool, network: GNN, logits: DenseLogits) -> Expected:
    """Train for `EPOCHS` in one process, in float64, from a network's weights; the whole graph is evaluated.

    `inductive`: it is trained on its training subgraph; `logits`: returns those of all nodes, from a dense
    adjacency, features and weights.
    """
    adjacency, x = dense_adjacency(graph), torch.from_numpy(graph.features.astype(np.float64))
    seen = np.flatnonzero(graph.train_mask) if inductive else np.arange(len(x))
    labelled = graph.labels >= 0 if graph.labels.ndim == 1 else np.ones(len(x), bool)
    rows = np.flatnonzero((graph.train_mask & labelled)[seen])
    weights = {name: value.detach().clone().requires_grad_() for name, value in network.named_parameters()}
    optimizer = torch.optim.Adam(weights.values(), lr=EXACT_SPEC.lr)
    losses, gradients = [], dict[str, NDArray[Any]]()
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        output = logits(adjacency[np.ix_(seen, seen)], x[seen], weights)
        loss = oracle.mean_loss(output, graph.labels[seen], rows)
        loss.backward()
        gradients = {name: w.grad.numpy().copy() for name, w in weights.items() if w.grad is not None}
        optimizer.step()
        losses.append(loss.item())
    output = logits(adjacency, x, weights)
    masks = {"train": graph.train_mask, "val": graph.val_mask, "test": graph.test_mask}
    scores = {k: oracle.scores(output, graph.labels, np.flatnonzero(m & labelled)) for k, m in masks.items()}
    return Expected(losses, gradients, scores, {name: w.detach().numpy() for name, w in weights.items()})


def difference(outcome: RankOutcome, want: Expected) -> str:
    """Return what a rank saw that the oracle did not, in a few words; "" if nothing."""
    for epoch, (row, loss) in enumerate(zip(outcome.rows, want.losses, strict=True)):
        if not abs(row["loss"] - loss) <= TOLERANCE * abs(loss):  # no number is none that is close
            return f"loss of epoch {epoch} expected {loss:.10g}, seen {row['loss']:.10g}"
    if outcome.gradients.keys() != want.gradients.keys():
        missing = sorted(want.gradients.keys() ^ outcome.gradients.keys())
        return f"gradients of {', '.join(missing)} expected, or not expected"
    scale = max(float(np.abs(gradient).max()) for gradient in want.gradients.values())
    for name, gradient in want.gradients.items():
        apart = float(np.abs(outcome.gradients[name] - gradient).max(initial=0))
        if not apart <= TOLERANCE * scale:
            return f"gradient of {name} is {apart / scale:.2g} of the largest apart from the expected one"
    for name, value in want.after.items():
        if not np.allclose(outcome.after[name], value, rtol=1e-6, atol=1e-8):
            return f"{name} is another one after {EPOCHS} epochs"
    for split, score in want.scores.items():
        seen = outcome.scores[split]
        if seen is None or not abs(seen - score) <= 1e-12:
            return f"{split} score expected {score}, seen {seen}"
    return ""
