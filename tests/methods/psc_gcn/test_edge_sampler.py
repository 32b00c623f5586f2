"""Graphs of PSC-GCN as ranks draw them: what caches change, and what they do not."""

from __future__ import annotations

import numpy as np
import pytest
from support.ranks import run_ranks

from harness.check.graphs import OnDisk, dense_adjacency, on_disk, random_graph
from harness.check.training import Case, RankOutcome, train
from harness.models.layer import ModelSpec
from harness.runtime.run_config import CachePolicy, TrainSpec

WORLD, NODES, FEATURES, EPOCHS = 3, 90, 5, 12
GRAPH = random_graph(41, NODES, degree=8, features=FEATURES)
PARTS = np.random.default_rng(5).integers(0, WORLD, NODES)
MODEL = ModelSpec(name="sage", layers=2, hidden=6, dropout=0.4)
POLICIES: list[CachePolicy] = ["none", "random", "degree", "inclusion"]
OPTIONS = {"rate": 0.3, "refresh": 3, "capacity": 0.4}
CASES = {
    **{policy: ("psc-gcn", OPTIONS | {"cache": policy}) for policy in POLICIES},
    "uniform": ("psc-gcn", OPTIONS | {"sampler": "random"}),
    "mixed": ("psc-gcn", OPTIONS | {"uniform": 0.5}),
    "whole": ("psc-gcn", {"rate": 1.0, "cache": "none"}),
    "whole cached": ("psc-gcn", {"rate": 1.0, "capacity": 1.0}),
    "pipegcn": ("pipegcn", {}),
    "precompute": ("psc-gcn", OPTIONS | {"precompute": True}),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[RankOutcome]]:
    data: OnDisk = on_disk(GRAPH, PARTS, WORLD, False, tmp_path_factory.mktemp("caches"))
    spec = TrainSpec(epochs=EPOCHS, threads=1)
    by_rank = run_ranks(train, WORLD, [Case(data, *case, MODEL, spec) for case in CASES.values()])
    return {name: [ranks[i] for ranks in by_rank] for i, name in enumerate(CASES)}


def losses(ranks: list[RankOutcome]) -> list[float]:
    return [row["loss"] for row in ranks[0].rows]


def total(ranks: list[RankOutcome], name: str, epochs: slice = slice(None)) -> float:
    return sum(row["stats"][name] for rank in ranks for row in rank.rows[epochs])


def feature_rows(ranks: list[RankOutcome], epochs: slice = slice(None)) -> float:
    return sum(row["bytes_feature"] for rank in ranks for row in rank.rows[epochs]) / (4 * FEATURES)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES[1:])
def test_a_cache_changes_no_value_and_no_draw(outcomes: dict[str, list[RankOutcome]], policy: str) -> None:
    assert losses(outcomes[policy]) == losses(outcomes["none"])
    for figure in ("drawn_edges", "sampled_boundary"):
        assert total(outcomes[policy], figure) == total(outcomes["none"], figure)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["none", "random", "degree"])
def test_what_is_cached_is_not_sent(outcomes: dict[str, list[RankOutcome]], policy: str) -> None:
    ranks = outcomes[policy]
    assert feature_rows(ranks) == total(ranks, "sampled_boundary") - total(ranks, "cached_boundary")
    assert (total(ranks, "cached_boundary") > 0) == (policy != "none")


@pytest.mark.slow
def test_a_refill_sends_what_was_not_cached_before(outcomes: dict[str, list[RankOutcome]]) -> None:
    """The first refresh, after epoch 0, is in force, and counted, in epoch 2; the next one in epoch 5."""
    ranks = outcomes["inclusion"]
    more = []
    for epoch in (slice(e, e + 1) for e in range(EPOCHS)):
        missed = total(ranks, "sampled_boundary", epoch) - total(ranks, "cached_boundary", epoch)
        more.append(feature_rows(ranks, epoch) - missed)
    capacity = sum(round(0.4 * n) for n in boundary_sizes())
    assert 0 < more[2] < capacity
    assert sum(extra != 0 for extra in more) <= 4
    assert all(extra == 0 for epoch, extra in enumerate(more) if epoch % 3 != 2)


def boundary_sizes() -> list[int]:
    dense = dense_adjacency(GRAPH)
    return [int((dense[rank == PARTS][:, rank != PARTS] != 0).any(0).sum()) for rank in range(WORLD)]


@pytest.mark.slow
def test_the_whole_boundary_cached_sends_no_features(outcomes: dict[str, list[RankOutcome]]) -> None:
    ranks = outcomes["whole cached"]
    assert feature_rows(ranks) == 0
    assert total(ranks, "cached_boundary") == total(ranks, "sampled_boundary") == EPOCHS * sum(boundary_sizes())
    setup = [r for rank in ranks for r in rank.traffic if r["scope"] == "setup" and r["purpose"] == "feature"]
    assert sum(r["sent_bytes"] for r in setup) == 4 * FEATURES * sum(boundary_sizes())
    assert losses(ranks) == losses(outcomes["whole"])


@pytest.mark.slow
def test_pipegcn_is_a_special_case(outcomes: dict[str, list[RankOutcome]]) -> None:
    assert losses(outcomes["pipegcn"]) == losses(outcomes["whole"])


@pytest.mark.slow
def test_samplers_differ_in_which_edges_not_in_how_many(outcomes: dict[str, list[RankOutcome]]) -> None:
    edges = int((dense_adjacency(GRAPH) != 0).sum()) * EPOCHS
    for name in ("inclusion", "uniform", "mixed"):
        assert total(outcomes[name], "drawn_edges") == pytest.approx(0.3 * edges, rel=0.05)
    assert losses(outcomes["mixed"]) != losses(outcomes["inclusion"]) != losses(outcomes["uniform"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inclusion", "uniform", "mixed"])
def test_the_boundary_is_as_large_as_the_inclusion_probabilities_say(
    outcomes: dict[str, list[RankOutcome]], name: str
) -> None:
    """Within four deviations of a sum of at most 1/4 variance a node and draw."""
    drawn, expected = (total(outcomes[name], f"{what}_boundary") for what in ("sampled", "expected"))
    assert abs(drawn - expected) < 4 * np.sqrt(EPOCHS * sum(boundary_sizes()) / 4)
    assert expected < EPOCHS * sum(boundary_sizes())


@pytest.mark.slow
def test_with_precompute_there_is_nothing_to_cache(outcomes: dict[str, list[RankOutcome]]) -> None:
    assert total(outcomes["precompute"], "cached_boundary") == feature_rows(outcomes["precompute"]) == 0
