"""AdaQP: bits solve the program that is stated, by variances that rounding has, and weigh what the receiver reads."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness_methods.adaqp import CODECS, LEVELS, AdaQPOptions, best_shares, codes_of
from numpy.typing import NDArray
from support.ranks import run_ranks

from harness.check import oracle
from harness.check.graphs import MODELS, dense_adjacency, on_disk, random_graph
from harness.check.training import Case, train
from harness.runtime.codec import Codec, row_bytes
from harness.runtime.run_config import TrainSpec

NODES, WORLD = 60, 3
SPEC = TrainSpec(epochs=4, threads=1, optimizer="sgd", lr=0.1)
ROWS = np.array([row_bytes(name, 16, 4) for name in CODECS])


def instance(seed: int, groups: int, ranks: int) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return senders and receivers, sizes and variances of random groups."""
    rng = np.random.default_rng(seed)
    sender = rng.integers(0, ranks, groups)
    receiver = (sender + rng.integers(1, ranks, groups)) % ranks
    return np.stack([sender, receiver]), rng.integers(1, 9, groups).astype(float), rng.lognormal(0, 3, groups)


def objective(
    shares: NDArray[np.float64], hosts: NDArray[np.int64], sizes: Any, variances: Any, weight: float
) -> float:
    """Return what the docstring of `AdaQP` says is minimised, worked out group by group."""
    loads = np.zeros((2, int(hosts.max()) + 1))
    most = loads.copy()
    for (sender, receiver), size, share in zip(hosts.T, sizes, shares, strict=True):
        if sender != receiver:
            loads[0, sender] += size * (share @ ROWS)
            loads[1, receiver] += size * (share @ ROWS)
            most[0, sender] += size * ROWS[2]
            most[1, receiver] += size * ROWS[2]
    variance = sum(value * share @ np.array(LEVELS) ** -2 for value, share in zip(variances, shares, strict=True))
    return weight * variance / (variances.sum() / 9) + (1 - weight) * loads.max() / most.max()


@pytest.mark.parametrize("seed", range(6))
def test_no_choice_of_whole_groups_is_better(seed: int) -> None:
    hosts, sizes, variances = instance(seed, 6, 3)
    weight = (0.1, 0.5, 0.9)[seed % 3]
    found = best_shares(hosts, sizes, variances, ROWS, weight)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-7)
    assert found.min() >= -1e-7
    least = objective(found, hosts, sizes, variances, weight)
    best = min(
        objective(np.eye(3)[list(choice)], hosts, sizes, variances, weight)
        for choice in itertools.product(range(3), repeat=6)
    )
    assert least <= best + 1e-7
    # Nor is it far below, as it would be if it left a constraint out: at most a group a link is divided.
    assert (found > 1e-6).sum() - 6 <= 2 * 3


@pytest.mark.parametrize("seed", range(4))
def test_prices_of_the_links_bound_it_from_below(seed: int) -> None:
    """Of two hosts the dual is a function of one price, which a grid finds the maximum of."""
    hosts, sizes, variances = instance(seed, 40, 2)
    weight = 0.5
    least = objective(best_shares(hosts, sizes, variances, ROWS, weight), hosts, sizes, variances, weight)
    loads = sizes[:, None] * ROWS
    most = max(loads[hosts[0] == sender, 2].sum() for sender in range(2))
    costs = weight * variances[:, None] / np.square(LEVELS) / (variances.sum() / 9)
    prices = (1 - weight) * np.linspace(0, 1, 4001)
    price = np.where(hosts[0] == 0, prices[:, None], (1 - weight) - prices[:, None])
    bound = (costs + price[:, :, None] * loads / most).min(2).sum(1).max()
    assert least == pytest.approx(bound, abs=1e-4)


def test_what_stays_in_a_host_has_all_bits() -> None:
    hosts, sizes, variances = instance(1, 30, 4)
    found = best_shares(hosts // 2, sizes, variances, ROWS, 0.5)
    within = hosts[0] // 2 == hosts[1] // 2
    np.testing.assert_allclose(found[within], np.eye(3)[[2] * within.sum()], atol=1e-5)
    assert found[~within, 2].mean() < 0.5


def test_the_rows_of_a_group_have_its_shares_the_first_the_most_bits() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 100):
        share = rng.dirichlet([1, 1, 1])
        codes = codes_of(size, share)
        assert codes.shape == (size,)
        assert (np.diff(codes.astype(int)) <= 0).all()
        assert np.abs(np.bincount(codes, minlength=3) - size * share).max() <= 1


