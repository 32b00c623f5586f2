"""Offloader: what leaves the device and comes back, what torch's allocator sees of it, and what a step is told."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from unittest import mock

import numpy as np
import pytest
import torch
from harness_methods.roc.offloading import Offloader, Tracer
from harness_methods.roc.plan import Policy, Trace, make_plan
from support.allocator import allocated
from torch import Tensor

from harness.runtime.clock import Clock
from harness.runtime.comm import Traffic
from harness.runtime.report import TrialError

CPU = torch.device("cpu")
SIZE = 100 * 10 * 4  # bytes of one matrix of the tests
DEPTH = 6
Load = Callable[[Tensor], Tensor]
Body = Callable[[Load], None]
POLICIES: list[Policy] = ["dp", "lru"]


def make() -> Offloader:
    return Offloader(CPU, Clock(CPU), Traffic())


def matrix() -> Tensor:
    return torch.arange(1000.0).reshape(100, 10) / 1000


def weights(depth: int = DEPTH) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    found = [torch.rand((10, 10), generator=generator).requires_grad_() for _ in range(depth)]
    for weight in found:
        weight.grad = torch.zeros_like(weight)
    return found


def chain(weights: list[Tensor]) -> Body:
    """Return exp(..exp(X w).. w), forward and backward."""
    home = matrix()

    def body(load: Load) -> None:
        h = load(home)
        for weight in weights:
            h = torch.exp(-(h @ weight))
        h.sum().backward()

    return body


def traced(body: Body) -> Trace:
    tracer = Tracer(CPU)
    with tracer.step():
        body(tracer.load)
    return tracer.trace


def following(body: Body, budget: int | None, policy: Policy = "dp") -> Offloader:
    offloader, trace = make(), traced(body)
    offloader.follow(trace, make_plan(trace, budget, policy).away)
    return offloader


def step(offloader: Offloader, body: Body) -> dict[str, float]:
    stats: dict[str, float] = {}
    with offloader.step(stats):
        body(offloader.load)
    return stats


def gradients(of: list[Tensor]) -> list[Tensor]:
    found = [weight.grad.clone() for weight in of if weight.grad is not None]
    for weight in of:
        weight.grad = torch.zeros_like(weight)
    return found


def test_what_two_operations_save_is_one_matrix_and_the_last_reads_its_own_at_once() -> None:
    """exp saves its result, the next product its input: the same. X and five results lie idle, till they are read."""
    trace = traced(chain(weights()))
    saved = [moment.item for moment in trace.moments if moment.kind == "save" and moment.item >= 0]
    assert saved == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6]
    assert {gap.item for gap in trace.gaps} == set(range(DEPTH))
    assert [gap.item for gap in trace.gaps if gap.home] == [0]
    assert all(gap.nbytes == SIZE for gap in trace.gaps)
    assert trace.least < 5 * SIZE < (DEPTH + 2) * SIZE < trace.most


@pytest.mark.parametrize("policy", POLICIES)
def test_gradients_are_the_same_bits_and_the_budget_holds_by_torch_s_allocator(policy: Policy) -> None:
    own = weights()
    body = chain(own)
    trace = traced(body)
    want = gradients(own)
    moved = []
    for budget in np.linspace(trace.least, trace.most, 6).astype(int).tolist():
        offloader, plan = following(body, budget, policy), make_plan(trace, budget, policy)
        gradients(own)
        first = step(offloader, body)
        assert all(torch.equal(a, b) for a, b in zip(gradients(own), want, strict=True))
        # The host's copies are made in the first step, in later ones all that is allocated is the device's.
        peak = allocated(lambda offloader=offloader: step(offloader, body))
        assert peak <= budget
        assert peak == pytest.approx(trace.peak(plan.away), abs=64)
        back, away = trace.moved(plan.away)
        assert (first["swap_in_bytes"], first["swap_out_bytes"]) == (SIZE + back, away)
        total = offloader.traffic.sent("setup")["swap"]
        assert total == 2 * (SIZE + back + away)  # of two steps
        assert offloader.traffic.total("setup").sent_bytes == offloader.traffic.total("setup").received_bytes == 0
        moved.append(back + away)
    assert moved[0] > moved[-1] == 0
    assert moved == sorted(moved, reverse=True)


def test_the_least_recently_used_leaves_first() -> None:
    """Three loaded matrices and one product: the first leaves, and comes back for its gradient."""
    weight, homes = torch.ones((), requires_grad=True), [matrix() for _ in range(3)]
    weight.grad = torch.zeros(())

    def body(load: Load) -> None:
        total = torch.zeros(())
        for home in homes:
            total = total + (load(home) * weight).sum()
        total.backward()

    trace = traced(body)
    offloader = following(body, trace.most - 1, "lru")
    stats = step(offloader, body)
    assert (stats["swap_in_bytes"], stats["swap_out_bytes"]) == (4 * SIZE, 0)
    assert weight.grad.item() == pytest.approx(3 * 3 * float(matrix().sum()))  # traced twice
    assert [gap.item for gap in make_plan(trace, trace.most - 1, "lru").away] == [0]


def test_moves_are_counted_in_the_layer_and_the_pass_that_they_are_for() -> None:
    own, tracer = weights(), Tracer(CPU)
    home = matrix()

    def body(load: Load, enter: Callable[[int], None] = lambda layer: None) -> None:
        h = load(home)
        for layer, weight in enumerate(own):
            enter(layer)
            h = torch.exp(-(h @ weight))
        h.sum().backward()

    with tracer.step():
        body(tracer.load, tracer.enter)
    offloader = make()
    offloader.follow(tracer.trace, make_plan(tracer.trace, tracer.trace.least, "dp").away)
    step(offloader, body)
    sent: dict[tuple[int, str], int] = defaultdict(int)
    received: dict[tuple[int, str], int] = defaultdict(int)
    for row in offloader.traffic.rows():
        sent[row["layer"], row["direction"]] += row["sent_bytes"]
        received[row["layer"], row["direction"]] += row["received_bytes"]
    out = {key for key, size in sent.items() if size}
    assert {layer for layer, _ in out} <= set(range(DEPTH - 1))
    # X comes twice; what left comes back in the backward pass, for the layer that had made it.
    assert received[0, "forward"] == SIZE
    assert {layer for (layer, way), size in received.items() if way == "backward" and size} == {
        0, *(layer for layer, _ in out)
    }  # fmt: skip


def test_columns_indices_and_what_was_there_before_stay() -> None:
    before = matrix().requires_grad_()

    def body(load: Load) -> None:
        column = torch.exp(before.sum(1, keepdim=True))
        (before * column)[torch.arange(5)].sum().backward()

    trace = traced(body)
    assert trace.gaps == ()
    assert len(trace.moments) > 3
    assert trace.least == trace.most >= SIZE


def test_where_nothing_leaves_nothing_stands_in_between() -> None:
    own = weights()
    body = chain(own)
    offloader = following(body, traced(body).most)
    with mock.patch.object(Offloader, "_pack", side_effect=AssertionError):
        stats = step(offloader, body)
    assert stats == {"swap_in_bytes": SIZE, "swap_out_bytes": 0, "bookkeeping_s": 0}


def test_time_is_told_apart() -> None:
    """Copies that sleep are the phase swap's, all else between autograd and its matrices is bookkeeping."""
    body = chain(weights())
    offloader = following(body, traced(body).least)
    slept, copy = 0, offloader.to_host

    def slow(tensor: Tensor, host: Tensor | None = None) -> Tensor:
        nonlocal slept
        slept += 1
        time.sleep(0.05)
        return copy(tensor, host)

    with (
        mock.patch.object(offloader, "to_host", slow),
        offloader.clock.epoch() as timed,
        offloader.clock.phase("forward"),
    ):
        stats = step(offloader, body)
    assert slept >= 3
    assert timed.phases["swap"] >= 0.05 * slept
    assert 0 < stats["bookkeeping_s"] < 0.05 * slept


def test_a_step_that_is_not_the_traced_one_ends_the_trial() -> None:
    own = weights()
    body = chain(own)
    budget = traced(body).least
    for other in (chain(own[:-1]), chain([*own, *weights(1)])):
        with pytest.raises(TrialError, match="not the one that was traced") as error:
            step(following(body, budget), other)
        assert error.value.status == "error"
