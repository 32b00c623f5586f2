"""Sparse times dense, behind one seam: the engines torch, dgl and numba.

Times of one product on 25,197 x 47,432 with 1.2 M entries and 128 columns, one thread: dgl 15.6 ms, numba
15.5 ms, torch 39 ms; at 40 columns dgl is 1.4 times as fast as numba. With edge weights dgl is slower than
both by a factor of five, which is why `auto` takes numba there (tests/benchmarks/test_spmm.py measures it).
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from functools import cache
from typing import Protocol

import numba
import torch
from torch import Tensor

from harness.errors import UserError
from harness.graph.csr import CSR
from harness.graph.parts import row_parts, run_parts


class Engine(Protocol):
    """What multiplies a CSR [rows, cols] with a dense matrix [cols, width]."""

    name: str

    def multiply(self, matrix: CSR, x: Tensor) -> Tensor:
        """Return matrix @ x, [rows, width], dtype and device of `x`."""


class TorchEngine:
    """torch's sparse CSR product: every device and dtype."""

    name = "torch"

    def multiply(self, matrix: CSR, x: Tensor) -> Tensor:
        """See `Engine`."""
        key = (self.name, x.dtype)
        if key not in matrix.handles:
            values = matrix.values
            values = (
                torch.ones(matrix.nnz, dtype=x.dtype, device=x.device)
                if values is None
                else values.to(x.dtype)
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                matrix.handles[key] = torch.sparse_csr_tensor(
                    matrix.indptr, matrix.indices.long(), values, (matrix.num_rows, matrix.num_cols)
                )
        product: Tensor = matrix.handles[key] @ x
        return product


class DGLEngine:
    """DGL's CPU kernels (libxsmm), Linux x86-64 and Python < 3.12."""

    name = "dgl"

    def multiply(self, matrix: CSR, x: Tensor) -> Tensor:
        """See `Engine`."""
        ops = _dgl().ops
        if self.name not in matrix.handles:
            # Without explicit edge ids, DGL's weighted kernel reads through a null pointer at width 1.
            ids = torch.arange(0 if matrix.values is None else matrix.nnz, dtype=torch.int32)
            structure = (matrix.indptr.int(), matrix.indices, ids)
            matrix.handles[self.name] = _dgl().create_block(
                ("csc", structure), num_src_nodes=matrix.num_cols, num_dst_nodes=matrix.num_rows
            )
        graph = matrix.handles[self.name]
        product: Tensor = (
            ops.copy_u_sum(graph, x)
            if matrix.values is None
            else ops.u_mul_e_sum(graph, x, matrix.values.to(x.dtype).unsqueeze(1))
        )
        return product


class NumbaEngine:
    """Row loops compiled by numba: every CPU, weighted or not."""

    name = "numba"

    def multiply(self, matrix: CSR, x: Tensor) -> Tensor:
        """See `Engine`."""
        out = torch.empty((matrix.num_rows, x.shape[1]), dtype=x.dtype)
        bounds = row_parts(matrix)
        structure = (bounds, matrix.indptr.numpy(), matrix.indices.numpy())
        dense, target = x.contiguous().numpy(), out.numpy()
        if matrix.values is None:
            run_parts(lambda part: _sum(part, *structure, dense, target), bounds.size - 1)
        else:
            weights = matrix.values.to(x.dtype).numpy()
            run_parts(lambda part: _weighted(part, *structure, weights, dense, target), bounds.size - 1)
        return out


@numba.njit(cache=True, nogil=True)
def _sum(part, bounds, indptr, indices, x, out):  # type: ignore[no-untyped-def]
    width = x.shape[1]
    for r in range(bounds[part], bounds[part + 1]):
        row = out[r]
        row[:] = 0
        e, end = indptr[r], indptr[r + 1]
        # Eight rows a pass: the sum stays in registers for eight additions instead of one.
        while e + 8 <= end:
            a, b, c, d = x[indices[e]], x[indices[e + 1]], x[indices[e + 2]], x[indices[e + 3]]
            p, q, s, t = x[indices[e + 4]], x[indices[e + 5]], x[indices[e + 6]], x[indices[e + 7]]
            for k in range(width):
                row[k] += ((a[k] + b[k]) + (c[k] + d[k])) + ((p[k] + q[k]) + (s[k] + t[k]))
            e += 8
        while e < end:
            a = x[indices[e]]
            for k in range(width):
                row[k] += a[k]
            e += 1


@numba.njit(cache=True, nogil=True)
def _weighted(part, bounds, indptr, indices, weights, x, out):  # type: ignore[no-untyped-def]
    width = x.shape[1]
    for r in range(bounds[part], bounds[part + 1]):
        row = out[r]
        row[:] = 0
        e, end = indptr[r], indptr[r + 1]
        while e + 4 <= end:
            a, b, c, d = x[indices[e]], x[indices[e + 1]], x[indices[e + 2]], x[indices[e + 3]]
            wa, wb, wc, wd = weights[e], weights[e + 1], weights[e + 2], weights[e + 3]
            for k in range(width):
                row[k] += (wa * a[k] + wb * b[k]) + (wc * c[k] + wd * d[k])
            e += 4
        while e < end:
            a, wa = x[indices[e]], weights[e]
            for k in range(width):
                row[k] += wa * a[k]
            e += 1


ENGINES: dict[str, type[Engine]] = {"torch": TorchEngine, "dgl": DGLEngine, "numba": NumbaEngine}


@cache
def _dgl():  # type: ignore[no-untyped-def]
    os.environ.setdefault("DGLBACKEND", "pytorch")
    import dgl

    return dgl


@cache
def dgl_problem() -> str | None:
    """Why the dgl engine cannot be used here, or None."""
    if importlib.util.find_spec("dgl") is None:
        return "dgl is not installed (it has wheels for Linux x86-64 and Python < 3.12 only)"
    try:
        _dgl()
    except (ImportError, OSError, RuntimeError) as error:
        return f"dgl does not import: {error}"
    return None


def choose_engine(name: str, *, weighted: bool, device: torch.device) -> Engine:
    """Return the engine called `name`; `auto` is the fastest one there is for such a product.

    Raises:
        UserError: the engine is not installed, or does not run on `device`.
    """
    if name == "auto":
        if device.type != "cpu":
            return TorchEngine()
        return NumbaEngine() if weighted or dgl_problem() else DGLEngine()
    if name == "dgl" and (problem := dgl_problem()):
        raise UserError(f"'dgl': {problem}", key="train.spmm", fix="use auto, numba or torch")
    if name != "torch" and device.type != "cpu":
        raise UserError(f"'{name}' runs on CPUs only", key="train.spmm", fix="use auto or torch")
    return ENGINES[name]()
