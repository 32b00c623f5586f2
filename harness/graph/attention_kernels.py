"""Sums over weighted edges for graph attention, and their gradients: compiled for CPUs, else by torch.

`add` and `spread` choose by device; `harness.graph.attention` says what is computed. On a CPU each thread
has a part of the rows, all with about as many edges, so that sums depend on the number of threads only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.graph.attention_torch import add_by_torch, spread_by_torch
from harness.graph.edges import SLOPE, Edges
from harness.graph.parts import row_parts, run_parts


def add(
    edges: Edges, z: Tensor, key: Tensor, query: Tensor, rows: Tensor, total: Tensor, peak: Tensor
) -> None:
    """Add the edges' terms v_ij exp(e_ij - peak_i), alone to `total` and times z_j to `rows`, in place.

    Args:
        edges: by rows of destinations.
        z: [num_src, heads, width].
        key: [num_src, heads].
        query: [num_dst, heads].
        rows: [num_dst, heads, width].
        total: [num_dst, heads].
        peak: [num_dst, heads]; where an e_ij is larger it replaces it, and the sums so far are scaled down.
    """
    if z.device.type != "cpu":
        add_by_torch(edges, z, key, query, rows, total, peak)
        return
    _run(_add_rows, edges, row_parts(edges.matrix), (z, key, query, rows, total, peak))


def spread(
    edges: Edges, z: Tensor, key: Tensor, grad: Tensor, state: Tensor, own: slice
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what flows back through edges: gradients of z, key and query, shaped like z, key and `grad`.

    Args:
        edges: by rows of *sources*.
        z: [num_src, heads, width].
        key: [num_src, heads].
        grad: [num_dst, heads, width], gradient of the weighted rows.
        state: [num_dst, 4, heads]: query, peak, 1 / total, and the product of `grad` and the weighted row.
        own: sources whose self loops, at the destinations of the same numbers, are among the edges.
    """
    if z.device.type != "cpu":
        return spread_by_torch(edges, z, key, grad, state, own)
    bounds = row_parts(edges.matrix)
    to_z, to_key = torch.zeros_like(z), torch.zeros_like(key)
    to_query = key.new_zeros((bounds.size - 1, grad.shape[0], key.shape[1]))
    loops = own.start, own.stop
    _run(_spread_rows, edges, bounds, (z, key, grad, state, to_z, to_key, to_query), *loops)
    return to_z, to_key, to_query[0] if bounds.size == 2 else to_query.sum(0)


def _run(
    kernel: Callable[..., None],
    edges: Edges,
    bounds: NDArray[np.int64],
    tensors: tuple[Tensor, ...],
    *more: int,
) -> None:
    """Call a kernel on each part, in a thread of its own: kernels release the GIL.

    It gets the part, the structure, and three factors with steps of 1, or of 0 for ones.
    """
    matrix, dtype = edges.matrix, tensors[0].dtype
    common: list[Any] = [bounds, matrix.indptr.numpy(), matrix.indices.numpy()]
    for factor in (matrix.values, edges.row_scale, edges.column_scale):
        values = torch.ones(1, dtype=dtype) if factor is None else factor.to(dtype)
        common += [values.numpy(), int(factor is not None)]
    common += [tensor.numpy() for tensor in tensors]
    run_parts(lambda part: kernel(part, *common, *more), bounds.size - 1)


@numba.njit(cache=True, nogil=True)
def _add_rows(  # type: ignore[no-untyped-def]
    part, bounds, indptr, indices, values, value_step, row_scale, row_step, column_scale, column_step,
    z, key, query, rows, total, peak,
):  # fmt: skip
    slope = z.dtype.type(SLOPE)
    start, stop = bounds[part], bounds[part + 1]
    terms = np.empty((_longest(indptr, start, stop), key.shape[1]), z.dtype)
    for r in range(start, stop):
        first = indptr[r]
        sources = indices[first : indptr[r + 1]]
        _raise(sources, key, query[r], rows[r], total[r], peak[r], slope)
        for k in range(sources.size):
            j = sources[k]
            count = values[(first + k) * value_step] * row_scale[r * row_step] * column_scale[j * column_step]
            for h in range(key.shape[1]):
                score = query[r, h] + key[j, h]
                score = score if score > 0 else slope * score
                terms[k, h] = count * math.exp(score - peak[r, h])
                total[r, h] += terms[k, h]
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
        if top > peak[h]:
            kept = math.exp(peak[h] - top)
            peak[h] = top
            total[h] *= kept
            rows[h] *= kept


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _add_weighted(columns, weights, x, out):  # type: ignore[no-untyped-def]
    """Add to out [heads, width] the rows x[columns], weighted for each head."""
    e = 0
    while e + 8 <= columns.size:
        for h in range(out.shape[0]):
            row = out[h]
            a, b, c, d = x[columns[e], h], x[columns[e + 1], h], x[columns[e + 2], h], x[columns[e + 3], h]
            p, q, s, t = (
                x[columns[e + 4], h],
                x[columns[e + 5], h],
                x[columns[e + 6], h],
                x[columns[e + 7], h],
            )
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
        everyone[edges] = j
        targets = everyone[: edges + (first_own <= j < last_own)]
        _multiply(targets, grad, z[j], products)
        for k in range(targets.size):
            i, count = targets[k], one
            if k < edges:
                count = (
                    values[(first + k) * value_step] * row_scale[j * row_step] * column_scale[i * column_step]
                )
            for h in range(heads):
                score = state[i, 0, h] + key[j, h]
                steep = one if score > 0 else slope
                weight = count * math.exp(steep * score - state[i, 1, h]) * state[i, 2, h]
                change = weight * (products[k, h] - state[i, 3, h]) * steep
                weights[k, h] = weight
                to_key[j, h] += change
                to_query[part, i, h] += change
        _add_weighted(targets, weights, grad, to_z[j])


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _multiply(columns, x, y, out):  # type: ignore[no-untyped-def]
    """Write the products of y [heads, width] and the rows x[columns], for each head, to out [rows, heads]."""
    e, zero = 0, x.dtype.type(0)
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
