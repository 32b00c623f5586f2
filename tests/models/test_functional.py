from __future__ import annotations

from typing import Any

import psutil
import pytest
import torch

from harness.models.functional import PIECE, Linear, drop_values, dropout, relu_dropout


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [0, 1, 5000])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("calls", [1, 2])
def test_linear_equals_the_product(dtype: torch.dtype, rows: int, bias: bool, calls: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(rows, 37, dtype=dtype), torch.randn(37, 11, dtype=dtype)
    offset = torch.randn(11, dtype=dtype) if bias else None
    wide = [t.double() for t in (x, weight, *([] if offset is None else [offset]))]
    for tensor in (x, weight, *([] if offset is None else [offset]), *wide):
        tensor.requires_grad_()
    linear = Linear()
    for _ in range(calls):
        out = linear(x, weight, offset)
    want = wide[0] @ wide[1] + (wide[2] if bias else 0)
    tolerance = {"rtol": 1e-5, "atol": 2e-4} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(out.double(), want, **tolerance)
    direction = torch.randn_like(out)
    out.backward(direction)
    want.backward(direction.double())
    for got, wanted in zip([x, weight, *([] if offset is None else [offset])], wide, strict=True):
        torch.testing.assert_close(got.grad.double(), wanted.grad, rtol=1e-4, atol=1e-3 if rows > 1 else 1e-5)


def test_linear_skips_the_gradient_nobody_wants() -> None:
    x, weight = torch.randn(3, 2), torch.randn(2, 2, requires_grad=True)
    Linear()(x, weight).sum().backward()
    assert x.grad is None
    torch.testing.assert_close(weight.grad, x.sum(0).unsqueeze(1).expand(2, 2))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dropout_keeps_the_right_share_and_expectation(rate: float, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x = torch.ones(1001, 333, dtype=dtype)
    out = dropout(x, rate)
    kept = (out != 0).double().mean().item()
    assert kept == pytest.approx(1 - rate, abs=5 * (rate * (1 - rate) / x.numel()) ** 0.5)
    assert out.max().item() == pytest.approx(1 / (1 - rate), rel=1e-4)
    # Rows and columns are not all alike: the mask is random in both directions.
    assert (out != 0).double().mean(0).std().item() < 0.03
    assert (out != 0).double().mean(1).std().item() < 0.05


def test_dropout_uses_the_same_mask_backward_and_a_new_one_each_call() -> None:
    x = torch.randn(50, 7, requires_grad=True)
    out = dropout(x, 0.4)
    out.sum().backward()
    torch.testing.assert_close(x.grad * x, out)
    assert not torch.equal(dropout(x, 0.4), out)


def test_dropout_follows_torchs_seed() -> None:
    x = torch.randn(20, 9)
    torch.manual_seed(3)
    first = dropout(x, 0.5)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, 0.5), first)


def test_neighbouring_masks_are_not_correlated() -> None:
    torch.manual_seed(5)
    mask = (dropout(torch.ones(200_000), 0.5) != 0).double() - 0.5
    for lag in (1, 2, 3, 4, 7, 128):
        assert abs((mask[lag:] * mask[:-lag]).mean().item()) < 0.25 * 5 / 200_000**0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_relu_dropout_is_dropout_of_relu(dtype: torch.dtype) -> None:
    x = torch.randn(301, 17, dtype=dtype, requires_grad=True)
    torch.manual_seed(9)
    fused = relu_dropout(x, 0.3)
    (gradient,) = torch.autograd.grad(fused.sum(), x)
    torch.manual_seed(9)
    apart = dropout(torch.relu(x), 0.3)
    (wanted,) = torch.autograd.grad(apart.sum(), x)
    torch.testing.assert_close(fused, apart)
    torch.testing.assert_close(gradient, wanted)


def test_relu_dropout_at_rate_zero_is_relu_and_keeps_nan() -> None:
    x = torch.tensor([[-1.0, 0.0, 2.0, float("nan")]])
    torch.testing.assert_close(relu_dropout(x, 0), torch.relu(x), equal_nan=True)


@pytest.mark.slow
def test_new_row_counts_do_not_grow_the_process() -> None:
    linear, weight = Linear(), torch.randn(128, 128, requires_grad=True)
    x = torch.randn(6000, 128)

    def steps(first: int) -> int:
        for rows in range(first, first + 100):
            linear(x[:rows], weight).sum().backward()
        return psutil.Process().memory_info().rss

    before = steps(4000)
    assert steps(5000) - before < 40 * 2**20


def test_lost_values_are_a_share_that_depends_on_the_seed_alone() -> None:
    x, rate = torch.randn(1001, 333), 0.2
    torch.manual_seed(0)
    lost = drop_values(x.clone(), rate, 2**62 + 5)
    torch.manual_seed(1)
    assert torch.equal(drop_values(in_place := x.clone(), rate, 2**62 + 5), lost)
    assert torch.equal(in_place, lost)
    kept = lost != 0
    assert torch.equal(lost[kept], x[kept])
    assert kept.double().mean().item() == pytest.approx(1 - rate, abs=5 * (rate * (1 - rate) / x.numel()) ** 0.5)
    for seed in (2**62 + 4, 5):  # all bits of the seed count: the masks are as good as independent
        both = (kept & (drop_values(x.clone(), rate, seed) != 0)).double().mean().item()
        assert both == pytest.approx((1 - rate) ** 2, abs=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [0, 1, 5000])
