from __future__ import annotations

import signal
import subprocess
import sys
from textwrap import dedent

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from harness.errors import UserError
from harness.graph import spmm as parts
from harness.graph.csr import CSR
from harness.graph.spmm import ENGINES, LINE, MOST, choose_engine, engine_problem, multiply_by_numba, multiply_rows

CPU = torch.device("cpu")
# What rows are summed in, and how exactly.
DTYPES = {
    torch.float32: (torch.float32, 1e-5),
    torch.float64: (torch.float64, 1e-12),
    torch.bfloat16: (torch.float32, 1e-5),
}
ON_CPUS = [name for name in ENGINES if name != "triton"]  # whose interpreter is slow: test_triton.py


def case(weighted: bool, rows: int = 300, cols: int = 500) -> tuple[CSR, sp.csr_matrix]:
    matrix = sp.random(rows, cols, 0.05, "csr", random_state=7, dtype=np.float64)
    matrix.data = np.random.default_rng(0).normal(size=matrix.nnz) if weighted else np.ones(matrix.nnz)
    matrix = sp.csr_matrix(sp.diags(np.arange(rows) != 5, dtype=float) @ matrix)
    matrix.eliminate_zeros()
    matrix.sort_indices()
    values = torch.from_numpy(matrix.data.copy()) if weighted else None
    csr = CSR(torch.from_numpy(matrix.indptr.astype(np.int64)), torch.from_numpy(matrix.indices), cols, values)
    return csr, matrix


@pytest.mark.quick(47)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("width", [1, 7, 16, 130, 301])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ON_CPUS)
def test_engines_equal_scipy(
    name: str, weighted: bool, dtype: torch.dtype, width: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "LEAST_WORK", 1)
    if name == "dgl" and (problem := engine_problem("dgl")):
        pytest.skip(problem)
    csr, matrix = case(weighted)
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(matrix.shape[1], width))).to(dtype)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        engine = choose_engine(name, device=CPU)
        got = engine.multiply(csr, x)
    finally:
        torch.set_num_threads(before)
    summed, tolerance = DTYPES[dtype]
    assert got.dtype == summed
    np.testing.assert_allclose(got.numpy(), matrix @ x.double().numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ON_CPUS)
def test_a_matrix_without_entries(name: str) -> None:
    if name == "dgl" and (problem := engine_problem("dgl")):
        pytest.skip(problem)
    csr = CSR(torch.zeros(4, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), 5)
    got = choose_engine(name, device=CPU).multiply(csr, torch.ones(5, 3))
    assert torch.equal(got, torch.zeros(3, 3))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernel_at_every_width(dtype: torch.dtype, weighted: bool) -> None:
    """Against scipy at widths of every tail; nothing is written, nor read, outside of the matrices."""
    csr, matrix = case(weighted, rows=60, cols=60)
    summed, tolerance = DTYPES[dtype]
    weights = csr.values.to(summed).numpy() if csr.values is not None else None
    lanes = LINE // summed.itemsize
    for width in [*range(1, 2 * lanes + 2), MOST * lanes - 1, MOST * lanes + 1]:
        flat, target = (torch.full((60 * width + 2 * lanes,), torch.nan, dtype=each) for each in (dtype, summed))
        x, out = (array[lanes:-lanes].view(60, width) for array in (flat, target))
        x[:] = torch.from_numpy(np.random.default_rng(width).normal(size=x.shape))
        rows, want = x.view(torch.int16) if dtype == torch.bfloat16 else x, matrix @ x.double().numpy()
        for held in (1, 3, MOST):
            out[:] = torch.nan
            operands = csr.indptr.numpy(), csr.indices.numpy(), weights, rows.numpy(), out.numpy()
            multiply_rows(0, 60, *operands, held)
            np.testing.assert_allclose(out, want, rtol=tolerance, atol=tolerance)
            assert target[:lanes].isnan().all()
            assert target[-lanes:].isnan().all()


