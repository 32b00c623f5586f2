"""Triton's kernels against dense float64, the compiled kernels and torch's: on a GPU, else in triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import numpy as np
import pytest
import torch
from support.tiers import tiered
from torch import Tensor

from harness.check.oracle import attention
from harness.graph import attention as ours
from harness.graph.attention import Edges, Sums, spread, spread_by_torch
from harness.graph.block import Block
from harness.graph.csr import CSR
from harness.graph.spmm import engine_problem, multiply_by_numba, multiply_by_triton

pytestmark = pytest.mark.skipif(engine_problem("triton") is not None, reason=str(engine_problem("triton")))
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CPU = torch.device("cpu")
ROWS, COLUMNS = 23, 40


@pytest.fixture(params=tiered([7, 1024], [7]))
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """With rows of up to 6 pieces, and with rows of one."""
    from harness.graph import triton_kernels

    monkeypatch.setattr(triton_kernels, "CHUNK", request.param)
    return triton_kernels


def dense(weighted: bool, seed: int = 0) -> np.ndarray:
    """Row 1 is empty, row 2 has every column, column 3 is empty, column 7 has every other row."""
    rng = np.random.default_rng(seed)
    found = np.where(rng.random((ROWS, COLUMNS)) < 0.15, rng.uniform(0.2, 3, (ROWS, COLUMNS)), 0)
    found[2], found[:, 7] = rng.uniform(0.2, 3, COLUMNS), rng.uniform(0.2, 3, ROWS)
    found[1] = found[:, 3] = 0
    return found if weighted else (found > 0).astype(float)


def csr(matrix: np.ndarray, weighted: bool) -> CSR:
    rows, columns = np.nonzero(matrix)
    pointers = torch.from_numpy(np.searchsorted(rows, np.arange(len(matrix) + 1)))
    values = torch.from_numpy(matrix[rows, columns]) if weighted else None
    return CSR(pointers, torch.from_numpy(columns.astype(np.int32)), matrix.shape[1], values)


@pytest.mark.quick(1)
@pytest.mark.parametrize("width", tiered([1, 7, 33, 300], [7, 300]))  # 300: two programs a row
@pytest.mark.parametrize("dtype", tiered([torch.float32, torch.float64, torch.bfloat16], [torch.float32]))
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.usefixtures("kernels")
def test_products_equal_dense_float64(weighted: bool, dtype: torch.dtype, width: int) -> None:
    matrix = dense(weighted)
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(COLUMNS, width))).to(dtype)
    structure = csr(matrix, weighted)
    got = multiply_by_triton(structure.to(DEVICE), x.to(DEVICE)).cpu()
    assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    want = torch.from_numpy(matrix) @ x.double()
    relative = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(got.double(), want, rtol=relative, atol=relative)
    torch.testing.assert_close(got, multiply_by_numba(structure, x), rtol=relative, atol=relative)


@pytest.mark.usefixtures("kernels")
def test_sums_of_bfloat16_are_made_in_float32() -> None:
    """A sum of ones in bfloat16 stays at 256."""
    matrix = CSR(torch.tensor([0, 600]), torch.arange(600, dtype=torch.int32), 600).to(DEVICE)
    ones = torch.ones((600, 2), dtype=torch.bfloat16, device=DEVICE)
    assert multiply_by_triton(matrix, ones).tolist() == [[600, 600]]


@pytest.mark.parametrize("shape", [(0, 4, 3), (4, 0, 3), (4, 5, 0)])
def test_nothing_to_multiply(shape: tuple[int, int, int]) -> None:
    rows, columns, width = shape
    matrix = CSR(torch.zeros(rows + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), columns).to(DEVICE)
    got = multiply_by_triton(matrix, torch.ones((columns, width), device=DEVICE))
    assert torch.equal(got.cpu(), torch.zeros(rows, width))


@pytest.mark.slow
@pytest.mark.parametrize("scale", tiered([1, 12], [12]))  # 12: scores far apart, exponents beyond what exp can do
@pytest.mark.parametrize("width", tiered([5, 300], [5]))
@pytest.mark.usefixtures("kernels")
def test_attention_and_gradients_equal_the_dense_softmax(
    width: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "fused", lambda device: True)
    rng, heads = np.random.default_rng(2), 2
    matrix = dense(True)
    by_row, by_column = (torch.from_numpy(rng.uniform(0.5, 4, n)) for n in (ROWS, COLUMNS))
    structure, ones = csr(matrix, True), torch.ones(COLUMNS, dtype=torch.float64, device=DEVICE)
    block = Block(
        structure.to(DEVICE), ones, dst_scale=by_row.to(DEVICE), src_scale=by_column.to(DEVICE),
        transposed=structure.transpose().to(DEVICE),
    )  # fmt: skip
    counts = torch.from_numpy(matrix) * by_row[:, None] * by_column[None, :] + torch.eye(ROWS, COLUMNS)
    shapes = [(COLUMNS, heads * width), (heads, width), (heads, width), (heads * width,)]
    factors = [scale / width**0.5] * 3 + [1.0]
    made = [torch.from_numpy(rng.normal(size=shape) * f) for shape, f in zip(shapes, factors, strict=True)]
    values = [tensor.to(DEVICE).requires_grad_() for tensor in made]
    wanted = [tensor.clone().requires_grad_() for tensor in made]
    out = block.attend(*values)
    want = attention(counts, *wanted[:3]).flatten(1) + wanted[3]
    torch.testing.assert_close(out.cpu(), want, rtol=1e-11, atol=1e-11)
    direction = torch.from_numpy(rng.normal(size=want.shape))
    found = torch.autograd.grad(out, values, direction.to(DEVICE))
    for got, gradient in zip(found, torch.autograd.grad(want, wanted, direction), strict=True):
        torch.testing.assert_close(got.cpu(), gradient, rtol=1e-9, atol=1e-9 * scale)


@pytest.mark.slow
@pytest.mark.parametrize(  # each two values meet: an interpreted kernel takes half a minute
    ("width", "weighted", "dtype", "bound"),
    [
        (1, False, torch.float64, 1e-11),
        (1, True, torch.float32, 2e-4),
        (6, False, torch.float32, 2e-4),
        (6, True, torch.float64, 1e-11),
    ],
)
def test_attention_does_what_the_other_kernels_do(
    width: int, weighted: bool, dtype: torch.dtype, bound: float, kernels: ModuleType
) -> None:
    """From sums so far, and from none; with self loops of some rows, and of none."""
    generator = torch.Generator().manual_seed(3)
    structure = csr(dense(weighted), weighted)
    row_scale = torch.rand(ROWS, generator=generator, dtype=dtype) + 0.5 if weighted else None
    made = [torch.randn(s, generator=generator, dtype=dtype) for s in ((COLUMNS, 2, width), (COLUMNS, 2), (ROWS, 2))]
    grad = torch.randn((ROWS, 2, width), generator=generator, dtype=dtype)
    state = torch.rand((ROWS, 4, 2), generator=generator, dtype=dtype)

    def results(device: torch.device, forward, backward) -> list[Tensor]:  # type: ignore[no-untyped-def]
        matrix, reverse = structure.to(device), structure.transpose().to(device)
        scale = None if row_scale is None else row_scale.to(device)
        z, key, query, flowing, kept = (tensor.to(device) for tensor in (*made, grad, state))
        found = []
        for sums in (Sums.of_nothing(z, query), Sums.of_self_loops(z, key, query, slice(4, 20))):
            forward(sums, Edges(matrix, scale), z, key, query)
            found += [sums.rows, sums.total, sums.peak]
        for own in (slice(4, 20), slice(0, 0)):
            found += backward(Edges(reverse, column_scale=scale), z, key, flowing, kept, own)
        return [tensor.cpu() for tensor in found]

    got = results(DEVICE, kernels.attend, kernels.spread)
    for forward, backward in ((Sums.add, spread), (Sums.add_by_torch, spread_by_torch)):
        for one, other in zip(got, results(CPU, forward, backward), strict=True):
            torch.testing.assert_close(one, other, rtol=bound, atol=bound)


def test_what_a_grid_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.graph import triton_kernels

    matrix = csr(dense(False), False).to(DEVICE)
    monkeypatch.setattr(triton_kernels, "_MOST_PROGRAMS", ROWS - 1)
    with pytest.raises(ValueError, match=r"23 rows of \d+ entries are more than the 22 programs a GPU's grid has"):
        multiply_by_triton(matrix, torch.ones((COLUMNS, 1), device=DEVICE))
    monkeypatch.undo()
    wide = torch.ones((1, 1), device=DEVICE).expand(COLUMNS, 65536)
    query, rows = wide[:ROWS], wide.unsqueeze(2)
    sums = Sums.of_nothing(rows, query)
    with pytest.raises(ValueError, match="65536 heads, or groups of columns"):
        triton_kernels.attend(sums, Edges(matrix), rows, wide, query)


@pytest.mark.slow
def test_kernels_compile_for_gpus(tmp_path: Path) -> None:
    """By triton's own compiler and assembler, for the chips that there are most of, without one."""
    script = """
        import triton.language as tl
        from triton import compile
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        from harness.graph import triton_kernels as kernels

        integers = {"indptr": "*i64", "before": "*i64", "indices": "*i32"}
        numbers = {"num_rows", "most", "width", "heads", "first_own", "last_own"}
        chosen = {"WEIGHTED": True, "ROW": True, "COLUMN": True, "SUM": tl.float32}
        chosen |= {"CHUNK": 1024, "ENTRIES": 16, "COLUMNS": 128}
        for name in ("_multiply", "_meet_rows", "_attend", "_meet_at_peaks", "_spread"):
            kernel = getattr(kernels, name)
            for capability, rows in ((80, "*fp32"), (80, "*bf16"), (90, "*fp32")):
                kinds = {}
                for argument in kernel.arg_names:
                    number = "i32" if argument in numbers else None
                    pointer = rows if argument in ("x", "z", "out", "grad") else "*fp32"
                    kind = "constexpr" if argument in chosen else number or integers.get(argument, pointer)
                    kinds[argument] = kind
                constants = {(kernel.arg_names.index(k),): v for k, v in chosen.items() if k in kinds}
                built = compile(ASTSource(kernel, kinds, constants), target=GPUTarget("cuda", capability, 32))
                assert len(built.asm["cubin"]) > 1000
                print(name, capability, rows, flush=True)
    """
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-c", dedent(script)], capture_output=True, text=True, timeout=200, check=False,
        env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.splitlines()) == 15
