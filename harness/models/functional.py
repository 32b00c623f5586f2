"""Element-wise operations with a compiled CPU path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.deferred import Function, numba, torch
from harness.deferred import numpy as np
from harness.graph.devices import fresh

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from torch import Tensor
    from torch.autograd.function import FunctionCtx
    from torch.nn import LayerNorm


class Linear:
    """x weight + bias for `x` [rows, in], `weight` [in, out], `bias` [out].

    In float32 on a CPU the products run in oneDNN: it has the same bits with any number of threads, and AVX-512 kernels
    that are over twice as fast as MKL's on some AMD processors (docs/design/numerics.md). It compiles and keeps a
    kernel of megabytes for every number of rows; so rows come by chunks of few sizes.

    Attributes:
        rounded: whether products are of operands rounded to bfloat16, in both passes, and summed in float32.
    """

    def __init__(self) -> None:
        self.rounded = False

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, into: Tensor | None = None) -> Tensor:
        """Return the product, [rows, out]; or `into` of that shape, to which it is added in place."""
        on_cpu = x.device.type == "cpu" and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        if self.rounded or (on_cpu and x.dtype == torch.float32):
            result: Tensor = _Linear.apply(x, weight, bias, self.rounded, into)
            return result
        found = x @ weight if bias is None else torch.addmm(bias, x, weight)
        return found if into is None else into.add_(found)

    def by_head(self, x: Tensor, weight: Tensor, heads: int) -> Tensor:
        """Return [rows, out]: for each head the product of its columns of `x` [rows, heads * in] and of `weight`."""
        # By columns of a wider matrix oneDNN's product takes up to a thousand times as long.
        columns = [[own.contiguous() for own in each.split(each.shape[1] // heads, 1)] for each in (x, weight)]
        return torch.cat([self(*each) for each in zip(*columns, strict=True)], 1)


LEAST_ROWS = 16  # of a product: oneDNN divides the sums of a single row among threads
ROUNDED_ROWS = 256  # the rows of whole chunks are multiples of it
PIECE = 1 << 18  # values that a second-level cache holds
CHUNK_ROWS = 2048  # rows that a second-level cache holds


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, into: Tensor | None = None) -> Tensor:
    """Return x weight + bias, in `dtype`, or `into` and that; by `_chunks` on a CPU, rounded as `weight` is."""
    if x.device.type != "cpu":
        found = _at_once(x.to(weight.dtype), weight, bias)
        return found.to(dtype) if into is None else into.add_(found)
    out, at = fresh(x, x.shape[0], weight.shape[1], dtype=dtype) if into is None else into, 0
    for rows in _chunks(x):
        found, to = _at_once(rows.to(weight.dtype), weight, bias)[: x.shape[0] - at], out[at : at + rows.shape[0]]
        to.copy_(found) if into is None else to.add_(found)
        at += rows.shape[0]
    return out


def _at_once(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x weight + bias by oneDNN; of operands in bfloat16 torch asks it, on a CPU, and the product is rounded."""
    if x.dtype == torch.bfloat16:
        return x @ weight if bias is None else (x @ weight).float().add_(bias)
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight.t(), bias, "none", [], "")
    return result


