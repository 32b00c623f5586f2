"""Element-wise operations with a compiled CPU path."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from harness.deferred import Function, numba, torch
from harness.deferred import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor
    from torch.autograd.function import FunctionCtx


class Linear:
    """x weight + bias for `x` [rows, in], `weight` [in, out], `bias` [out].

    In float32 on a CPU the products run in oneDNN: it has the same bits with any number of threads, and AVX-512 kernels
    that are over twice as fast as MKL's on some AMD processors (docs/design/numerics.md). It compiles and keeps a
    kernel of megabytes for every number of rows; so rows come at once where their number recurs, and by chunks of few
    sizes where a sampler makes it new each time. Without gradients other numbers are remembered than with them: an
    evaluation must not change how training rounds.

    Attributes:
        rounded: whether products are of operands rounded to bfloat16, in both passes, and summed in float32.
    """

    def __init__(self) -> None:
        self.training, self.evaluating = RecurringRows(), RecurringRows()
        self.rounded = False

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the product, [rows, out]."""
        return self._products([x], [weight], bias)[0]

    def by_head(self, x: Tensor, weight: Tensor, heads: int) -> Tensor:
        """Return [rows, out]: for each head the product of its columns of `x` [rows, heads * in] and of `weight`."""
        # By columns of a wider matrix oneDNN's product takes up to a thousand times as long.
        columns = [[own.contiguous() for own in each.split(each.shape[1] // heads, 1)] for each in (x, weight)]
        return torch.cat(self._products(columns[0], columns[1]), 1)

    def _products(self, xs: Sequence[Tensor], weights: Sequence[Tensor], bias: Tensor | None = None) -> list[Tensor]:
        """Return the products of matrices that have equally many rows."""
        pairs, like = list(zip(xs, weights, strict=True)), xs[0]
        on_cpu = like.device.type == "cpu" and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        if self.rounded or (on_cpu and like.dtype == torch.float32):
            known = self.training if torch.is_grad_enabled() else self.evaluating
            recurs = known.has(like.shape[0]) or not on_cpu
            return [_Linear.apply(x, weight, bias, recurs, self.rounded) for x, weight in pairs]
        return [x @ weight if bias is None else torch.addmm(bias, x, weight) for x, weight in pairs]


KEPT_KERNELS = 8


class RecurringRows:
    """Numbers of rows; those from `LEAST_ROWS` on that come again recur, as far as kernels are kept."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=64)
        self._recurring: set[int] = set()

    def has(self, rows: int) -> bool:
        """Take in a number of rows; whether it recurs."""
        if rows in self._recent and rows >= LEAST_ROWS and len(self._recurring) < KEPT_KERNELS:
            self._recurring.add(rows)
        self._recent.append(rows)
        return rows in self._recurring

    def state(self) -> tuple[list[int], list[int]]:
        """Return the recent numbers and those that recur."""
        return list(self._recent), sorted(self._recurring)

    def restore(self, state: tuple[list[int], list[int]]) -> None:
        """Know what others knew, by their `state`."""
        self._recent.clear()
        self._recent.extend(state[0])
        self._recurring = set(state[1])


KnownRows = list[list[tuple[list[int], list[int]]]]
"""Of products the `RecurringRows.state` in training and evaluating."""

LEAST_ROWS = 16  # of a product: oneDNN divides the sums of a single row among threads
ROUNDED_ROWS = 256  # the rows of whole chunks are multiples of it
PIECE_ROWS, PIECE = 1 << 14, 1 << 18  # rows of a product, and values, that are converted to or from bfloat16 at once
GRADIENT_ROWS = 2048  # rows of a chunk of x' grad that stays in the second-level cache


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Return the normalised rows of `x` [rows, width], the same bits with any number of threads.

    On a CPU torch sums the gradients of weight and bias by thread; here they are sums of columns, which it does not
    split.
    """
    result: Tensor = _LayerNorm.apply(x, weight, bias, eps)
    return result


class _LayerNorm(Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        out, mean, inverse = torch.native_layer_norm(x, x.shape[1:], weight, bias, eps)
        ctx.save_for_backward(x, weight, bias, mean, inverse)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight, bias, mean, inverse = ctx.saved_tensors
        grad, to_weight = grads[0].contiguous(), None
        if ctx.needs_input_grad[1]:
            to_weight = (x - mean).mul_(inverse).mul_(grad).sum(0)  # gone before there is a gradient of x
        to_x, _, _ = torch.ops.aten.native_layer_norm_backward(
            grad, x, x.shape[1:], mean, inverse, weight, bias, [ctx.needs_input_grad[0], False, False]
        )
        return to_x, to_weight, grad.sum(0) if ctx.needs_input_grad[2] else None, None


def _by_chunks(x: Tensor, weight: Tensor, bias: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """Return x weight + bias by oneDNN, with kernels for few numbers of rows, none below `LEAST_ROWS`."""
    out, at = torch.empty((x.shape[0], weight.shape[1]), dtype=dtype, device=x.device), 0
    for rows in _chunks(x):
        out[at : at + rows.shape[0]] = _product(rows, weight, bias)[: x.shape[0] - at]
        at += rows.shape[0]
    return out


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """Return x weight + bias by oneDNN, in float32 or `dtype`; of operands in bfloat16 torch asks it, on a CPU."""
    if x.dtype == torch.bfloat16:
        out = torch.empty((x.shape[0], weight.shape[1]), dtype=dtype, device=x.device)
        for rows, to in zip(x.split(PIECE_ROWS), out.split(PIECE_ROWS), strict=True):
            to.copy_(rows @ weight)
        return out if bias is None else out.add_(bias)
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight.t(), bias, "none", [], "")
    return result


class _Linear(Function):
    """A product by oneDNN, or of operands in bfloat16; rows that are in bfloat16 already are kept without a copy."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor | None, recurs: bool, rounded: bool
    ) -> Tensor:
        dtype = torch.bfloat16 if rounded else x.dtype
        rows, factor = x.to(dtype), weight.to(dtype)
        ctx.save_for_backward(rows, factor)
        ctx.dtype = x.dtype  # type: ignore[attr-defined]
        ctx.has_bias, ctx.product = bias is not None, _product if recurs else _by_chunks  # type: ignore[attr-defined]
        return ctx.product(rows, factor, bias)  # type: ignore[attr-defined, no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None, None]:
        rows, factor = ctx.saved_tensors
        grad = grads[0].to(rows.dtype).contiguous()
        to_x = ctx.product(grad, factor.t(), dtype=ctx.dtype) if ctx.needs_input_grad[0] else None
        return to_x, _weight_gradient(rows, grad), grads[0].sum(0) if ctx.has_bias else None, None, None


def _weight_gradient(x: Tensor, grad: Tensor) -> Tensor:
    """Return x' grad, rounded alike with any number of threads.

    MKL divides the rows among the threads on some processors, and oneDNN those of a single column. So rows come by
    chunks of few sizes, since oneDNN keeps a kernel for each; zeros fill the last up.
    """
    if not x.shape[0]:
        return torch.zeros((x.shape[1], grad.shape[1]), device=x.device)
    if grad.shape[1] == 1:
        return (x.float() * grad).sum(0, keepdim=True).t()
    if x.device.type != "cpu":
        return _product(x.t(), grad)
    narrow = LEAST_ROWS <= x.shape[1] < grad.shape[1]  # oneDNN copies what is transposed: the narrower of the two
    pairs = zip(_chunks(x), _chunks(grad), strict=True)
    parts = (_product(rows.t(), to) if narrow else _product(to.t(), rows) for rows, to in pairs)
    result = next(parts)
    for part in parts:
        result += part
    return result if narrow else result.t()


def _chunks(rows: Tensor) -> Iterator[Tensor]:
    """Yield chunks of `GRADIENT_ROWS`, of a multiple of `ROUNDED_ROWS`, and of a power of two with zeros."""
    whole = rows.shape[0] // ROUNDED_ROWS * ROUNDED_ROWS
    if whole:
        yield from rows[:whole].split(GRADIENT_ROWS)
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
    result: Tensor = _Dropout.apply(x, rate, _seeds(), False, torch.bfloat16 if rounded else x.dtype)
    return result


def relu_dropout(x: Tensor, rate: float, *, rounded: bool = False) -> Tensor:
    """Return dropout(relu(x)); on a CPU in one pass, whose backward needs nothing but the output."""
    if x.device.type != "cpu":
        return dropout(torch.relu(x), rate, rounded=rounded)
    seeds = _seeds() if rate else np.zeros(2, np.uint32)  # an evaluation draws nothing of training's numbers
    result: Tensor = _Dropout.apply(x, rate, seeds, True, torch.bfloat16 if rounded else x.dtype)
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
    """Dropout, with `relu` of relu(x), whose backward pass needs the output alone; the output is of `dtype`."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, x: Tensor, rate: float, seeds: NDArray[np.uint32], relu: bool, dtype: torch.dtype
    ) -> Tensor:
        out = _masked(_mask_positive if relu else _mask, x, rate, seeds, dtype)
        if relu:
            ctx.save_for_backward(out)
        ctx.rate, ctx.seeds, ctx.relu, ctx.dtype = rate, seeds, relu, x.dtype  # type: ignore[attr-defined]
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        if not ctx.relu:
            return _masked(_mask, grads[0], ctx.rate, ctx.seeds, ctx.dtype), None, None, None, None
        (out,) = ctx.saved_tensors
        # The bits of a number in bfloat16, as an integer, are above 0 where the number is.
        grad, kept = grads[0].contiguous(), _flat(out.view(torch.int16) if out.dtype == torch.bfloat16 else out)
        result, scale = torch.empty_like(grad, dtype=ctx.dtype), _scale(ctx.dtype, ctx.rate)

        def work(first: int, given: NDArray[Any], made: NDArray[Any]) -> None:
            _where_positive(kept[first : first + given.size], given, made, scale)

        _by_pieces(work, grad, result)
        return result, None, None, None, None


def _masked(kernel: Any, x: Tensor, rate: float, seeds: NDArray[np.uint32], dtype: torch.dtype) -> Tensor:
    x = x.contiguous()
    out, scale = torch.empty_like(x, dtype=dtype), _scale(dtype, rate)

    def work(first: int, given: NDArray[Any], made: NDArray[Any]) -> None:
        kernel(given, made, np.uint32(first % 2**32), *seeds, _threshold(rate), scale)

    _by_pieces(work, x, out)
    return out


def _by_pieces(work: Callable[[int, NDArray[Any], NDArray[Any]], None], x: Tensor, out: Tensor) -> None:
    """Have `work` make the values of `out` from those of `x`, from the first on; in pieces if one is in bfloat16."""
    if x.dtype == out.dtype:
        work(0, _flat(x), _flat(out))
        return
    for piece, (given, made) in enumerate(zip(x.view(-1).split(PIECE), out.view(-1).split(PIECE), strict=True)):
        held = torch.empty(given.numel())
        work(piece * PIECE, given.float().numpy(), held.numpy())
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