@pytest.mark.parametrize("rate", [0, 0.3])
def test_activation_of_normalised_rows_is_torchs(dtype: torch.dtype, rows: int, rate: float) -> None:
    torch.manual_seed(0)
    norm = torch.nn.LayerNorm(24, dtype=dtype)
    x, direction = torch.randn(rows, 24, dtype=dtype) * 3 + 1, torch.randn(rows, 24, dtype=dtype)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(-1, 2, 24))
        norm.bias.copy_(torch.linspace(3, -1, 24))
    found = []
    for work in (lambda x: relu_dropout(x, rate, norm), lambda x: dropout(torch.relu(norm(x)), rate)):
        torch.manual_seed(5)
        inputs = x.clone().requires_grad_()
        out = work(inputs)
        norm.zero_grad()
        out.backward(direction)
        found.append([out, inputs.grad, norm.weight.grad, norm.bias.grad])
    tolerance = {"rtol": 1e-4, "atol": 1e-3} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-10}
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, **tolerance)
    torch.manual_seed(5)
    with torch.no_grad():
        assert torch.equal(relu_dropout(x, rate, norm), found[0][0])


def test_layer_norm_has_the_same_bits_with_any_number_of_threads() -> None:
    torch.manual_seed(0)
    x, direction = torch.randn(5000, 48), torch.randn(5000, 48)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            norm, inputs = torch.nn.LayerNorm(48), x.clone().requires_grad_()
            relu_dropout(inputs, 0, norm).backward(direction)
            found.append(torch.cat([inputs.grad.reshape(-1), norm.weight.grad, norm.bias.grad]))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("width", "out"), [(256, 41), (64, 40), (300, 64), (3703, 32), (48, 1), (1, 16), (16, 48), (128, 256)]
)
def test_products_have_the_same_bits_with_any_number_of_threads(width: int, out: int) -> None:
    """Of every number of rows from 1 to 64, the first time and when it recurs, in both passes."""
    torch.manual_seed(0)
    cases = [(torch.randn(rows, width), torch.randn(rows, out)) for rows in (*range(1, 65), 300, 2500)]
    weight, bias = torch.randn(width, out), torch.randn(out)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 4):
            torch.set_num_threads(threads)
            linear, results = Linear(), []
            for x, direction in cases * 2:
                inputs, own, shift = (each.clone().requires_grad_() for each in (x, weight, bias))
                result = linear(inputs, own, shift)
                result.backward(direction)
                results.append((result.detach(), inputs.grad, own.grad, shift.grad))
            found.append(results)
    finally:
        torch.set_num_threads(before)
    for results in found[1:]:
        for (x, _), ours, first in zip(cases * 2, results, found[0], strict=True):
            assert all(map(torch.equal, ours, first)), f"{len(x)} rows"
    for (x, direction), (result, to_x, _, _) in zip(cases * 2, found[0], strict=True):
        exact = torch.addmm(bias.double(), x.double(), weight.double())
        torch.testing.assert_close(result.double(), exact, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(to_x.double(), direction.double() @ weight.double().t(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("rows", [0, 1, 16, 60, 300, 2048, 5000])
@pytest.mark.parametrize(("width", "out"), [(48, 1), (48, 7), (1, 16), (300, 64), (16, 48), (128, 256), (15, 64)])
def test_gradients_of_weights_have_the_same_bits_with_any_number_of_threads(rows: int, width: int, out: int) -> None:
    torch.manual_seed(0)
    x, weight, direction = torch.randn(rows, width), torch.randn(width, out), torch.randn(rows, out)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            own = weight.clone().requires_grad_()
            Linear()(x, own).backward(direction)
            found.append(own.grad)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    torch.testing.assert_close(found[0].double(), x.double().t() @ direction.double(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("rate", [0.0, 0.5])
@pytest.mark.parametrize("function", [dropout, relu_dropout])
def test_in_bfloat16_values_and_gradients_are_rounded_and_drawn_alike(function: Any, rate: float) -> None:
    """Of more values than a piece has."""
    x = torch.randn(2 * PIECE // 5 + 3, 5, requires_grad=True)
    grad = torch.randn(x.shape).bfloat16()
    found = []
    for rounded in (False, True):
        torch.manual_seed(3)
        out = function(x, rate, rounded=rounded)
        found.append((out, *torch.autograd.grad(out, x, grad.to(out.dtype))))
    (plain, to_plain), (rounded, to_rounded) = found
    assert torch.equal(rounded, plain.bfloat16())
    assert torch.equal(to_rounded, to_plain)
