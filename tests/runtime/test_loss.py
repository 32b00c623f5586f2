"""The loss and its gradient against numpy formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.runtime.step import Loss
from harness.runtime.trainer import loss_sum


@pytest.mark.parametrize("pos_weight", [1.0, 50.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_binary_cross_entropy_with_a_factor_of_the_positive_term(pos_weight: float, weighted: bool) -> None:
    rng = np.random.default_rng(0)
    x, y = 3 * rng.standard_normal((7, 4)), (rng.random((5, 4)) < 0.3).astype(float)
    rows, weights = np.array([6, 0, 2, 5, 3]), rng.random(5) + 0.5 if weighted else None
    logits = torch.tensor(x, requires_grad=True)
    given = None if weights is None else torch.tensor(weights)
    value = loss_sum(logits, Loss(torch.tensor(rows), torch.tensor(y), 11, given), pos_weight)
    value.backward()

    s, w = 1 / (1 + np.exp(-x[rows])), (np.ones(5) if weights is None else weights)[:, None]
    terms = -(pos_weight * y * np.log(s) + (1 - y) * np.log(1 - s))
    assert value.item() == pytest.approx((w * terms).sum() / 11, rel=1e-12)
    expected = np.zeros_like(x)
    expected[rows] = w * ((1 - y) * s - pos_weight * y * (1 - s)) / 11
    assert logits.grad is not None
    np.testing.assert_allclose(logits.grad.numpy(), expected, rtol=1e-11, atol=1e-15)


def test_cross_entropy_of_single_labels() -> None:
    rng = np.random.default_rng(1)
    x, y, rows = rng.standard_normal((6, 3)), np.array([2, 0]), np.array([4, 1])
    value = loss_sum(torch.tensor(x), Loss(torch.tensor(rows), torch.tensor(y), 2))
    share = np.exp(x[rows]) / np.exp(x[rows]).sum(1, keepdims=True)
    assert value.item() == pytest.approx(-np.log(share[[0, 1], y]).sum() / 2, rel=1e-12)


def test_no_rows() -> None:
    """A rank that has no training node in a step: zero, and zero gradients, not NaN."""
    logits = torch.ones(3, 2, requires_grad=True)
    none = Loss(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 2), 0)
    value = loss_sum(logits, none, 50)
    value.backward()
    assert value.item() == 0
    assert logits.grad is not None
    assert not logits.grad.any()
