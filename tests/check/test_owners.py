"""`topology: owner`: the same bits as from a shared map, of own rows alone, for bytes that are counted otherwise."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from support.owners import Destinations, destinations, train_on_own_rows, train_without_answers
from support.ranks import run_ranks

from harness.check.graphs import OnDisk, on_disk, random_graph
from harness.check.training import Case, RankError, RankOutcome, rank_group, train
from harness.data.graph import GraphData
from harness.models.layer import ModelSpec
from harness.runtime.method import METHODS as REGISTERED
from harness.runtime.run_config import TrainSpec

pytestmark = pytest.mark.slow

WORLD, NODES, EPOCHS = 3, 60, 2
GRAPHS = {kind: random_graph(81, NODES, degree=8, weighted=kind == "weighted") for kind in ("plain", "weighted")}
MODELS = {
    "plain": ModelSpec(name="sage", layers=3, hidden=5, dropout=0.5),
    "weighted": ModelSpec(name="gcn", layers=3, hidden=5, dropout=0.5),
}
DGS: dict[str, Any] = {  # without a threshold masks always move, and guide
    "fanouts": 3, "batch_size": 4, "period": 2, "explain": "inline", "explain_steps": 5, "threshold": 0,
}  # fmt: skip
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "graphsage": ("graphsage", {"fanouts": [4, 2, 3], "batch_size": 4}),
    "graphsage all": ("graphsage", {"fanouts": [-1, 3, 1], "batch_size": 0}),
    "graphsage by weight": ("graphsage", {"fanouts": 2, "batch_size": 4, "weights": "propagation"}),
    "graphsage labor": ("graphsage", {"fanouts": 2, "batch_size": 4, "sampler": "labor", "importance": 1}),
    "dgs": ("dgs", DGS),
    "dgs unbiased": ("dgs", DGS | {"estimator": "unbiased"}),
    "ladies": ("ladies", {"sizes": 8, "batch_size": 4}),
    "ladies nested": ("ladies", {"sizes": 8, "batch_size": 4, "layers": "nested"}),
    "ladies public": ("ladies", {"sizes": 8, "batch_size": 4, "layers": "public"}),
    "ladies poisson": ("ladies", {"sizes": 8, "batch_size": 4, "estimator": "poisson"}),
    "skewed": ("skewed", {"sizes": 8, "batch_size": 4}),
    "skewed local": ("skewed", {"sizes": 8, "batch_size": 4, "version": "local"}),
}
WAYS: dict[str, dict[str, Any]] = {
    "": {},
    "ahead": {"prefetch": 3},
    "cached": {"cache": "presampled", "capacity": 0.5, "prefetch": 1},
    "by degree": {"cache": "degree", "capacity": 0.5},
}
Run = tuple[str, str, str]
RUNS: list[Run] = [(name, way, kind) for name in METHODS for way, kind in (("", "plain"), ("ahead", "weighted"))]
RUNS += [(name, way, "plain") for name in ("graphsage", "dgs", "ladies") for way in ("cached", "by degree")]
RECOUNTED = [run for run in RUNS if not run[0].startswith("dgs")]


def parts_of(world: int) -> np.ndarray:
    parts = np.random.default_rng(5).integers(0, world, NODES)
    parts[GRAPHS["plain"].train_mask & (parts == world - 1)] = 0  # so that the last rank has empty batches
    return parts


PARTS = parts_of(WORLD)


def stored(world: int, folder: Path) -> dict[str, OnDisk]:
    found = {}
    for kind, graph in GRAPHS.items():
        (folder / kind).mkdir()
        found[kind] = on_disk(graph, parts_of(world), world, False, folder / kind)
    return found


def case_of(run: Run, data: dict[str, OnDisk], **others: Any) -> Case:
    name, way, kind = run
    method, options = METHODS[name]
    spec = TrainSpec(epochs=EPOCHS, threads=2 if WAYS[way].get("prefetch") else 1)
    return Case(data[kind], method, options | WAYS[way] | others, MODELS[kind], spec, timing="plain")


def cases_of(runs: list[Run], data: dict[str, OnDisk], **others: Any) -> list[Case]:
    return [case_of(run, data, **others) for run in runs]


Outcomes = dict[Run, list[RankOutcome]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, OnDisk]:
    return stored(WORLD, tmp_path_factory.mktemp("owners"))


@pytest.fixture(scope="module")
def outcomes(data: dict[str, OnDisk]) -> tuple[Outcomes, Outcomes, dict[Run, list[list[Destinations]]]]:
    """Return what is seen of a shared map and of owners, and what is drawn for, by run and rank."""
    with rank_group(WORLD) as group:
        shared = group.call(train, cases_of(RUNS, data), timeout_s=200)
        owner = group.call(train_on_own_rows, cases_of(RUNS, data, topology="owner"), timeout_s=200)
        drawn = group.call(destinations, cases_of(RECOUNTED, data), timeout_s=100)

    def by_run(runs: list[Run], found: list[list[Any]]) -> dict[Run, list[Any]]:
        return {run: [rank[i] for rank in found] for i, run in enumerate(runs)}

    return by_run(RUNS, shared), by_run(RUNS, owner), by_run(RECOUNTED, drawn)


def assert_same(one: list[RankOutcome], other: list[RankOutcome]) -> None:
    for a, b in zip(one, other, strict=True):
        assert [row["loss"] for row in a.rows] == [row["loss"] for row in b.rows]
        for epoch in range(EPOCHS):
            told = a.rows[epoch]["stats"]
            counts = {key: value for key, value in told.items() if not key.endswith("_s")}
            assert {key: b.rows[epoch]["stats"][key] for key in counts} == counts
        for name, weights in a.after.items():
            np.testing.assert_array_equal(weights, b.after[name])
    assert one[0].rows[0]["loss"] != one[0].rows[1]["loss"]


@pytest.mark.parametrize("run", RUNS, ids=" ".join)
def test_owners_give_the_bits_of_a_shared_map(outcomes: tuple[Outcomes, Outcomes, Any], run: Run) -> None:
    shared, owner, _ = outcomes
    assert_same(shared[run], owner[run])
    if run[0].startswith("dgs"):
        assert owner[run][0].rows[1]["stats"]["guided_steps"] > 0


@pytest.mark.parametrize("world", [1, 2, 4])
def test_with_any_number_of_ranks(world: int, tmp_path: Path) -> None:
    runs = [(name, "ahead", "plain") for name in ("graphsage", "dgs", "ladies")]
    data = stored(world, tmp_path)
    with rank_group(world) as group:
        shared = group.call(train, cases_of(runs, data))
        owner = group.call(train_on_own_rows, cases_of(runs, data, topology="owner"))
    for i in range(len(runs)):
        assert_same([rank[i] for rank in shared], [rank[i] for rank in owner])


@pytest.mark.parametrize("name", ["graphsage", "ladies"])
def test_a_shared_map_is_of_no_use_without_the_rows_of_others(
    outcomes: tuple[Outcomes, Outcomes, Any], data: dict[str, OnDisk], name: str
) -> None:
    run = (name, "", "plain")
    found = run_ranks(train_on_own_rows, WORLD, cases_of([run], data))
    assert [row["loss"] for row in found[0][0].rows] != [row["loss"] for row in outcomes[0][run][0].rows]


def asked(graph: GraphData, method: str, options: dict[str, Any], rank: int, batch: Destinations) -> tuple[int, int]:
    """Return the remote nodes that a batch's draws must ask for, and the neighbours that must come."""
    nodes = neighbours = 0
    degree = np.diff(graph.indptr)
    fanouts = options["fanouts"] if isinstance(options.get("fanouts"), list) else [options.get("fanouts")] * 3
    whole = "fanouts" not in options or "weights" in options or "sampler" in options
    known = set(batch.layers[-1].tolist())
    for layer, fanout in zip(batch.layers[-2::-1], fanouts[-2::-1], strict=True):
        wanted = set(layer.tolist())
        if options.get("layers") == "nested":  # the rows of a batch are kept
            wanted -= known
            known |= wanted
        remote = [node for node in wanted if PARTS[node] != rank]
        nodes += len(remote)
        neighbours += sum(int(degree[n]) if whole or fanout < 0 else min(fanout, int(degree[n])) for n in remote)
    return nodes, neighbours


