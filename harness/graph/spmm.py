"""Sparse times dense, behind one seam: the engines torch, dgl and numba.

`auto` takes numba on every CPU: weighted or not, at every width and size measured it takes 0.4 to 0.7 of the
time of the faster one of the other two (docs/design/spmm-engines.md; tests/benchmarks/test_spmm.py).
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from harness.errors import UserError
from harness.graph.csr import CSR
from harness.graph.parts import row_parts, run_parts
from harness.graph.spmm_kernels import LINE, MOST, multiply_rows

SLAB = 1024  # bytes of a row


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
            # Without explicit edge ids DGL reads through a null pointer: with weights at width 1; without
            # them where 2000 bytes x width x entries a row exceed the last cache, and it cuts columns up.
            ids = torch.arange(matrix.nnz, dtype=torch.int32)
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
    """Row sums in registers, by kernels that numba compiles: every CPU, weighted or not.

    Columns are worked on in slabs (Algorithm 7 of Zeng et al., JPDC 2021). Slabs that would stay in a core's
    cache are too narrow to pay; `SLAB` is what 16 registers of AVX-512 hold. Sums do not depend on the
    number of threads.

    Args:
        slab: bytes of a slab's row, a multiple of a cache line's 64; None: whole rows.
    """

    name = "numba"

    def __init__(self, slab: int | None = SLAB) -> None:
        self._slab = None if slab is None else slab // LINE

    def multiply(self, matrix: CSR, x: Tensor) -> Tensor:
        """See `Engine`."""
        out = torch.empty((matrix.num_rows, x.shape[1]), dtype=x.dtype)
        bounds = row_parts(matrix)
        weights = None if matrix.values is None else matrix.values.to(x.dtype).numpy()
        operands = matrix.indptr.numpy(), matrix.indices.numpy(), weights, x.contiguous().numpy(), out.numpy()
        slab, held = self._slab or max(1, x.shape[1]), held_vectors()
        run_parts(
            lambda part: multiply_rows(bounds[part], bounds[part + 1], *operands, slab, held), bounds.size - 1
        )
        return out


def held_vectors() -> int:
    """Return how many vectors of `LINE` bytes this machine's registers hold beside what else they have to."""
    return MOST if torch.backends.cpu.get_cpu_capability() == "AVX512" else MOST // 2


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
        return "dgl is not installed (pip install '.[dgl]'; Linux x86-64 and Python < 3.12 only)"
    try:
        _dgl()
    except (ImportError, OSError, RuntimeError) as error:
        return f"dgl does not import: {error}"
    return None


def choose_engine(name: str, *, device: torch.device) -> Engine:
    """Return the engine called `name`; `auto` is the fastest one on `device`.

    Raises:
        UserError: the engine is not installed, or does not run on `device`.
    """
    if name == "auto":
        return NumbaEngine() if device.type == "cpu" else TorchEngine()
    if name == "dgl" and (problem := dgl_problem()):
        raise UserError(f"'dgl': {problem}", key="train.spmm", fix="use auto, numba or torch")
    if name != "torch" and device.type != "cpu":
        raise UserError(f"'{name}' runs on CPUs only", key="train.spmm", fix="use auto or torch")
    return ENGINES[name]()