@pytest.mark.parametrize("name", CODECS)
def test_rounding_has_the_variance_that_bits_are_assigned_by(name: Any) -> None:
    torch.manual_seed(4)
    rows = torch.randn(400, 64)
    arrived = Codec(name).decode(Codec(name).encode(rows), torch.empty_like(rows))
    measured = (arrived - rows).double().square().sum(1).mean().item()
    low, high = rows.aminmax(dim=1)
    stated = ((high - low).double().square() * 64 / 6 / LEVELS[CODECS.index(name)] ** 2).mean().item()
    assert measured == pytest.approx(stated, rel=0.1)


def read(rank: int, world: int, cases: list[Case]) -> list[dict[str, Any]]:
    """Train each case; return the rank's weights of rows, its nodes, and the codecs of what it sends and receives."""
    found = []
    for case in cases:
        trainer = case.trainer(rank, world)
        for epoch in range(case.train.epochs):
            trainer.train_epoch(epoch)
        method, partition = trainer.method, trainer.worker.partition
        found.append(
            {
                "weights": method._weights["forward"].numpy(),
                "sent": np.asarray(partition.inner)[partition.full_halo.send_index.numpy()],
                "to": np.repeat(np.arange(world), partition.full_halo.send_counts),
                "codes": {key: [side.codes.numpy() for side in sides] for key, sides in method._coded.items()},
                "counts": (partition.full_halo.send_counts, partition.full_halo.recv_counts),
            }
        )
        method.close()
    return found


@pytest.mark.quick(1)
@pytest.mark.parametrize("weighted", [True, False])
def test_a_row_weighs_what_the_receiver_s_nodes_read_of_it(weighted: bool, tmp_path: Path) -> None:
    graph, parts = (
        random_graph(5, NODES, degree=6, weighted=weighted),
        np.random.default_rng(2).integers(0, WORLD, NODES),
    )
    data = on_disk(graph, parts, WORLD, False, tmp_path)
    names = ("sage", "gcn")
    cases = [Case(data, "adaqp", {"period": 2}, MODELS[name], SPEC) for name in names]
    by_rank = run_ranks(read, WORLD, cases)
    for k, name in enumerate(names):
        squares = oracle.propagation_matrix(dense_adjacency(graph), name).numpy() ** 2
        for rank in range(WORLD):
            found = by_rank[rank][k]
            wanted = [squares[parts == to, node].sum() for node, to in zip(found["sent"], found["to"], strict=True)]
            np.testing.assert_allclose(found["weights"], wanted, rtol=1e-5)
            assert len(set(np.concatenate([codes[0] for codes in found["codes"].values()]))) > 1
            # What a rank takes a row for is what the sender packed it as.
            for (layer, direction), (_, received) in found["codes"].items():
                counts = found["counts"][::-1] if direction == "backward" else found["counts"]
                parted = np.split(received, np.cumsum(counts[1])[:-1])
                for peer in range(WORLD):
                    other = by_rank[peer][k]
                    theirs = other["counts"][direction == "backward"]
                    sent = np.split(other["codes"][layer, direction][0], np.cumsum(theirs)[:-1])[rank]
                    np.testing.assert_array_equal(parted[peer], sent)


def test_training_goes_as_without_codecs_and_sends_less(tmp_path: Path) -> None:
    graph, parts = random_graph(5, NODES, degree=6), np.random.default_rng(2).integers(0, WORLD, NODES)
    data = on_disk(graph, parts, WORLD, False, tmp_path)
    cases = [
        Case(data, *how, MODELS["sage"], SPEC) for how in (("full", {}), ("full", {"codec": "int8"}), ("adaqp", {}))
    ]
    exact, packed, adaptive = (list(ranks) for ranks in zip(*run_ranks(train, WORLD, cases), strict=True))

    def sent(ranks: list[Any], epoch: int) -> int:
        return sum(rank.rows[epoch][f"bytes_{p}"] for rank in ranks for p in ("feature", "embedding", "gradient"))

    assert sent(adaptive, 0) == sent(packed, 0)
    assert sent(adaptive, 1) < sent(packed, 1)
    losses = [[row["loss"] for row in ranks[0].rows] for ranks in (exact, adaptive)]
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.1)
    controls = [sum(rank.rows[epoch]["bytes_control"] for rank in adaptive) for epoch in range(4)]
    assert controls[0] > 0
    assert controls[1:] == [0, 0, 0]


@pytest.mark.parametrize("option", [{"codec": "int8"}, {"feedback": True}])
def test_a_codec_is_not_chosen_for_it(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"adaqp chooses the codec|without a codec"):
        AdaQPOptions(**option)
