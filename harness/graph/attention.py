"""Attention over the in-neighbours of a block.

`Sums.add` and `spread` choose by device. On a CPU each thread has a chunk of the rows, all with about as many
edges, so that sums depend on the number of threads only. A GPU takes triton's kernels (`triton_kernels`), which keep
nothing by edge; where there is no triton, and on other devices, torch's operations do the same for as many edges at a
time as have `SPELLED_OUT` values.

Destination i has for each head the weights alpha_ij = v_ij exp(e_ij) / sum_k v_ik exp(e_ik) over its
in-neighbours and itself, e_ij = LeakyReLU(query_i + key_j) (Velickovic et al., ICLR 2018, Eq. 3 and 4); v_ij
is what an edge counts, 1 for the self loop. Exponents are of differences to a row's largest. Nothing is kept
by edge: the backward pass computes the weights again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from harness.deferred import numba, torch
from harness.deferred import numpy as np
from harness.graph.csr import CSR
from harness.graph.kernels import SLOPE
from harness.graph.spmm import engine_problem, row_chunks, run_chunks

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

SPELLED_OUT = 2**24  # values of rows by edge that are in memory at once

Gradients: TypeAlias = "tuple[Tensor, Tensor, Tensor]"
"""Of z, of keys and of queries."""


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges by rows of a CSR, and what each counts: its value, times a factor of its row and of its column."""

    matrix: CSR
    row_scale: Tensor | None = None  # [rows]; None: ones
    column_scale: Tensor | None = None  # [cols]; None: ones

    def spelled_out(self, like: Tensor, first: int = 0, last: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return row and column of the edges `first` <= e < `last`, int64 [n], and what they count, [n, 1]."""
        matrix = self.matrix
        last = matrix.nnz if last is None else last
        column = matrix.indices[first:last].long()
        row = torch.arange(matrix.num_rows, device=like.device).repeat_interleave(
            matrix.indptr.clamp(first, last).diff(), output_size=last - first
        )
        values = matrix.values
        count = like.new_ones(last - first) if values is None else values[first:last].to(like.dtype)
        for scale, index in ((self.row_scale, row), (self.column_scale, column)):
            count = count if scale is None else count * scale.to(like.dtype)[index]
        return row, column, count.unsqueeze(1)

    def parts(self, rows: Tensor, like: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield what `spelled_out` returns, of all edges, `SPELLED_OUT` values of `rows` [n, ...] at a time."""
        step = max(1, SPELLED_OUT // max(1, rows[:1].numel()))
        for first in range(0, self.matrix.nnz, step):
            yield self.spelled_out(like, first, min(first + step, self.matrix.nnz))


def fused(device: torch.device) -> bool:
    """Return whether triton's kernels are taken on a device that is no CPU."""
    return device.type == "cuda" and engine_problem("triton") is None


def spread(edges: Edges, z: Tensor, key: Tensor, grad: Tensor, state: Tensor, own: slice) -> Gradients:
    """Return what flows back through edges: gradients of z, key and query, shaped like z, key and `grad`.

    Args:
        edges: by rows of *sources*.
        z, key: [num_src, heads, width] and [num_src, heads].
        grad: [num_dst, heads, width], gradient of the weighted rows.
        state: [num_dst, 4, heads]: query, peak, 1 / total, and the product of `grad` and the weighted row.
        own: sources whose self loops, at the destinations of the same numbers, are among the edges.
    """
    if fused(z.device):
        from harness.graph import triton_kernels  # triton need not be there

        return triton_kernels.spread(edges, z, key, grad, state, own)
    if z.device.type != "cpu":
        return spread_by_torch(edges, z, key, grad, state, own)
    # By rows of sources every thread writes rows of its own in `to_z` and `to_key`.
    bounds = row_chunks(edges.matrix)
    to_z, to_key = torch.zeros_like(z), torch.zeros_like(key)
    to_query = key.new_zeros((bounds.size - 1, grad.shape[0], key.shape[1]))
    loops = own.start, own.stop
    _run(_spread_rows, edges, bounds, (z, key, grad, state, to_z, to_key, to_query), *loops)
    return to_z, to_key, to_query[0] if bounds.size == 2 else to_query.sum(0)


def _run(
    kernel: Callable[..., None], edges: Edges, bounds: NDArray[np.int64], tensors: tuple[Tensor, ...], *more: int
) -> None:
    """Call a kernel on each part, in a thread of its own, with the structure and factors: steps of 1, or 0 for ones."""
    matrix, dtype = edges.matrix, tensors[0].dtype
    common: list[Any] = [bounds, matrix.indptr.numpy(), matrix.indices.numpy()]
    for factor in (matrix.values, edges.row_scale, edges.column_scale):
        values = torch.ones(1, dtype=dtype) if factor is None else factor.to(dtype)
        common += [values.numpy(), int(factor is not None)]
    common += [tensor.numpy() for tensor in tensors]
    run_chunks(lambda part: kernel(part, *common, *more), bounds.size - 1)


@numba.njit(cache=True, nogil=True)
def _add_rows(  # type: ignore[no-untyped-def]
    part, bounds, indptr, indices, values, value_step, row_scale, row_step, column_scale, column_step,
    z, key, query, rows, total, peak,
):  # fmt: skip
    # Of the matrix's dtype: a float64 constant would make every float32 sum a float64 one.
    slope = z.dtype.type(SLOPE)
    start, stop = bounds[part], bounds[part + 1]
    # One scratch a thread, of its longest row: no allocation in the loop, no matrix by edge.
    terms = np.empty((_longest(indptr, start, stop), key.shape[1]), z.dtype)
    for r in range(start, stop):
        first = indptr[r]
        sources = indices[first : indptr[r + 1]]
        # Before any exponential, so that none overflows and the row is read for its peak only once.
        _raise(sources, key, query[r], rows[r], total[r], peak[r], slope)
        for k in range(sources.size):
            j = sources[k]
            count = values[(first + k) * value_step] * row_scale[r * row_step] * column_scale[j * column_step]
            for h in range(key.shape[1]):
                score = query[r, h] + key[j, h]
                score = score if score > 0 else slope * score
                terms[k, h] = count * math.exp(score - peak[r, h])
                total[r, h] += terms[k, h]
        # Terms of the whole row first: the sum can then take eight sources at a time.
        _add_weighted(sources, terms, z, rows[r])


@numba.njit(cache=True, nogil=True)
def _longest(indptr, first, last):  # type: ignore[no-untyped-def]
    longest = 0
    for r in range(first, last):
        longest = max(longest, indptr[r + 1] - indptr[r])
    return longest


@numba.njit(cache=True, nogil=True)
def _raise(sources, key, query, rows, total, peak, slope):  # type: ignore[no-untyped-def]
    """Raise a destination's peak to its largest score: LeakyReLU grows, so that of its largest key."""
    if sources.size == 0:
        return
    for h in range(peak.size):
        top = key[sources[0], h]
        for k in range(sources.size):
            top = max(top, key[sources[k], h])
        top += query[h]
        top = top if top > 0 else slope * top
        # What was added against a smaller peak is scaled down to the new one.
        if top > peak[h]:
            kept = math.exp(peak[h] - top)
            peak[h] = top
            total[h] *= kept
            rows[h] *= kept


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _add_weighted(columns, weights, x, out):  # type: ignore[no-untyped-def]
    """Add to out [heads, width] the rows x[columns], weighted for each head."""
    # Eight sources a turn: the row is loaded and stored once for eight products.
    e = 0
    while e + 8 <= columns.size:
        for h in range(out.shape[0]):
            row = out[h]
            a, b, c, d = x[columns[e], h], x[columns[e + 1], h], x[columns[e + 2], h], x[columns[e + 3], h]
            p, q, s, t = (x[columns[e + 4], h], x[columns[e + 5], h], x[columns[e + 6], h], x[columns[e + 7], h])
            wa, wb, wc, wd = weights[e, h], weights[e + 1, h], weights[e + 2, h], weights[e + 3, h]
            wp, wq, ws, wt = weights[e + 4, h], weights[e + 5, h], weights[e + 6, h], weights[e + 7, h]
            for k in range(row.size):
                row[k] += ((wa * a[k] + wb * b[k]) + (wc * c[k] + wd * d[k])) + (
                    (wp * p[k] + wq * q[k]) + (ws * s[k] + wt * t[k])
                )
        e += 8
    while e < columns.size:
        for h in range(out.shape[0]):
            row, a, wa = out[h], x[columns[e], h], weights[e, h]
            for k in range(row.size):
                row[k] += wa * a[k]
        e += 1


@numba.njit(cache=True, nogil=True)
def _spread_rows(  # type: ignore[no-untyped-def]
    part, bounds, indptr, indices, values, value_step, row_scale, row_step, column_scale, column_step,
    z, key, grad, state, to_z, to_key, to_query, first_own, last_own,
):  # fmt: skip
    heads, slope, one = key.shape[1], z.dtype.type(SLOPE), z.dtype.type(1)
    start, stop = bounds[part], bounds[part + 1]
    longest = _longest(indptr, start, stop) + 1
    everyone = np.empty(longest, np.int32)
    products, weights = np.empty((longest, heads), z.dtype), np.empty((longest, heads), z.dtype)
    for j in range(start, stop):
        first, edges = indptr[j], indptr[j + 1] - indptr[j]
        everyone[:edges] = indices[first : first + edges]
        # The self loop goes last, where those that have none leave it out of the slice.
        everyone[edges] = j
        targets = everyone[: edges + (first_own <= j < last_own)]
        _multiply(targets, grad, z[j], products)
        for k in range(targets.size):
            i, count = targets[k], one
            # The self loop counts 1 and has no entry in the matrix.
            if k < edges:
                count = values[(first + k) * value_step] * row_scale[j * row_step] * column_scale[i * column_step]
            for h in range(heads):
                score = state[i, 0, h] + key[j, h]
                steep = one if score > 0 else slope
                weight = count * math.exp(steep * score - state[i, 1, h]) * state[i, 2, h]
                change = weight * (products[k, h] - state[i, 3, h]) * steep
                weights[k, h] = weight
                to_key[j, h] += change
                # Threads share destinations, hence a copy of the gradient for each of them.
                to_query[part, i, h] += change
        _add_weighted(targets, weights, grad, to_z[j])


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _multiply(columns, x, y, out):  # type: ignore[no-untyped-def]
    """Write the products of y [heads, width] and the rows x[columns], for each head, to out [rows, heads]."""
    e, zero = 0, x.dtype.type(0)
    # Four products a turn share the loads of `row`; more sums than that do not fit the registers.
    while e + 4 <= columns.size:
        for h in range(y.shape[0]):
            row = y[h]
            a, b, c, d = x[columns[e], h], x[columns[e + 1], h], x[columns[e + 2], h], x[columns[e + 3], h]
            p = q = s = t = zero
            for k in range(row.size):
                p += row[k] * a[k]
                q += row[k] * b[k]
                s += row[k] * c[k]
                t += row[k] * d[k]
            out[e, h], out[e + 1, h], out[e + 2, h], out[e + 3, h] = p, q, s, t
        e += 4
    while e < columns.size:
        for h in range(y.shape[0]):
            row, a, p = y[h], x[columns[e], h], zero
            for k in range(row.size):
                p += row[k] * a[k]
            out[e, h] = p
        e += 1


def spread_by_torch(edges: Edges, z: Tensor, key: Tensor, grad: Tensor, state: Tensor, own: slice) -> Gradients:
    """Do what `spread` does, by torch's operations, on any device."""
    to_z, to_key = torch.zeros_like(z), torch.zeros_like(key)
    to_query = key.new_zeros((grad.shape[0], key.shape[1]))
    loops = torch.arange(own.start, own.stop, device=z.device)
    step = max(1, SPELLED_OUT // max(1, z[:1].numel()))
    selves = ((some, some, key.new_ones((len(some), 1))) for some in loops.split(step))
    for source, target, count in chain(edges.parts(z, key), selves):
        query, peak, inverse, mean = state[target].unbind(1)
        score, received = query + key[source], grad[target]
        weight = _leaky(score).sub_(peak).exp_().mul_(inverse).mul_(count)
        steep = torch.full_like(score, SLOPE).masked_fill_(score > 0, 1)
        change = (received * z[source]).sum(2).sub_(mean).mul_(weight).mul_(steep)
        to_key.index_add_(0, source, change)
        to_query.index_add_(0, target, change)
        to_z.index_add_(0, source, received.mul_(weight.unsqueeze(2)))
    return to_z, to_key, to_query


def _leaky(scores: Tensor) -> Tensor:
    return torch.nn.functional.leaky_relu(scores, SLOPE)


@dataclass(frozen=True)
class Sums:
    """Sums over edges of terms v_ij exp(e_ij - peak_i)."""

    rows: Tensor  # [num_dst, heads, width], of terms times z_j
    total: Tensor  # [num_dst, heads], of terms
    peak: Tensor  # [num_dst, heads], the largest e_ij of those edges and of the self loop

    @classmethod
    def of_self_loops(cls, z: Tensor, key: Tensor, query: Tensor, own: slice) -> Sums:
        """Return the sums over the self loops of the destinations `own`; the others' are empty."""
        peak = _leaky(query + key[: len(query)])
        rows, total = z.new_zeros((len(query), *z.shape[1:])), torch.zeros_like(query)
        rows[own], total[own] = z[own], 1
        return cls(rows, total, peak)

    @classmethod
    def of_nothing(cls, z: Tensor, query: Tensor) -> Sums:
        """Return empty sums for so many destinations as there are queries."""
        lowest = torch.finfo(query.dtype).min / 2  # infinity less infinity would not be a number
        return cls(z.new_zeros((len(query), *z.shape[1:])), torch.zeros_like(query), torch.full_like(query, lowest))

    def add(self, edges: Edges, z: Tensor, key: Tensor, query: Tensor) -> None:
        """Add the terms of `edges`, in place; where an e_ij is above its peak, the sums so far are scaled down.

        Args:
            edges: by rows of destinations.
            z, key: [num_src, heads, width] and [num_src, heads].
            query: [num_dst, heads].
        """
        if fused(z.device):
            from harness.graph import triton_kernels  # triton need not be there

            triton_kernels.attend(self, edges, z, key, query)
        elif z.device.type != "cpu":
            self.add_by_torch(edges, z, key, query)
        else:
            tensors = z, key, query, self.rows, self.total, self.peak
            _run(_add_rows, edges, row_chunks(edges.matrix), tensors)

    def add_by_torch(self, edges: Edges, z: Tensor, key: Tensor, query: Tensor) -> None:
        """Do what `add` does, by torch's operations, on any device."""
        highest = self.peak.clone()
        for target, source, _ in edges.parts(z, key):
            score = _leaky(query[target] + key[source])
            highest.scatter_reduce_(0, target.unsqueeze(1).expand_as(score), score, "amax")
        # Sums so far are relative to the peaks so far.
        kept = (self.peak - highest).exp_()
        self.peak.copy_(highest)
        self.total.mul_(kept)
        self.rows.mul_(kept.unsqueeze(2))
        for target, source, count in edges.parts(z, key):
            term = _leaky(query[target] + key[source]).sub_(highest[target]).exp_().mul_(count)
            self.total.index_add_(0, target, term)
            self.rows.index_add_(0, target, term.unsqueeze(2) * z[source])

    def merge(self, other: Sums) -> None:
        """Add the sums over other edges to the same destinations."""
        highest = torch.maximum(self.peak, other.peak)
        mine, theirs = (self.peak - highest).exp_(), (other.peak - highest).exp_()
        self.rows.mul_(mine.unsqueeze(2)).addcmul_(other.rows, theirs.unsqueeze(2))
        self.total.mul_(mine).addcmul_(other.total, theirs)
        self.peak.copy_(highest)

    def packed(self) -> Tensor:
        """Return all in one matrix, [num_dst, heads * (width + 2)]."""
        return torch.cat([self.rows.flatten(1), self.total, self.peak], 1)

    @classmethod
    def unpacked(cls, packed: Tensor, heads: int) -> Sums:
        """Return a copy of what was `packed`."""
        rows, total, peak = packed.split([packed.shape[1] - 2 * heads, heads, heads], 1)
        return cls(by_head(rows.contiguous(), heads), total.contiguous(), peak.contiguous())


def by_head(rows: Tensor, heads: int) -> Tensor:
    """Return a view [n, heads, width] of rows [n, heads * width]."""
    return rows.view(len(rows), heads, rows.shape[1] // heads)