@pytest.mark.parametrize("run", RECOUNTED, ids=" ".join)
def test_what_is_asked_is_what_a_recount_finds(
    outcomes: tuple[Outcomes, Outcomes, dict[Run, list[list[Destinations]]]], run: Run
) -> None:
    shared, owner, drawn = outcomes
    name, _, kind = run
    method, options = METHODS[name]
    nodes = neighbours = more = 0
    for rank in range(WORLD):
        wanted = [asked(GRAPHS[kind], method, options, rank, batch) for batch in drawn[run][rank]]
        stats = owner[run][rank].rows[0]["stats"]
        assert (stats["asked_nodes"], stats["asked_neighbours"]) == tuple(map(sum, zip(*wanted, strict=True)))
        assert stats["asked_s"] > 0
        assert "asked_nodes" not in shared[run][rank].rows[0]["stats"]
        nodes, neighbours = nodes + stats["asked_nodes"], neighbours + stats["asked_neighbours"]
        more += owner[run][rank].rows[0]["bytes_control"] - shared[run][rank].rows[0]["bytes_control"]
    steps = len(drawn[run][0])
    assert len(drawn[run][WORLD - 1][-1].layers[-1]) == 0  # a rank without a target joins all the same
    assert (nodes > 0) == (name != "skewed local")
    assert more == 24 * WORLD * (WORLD - 1) * steps * 2 + 4 * nodes + (8 if kind == "weighted" else 4) * neighbours


