"""Truth 3 for pipelined methods: bytes of every iteration, from the graphs that were drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.ranks import run_ranks
from support.training import Drawn, train_and_watch

from harness.check.graphs import dense_adjacency, on_disk, random_graph
from harness.check.training import Case, RankOutcome
from harness.models.layer import ModelSpec
from harness.runtime.run_config import TrainSpec

pytestmark = pytest.mark.slow  # the quick tier holds all bytes of a method by `harness check`

WORLD, NODES, FEATURES, CLASSES, HIDDEN, ITEM, EPOCHS = 3, 60, 7, 4, 5, 4, 7
PEERS = WORLD * (WORLD - 1)
GRAPH = random_graph(11, NODES, degree=6, features=FEATURES, classes=CLASSES)
DENSE = dense_adjacency(GRAPH)
PARTS = np.random.default_rng(0).integers(0, WORLD, NODES)
MODEL = ModelSpec(name="sage", layers=3, hidden=HIDDEN, dropout=0.5)
DEEPER = 2 * HIDDEN * ITEM  # of a node's rows behind the first layer
FIRST = FEATURES * ITEM
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "pipe": ("pipegcn", {}),
    "pipe sync": ("pipegcn", {"staleness": 2, "warmup": "sync"}),
    "psc random": ("psc-gcn", {"staleness": 2, "rate": 0.3, "sampler": "random", "cache": "none"}),
    "psc degree": ("psc-gcn", {"rate": 0.3, "sampler": "random", "cache": "degree", "capacity": 0.5}),
    "psc refresh": ("psc-gcn", {"staleness": 0, "rate": 0.3, "refresh": 3, "cache": "none"}),
    "psc inclusion": ("psc-gcn", {"staleness": 1, "rate": 0.3, "refresh": 2, "capacity": 0.5}),
    "psc whole": ("psc-gcn", {"rate": 1.0, "cache": "degree", "capacity": 0.5}),
}
Run = list[tuple[RankOutcome, list[Drawn]]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    data = on_disk(GRAPH, PARTS, WORLD, False, tmp_path_factory.mktemp("pipelined"))
    spec = TrainSpec(epochs=EPOCHS, threads=1)
    cases = [Case(data, method, options, MODEL, spec) for method, options in CASES.values()]
    by_rank = run_ranks(train_and_watch, WORLD, cases)
    return {name: [ranks[i] for ranks in by_rank] for i, name in enumerate(CASES)}


def boundary(rank: int) -> list[int]:
    """Nodes elsewhere with an edge into the part, by owner and number."""
    into = DENSE[rank == PARTS].any(0) & (rank != PARTS)
    return sorted(np.flatnonzero(into).tolist(), key=lambda node: (PARTS[node], node))


BOUNDARY = [boundary(rank) for rank in range(WORLD)]
WHOLE = sum(map(len, BOUNDARY))
CACHED = [round(0.5 * len(nodes)) for nodes in BOUNDARY]


def greatest(rank: int, value: np.ndarray) -> set[int]:
    """Return the half of the boundary nodes that have the greatest values; the first among equals."""
    return set(sorted(BOUNDARY[rank], key=lambda node: -value[node])[: CACHED[rank]])


def read(run: Run, t: int) -> list[set[int]]:
    """Return the boundary nodes of the graph that each rank trained on in iteration t."""
    return [set(graphs[t].sources[PARTS[graphs[t].sources] != rank]) for rank, (_, graphs) in enumerate(run)]


def sent(run: Run, t: int, purpose: str) -> int:
    return sum(outcome.rows[t][f"bytes_{purpose}"] for outcome, _ in run)


def stat(run: Run, t: int, name: str) -> int:
    return sum(int(outcome.rows[t]["stats"][name]) for outcome, _ in run)


def refreshed(name: str, t: int) -> bool:
    """Whether the refresh behind iteration t - 2 counts here, with the first graph that was drawn by it."""
    every = CASES[name][1].get("refresh")
    return every is not None and t >= 2 and (t - 2) % every == 0


def test_pipegcn_sends_what_full_graph_training_sends(runs: dict[str, Run]) -> None:
    for name in ("pipe", "pipe sync"):
        for t in range(EPOCHS):
            twice = 1 + (name == "pipe sync" and t < 2)  # rows for now, and for two iterations later
            assert sent(runs[name], t, "feature") == twice * WHOLE * FIRST
            assert sent(runs[name], t, "embedding") == twice * WHOLE * DEEPER
            assert sent(runs[name], t, "gradient") == WHOLE * DEEPER
            assert sent(runs[name], t, "control") == 0


@pytest.mark.parametrize("name", ["psc random", "psc degree", "psc refresh", "psc inclusion"])
def test_psc_sends_rows_of_the_new_graph_and_gradients_of_the_old(runs: dict[str, Run], name: str) -> None:
    run, tau = runs[name], CASES[name][1].get("staleness", 1)
    for t in range(EPOCHS):
        new = stat(run, t, "sampled_boundary")
        assert 0 < new < WHOLE
        if t + tau < EPOCHS:
            assert new == sum(map(len, read(run, t + tau)))
        assert sent(run, t, "embedding") == new * DEEPER
        assert sent(run, t, "gradient") == sum(map(len, read(run, t))) * DEEPER
        announced = 4 * new + 8 * PEERS
        if refreshed(name, t):
            announced += ITEM * WHOLE + (4 * sum(CACHED) + 8 * PEERS if name == "psc inclusion" else 0)
        assert sent(run, t, "control") == announced


def test_features_are_sent_of_what_is_not_cached(runs: dict[str, Run]) -> None:
    degree = [greatest(rank, DENSE.sum(0)) for rank in range(WORLD)]
    for t in range(EPOCHS - 1):
        # What is sent in iteration t is read in the next one, of the graph that was announced in t.
        missing = [len(nodes - cached) for nodes, cached in zip(read(runs["psc degree"], t + 1), degree, strict=True)]
        assert sent(runs["psc degree"], t, "feature") == sum(missing) * FIRST
    for t in range(EPOCHS):
        assert sent(runs["psc whole"], t, "feature") == (WHOLE - sum(CACHED)) * FIRST
        assert sent(runs["psc whole"], t, "control") == 0
        for name in ("psc random", "psc refresh"):
            assert sent(runs[name], t, "feature") == stat(runs[name], t, "sampled_boundary") * FIRST


def test_a_refill_sends_what_was_not_cached_before(runs: dict[str, Run]) -> None:
    run = runs["psc inclusion"]
    chance = [1 - 0.7 ** DENSE[rank == PARTS].sum(0) for rank in range(WORLD)]
    cached = [greatest(rank, chance[rank]) for rank in range(WORLD)]
    refills = []
    for t in range(EPOCHS):
        found = stat(run, t, "cached_boundary")
        if t < 2:
            assert found == sum(len(new & old) for new, old in zip(read(run, t + 1), cached, strict=True))
        refill = sent(run, t, "feature") - (stat(run, t, "sampled_boundary") - found) * FIRST
        assert refill % FIRST == 0
        assert 0 <= refill <= sum(CACHED) * FIRST * refreshed("psc inclusion", t)
        refills.append(refill)
    assert any(refills)


@pytest.mark.parametrize("name", ["psc degree", "psc inclusion", "psc whole"])
def test_the_cache_is_filled_once_before_the_first_iteration(runs: dict[str, Run], name: str) -> None:
    filled = [
        row["sent_bytes"]
        for outcome, _ in runs[name]
        for row in outcome.traffic
        if row["scope"] == "setup" and row["purpose"] == "feature"
    ]
    assert sum(filled) == sum(CACHED) * FIRST
