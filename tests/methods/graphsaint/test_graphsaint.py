"""GraphSAINT: subgraphs, weights and bytes of each step; its node sampler against chances found here."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness_methods.graphsaint import GraphSAINT
from pydantic import ValidationError
from scipy import optimize
from support.ranks import run_ranks
from support.subgraphs import Run, assert_bytes, assert_same_training, run_subgraphs
from support.training import run_to_the_end

from harness import UserError
from harness.check.graphs import OnDisk, dense_adjacency, on_disk, random_graph
from harness.check.training import Case
from harness.models.gnn import GNN
from harness.models.layer import ModelSpec
from harness.runtime.cost_models import MemoryCase, PartSize
from harness.runtime.run_config import TrainSpec

WORLD, NODES, FEATURES, CLASSES, ITEM, EPOCHS, SIZE = 3, 60, 7, 4, 8, 2, 8
GRAPHS = {
    "labels": random_graph(91, NODES, degree=6),
    "rows of labels": random_graph(92, NODES, degree=6, multilabel=True),
    "one trainer": random_graph(93, NODES, train_only=range(20)),
}
MOST = int(np.diff(GRAPHS["labels"].indptr).max())
PARTS = np.minimum(np.arange(NODES) // 20, WORLD - 1)
MODEL = ModelSpec(name="gcn", layers=2, hidden=6, dropout=0)
SPEC = TrainSpec(epochs=EPOCHS, precision="float64", threads=1)
METHOD = "harness_methods.graphsaint:GraphSAINT"

NODE: dict[str, Any] = {"sampler": "node", "size": SIZE}
COUNTED: dict[str, Any] = {"size": SIZE, "frontier": 4, "coverage": 40}
OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {**COUNTED, "sampler": name} for name in ("frontier", "rw", "mrw", "edge", "forest-fire")},
    "by default": {"coverage": 40},
    "mean": {"size": SIZE, "frontier": 4, "normalise": False},
    "clipped": {**COUNTED, "size": 15, "clip": 4},
    "permuted": {**COUNTED, "transpose": "permuted"},
    "built": {**COUNTED, "transpose": "counted"},
    "local": {**COUNTED, "scope": "local", "steps": 4},
    "local mean": {"size": SIZE, "frontier": 4, "scope": "local", "normalise": False},
    "parts": {"size": -1, "scope": "local", "reshuffle": 2, "pieces": 3, "steps": 1},
    **{f"exact {name}": {**GraphSAINT.exact, "sampler": name} for name in ("frontier", "rw", "node")},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Run]]:
    """What each rank saw, by graph; of the first graph also full-graph training and the exact setting."""
    stored: dict[str, OnDisk] = {
        name: on_disk(graph, PARTS, WORLD, False, tmp_path_factory.mktemp("saint")) for name, graph in GRAPHS.items()
    }
    cases = {name: Case(data, METHOD, NODE, MODEL, SPEC) for name, data in stored.items()}
    cases["full"] = Case(stored["labels"], "harness_methods.full:Full", {}, MODEL, SPEC)
    for name, options in OPTIONS.items():
        spec = SPEC.model_copy(update={"epochs": 5}) if "reshuffle" in options else SPEC
        cases[name] = Case(stored["labels"], METHOD, options, MODEL, spec)
    by_rank = run_ranks(run_subgraphs, WORLD, list(cases.values()), timeout_s=150)
    return {name: [rank[i] for rank in by_rank] for i, name in enumerate(cases)}


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> OnDisk:
    return on_disk(GRAPHS["labels"], np.zeros(NODES, int), 1, False, tmp_path_factory.mktemp("single"))


def probabilities(name: str) -> np.ndarray:
    """min(1, c q) that sum to the size; c by a root finder, q by dense matrices of a GCN."""
    dense = dense_adjacency(GRAPHS[name])
    root = 1 / np.sqrt(dense.sum(1) + 1)
    q = ((root[:, None] * dense * root) ** 2).sum(0)
    q[q == 0] = q[q > 0].min()
    c = optimize.brentq(lambda c: np.minimum(1, c * q).sum() - SIZE, 0, 1e6, xtol=1e-14, rtol=1e-14)
    return np.minimum(1, c * q)


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_steps_learn_from_the_training_nodes_of_their_subgraphs(runs: dict[str, list[Run]], name: str) -> None:
    p, mask, ranks = probabilities(name), GRAPHS[name].train_mask, runs[name]
    subgraphs = set()
    for epoch in range(EPOCHS):
        for run in ranks:
            assert len(run.epochs[epoch]) == math.ceil(NODES / (WORLD * SIZE))
            for taken in run.epochs[epoch]:
                np.testing.assert_array_equal(taken.learnt, taken.nodes[mask[taken.nodes]])
                assert taken.weights is not None
                np.testing.assert_allclose(taken.weights, 1 / p[taken.learnt], rtol=1e-9)
                assert taken.total == WORLD * mask.sum()
                subgraphs.add(taken.nodes.tobytes())
    taken = [taken for run in ranks for steps in run.epochs for taken in steps]
    assert len(subgraphs) == len(taken)  # no two ranks, steps or epochs have the same
    assert abs(sum(t.nodes.size for t in taken) - len(taken) * SIZE) < 4 * math.sqrt(len(taken) * SIZE)
    losses = [[row["loss"] for row in run.rows] for run in ranks]
    assert losses[0] == losses[1] == losses[2]
    assert np.isfinite(losses[0]).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_bytes_are_the_closed_form(runs: dict[str, list[Run]], name: str) -> None:
    ranks = runs[name]
    for epoch in range(EPOCHS):
        remote = sum(
            int((PARTS[taken.nodes] != rank).sum()) for rank, run in enumerate(ranks) for taken in run.epochs[epoch]
        )
        peers = 8 * len(ranks[0].epochs[epoch]) * WORLD * (WORLD - 1)
        label = CLASSES * ITEM if GRAPHS[name].multilabel else 8
        assert remote > 10
        assert sum(run.rows[epoch]["stats"]["remote_nodes"] for run in ranks) == remote
        assert_bytes(ranks, epoch, remote=remote, peers=peers, row=FEATURES * ITEM, label=label)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OPTIONS if name.startswith("exact")])
def test_all_nodes_are_full_graph_training(runs: dict[str, list[Run]], name: str) -> None:
    for full, exact in zip(runs["full"], runs[name], strict=True):
        assert_same_training(full, exact)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["frontier", "rw", "mrw", "edge", "forest-fire", "clipped"])
def test_counted_losses_estimate_the_sum_over_all_training_nodes(runs: dict[str, list[Run]], name: str) -> None:
    """1/lambda of the drawn training nodes sums to their number, on average over steps."""
    mask = GRAPHS["labels"].train_mask
    taken = [taken for run in runs[name] for steps in run.epochs for taken in steps]
    sums = []
    for step in taken:
        assert step.weights is not None
        assert step.total == WORLD * mask.sum()
        assert (step.weights >= 1).all()
        np.testing.assert_array_equal(step.learnt, step.nodes[mask[step.nodes]])
        assert 0 < step.nodes.size <= OPTIONS[name]["size"]
        sums.append(step.weights.sum())
    if name == "clipped":
        assert all(step.nodes.size % 4 == 0 for step in taken)
    assert abs(np.mean(sums) - mask.sum()) < 4.5 * np.std(sums) / math.sqrt(len(sums))
    assert len({step.nodes.tobytes() for step in taken}) == len(taken)


@pytest.mark.slow
def test_how_the_transpose_comes_about_changes_no_loss(runs: dict[str, list[Run]]) -> None:
    losses = {name: [row["loss"] for row in runs[name][0].rows] for name in ("permuted", "built", "frontier")}
    assert losses["permuted"] == losses["frontier"]
    np.testing.assert_allclose(losses["built"], losses["frontier"], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mean", "local mean"])
def test_without_normalisation_a_rank_learns_from_the_mean_of_its_subgraph(
    runs: dict[str, list[Run]], name: str
) -> None:
    for run in runs[name]:
        for taken in (taken for steps in run.epochs for taken in steps):
            assert taken.total == WORLD
            assert taken.weights is not None
            np.testing.assert_allclose(taken.weights, 1 / max(taken.learnt.size, 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["local", "local mean"])
def test_local_scope_reads_inner_nodes_and_sends_no_feature(runs: dict[str, list[Run]], name: str) -> None:
    for rank, run in enumerate(runs[name]):
        for epoch, steps in enumerate(run.epochs):
            assert len(steps) == OPTIONS[name].get("steps", math.ceil(NODES / (WORLD * SIZE)))
            assert all((PARTS[taken.nodes] == rank).all() for taken in steps)
            assert run.rows[epoch]["bytes_feature"] == 0
        if name == "local":
            assert run.epochs[0][0].total == GRAPHS["labels"].train_mask.sum()


@pytest.mark.slow
def test_reshuffled_parts_are_new_ones_whose_features_come_once(runs: dict[str, list[Run]]) -> None:
    ranks, held = runs["parts"], [rank == PARTS for rank in range(WORLD)]
    before = held
    for epoch in range(5):
        parts = []
        for run in ranks:
            (taken,) = run.epochs[epoch]
            parts.append(np.bincount(taken.nodes, minlength=NODES) > 0)
        assert (np.sum(parts, axis=0) == 1).all()
        new = [part & ~own for part, own in zip(parts, held, strict=True)]
        fetched = [fresh & ~old for fresh, old in zip(new, before, strict=True)]
        moved = epoch in (2, 4)
        assert all((part == old).all() for part, old in zip(parts, before, strict=True)) == (not moved)
        rows = sum(part.sum() for part in fetched) if moved else 0
        assert sum(run.rows[epoch]["bytes_feature"] for run in ranks) == rows * FEATURES * ITEM
        remote, peers = sum(part.sum() for part in new), 8 * WORLD * (WORLD - 1)
        control = peers + 12 * remote + peers + (4 * rows + peers if moved else 0)
        assert sum(run.rows[epoch]["bytes_control"] for run in ranks) == control
        before = parts
    assert not (parts[0] == PARTS.astype(bool)).all()


@pytest.mark.slow
def test_a_small_graph_is_drawn_in_eighths_by_default(runs: dict[str, list[Run]]) -> None:
    for run in runs["by default"]:
        for steps in run.epochs:
            assert [taken.nodes.size for taken in steps] == [8] * math.ceil(NODES / (WORLD * 8))  # 7.5 rounded up


@pytest.mark.parametrize(
    ("nodes", "parts", "scope", "size", "frontier"),
    [
        (169_343, 1, "global", 8000, 1000),
        (64_000, 4, "global", 8000, 1000),
        (7650, 1, "global", 957, 119),
        (64_000, 4, "local", 2000, 250),
        (3, 1, "global", 1, 1),
    ],
)
def test_the_default_size_is_the_authors_or_an_eighth(
    nodes: int, parts: int, scope: str, size: int, frontier: int
) -> None:
    options = GraphSAINT.Options.model_validate({"scope": scope})
    assert (options.size_on(nodes, parts), options.frontier_of(size)) == (size, frontier)
    for asked in (7, nodes, 10 * nodes, -1):
        assert GraphSAINT.Options(size=asked, frontier=2).size_on(nodes, parts) == asked


def test_a_size_that_takes_the_whole_graph_is_warned_of() -> None:
    model = GNN(MODEL, FEATURES, CLASSES, seed=0, dtype=torch.float32)
    case = MemoryCase(PartSize(500, 20, 5000, 50), None, 40, 1000, 10_000, model, parts=2)
    for options, whole in (
        ({"size": 1000}, 1000), ({"size": 999}, 0), ({"size": -1}, 0), ({}, 0),
        ({"size": 500, "scope": "local"}, 500), ({"size": 499, "scope": "local"}, 0),
    ):  # fmt: skip
        said = [f"size {whole} is no less than the {whole} nodes there are: every subgraph is the whole graph"]
        assert GraphSAINT.option_warnings(GraphSAINT.Options.model_validate(options), case) == (said if whole else [])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"sampler": "rw"}, ""), ({"sampler": "node", "scope": "local"}, ""), ({"sampler": "edge"}, ""),
        ({"sampler": "mrw"}, ""), ({"scope": "local"}, "sampler frontier"),
        ({"sampler": "forest-fire"}, "sampler forest-fire"), ({"sampler": "rw", "clip": 4}, "clip 4"),
    ],
)  # fmt: skip
def test_a_plan_says_what_the_host_draws_for_a_gpu(options: dict[str, Any], why: str) -> None:
    model = GNN(MODEL, FEATURES, CLASSES, seed=0, dtype=torch.float32)
    case = MemoryCase(PartSize(500, 20, 5000, 50), None, 40, 1000, 10_000, model, parts=2)
    asked = GraphSAINT.Options.model_validate(options)
    said = f"{why}: the host draws the nodes of subgraphs, one after the other; the GPU does the rest"
    assert GraphSAINT.option_warnings(asked, replace(case, cuda=True)) == ([said] if why else [])
    assert GraphSAINT.option_warnings(asked, case) == []


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("method", "options", "remark"),
    [
        ("graphsaint", {"size": 60, "frontier": 2}, "size 60 is no less than the 60 nodes there are: every subgraph"),
        ("graphsaint", {"size": 59, "frontier": 2, "coverage": 1}, ""),
        ("graphsaint", {"size": -1}, ""),
        ("skewed", {"base": "saint", "size": 4500}, "size 4500 is no less than the 60 nodes there are: every subgraph"),
        ("skewed", {"base": "saint"}, ""),
        ("skewed", {"size": 4500, "sizes": 4}, ""),
        ("graphsage", {"fanouts": [3, MOST]}, f"fan-out {MOST} takes all neighbours: no node has more than {MOST}"),
        ("graphsage", {"fanouts": [-1, MOST - 1]}, ""),
    ],
)
def test_what_takes_the_whole_graph_is_remarked_in_the_record(
    single: OnDisk, method: str, options: dict[str, Any], remark: str
) -> None:
    found = run_to_the_end(0, 1, Case(single, method, options, MODEL, SPEC))
    assert found["status"] == "ok"
    assert len(found["remarks"]) == bool(remark)
    assert "".join(found["remarks"]).startswith(remark)


def test_a_pool_is_what_the_rank_was_given(single: OnDisk) -> None:
    """Two threads of a rank of two cores fill it: nothing is flagged, and the losses are those of none."""
    options = {"size": 8, "frontier": 4, "coverage": 40}
    found = {}
    for pool in (0, 3):
        spec = SPEC.model_copy(update={"threads": 2, "epochs": 3})
        case = Case(single, METHOD, options | {"pool": pool}, MODEL, spec)
        found[pool] = run_to_the_end(0, 1, case)
        assert found[pool]["flags"] == []
    assert [row["loss"] for row in found[0]["epochs"]] == [row["loss"] for row in found[3]["epochs"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "0 draws nothing"),
        ({"size": -2}, "-2 draws nothing"),
        ({"size": 500, "frontier": 500}, "500 roots leave no room for others in subgraphs of 500 nodes"),
        ({"roots": False, "entered": True}, "roots come into the frontier, too"),
        ({"pool": 2, "prefetch": 1}, "leave prefetch at 0, or pool"),
        ({"reshuffle": 2}, "belongs to scope"),
        ({"scope": "local", "cache": "degree"}, "reads no remote node"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        GraphSAINT.Options(**options)


def test_a_frontier_that_is_as_large_as_the_default_subgraph_is_the_users_mistake(single: OnDisk) -> None:
    with pytest.raises(UserError, match="frontier: 8 roots leave no room for others in subgraphs of 8 nodes"):
        Case(single, METHOD, {"frontier": 8}, MODEL, SPEC).trainer(0, 1)


def test_counts_of_another_frontier_are_others(tmp_path: Path) -> None:
    single = on_disk(GRAPHS["labels"], np.zeros(NODES, int), 1, False, tmp_path)
    rules: list[dict[str, Any]] = [{}, {"roots": False}, {"entered": True}, {"frontier": 3}]
    run_subgraphs(0, 1, [Case(single, METHOD, COUNTED | rule, MODEL, SPEC) for rule in rules])
    assert len([*tmp_path.rglob("counts-*/edges.npy")]) == len(rules)


def test_counts_are_kept_for_all_models_unless_chances_depend_on_the_model(tmp_path: Path) -> None:
    single = on_disk(GRAPHS["labels"], np.zeros(NODES, int), 1, False, tmp_path)
    sage = MODEL.model_copy(update={"name": "sage"})
    options = {"frontier": COUNTED, "node": {**NODE, "clip": 4, "coverage": 40}}
    found = {}
    for name, own in options.items():
        run_subgraphs(0, 1, [Case(single, METHOD, own, model, SPEC) for model in (MODEL, sage)])
        found[name] = len([*tmp_path.rglob("counts-*/edges.npy")]) - sum(found.values())
    assert found == {"frontier": 1, "node": 2}


def test_memory_is_that_of_the_expected_nodes() -> None:
    model = GNN(MODEL, FEATURES, CLASSES, seed=0, dtype=torch.float32)
    case = MemoryCase(PartSize(500, 20, 5000, 50), None, 40, 1000, 10_000, model, parts=2)
    for size, nodes in ((100, 100), (5000, 1000), (-1, 1000)):
        found = GraphSAINT.memory(GraphSAINT.Options(size=size, sampler="node"), case)
        assert found["layers (Eq. 3)"] == 4 * 3 * nodes * (FEATURES + 6)
        assert found["probabilities"] == 8 * 1000
