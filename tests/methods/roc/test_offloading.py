"""Arena: what leaves the device, what stays, and what a step is told."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch
from harness_methods.roc import Offloader
from torch import Tensor

from harness.runtime.clock import Clock
from harness.runtime.comm import Traffic
from harness.runtime.report import TrialError

CPU = torch.device("cpu")
SIZE = 100 * 10 * 4  # bytes of one matrix of the tests
DEPTH = 6


def make(budget: int | None) -> Offloader:
    return Offloader(budget, CPU, Clock(CPU), Traffic())


def matrix() -> Tensor:
    return torch.arange(1000.0).reshape(100, 10) / 1000


def chain(offloader: Offloader, weights: list[Tensor]) -> tuple[Tensor, dict[str, int]]:
    """Return the gradient of the first weight of exp(..exp(X w).. w), and the step's figures."""
    stats: dict[str, int] = {}
    home = matrix()
    with offloader.clock.epoch() as timed, offloader.step(stats):
        h = offloader.load(home)
        for layer, weight in enumerate(weights):
            offloader.enter(layer)
            h = torch.exp(-(h @ weight))
        h.sum().backward()
    assert (timed.phases["swap"] > 0) == (stats["swap_in_bytes"] > 0)
    assert weights[0].grad is not None
    return weights[0].grad, stats


def weights(depth: int = DEPTH) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.rand((10, 10), generator=generator).requires_grad_() for _ in range(depth)]


def test_what_two_operations_save_is_one_matrix() -> None:
    """exp saves its result, the next product its input: the same. Four at most are in use at once."""
    want, free = chain(make(None), weights())
    assert free["swap_in_bytes"] == SIZE
    assert free["swap_out_bytes"] == 0
    offloader = make(4 * SIZE + 7 * 400 + 100)  # gradients of weights are 400 bytes
    found, tight = chain(offloader, weights())
    assert torch.equal(found, want)
    # X comes twice and never leaves, for it is the host's; of the results the last stays.
    assert tight["swap_out_bytes"] in [SIZE * count for count in range(2, DEPTH)]
    assert tight["swap_in_bytes"] == 2 * SIZE + tight["swap_out_bytes"]
    assert offloader.traffic.sent("setup")["swap"] == tight["swap_in_bytes"] + tight["swap_out_bytes"]
    assert offloader.traffic.total("setup").sent_bytes == offloader.traffic.total("setup").received_bytes == 0


def test_the_least_recently_used_leaves_first() -> None:
    """Three loaded matrices and one product: the first leaves, and comes back for its gradient."""
    offloader = make(3 * SIZE + 100)
    weight, homes = torch.ones((), requires_grad=True), [matrix() for _ in range(3)]
    with offloader.step({}):
        total = torch.zeros(())
        for layer, home in enumerate(homes):
            offloader.enter(layer)
            total = total + (offloader.load(home) * weight).sum()
        total.backward()
    received: dict[int, int] = defaultdict(int)
    for row in offloader.traffic.rows():
        received[row["layer"]] += row["received_bytes"]
        assert row["sent_bytes"] == 0
    assert received == {0: 2 * SIZE, 1: SIZE, 2: SIZE}


def test_columns_indices_and_what_was_there_before_stay() -> None:
    before, offloader = matrix().requires_grad_(), make(2 * SIZE)

    def one_step() -> None:
        with offloader.step({}):
            column = torch.exp(before.sum(1, keepdim=True))
            (before * column)[torch.arange(5)].sum().backward()

    with pytest.raises(TrialError, match="backward"):
        one_step()
    assert offloader.traffic.rows() == []


def test_what_is_in_use_cannot_leave() -> None:
    offloader, weight = make(2 * SIZE), weights(1)[0]

    def one_step() -> None:
        with offloader.step({}):
            offloader.enter(4)
            held = [torch.exp(torch.ones(100, 10) @ weight)]
            held.append(torch.exp(held[0]))
            held.append(torch.exp(held[1]))

    with pytest.raises(TrialError, match=rf"layer 4, forward pass: .* at least .* \({3 * SIZE} bytes\)") as error:
        one_step()
    assert error.value.status == "oom"