def test_sums_depend_on_neither_threads_nor_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "LEAST_WORK", 1)
    csr, _ = case(True)
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(csr.num_cols, 300)).astype(np.float32))
    products, before = [], torch.get_num_threads()
    try:
        for threads, held in ((1, MOST), (1, 1), (3, 4), (2, MOST // 2)):
            torch.set_num_threads(threads)
            monkeypatch.setattr(parts, "held_vectors", lambda held=held: held)
            products.append(multiply_by_numba(csr, x))
    finally:
        torch.set_num_threads(before)
    for product in products[1:]:
        assert torch.equal(product, products[0])


@pytest.mark.slow
@pytest.mark.skipif(engine_problem("dgl") is not None, reason="dgl is not installed")
def test_dgl_reads_edge_ids_where_it_cuts_columns_up() -> None:
    """The engine is right at such a size, and without edge ids the process dies."""
    script = """
        import torch
        from harness.graph.csr import CSR
        from harness.graph.spmm import multiply_by_dgl

        rows, width = 64, 16384  # 2000 bytes x 64 x 16384 are more than any cache DGL can count
        indices = torch.arange(rows, dtype=torch.int32).repeat(rows)
        matrix = CSR(torch.arange(0, rows * rows + 1, rows), indices, rows)
        x = torch.arange(rows, dtype=torch.float32).unsqueeze(1).expand(rows, width).contiguous()
        product = multiply_by_dgl(matrix, x)
        assert torch.equal(product, torch.full((rows, width), rows * (rows - 1) / 2))
        print("right", flush=True)
        without = torch.empty(0, dtype=torch.int32)
        torch.arange = lambda *args, **options: without
        matrix.handles.clear()
        multiply_by_dgl(matrix, x)
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip() == "right"
    if torch.backends.cpu.get_cpu_capability() == "AVX512":  # where DGL has kernels of its own
        assert done.returncode == -signal.SIGSEGV


def test_torch_takes_columns_as_they_are_and_ones_that_are_shared() -> None:
    """A fresh block every step is not to be copied every step."""
    csr, other = (case(False, rows=rows)[0] for rows in (300, 200))
    x = torch.ones(500, 2)
    for matrix in (csr, other):
        choose_engine("torch", device=CPU).multiply(matrix, x)
        held = matrix.handles["torch", torch.float32]
        assert held.col_indices().data_ptr() == matrix.indices.data_ptr()
        matrix.handles["values"] = held.values().data_ptr()
    assert csr.handles["values"] == other.handles["values"]


def test_auto_is_numba_on_cpus_and_triton_on_gpus_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for problem, name in ((None, "triton"), ("triton is not installed", "torch")):
        monkeypatch.setattr(parts, "engine_problem", lambda name, problem=problem: problem)
        assert choose_engine("auto", device=CPU).name == "numba"
        assert choose_engine("auto", device=torch.device("cuda")).name == name
        assert choose_engine("auto", device=torch.device("meta")).name == "torch"


def test_an_engine_that_is_missing_is_the_users_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "engine_problem", lambda name: f"{name} is not installed")
    with pytest.raises(UserError, match=r"train\.spmm: 'dgl': dgl is not installed \(use auto, numba or torch\)"):
        choose_engine("dgl", device=CPU)
    with pytest.raises(UserError, match=r"'numba' runs on CPUs only"):
        choose_engine("numba", device=torch.device("cuda"))
    monkeypatch.setattr(parts, "engine_problem", lambda name: None)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(UserError, match=r"train\.spmm: 'triton' runs on GPUs only \(use auto, numba or torch\)"):
        choose_engine("triton", device=CPU)
    monkeypatch.setattr(parts, "engine_problem", lambda name: f"{name} is not installed")
    with pytest.raises(UserError, match=r"'triton': triton is not installed \(use auto or torch\)"):
        choose_engine("triton", device=torch.device("cuda"))