def test_guided_draws_ask_for_whole_rows(outcomes: tuple[Outcomes, Outcomes, Any]) -> None:
    _, owner, _ = outcomes
    for rank in range(WORLD):
        first, second = (row["stats"] for row in owner["dgs", "", "plain"][rank].rows)
        if second["asked_nodes"]:
            assert second["asked_neighbours"] / second["asked_nodes"] > 3  # the fan-out
        assert first["guided_steps"] < second["guided_steps"]


@pytest.mark.parametrize("name", ["graphsage", "dgs", "ladies", "skewed"])
def test_at_the_exact_setting_it_is_full_training(data: dict[str, OnDisk], name: str) -> None:
    spec = TrainSpec(epochs=EPOCHS, precision="float64", threads=1)
    model = MODELS["weighted"].model_copy(update={"dropout": 0})
    exact = (REGISTERED.load(name).exact or {}) | {"topology": "owner"}
    cases = [Case(data["weighted"], method, own, model, spec) for method, own in ((name, exact), ("full", {}))]
    owner, full = run_ranks(train_on_own_rows, WORLD, cases)[0]
    assert [row["loss"] for row in owner.rows] == pytest.approx([row["loss"] for row in full.rows], rel=1e-9)
    for weights, gradient in full.gradients.items():
        np.testing.assert_allclose(owner.gradients[weights], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("way", ["", "ahead"])
def test_an_owner_that_fails_ends_the_training(data: dict[str, OnDisk], way: str) -> None:
    start = time.monotonic()
    case = case_of(("graphsage", way, "plain"), data, topology="owner")
    with pytest.raises(RankError, match=r"no such row|[Cc]onnection"):
        run_ranks(train_without_answers, WORLD, case, 5, timeout_s=50)
    assert time.monotonic() - start < 50


@pytest.mark.parametrize("method", ["fastgcn", "graphsaint", "clustergcn", "vrgcn"])
def test_methods_without_such_draws_have_no_such_option(method: str) -> None:
    with pytest.raises(ValidationError, match="topology"):
        REGISTERED.load(method).Options(topology="owner")


def test_subgraphs_of_all_nodes_ask_nobody() -> None:
    with pytest.raises(ValidationError, match="base 'saint' asks nobody"):
        REGISTERED.load("skewed").Options(topology="owner", base="saint")
