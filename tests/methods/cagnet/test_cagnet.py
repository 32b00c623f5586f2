"""CAGNET beyond the conformance suite: replicas train exactly, stay equal, and send what is said."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from harness_methods.cagnet import CAGNET
from support.broadcasts import directed_graph, group_bits
from support.ranks import run_ranks
from support.tiers import Batches, tiered

from harness.check.graphs import on_disk, random_graph
from harness.check.training import Case, RankOutcome, train
from harness.errors import UserError
from harness.models.gnn import GNN
from harness.models.layer import ModelSpec
from harness.runtime.cost_models import MemoryCase, PartSize
from harness.runtime.run_config import TrainSpec

pytestmark = pytest.mark.timeout(500)  # the first test of a number of ranks runs what all of them look at

NODES, FEATURES, HIDDEN, CLASSES, ITEM, EPOCHS = 60, 7, 5, 4, 4, 3
GRAPHS = {
    "inductive weighted": (random_graph(61, weighted=True), True),
    "directed": (directed_graph(62), False),
    "multilabel": (random_graph(63, multilabel=True), False),
    "no edges, one trainer": (random_graph(64, degree=0, train_only=range(15)), False),
}
MODELS = [
    ModelSpec(name="sage", layers=3, hidden=6, dropout=0, norm="layer", residual=True),
    ModelSpec(name="gcn", layers=2, linear_layers=1, hidden=3, dropout=0),
    ModelSpec(name="gat", layers=2, hidden=6, heads=2, dropout=0, norm="layer"),
    ModelSpec(name="mixhop", layers=2, order=2, hidden=6, dropout=0),
]
OPTIONS = {"gat": ["", "transform_before_exchange"], "mixhop": ["precompute"]}  # attention cannot be precomputed
# Numbers of models, and options.
RUNS = [
    (number, {option: True} if option else {})
    for number, model in enumerate(MODELS)
    for option in OPTIONS.get(model.name, ["", "transform_before_exchange", "precompute"])
]


COUNTED_GRAPH = directed_graph(66)
COUNTED = {
    "plain": ({}, [FEATURES, HIDDEN, HIDDEN], [0, HIDDEN, HIDDEN]),
    "transform_before_exchange": (
        {"transform_before_exchange": True},
        [FEATURES, HIDDEN, CLASSES],
        [0, HIDDEN, CLASSES],
    ),
    "precompute": ({"precompute": True}, [0, HIDDEN, HIDDEN], [0, HIDDEN, HIDDEN]),
    "mixhop": ({}, [FEATURES, FEATURES, 6, 6], [0, 0, 6, 6]),
}
COUNTED_MODEL = ModelSpec(name="sage", layers=3, hidden=HIDDEN, dropout=0.5)
COUNTED_MIXHOP = ModelSpec(name="mixhop", layers=2, order=2, hidden=6, dropout=0.5)
COUNTED_GAT = ModelSpec(name="gat", layers=2, hidden=6, heads=2, dropout=0.5)
PARTS = {world: np.random.default_rng(world).integers(0, world, NODES) for world in (2, 3, 4)}
# Replications by number of ranks whose training is held to one process, and one whose bytes are counted.
EXACT, BYTES = {2: [2], 4: [2, 4]}, {3: 1, 4: 2}
TIERED_BYTES = [(3, 1), pytest.param(4, 2, marks=pytest.mark.slow)]
EXACT_SPEC = TrainSpec(epochs=EPOCHS, precision="float64", threads=1)


def exact_cases(world: int, folder: Path, method: str, runs: list[tuple[int, dict[str, object]]]) -> list[Case]:
    """Every graph with every one of `runs`."""
    cases = []
    for name, (graph, inductive) in GRAPHS.items():
        directory = folder / name
        directory.mkdir(exist_ok=True)
        parts = PARTS[world] if world > 1 else np.zeros(NODES, int)
        data = on_disk(graph, parts, world, inductive, directory)
        cases += [Case(data, method, options, MODELS[number], EXACT_SPEC) for number, options in runs]
    return cases


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cagnet")


@pytest.fixture(scope="module")
def by_world(folder: Path) -> Batches[int, list[list[RankOutcome]]]:
    """Outcomes by rank and case of 2, 3 and 4 ranks: the exact cases, then those whose bytes are counted."""

    def run(worlds: Sequence[int]) -> dict[int, list[list[RankOutcome]]]:
        (world,) = worlds
        runs = [(number, {"replication": c, **more}) for c in EXACT.get(world, []) for number, more in RUNS]
        cases = exact_cases(world, folder, "cagnet", runs) if runs else []
        if world in BYTES:
            directory = folder / f"bytes{world}"
            directory.mkdir()
            data = on_disk(COUNTED_GRAPH, PARTS[world], world, False, directory)
            spec = TrainSpec(epochs=EPOCHS, threads=1)
            for name, (more, *_) in COUNTED.items():
                model = COUNTED_MIXHOP if name == "mixhop" else COUNTED_MODEL
                cases.append(Case(data, "cagnet", {"replication": BYTES[world], **more}, model, spec))
            cases.append(Case(data, "cagnet", {"replication": BYTES[world]}, COUNTED_GAT, spec))
        return {world: run_ranks(train, world, cases, timeout_s=400)}

    return Batches(run, [2], [3], [4])


@pytest.fixture(scope="module")
def single(folder: Path) -> list[RankOutcome]:
    """`full` on one rank, which the conformance suite holds to the dense oracle, of every graph and model."""
    models: list[tuple[int, dict[str, object]]] = [(number, {}) for number in range(len(MODELS))]
    (outcomes,) = run_ranks(train, 1, exact_cases(1, folder, "full", models))
    return outcomes


@pytest.fixture(scope="module")
def outcomes(by_world: Batches[int, list[list[RankOutcome]]]) -> Batches[tuple[int, str], list[RankOutcome]]:
    """Outcomes by rank of the cases whose bytes are counted."""
    names = [*COUNTED, "gat"]

    def run(keys: Sequence[tuple[int, str]]) -> dict[tuple[int, str], list[RankOutcome]]:
        ((world, _), *_) = keys
        return {(world, name): [ranks[i - len(names)] for ranks in by_world[world]] for i, name in enumerate(names)}

    return Batches(run, *([(world, name) for name in names] for world in BYTES))


@pytest.mark.slow
@pytest.mark.parametrize("world", tiered(EXACT, [2]))
def test_replicas_train_as_one_process(
    world: int, by_world: Batches[int, list[list[RankOutcome]]], single: list[RankOutcome]
) -> None:
    models = [number for _ in GRAPHS for _ in EXACT[world] for number, _ in RUNS]
    each = len(models) // len(GRAPHS)
    for index, number in enumerate(models):
        want = single[index // each * len(MODELS) + number]
        scale = max(np.abs(g).max() for g in want.gradients.values())
        for ranks in by_world[world]:
            got = ranks[index]
            losses = [[row["loss"] for row in o.rows] for o in (got, want)]
            np.testing.assert_allclose(*losses, rtol=1e-9)
            for key, gradient in want.gradients.items():
                np.testing.assert_allclose(got.gradients[key], gradient, rtol=0, atol=1e-9 * scale)
            assert got.scores == pytest.approx(want.scores, abs=1e-12)
            first = by_world[world][0][index].after
            assert all(np.array_equal(value, first[key]) for key, value in got.after.items())


def test_copies_stay_equal_with_dropout(tmp_path: Path) -> None:
    model = ModelSpec(name="sage", layers=2, hidden=8, dropout=0.5, norm="layer")
    data = on_disk(random_graph(65), np.arange(NODES) * 4 // NODES, 4, False, tmp_path)
    spec = TrainSpec(epochs=EPOCHS, threads=1)
    attention = ModelSpec(name="gat", layers=2, hidden=8, dropout=0.5)
    runs = [("cagnet", model), ("support.broadcasts:Unalike", model), ("cagnet", attention)]
    cases = [Case(data, method, {"replication": 2}, trained, spec) for method, trained in runs]
    bits = run_ranks(group_bits, 4, cases)
    assert len(bits[0][0]) == 4 * EPOCHS
    for case in (0, 2):
        assert bits[0][case] == bits[1][case]
        assert bits[2][case] == bits[3][case]
    assert len({*bits[0][0], *bits[2][0]}) == 8 * EPOCHS
    assert bits[0][1] != bits[1][1]


def total(ranks: list[RankOutcome], scope: str) -> dict[tuple[str, int], int]:
    """Bytes that all ranks sent to peers, by purpose and layer."""
    found: dict[tuple[str, int], int] = defaultdict(int)
    for outcome in ranks:
        for row in outcome.traffic:
            if row["scope"] == scope and row["purpose"] != "control":
                found[row["purpose"], row["layer"]] += row["sent_bytes"]
    return {key: value for key, value in found.items() if value}


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize(("world", "replication"), TIERED_BYTES)
def test_bytes_are_the_closed_form(
    outcomes: Batches[tuple[int, str], list[RankOutcome]], world: int, replication: int, name: str
) -> None:
    ranks, (_, forward, backward) = outcomes[world, name], COUNTED[name]
    columns, copies = world // replication - 1, replication - 1
    value = EPOCHS * NODES * ITEM
    weights = 1 + sum(w.size for w in ranks[0].before.values())
    want = {("model", -1): EPOCHS * 2 * (world - 1) * weights * ITEM}
    for layer, (there, back) in enumerate(zip(forward, backward, strict=True)):
        purpose = "embedding" if layer else "feature"
        want[purpose, layer] = (columns + 2 * copies) * there * value
        want["gradient", layer] = (columns + copies) * back * value
    assert total(ranks, "epoch") == {key: size for key, size in want.items() if size}


@pytest.mark.parametrize(("world", "replication"), TIERED_BYTES)
def test_bytes_of_attention(
    outcomes: Batches[tuple[int, str], list[RankOutcome]], world: int, replication: int
) -> None:
    """Sent are H W, of width 6 and, two heads of logits, 2 x 4; backward the column's rows once more.

    A row's sums bear a total and a peak for each of the two heads, its gradients those of key and query.
    """
    columns, copies = world // replication - 1, replication - 1
    value, found = EPOCHS * NODES * ITEM, total(outcomes[world, "gat"], "epoch")
    for layer, width in enumerate([6, 2 * CLASSES]):
        rows = (2 * columns * width + 2 * copies * (width + 4)) * value
        gradients = (columns * (width + 2) + copies * 2 + copies * (width + 4)) * value
        assert found["embedding" if layer else "feature", layer] == rows
        assert found["gradient", layer] == gradients


@pytest.mark.slow
def test_setup_copies_features(outcomes: Batches[tuple[int, str], list[RankOutcome]]) -> None:
    rows = NODES * FEATURES * ITEM
    assert total(outcomes[3, "plain"], "setup") == {}
    assert total(outcomes[4, "plain"], "setup") == {("feature", 0): rows}
    boundary = total(outcomes[4, "precompute"], "setup")["feature", 0] - 2 * rows
    dense = np.zeros((NODES, NODES), bool)
    dense[np.repeat(np.arange(NODES), np.diff(COUNTED_GRAPH.indptr)), COUNTED_GRAPH.indices] = True
    parts = PARTS[4]
    read = [(dense[parts == r].any(0) & (parts != r)).sum() for r in range(4)]
    assert boundary == sum(read) * FEATURES * ITEM


@pytest.mark.slow
def test_matrix_of_peers(outcomes: Batches[tuple[int, str], list[RankOutcome]]) -> None:
    """Of layer 1, by rank and peer: broadcasts and sums of gradients in columns, the rest in groups."""
    sizes = {world: np.bincount(PARTS[world], minlength=world) for world in (3, 4)}
    for (world, name), ranks in outcomes.items():
        if name in ("gat", "mixhop"):
            continue
        for rank, outcome in enumerate(ranks):
            for row in outcome.traffic:
                if row["scope"] != "epoch" or row["layer"] != 1:
                    continue
                mine, theirs = sizes[world][rank], sizes[world][row["peer"]]
                if world == 3 or (row["peer"] - rank) % 2 == 0:
                    want = mine if row["direction"] == "forward" else theirs
                else:
                    assert row["peer"] == rank ^ 1
                    want = mine + theirs if row["direction"] == "forward" else mine
                assert row["sent_bytes"] == want * HIDDEN * ITEM * EPOCHS, name


def test_replication_must_divide_the_parts() -> None:
    part = PartSize(inner=100, boundary=20, edges=1000, cut=50)
    model = GNN(ModelSpec(layers=2, hidden=8), 10, 3, seed=0, dtype=torch.float32)
    case = MemoryCase(part, None, train_nodes=40, nodes=400, edges=4000, model=model, parts=4)
    with pytest.raises(UserError, match="replication: 3 copies"):
        CAGNET.memory(CAGNET.Options(replication=3), case)
    once, twice = (CAGNET.memory(CAGNET.Options(replication=c), case) for c in (1, 2))
    # One foreign block of 100 rows, whatever the boundary; Eq. 3's three values an inner row.
    assert once["layers (Eq. 3)"] == 4 * (3 * 100 + 100) * (10 + 8)
    assert twice["layers (Eq. 3)"] == 4 * (3 * 200 + 100) * (10 + 8)
    assert once == CAGNET.memory(CAGNET.Options(), replace(case, train=replace(part, boundary=90)))
    # Four matrices of 100 rows and their transposes.
    columns = 4 * 8 * 101 + 8 * 401 + 2 * 4 * 1000 + 4 * (100 + 400)
    assert once["adjacency"] == columns
    # Three blocks of a tenth of the rows; 5 of the 50 cut entries.
    sampled = CAGNET.memory(CAGNET.Options(rate=0.1), case)
    assert sampled["layers (Eq. 3)"] == 4 * (3 * 100 + 10) * (10 + 8)
    assert sampled["adjacency"] == columns + 8 * 2 * 101 + 8 * (101 + 31) + 2 * 4 * 5 + 4 * (100 + 30)
    assert twice["input features"] == 3 * once["input features"]
