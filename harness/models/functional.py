"""Element-wise operations with a compiled CPU path."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x weight + bias for `x` [rows, in], `weight` [in, out], `bias` [out].

    In float32 on a CPU the products run in oneDNN, whose AVX-512 kernels are 2.4 times as fast as MKL's on
    AMD processors at the shapes of a GNN layer (docs/design/gemm.md); elsewhere this is torch's `addmm`.
    """
    if x.device.type == "cpu" and x.dtype == torch.float32 and x.shape[0] and hasattr(_ONEDNN, _PRODUCT):
        result: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return result
    return x @ weight if bias is None else torch.addmm(bias, x, weight)


_ONEDNN, _PRODUCT = torch.ops.mkldnn, "_linear_pointwise"
GRADIENT_ROWS = 2048  # rows of a chunk of x' grad that stays in the second-level cache


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x weight' + bias by oneDNN, for `weight` [out, in]."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return result


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None  # type: ignore[attr-defined]
        return _product(x, weight.t(), bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad = grads[0].contiguous()
        to_x = _product(grad, weight) if ctx.needs_input_grad[0] else None
        to_weight = grad.new_zeros(weight.shape[1], weight.shape[0])
        for g, rows in zip(grad.split(GRADIENT_ROWS), x.split(GRADIENT_ROWS), strict=True):
            to_weight += _product(g.t(), rows.t())
        return to_x, to_weight.t(), grad.sum(0) if ctx.has_bias else None


def dropout(x: Tensor, rate: float) -> Tensor:
    """Zero each element with probability `rate`, to the nearest 2^-16, and divide the others by the rest.

    On a CPU the mask is a hash of (seed, element) and is computed again in the backward pass, so no mask is
    stored; the seed comes from torch's generator. One pass takes a tenth of torch's Bernoulli draw.
    """
    if rate == 0:
        return x
    if x.device.type != "cpu":
        return torch.nn.functional.dropout(x, rate)
    result: Tensor = _Dropout.apply(x, rate, int(torch.randint(2**62, ()).item()))  # type: ignore[no-untyped-call]
    return result


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, rate: float, seed: int) -> Tensor:
        ctx.rate, ctx.seed = rate, seed  # type: ignore[attr-defined]
        return _masked(x, rate, seed)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _masked(grads[0], ctx.rate, ctx.seed), None, None  # type: ignore[attr-defined]


def _masked(x: Tensor, rate: float, seed: int) -> Tensor:
    flat = x.contiguous().view(-1)
    out = torch.empty_like(flat)
    threshold = round(rate * 65536)
    kept = max(65536 - threshold, 1)
    scale = flat.numpy().dtype.type(65536 / kept)
    _mask(flat.numpy(), out.numpy(), np.uint64(seed), np.uint64(threshold), scale)
    return out.view(x.shape)


@numba.njit(cache=True, nogil=True)
def _mask(x, out, seed, threshold, scale):  # type: ignore[no-untyped-def]
    words = x.size // 4
    low = np.uint64(0xFFFF)
    for w in range(words):
        z = _mix(seed, np.uint64(w))
        for lane in range(4):
            at = w * 4 + lane
            keep = ((z >> np.uint64(16 * lane)) & low) >= threshold
            out[at] = x[at] * scale if keep else x.dtype.type(0)
    if words * 4 < x.size:
        z = _mix(seed, np.uint64(words))
        for lane in range(x.size - words * 4):
            at = words * 4 + lane
            keep = ((z >> np.uint64(16 * lane)) & low) >= threshold
            out[at] = x[at] * scale if keep else x.dtype.type(0)


@numba.njit(inline="always")
def _mix(seed, counter):  # type: ignore[no-untyped-def]
    """The SplitMix64 finaliser (Steele, Lea and Flood, 2014) of a counter in a seeded sequence."""
    z = seed + (counter + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
