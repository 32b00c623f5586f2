"""Every mini-batch method: draws depend on the seed alone, bytes are the closed form, no rank hangs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.ranks import run_ranks
from support.tiers import Batches
from support.training import batches_beside, read_inputs, run_all_to_the_end

from harness.check.graphs import OnDisk, on_disk, random_graph
from harness.check.training import Case, RankOutcome, rank_group, train
from harness.models.layer import ModelSpec
from harness.runtime.method import METHODS as REGISTERED
from harness.runtime.minibatch import MiniBatchMethod
from harness.runtime.run_config import TrainSpec

pytestmark = pytest.mark.slow

WORLD, NODES, FEATURES, ITEM, EPOCHS = 3, 60, 7, 4, 2
GRAPH = random_graph(61, NODES, degree=6, features=FEATURES)
PARTS = np.random.default_rng(2).integers(0, WORLD, NODES)
MODELS = {
    "sage": ModelSpec(name="sage", layers=2, hidden=5, dropout=0.5),
    "gcn": ModelSpec(name="gcn", layers=2, hidden=5, dropout=0.5),
    "gat": ModelSpec(name="gat", layers=2, hidden=6, heads=2, dropout=0.5),
    "mixhop": ModelSpec(name="mixhop", layers=1, order=2, hidden=6, dropout=0.5),
}
SPEC = TrainSpec(epochs=EPOCHS, threads=1)
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "graphsage": ("graphsage", {"fanouts": [3, 2], "batch_size": 4}),
    "graphsage weighted": ("graphsage", {"fanouts": 2, "batch_size": 4, "weights": "propagation"}),
    "graphsage labor": ("graphsage", {"fanouts": [3, 2], "batch_size": 4, "sampler": "labor", "importance": 2}),
    "cooperative": ("cooperative", {"fanouts": [3, 2], "batch_size": 4}),
    "cooperative labor": ("cooperative", {"fanouts": [3, 2], "batch_size": 4, "sampler": "labor"}),
    "p3": ("p3", {"fanouts": [3, 2], "batch_size": 4}),
    "fastgcn": ("fastgcn", {"sizes": 20, "batch_size": 4}),
    "ladies": ("ladies", {"sizes": 6, "batch_size": 4}),
    "ladies poisson": ("ladies", {"sizes": 6, "batch_size": 4, "estimator": "poisson"}),
    "skewed": ("skewed", {"sizes": 6, "batch_size": 4}),
    "skewed local": ("skewed", {"sizes": 6, "batch_size": 4, "version": "local"}),
    "skewed saint": ("skewed", {"base": "saint", "size": 12}),
    "node subgraphs": ("graphsaint", {"sampler": "node", "size": 12}),
    "frontier subgraphs": ("graphsaint", {"size": 12, "frontier": 4, "coverage": 10}),
    "clustergcn": ("clustergcn", {"clusters": 8, "per_batch": 2}),
    "gas": ("gas", {"clusters": 8, "per_batch": 2}),
    "vrgcn": ("vrgcn", {"fanouts": 2, "batch_size": 4}),
    "dgs": ("dgs", {"fanouts": 2, "batch_size": 4}),  # before its first explanation; tests/methods/dgs/test_dgs.py
}
SUBGRAPHS = ("skewed saint", "node subgraphs", "frontier subgraphs", "clustergcn")
STORES: dict[str, dict[str, Any]] = {
    "": {},
    "prefetch": {"prefetch": 2},
    "pool": {"pool": 3},
    "degree": {"cache": "degree", "capacity": 0.5},
    "presampled": {"cache": "presampled", "capacity": 0.5, "prefetch": 1},
    "host": {"storage": "host"},
    "host cached": {"storage": "host", "cache": "presampled", "capacity": 0.5, "prefetch": 1},
    "disk": {"storage": "disk"},
    "disk cached": {"storage": "disk", "cache": "presampled", "capacity": 0.5, "prefetch": 1},
}
# Two runs of a kind read the same values, however these come.
LESS: dict[str, dict[str, Any]] = {
    "rate": {"feature_rate": 0.6},
    "rate ahead": {"feature_rate": 0.6, "cache": "presampled", "capacity": 0.5, "prefetch": 2},
    "rate of host": {"feature_rate": 0.6, "storage": "host"},
    "rate of disk": {"feature_rate": 0.6, "storage": "disk", "prefetch": 1},
    "loss": {"feature_loss": 0.3},
    "loss ahead": {"feature_loss": 0.3, "prefetch": 2},
}
READ_LESS = ("graphsage", "ladies", "node subgraphs")
READ_BY_ALL = (*READ_LESS, "vrgcn", "gas", "cooperative", "p3")
UNCACHED = ("vrgcn", "cooperative", "cooperative labor", "p3")
OWN_BYTES = ("vrgcn", "gas", "cooperative", "cooperative labor", "p3")  # in their own tests
# The first model from every store; the others, of one method a family of samplers, with and without prefetching.
RUNS = [
    (name, store, model)
    for name in METHODS
    for store in STORES
    for model in MODELS
    if (name != "vrgcn" or store in ("", "pool"))
    and (not name.startswith("cooperative") or "cache" not in STORES[store])
    and (name != "p3" or store in ("", "prefetch", "pool"))
    and (name != "dgs" or not store.startswith("host"))
    and (model == "sage" or (name in READ_BY_ALL and store in ("", "prefetch")))
] + [(name, less, "sage") for name in READ_LESS for less in LESS]
Run = tuple[str, str, str]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[Run, list[RankOutcome]]]:
    data = on_disk(GRAPH, PARTS, WORLD, False, tmp_path_factory.mktemp("minibatch"))

    def case(name: str, store: str, model: str) -> Case:
        method, options = METHODS[name]
        spec = SPEC.model_copy(update={"threads": 2 if store else 1})
        return Case(data, method, options | (STORES | LESS)[store], MODELS[model], spec, timing="off")

    with rank_group(WORLD) as group:

        def run(runs: Sequence[Run]) -> dict[Run, list[RankOutcome]]:
            by_rank = group.call(train, [case(*each) for each in runs], timeout_s=120)
            return {each: [ranks[i] for ranks in by_rank] for i, each in enumerate(runs)}

        yield Batches(run, *([each for each in RUNS if each[0] == name] for name in METHODS))


def test_every_method_that_draws_batches_is_held_to_this() -> None:
    mini = {name for name in REGISTERED.names() if issubclass(REGISTERED.load(name), MiniBatchMethod)}
    assert mini == {method for method, _ in METHODS.values()}
    others = {name for name in REGISTERED.names() if REGISTERED.load(name).family == "mini-batch"} - mini
    assert others == {"sign"}  # whose batches are rows that the rank has


@pytest.mark.parametrize(("name", "model"), [(name, model) for name, store, model in RUNS if not store])
def test_neither_prefetch_nor_threads_nor_where_rows_come_from_change_a_bit(
    outcomes: Mapping[Run, list[RankOutcome]], name: str, model: str
) -> None:
    runs = [run for run in RUNS if run[::2] == (name, model) and run[1] in STORES]
    plain = losses(outcomes, (name, "", model))
    assert all(losses(outcomes, run) == plain for run in runs)
    assert all(map(math.isfinite, plain))
    assert plain[0] != plain[1]


def test_a_batch_is_gone_when_the_next_one_is_drawn(tmp_path: Path) -> None:
    """Or the rows of both would be there at once."""
    data = on_disk(GRAPH, np.zeros(NODES, np.int64), 1, False, tmp_path)
    cases = [Case(data, method, options, MODELS["sage"], SPEC, timing="off") for method, options in METHODS.values()]
    (found,) = run_ranks(batches_beside, 1, cases)
    assert dict(zip(METHODS, found, strict=True)) == dict.fromkeys(METHODS, 0)


def losses(outcomes: Mapping[Run, list[RankOutcome]], run: Run) -> list[float]:
    return [row["loss"] for row in outcomes[run][0].rows]


@pytest.mark.parametrize("name", READ_LESS)
def test_what_is_left_of_the_features_depends_on_the_seed_alone(
    outcomes: Mapping[Run, list[RankOutcome]], name: str
) -> None:
    plain = losses(outcomes, (name, "", "sage"))
    for kind in ("rate", "loss"):
        less = losses(outcomes, (name, kind, "sage"))
        assert losses(outcomes, (name, f"{kind} ahead", "sage")) == less
        assert all(map(math.isfinite, less))
        assert less[0] != plain[0]


def counted(ranks: list[RankOutcome], epoch: int, key: str) -> int:
    """Return a figure of an epoch, summed over the ranks."""
    return sum(int(o.rows[epoch]["stats"].get(key) or o.rows[epoch].get(key) or 0) for o in ranks)


@pytest.mark.parametrize("run", [run for run in RUNS if run[0] not in OWN_BYTES], ids=" ".join)
def test_bytes_are_the_closed_form(outcomes: Mapping[Run, list[RankOutcome]], run: Run) -> None:
    ranks, (name, store, model) = outcomes[run], run
    weights = sum(w.size for w in ranks[0].before.values())
    more = (STORES | LESS)[store]
    width, host = round(more.get("feature_rate", 1) * FEATURES), more.get("storage") == "host"
    for epoch in range(EPOCHS):
        steps, rest = divmod(counted(ranks, epoch, "bytes_model"), 2 * (WORLD - 1) * (weights + 1) * ITEM)
        assert steps > 0
        assert rest == 0
        nodes, remote, cached = (counted(ranks, epoch, f"{kind}_nodes") for kind in ("input", "remote", "cached"))
        fetched, peers = remote - cached, 8 * WORLD * (WORLD - 1) * steps
        feature, control = fetched * width * ITEM, 4 * fetched + peers
        if host:
            feature = control = fetched = remote = 0
            assert counted(ranks, epoch, "bytes_swap") == (nodes - cached) * width * ITEM
        if more.get("storage") == "disk":
            read = counted(ranks, epoch, "disk_nodes")
            assert counted(ranks, epoch, "bytes_disk") == read * FEATURES * 4  # float32, whatever the model has
            # Own rows, and what peers ask for, a row that two ask for once.
            assert read <= nodes - cached
            assert "cache" in more or nodes - remote <= read
        if name in SUBGRAPHS:
            # Every layer has the input's rows, those of other ranks with their labels.
            control += (4 + 8) * counted(outcomes[name, "", model], epoch, "remote_nodes") + peers
        assert counted(ranks, epoch, "bytes_feature") == feature
        assert counted(ranks, epoch, "bytes_control") == control
        if "cache" not in more:
            assert (fetched == 0) == (name == "skewed local" or host)
        assert (cached > 0) == ("cache" in more and (name != "skewed local" or host))


def test_which_values_of_the_inputs_are_left_out(tmp_path: Path) -> None:
    data = on_disk(GRAPH, PARTS, WORLD, False, tmp_path)
    options = {"fanouts": 3, "batch_size": 4}
    cases = [Case(data, "graphsage", options | LESS[kind], MODELS["sage"], SPEC) for kind in ("rate", "loss")]
    by_rank = run_ranks(read_inputs, WORLD, cases)
    steps = list(zip(*(rates for rates, _ in by_rank), strict=True))
    left = [left_columns(step) for step in steps]
    assert len(set(left)) > 1  # others each step
    own, other, first = [], [], set()
    for rank, (_, read) in enumerate(by_rank):
        for nodes, inputs in read:
            lost = inputs == 0
            assert np.array_equal(inputs, np.where(lost, 0, GRAPH.features[nodes]))
            own.append(lost[PARTS[nodes] == rank])
            other.append(lost[PARTS[nodes] != rank])
            first |= {lost[:1].tobytes()} if nodes.size else set()
    for values in own, other:
        assert np.concatenate(values).mean() == pytest.approx(LESS["loss"]["feature_loss"], abs=0.05)
    assert len(first) > WORLD  # fresh on each rank, in each step


def left_columns(step: tuple[tuple[np.ndarray, np.ndarray], ...]) -> tuple[int, ...]:
    """Return the columns of remote rows that are there, the same ones on all ranks; own rows are whole."""
    found = set()
    for rank, (nodes, inputs) in enumerate(step):
        remote = PARTS[nodes] != rank
        left = np.flatnonzero(inputs[remote].any(0))
        want = GRAPH.features[nodes].copy()
        want[np.ix_(remote, np.setdiff1d(np.arange(FEATURES), left))] = 0
        assert np.array_equal(inputs, want)
        found |= {tuple(left.tolist())} if remote.any() else set()
    assert len(found) == 1
    assert len(next(iter(found))) == round(LESS["rate"]["feature_rate"] * FEATURES)
    return found.pop()


def troubled(folder: Path) -> dict[str, OnDisk]:
    """Return graphs that leave a rank with little to do."""
    found = {
        "no edges": random_graph(62, NODES, degree=0),
        "trained on by rank 0 only": random_graph(63, NODES, train_only=range(NODES // WORLD)),
    }
    parts = np.minimum(np.arange(NODES) * WORLD // NODES, WORLD - 1)
    stored = {}
    for name, graph in found.items():
        (folder / name).mkdir()
        stored[name] = on_disk(graph, parts, WORLD, False, folder / name)
    return stored


def test_no_rank_waits_for_one_that_has_nothing_to_do(tmp_path: Path) -> None:
    stored = troubled(tmp_path)
    runs = [
        (graph, name, options | ({} if name in UNCACHED else STORES["presampled"]))
        for graph in stored
        for name, (_, options) in METHODS.items()
    ]
    cases = [Case(stored[graph], METHODS[name][0], options, MODELS["gat"], SPEC) for graph, name, options in runs]
    for run, *reports in zip(runs, *run_ranks(run_all_to_the_end, WORLD, cases, timeout_s=200), strict=True):
        assert [report["status"] for report in reports] == ["ok"] * WORLD, run
        first, *others = ([row["loss"] for row in report["epochs"]] for report in reports)
        assert all(other == first for other in others), run
        assert all(map(math.isfinite, first)), run


@pytest.mark.parametrize("inductive", [False, True])
def test_inference_on_everything_scores_like_the_exact_evaluation(inductive: bool, tmp_path: Path) -> None:
    data = on_disk(GRAPH, PARTS, WORLD, inductive, tmp_path)
    spec = SPEC.model_copy(update={"sampled_eval": True, "eval_every": 1})
    cases = [
        Case(data, method, options, MODELS["sage"], spec)
        for method, options in [
            ("graphsage", {"fanouts": -1, "batch_size": 4}),
            ("ladies", {"sizes": -1, "batch_size": 4}),
            ("graphsaint", {"sampler": "node", "size": 12}),
            ("cooperative", {"fanouts": -1, "batch_size": 4}),
        ]
    ]
    sage, ladies, saint, shared = run_ranks(run_all_to_the_end, WORLD, cases)[0]
    for row in sage["epochs"] + ladies["epochs"] + shared["epochs"]:
        assert row["sampled_val_score"] == pytest.approx(row["val_score"])
        assert row["sampled_test_score"] == pytest.approx(row["test_score"])
    assert sage["summary"]["sampled_test_at_best_val"] == sage["summary"]["test_at_best_val"]
    assert [row["sampled_test_score"] for row in saint["epochs"]] == [None] * EPOCHS