class _Linear(Function):
    """A product by oneDNN, or of operands in bfloat16; rows that are in bfloat16 already are kept without a copy."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor | None, rounded: bool, into: Tensor | None
    ) -> Tensor:
        dtype = torch.bfloat16 if rounded else x.dtype
        rows, factor = x.to(dtype), weight.to(dtype)
        ctx.save_for_backward(rows, factor)
        ctx.dtype, ctx.has_bias = x.dtype, bias is not None  # type: ignore[attr-defined]
        if into is not None:
            ctx.mark_dirty(into)
        return _product(rows, factor, bias, torch.float32, into)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None, Tensor | None]:
        rows, factor = ctx.saved_tensors
        grad = grads[0].contiguous()
        to_x = _product(grad, factor.t(), None, ctx.dtype) if ctx.needs_input_grad[0] else None
        to_into = grads[0] if ctx.needs_input_grad[4] else None
        return to_x, _weight_gradient(rows, grad), grads[0].sum(0) if ctx.has_bias else None, None, to_into


def _weight_gradient(x: Tensor, grad: Tensor) -> Tensor:
    """Return x' grad, of `grad` in the dtype of `x`, rounded alike with any number of threads.

    MKL divides the rows among the threads on some processors, and oneDNN those of a single column. So rows come by
    chunks of few sizes, since oneDNN keeps a kernel for each; zeros fill the last up.
    """
    if not x.shape[0]:
        return torch.zeros((x.shape[1], grad.shape[1]), device=x.device)
    if grad.shape[1] == 1:
        return (x.float() * grad.to(x.dtype)).sum(0, keepdim=True).t()
    if x.device.type != "cpu":
        return _at_once(x.t(), grad.to(x.dtype)).float()
    narrow = LEAST_ROWS <= x.shape[1] < grad.shape[1]  # oneDNN copies what is transposed: the narrower of the two
    pairs = zip(_chunks(x), (rows.to(x.dtype) for rows in _chunks(grad)), strict=True)
    parts = ((_at_once(rows.t(), to) if narrow else _at_once(to.t(), rows)).float() for rows, to in pairs)
    result = next(parts)
    for part in parts:
        result += part
    return result if narrow else result.t()


def _chunks(rows: Tensor) -> Iterator[Tensor]:
    """Yield chunks of `CHUNK_ROWS`, of a multiple of `ROUNDED_ROWS`, and of a power of two with zeros."""
    whole = rows.shape[0] // ROUNDED_ROWS * ROUNDED_ROWS
    if whole:
        yield from rows[:whole].split(CHUNK_ROWS)
    if left := rows.shape[0] - whole:
        more = max(LEAST_ROWS, 1 << (left - 1).bit_length()) - left
        yield torch.nn.functional.pad(rows[whole:], (0, 0, 0, more)) if more else rows[whole:]


def dropout(x: Tensor, rate: float, *, rounded: bool = False) -> Tensor:
    """Zero each element with probability `rate` and divide the others by 1 - `rate`; `rounded`: in bfloat16.

    On a CPU the mask is a hash of (seed, element), computed again in the backward pass and not stored; the seed comes
    from torch's generator. A pass takes as long as a copy, torch's Bernoulli draw fifty times as long.
    """
    if rate == 0 or x.device.type != "cpu":
        x = x if rate == 0 else torch.nn.functional.dropout(x, rate)
        return x.to(torch.bfloat16) if rounded else x
    result: Tensor = _Dropout.apply(x, rate, _seeds(), torch.bfloat16 if rounded else x.dtype)
    return result


def relu_dropout(x: Tensor, rate: float, norm: LayerNorm | None = None, *, rounded: bool = False) -> Tensor:
    """Return dropout(relu(x)), or of the normalised rows of `x` [rows, width]; on a CPU in one pass.

    The backward pass needs the output, and with `norm` `x`. Its sums have the same bits with any number of threads,
    where torch sums the gradients of a norm's weight and bias by thread.
    """
    if x.device.type != "cpu":
        return dropout(torch.relu(x if norm is None else norm(x)), rate, rounded=rounded)
    seeds = _seeds() if rate else np.zeros(2, np.uint32)  # an evaluation draws nothing of training's numbers
    weights = (None, None, 0.0) if norm is None else (norm.weight, norm.bias, norm.eps)
    result: Tensor = _Activate.apply(x, *weights, rate, seeds, torch.bfloat16 if rounded else x.dtype)
    return result


def drop_values(x: Tensor, rate: float, seed: int) -> Tensor:
    """Zero each element of `x`, in place, with probability `rate`; the others stay as they are. Returns `x`.

    What is lost depends on `seed`, in [0, 2^63), and on the shape alone, neither on threads nor on torch's
    generator. No gradient is followed.
    """
    if x.device.type != "cpu":
        generator = torch.Generator(x.device).manual_seed(seed)
        lost = torch.rand(x.shape, generator=generator, device=x.device) < rate
        return x.masked_fill_(lost, 0)
    first, second = np.random.SeedSequence(seed).generate_state(2)
    _drop(_flat(x), first, second, _threshold(rate))
    return x


def _seeds() -> NDArray[np.uint32]:
    return torch.randint(2**32, (2,)).numpy().astype(np.uint32)


class _Dropout(Function):
    """Dropout, whose output is of `dtype`."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, rate: float, seeds: NDArray[np.uint32], dtype: torch.dtype) -> Tensor:
        ctx.rate, ctx.seeds, ctx.dtype = rate, seeds, x.dtype  # type: ignore[attr-defined]
        return _masked(x, rate, seeds, dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _masked(grads[0], ctx.rate, ctx.seeds, ctx.dtype), None, None, None


def _masked(x: Tensor, rate: float, seeds: NDArray[np.uint32], dtype: torch.dtype) -> Tensor:
    x = x.contiguous()
    out = fresh(x, *x.shape, dtype=dtype)
    for first, given, made in _pieces(x.view(-1), out.view(-1), PIECE):
        _write(_mask, first, given, made, *seeds, _threshold(rate), _scale(x.dtype, rate))
    return out


class _Activate(Function):
    """Dropout of ReLU of x, or of its rows normalised; the output is of `dtype`."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, rate: float,
        seeds: NDArray[np.uint32], dtype: torch.dtype,
    ) -> Tensor:  # fmt: skip
        x = x.contiguous()
        out, moments = fresh(x, *x.shape, dtype=dtype), list[tuple["Tensor", "Tensor"]]()
        for first, given, made in _pieces(x, out, CHUNK_ROWS):
            if weight is not None:
                given, *found = torch.native_layer_norm(given, x.shape[1:], weight, bias, eps)
                moments.append((found[0], found[1]))
            at = first * x.shape[1:].numel()
            _write(_mask_positive, at, given, made, *seeds, _threshold(rate), _scale(x.dtype, rate))
        ctx.save_for_backward(out)
        if weight is not None and bias is not None:
            ctx.save_for_backward(out, x, weight, bias, *(torch.cat(each) for each in zip(*moments, strict=True)))
        ctx.rate, ctx.dtype = rate, x.dtype  # type: ignore[attr-defined]
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        out, *normed = ctx.saved_tensors
        result, to_weights = fresh(out, *out.shape, dtype=ctx.dtype), [torch.zeros_like(each) for each in normed[1:3]]
        for first, grad, made in _pieces(grads[0].contiguous(), result, CHUNK_ROWS):
            rows = slice(first, first + len(grad))
            # The bits of a number in bfloat16, as an integer, are above 0 where the number is.
            kept = out[rows].view(torch.int16) if out.dtype == torch.bfloat16 else out[rows]
            _where_positive(_flat(kept), _flat(grad.to(made.dtype)), _flat(made), _scale(ctx.dtype, ctx.rate))
            if normed:
                x, mean, inverse = (each[rows] for each in (normed[0], *normed[3:]))
                to_weights[0] += (x - mean).mul_(inverse).mul_(made).sum(0)
                to_weights[1] += made.sum(0)
                of = made, x, x.shape[1:], mean, inverse, *normed[1:3], [True, False, False]
                made.copy_(torch.ops.aten.native_layer_norm_backward(*of)[0])
        return result, *(to_weights or (None, None)), None, None, None, None


def _pieces(x: Tensor, out: Tensor, size: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield pieces of so many rows of both, which caches hold, and the number of their first row."""
    for piece, (given, made) in enumerate(zip(x.split(size), out.split(size), strict=True)):
        yield piece * size, given, made


def _write(kernel: Any, first: int, given: Tensor, made: Tensor, *settings: Any) -> None:
    """Write to `made` what a kernel makes of the values `given`, the first of which has the number `first`."""
    held = made if given.dtype == made.dtype else torch.empty(given.shape)
    kernel(_flat(given.to(held.dtype)), _flat(held), np.uint32(first % 2**32), *settings)
    if held is not made:
        made.copy_(held)


def _threshold(rate: float) -> np.uint32:
    """Return what a share `rate` of hashes are below."""
    return np.uint32(round(rate * (2**32 - 1)))


def _flat(x: Tensor) -> NDArray[Any]:
    return x.view(-1).numpy()


def _scale(dtype: torch.dtype, rate: float) -> Any:
    return (np.float64 if dtype == torch.float64 else np.float32)(1 / (1 - rate))


@numba.njit(inline="always")
def _hash(index, first, second):  # type: ignore[no-untyped-def]
    """MurmurHash3's 32-bit finaliser of a seeded counter, with a second seed before its last product.

    In 32 bits throughout, so that the loops around it compile to vector instructions.
    """
    z = np.uint32(np.uint32(index) ^ first)
    z = np.uint32(z ^ (z >> np.uint32(16)))
    z = np.uint32(z * np.uint32(0x85EBCA6B))
    z = np.uint32(z ^ (z >> np.uint32(13)))
    z = np.uint32(z + second)
    z = np.uint32(z * np.uint32(0xC2B2AE35))
    return np.uint32(z ^ (z >> np.uint32(16)))


@numba.njit(cache=True, nogil=True)
def _mask(x, out, start, first, second, threshold, scale):  # type: ignore[no-untyped-def]
    zero = x.dtype.type(0)
    for i in range(x.size):
        scaled = x[i] * scale
        out[i] = scaled if _hash(np.uint32(i) + start, first, second) >= threshold else zero


@numba.njit(cache=True, nogil=True)
def _drop(x, first, second, threshold):  # type: ignore[no-untyped-def]
    zero = x.dtype.type(0)
    for i in range(x.size):
        x[i] = x[i] if _hash(i, first, second) >= threshold else zero  # always written: so it is vectorised


@numba.njit(cache=True, nogil=True)
def _mask_positive(x, out, start, first, second, threshold, scale):  # type: ignore[no-untyped-def]
    zero = x.dtype.type(0)
    for i in range(x.size):
        factor = scale if _hash(np.uint32(i) + start, first, second) >= threshold else zero
        # Not `max`: a NaN must stay one, or a diverged trial would look healthy.
        out[i] = zero if x[i] < zero else x[i] * factor


@numba.njit(cache=True, nogil=True)
def _where_positive(out, grad, result, scale):  # type: ignore[no-untyped-def]
    zero = grad.dtype.type(0)
    for i in range(out.size):
        scaled = grad[i] * scale
        result[i] = scaled if out[i] > zero else zero
