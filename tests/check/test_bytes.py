"""Truth 3: counted payload equals the closed form of methods.md, byte for byte."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from support.ranks import run_ranks

from harness.check.graphs import dense_adjacency, on_disk, random_graph
from harness.check.training import Case, RankOutcome, train
from harness.models.layer import ModelSpec
from harness.runtime.run_config import TrainSpec

pytestmark = pytest.mark.slow

WORLD, NODES, FEATURES, CLASSES, HIDDEN, ITEM = 3, 60, 7, 4, 5, 4
GRAPH = random_graph(11, NODES, degree=6, features=FEATURES, classes=CLASSES)
PARTS = np.random.default_rng(0).integers(0, WORLD, NODES)
MODEL = ModelSpec(name="sage", layers=3, hidden=HIDDEN, dropout=0.5)
WIDTHS = [FEATURES, HIDDEN, HIDDEN]
# Two hops a layer, orders of width 2; `transform_before_exchange` does nothing, and no hop of the
# input layer needs a gradient.
MIXHOP = ModelSpec(name="mixhop", layers=2, order=2, hidden=6, dropout=0.5)
HOPS, HOPS_BACK = [FEATURES, FEATURES, 6, 6], [6, 6]
EPOCHS = 4
OPTIONS = {
    "full": ("full", {}),
    "full transformed": ("full", {"transform_before_exchange": True}),
    "full precompute": ("full", {"precompute": True}),
    "bns bernoulli": ("bns-gcn", {"rate": 0.4}),
    "bns fixed": ("bns-gcn", {"rate": 0.4, "sampler": "fixed"}),
    "bns 1": ("bns-gcn", {"rate": 1}),
    "bns 0": ("bns-gcn", {"rate": 0}),
    "pipegcn": ("pipegcn", {}),
    "psc": ("psc-gcn", {"staleness": 2, "refresh": 1}),
    "graphsage": ("graphsage", {"fanouts": 2, "batch_size": 4}),
    "graphsage all": ("graphsage", {"fanouts": -1, "batch_size": 0}),
    "mixhop": ("full", {"transform_before_exchange": True}),
    "mixhop precompute": ("full", {"precompute": True}),
    "mixhop bns 1": ("bns-gcn", {"rate": 1}),
    "mixhop pipegcn": ("pipegcn", {}),
    "mixhop psc": ("psc-gcn", {"staleness": 1, "rate": 1.0, "cache": "none"}),
}


def boundary_sizes() -> list[int]:
    """Boundary of each rank by its definition: nodes elsewhere with an edge into the part."""
    dense = dense_adjacency(GRAPH)
    return [
        len({j for i in range(NODES) for j in range(NODES) if dense[i, j] and PARTS[i] == r != PARTS[j]})
        for r in range(WORLD)
    ]


BOUNDARY = boundary_sizes()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[RankOutcome]]:
    data = on_disk(GRAPH, PARTS, WORLD, False, tmp_path_factory.mktemp("bytes"))
    spec = TrainSpec(epochs=EPOCHS, threads=1)
    cases = [
        Case(data, method, options, MIXHOP if name.startswith("mixhop") else MODEL, spec)
        for name, (method, options) in OPTIONS.items()
    ]
    by_rank = run_ranks(train, WORLD, cases)
    return {name: [ranks[i] for ranks in by_rank] for i, name in enumerate(OPTIONS)}


def epoch_bytes(ranks: list[RankOutcome], epoch: int) -> dict[str, int]:
    """Bytes sent by all ranks in an epoch, by purpose."""
    total: dict[str, int] = defaultdict(int)
    for outcome in ranks:
        for key, value in outcome.rows[epoch].items():
            if key.startswith("bytes_"):
                total[key.removeprefix("bytes_")] += value
    return dict(total)


def weights(outcome: RankOutcome) -> int:
    return sum(w.size for w in outcome.before.values())


def full_graph(rows: int, forward: list[int], backward: list[int], parameters: int, control: int) -> dict[str, int]:
    """Closed form for `rows` exchanged boundary rows over all ranks."""
    return {
        "feature": rows * forward[0] * ITEM,
        "embedding": rows * sum(forward[1:]) * ITEM,
        "gradient": rows * sum(backward) * ITEM,
        "model": 2 * (WORLD - 1) * (parameters + 1) * ITEM,
        "control": control,
        "swap": 0,
        "disk": 0,
    }


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [
        ("full", WIDTHS, WIDTHS[1:]),
        # The last layer goes from 5 to 4; the first does not, since H W would have to send gradients back.
        ("full transformed", [FEATURES, HIDDEN, CLASSES], [HIDDEN, CLASSES]),
        ("full precompute", [0, HIDDEN, HIDDEN], [HIDDEN, HIDDEN]),
        ("bns 1", WIDTHS, WIDTHS[1:]),
        ("pipegcn", WIDTHS, WIDTHS[1:]),
        ("mixhop", HOPS, HOPS_BACK),
        ("mixhop precompute", [0, *HOPS[1:]], HOPS_BACK),
        ("mixhop bns 1", HOPS, HOPS_BACK),
        ("mixhop pipegcn", HOPS, HOPS_BACK),
        ("mixhop psc", HOPS, HOPS_BACK),
    ],
)
def test_full_boundary(
    outcomes: dict[str, list[RankOutcome]], name: str, forward: list[int], backward: list[int]
) -> None:
    want = full_graph(sum(BOUNDARY), forward, backward, weights(outcomes[name][0]), control=0)
    for epoch in range(EPOCHS):
        assert epoch_bytes(outcomes[name], epoch) == want


def boundary_between(owner: int, reader: int) -> int:
    """Nodes of `owner` that have an edge into the part of `reader`, by definition."""
    dense = dense_adjacency(GRAPH)
    mine, theirs = np.flatnonzero(owner == PARTS), np.flatnonzero(reader == PARTS)
    return sum(bool(dense[np.ix_(theirs, [node])].any()) for node in mine)


def test_the_matrix_of_peers_by_layer_and_direction(outcomes: dict[str, list[RankOutcome]]) -> None:
    """Forward a rank sends what peers read of its nodes, backward the gradients of what it read of theirs."""
    want: dict[tuple[object, ...], int] = {}
    for rank in range(WORLD):
        for peer in set(range(WORLD)) - {rank}:
            for layer, width in enumerate(WIDTHS):
                forward = ("feature" if layer == 0 else "embedding", layer, "forward", rank, peer)
                want[forward] = EPOCHS * boundary_between(rank, peer) * width * ITEM
                if layer:
                    back = EPOCHS * boundary_between(peer, rank) * width * ITEM
                    want["gradient", layer, "backward", rank, peer] = back
    got = {
        (row["purpose"], row["layer"], row["direction"], rank, row["peer"]): row["sent_bytes"]
        for rank, outcome in enumerate(outcomes["full"])
        for row in outcome.traffic
        if row["scope"] == "epoch" and row["peer"] >= 0
    }
    assert got == want


@pytest.mark.parametrize("name", ["bns bernoulli", "bns fixed"])
def test_sampled_boundary(outcomes: dict[str, list[RankOutcome]], name: str) -> None:
    counts = set()
    for epoch in range(EPOCHS):
        kept = int(sum(o.rows[epoch]["stats"]["kept_boundary"] for o in outcomes[name]))
        control = 4 * kept + 8 * WORLD * (WORLD - 1)
        want = full_graph(kept, WIDTHS, WIDTHS[1:], weights(outcomes[name][0]), control)
        assert epoch_bytes(outcomes[name], epoch) == want
        assert 0 < kept < sum(BOUNDARY)
        counts.add(kept)
    assert (len(counts) == 1) == (name == "bns fixed")


def test_isolated_partitions_send_the_model_only(outcomes: dict[str, list[RankOutcome]]) -> None:
    want = full_graph(0, WIDTHS, WIDTHS, weights(outcomes["bns 0"][0]), control=0)
    assert epoch_bytes(outcomes["bns 0"], 0) == want


def test_precompute_exchanges_features_once(outcomes: dict[str, list[RankOutcome]]) -> None:
    setup = [
        row["sent_bytes"]
        for outcome in outcomes["full precompute"]
        for row in outcome.traffic
        if row["scope"] == "setup" and row["purpose"] == "feature"
    ]
    assert sum(setup) == sum(BOUNDARY) * FEATURES * ITEM


def test_graphsage_with_all_neighbours_fetches_the_remote_part_of_the_receptive_field(
    outcomes: dict[str, list[RankOutcome]],
) -> None:
    dense = dense_adjacency(GRAPH) + np.eye(NODES)
    remote = 0
    for rank in range(WORLD):
        field = set(np.flatnonzero(GRAPH.train_mask & (rank == PARTS)))
        for _ in range(MODEL.layers):
            field = {j for i in field for j in range(NODES) if dense[i, j]}
        remote += sum(PARTS[j] != rank for j in field)
    got = epoch_bytes(outcomes["graphsage all"], 0)
    assert got["feature"] == remote * FEATURES * ITEM
    assert got["control"] == remote * 4 + 8 * WORLD * (WORLD - 1)
    assert got["embedding"] == got["gradient"] == 0


def test_graphsage_pays_an_id_for_each_fetched_row(outcomes: dict[str, list[RankOutcome]]) -> None:
    counts = [int((GRAPH.train_mask & (r == PARTS)).sum()) for r in range(WORLD)]
    steps = max(-(-n // 4) for n in counts)
    got = epoch_bytes(outcomes["graphsage"], 1)
    assert got["feature"] > 0
    assert got["control"] == got["feature"] // (FEATURES * ITEM) * 4 + steps * 8 * WORLD * (WORLD - 1)
    assert got["model"] == steps * 2 * (WORLD - 1) * (weights(outcomes["graphsage"][0]) + 1) * ITEM


@pytest.mark.parametrize("name", OPTIONS)
def test_what_one_rank_sends_its_peer_receives(outcomes: dict[str, list[RankOutcome]], name: str) -> None:
    flows: dict[tuple[object, ...], list[int]] = defaultdict(lambda: [0, 0])
    for rank, outcome in enumerate(outcomes[name]):
        for row in outcome.traffic:
            if row["peer"] >= 0:
                kind = (row["scope"], row["purpose"], row["layer"], row["direction"])
                flows[*kind, rank, row["peer"]][0] += row["sent_bytes"]
                flows[*kind, row["peer"], rank][1] += row["received_bytes"]
    assert flows
    assert all(sent == received for sent, received in flows.values())
    assert all(sender != receiver for *_, sender, receiver in flows)


def test_evaluation_is_not_in_the_epoch(outcomes: dict[str, list[RankOutcome]]) -> None:
    scopes = {row["scope"] for o in outcomes["full"] for row in o.traffic if row["purpose"] == "feature"}
    assert scopes == {"epoch", "eval"}


def test_the_closed_form_has_boundaries_to_count(tmp_path: Path) -> None:
    assert min(BOUNDARY) > 10
