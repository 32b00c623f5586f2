"""Feature caches of mini-batch methods: chances to be read, and what is found of what batches read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support.ranks import run_ranks

from harness.check.graphs import on_disk
from harness.check.training import Case, train
from harness.data.prepared import open_graph
from harness.data.registry import prepare
from harness.graph.csr import Topology
from harness.models.layer import ModelSpec
from harness.runtime.method import METHODS
from harness.runtime.run_config import TrainSpec
from harness.sampling.neighbours import draw_neighbours, reached, sample_layers
from harness.sampling.sample import Tables
from harness.spec import DatasetSpec


def tree(nodes: int) -> Topology:
    """Return a random tree, its edges in both directions."""
    rng = np.random.default_rng(0)
    parents = np.array([rng.integers(max(0, child - 9), child) for child in range(1, nodes)])
    ends = np.concatenate([parents, np.arange(1, nodes)]), np.concatenate([np.arange(1, nodes), parents])
    order = np.lexsort(ends[::-1])
    indptr = np.concatenate([[0], np.cumsum(np.bincount(ends[0], minlength=nodes))])
    return Topology(indptr.astype(np.int64), ends[1][order].astype(np.int32), None)


@pytest.mark.parametrize("fanouts", [[2, 3], [1, 1], [-1, 2]])
def test_on_a_tree_a_node_is_read_as_often_as_its_chance_says(fanouts: list[int]) -> None:
    """Of two layers there draws of a node do not depend on one another."""
    nodes, draws = 60, 4000
    topology, tables = tree(nodes), Tables(nodes)
    chance = np.zeros(nodes)
    chance[0] = 1
    for fanout in reversed(fanouts):
        chance = reached(topology.indptr, topology.indices, chance, fanout)

    def draw(targets: Any, fanout: int, seed: int, *, own: bool = False) -> Any:
        return draw_neighbours(topology, targets, fanout, seed, tables, own=own)

    times = np.zeros(nodes)
    for seed in range(draws):
        times[sample_layers(draw, np.array([0]), fanouts, seed).layers[0].sources] += 1
    certain = (chance < 1e-12) | (chance > 1 - 1e-12)
    np.testing.assert_array_equal(times[certain], draws * chance[certain].round())
    some = ~certain
    assert some.sum() > 3
    z = (times - draws * chance)[some] / np.sqrt(draws * chance * (1 - chance))[some]
    assert np.abs(z).max() < stats.norm.isf(0.5e-3 / some.sum())


def test_chances_are_those_of_independent_draws() -> None:
    rng = np.random.default_rng(1)
    dense = np.triu(rng.random((30, 30)) < 0.2, 1)
    dense |= dense.T
    topology = Topology(
        np.concatenate([[0], np.cumsum(dense.sum(1))]).astype(np.int64), np.nonzero(dense)[1].astype(np.int32), None
    )
    chance = rng.random(30) * (rng.random(30) < 0.5)
    drawn = np.minimum(1, 3 / np.maximum(dense.sum(1), 1))
    wanted = 1 - (1 - chance) * np.prod(1 - dense * (drawn * chance)[None, :], axis=1)
    np.testing.assert_allclose(reached(topology.indptr, topology.indices, chance, 3), wanted, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.data
def test_what_is_likely_to_be_read_is_found_more_often(data_dir: Path, tmp_path: Path) -> None:
    directory = prepare(DatasetSpec(name="coauthor_physics"), data_dir=data_dir, cache=tmp_path / "cache")
    graph = open_graph(directory)
    graph = replace(graph, features=np.ascontiguousarray(graph.features[:, :4]))
    parts = np.random.default_rng(0).integers(0, 2, graph.indptr.size - 1)
    data = on_disk(graph, parts, 2, False, tmp_path)
    policies = ("random", "degree", "presampled", "vip")
    usual = {"fanouts": 5, "batch_size": 256, "capacity": 0.05}
    spec = TrainSpec(epochs=2, threads=1, eval_every=0, final_eval=False)
    cases = [
        Case(data, "graphsage", usual | {"cache": policy}, ModelSpec(layers=2, hidden=4), spec, timing="off")
        for policy in policies
    ]
    by_rank = run_ranks(train, 2, cases, timeout_s=280)
    found: dict[str, float] = {}
    for k, policy in enumerate(policies):
        rows = [row["stats"] for rank in by_rank for row in rank[k].rows]
        found[policy] = sum(row["cached_nodes"] for row in rows) / sum(row["remote_nodes"] for row in rows)
    assert len({rank[k].rows[-1]["loss"] for rank in by_rank for k in range(len(policies))}) == 1
    assert found["random"] == pytest.approx(0.1, abs=0.02)  # 5 % of the nodes, of which every second is remote
    assert found["random"] < found["degree"] < found["vip"]
    assert found["vip"] == pytest.approx(found["presampled"], abs=0.03)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("vrgcn", {"cache": "vip"}),
        ("graphsage", {"cache": "vip", "topology": "owner"}),
        ("graphsage", {"cache": "vip", "weights": "propagation"}),
    ],
)
def test_without_chances_the_cache_is_presampled(method: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="'vip' needs fan-outs, uniform draws and the whole graph; take 'presampled'"):
        METHODS.load(method).Options(**options)
