from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from harness.errors import UserError
from harness.graph import parts
from harness.graph.csr import CSR
from harness.graph.spmm import ENGINES, choose_engine, dgl_problem

CPU = torch.device("cpu")


def engines() -> list[str]:
    return [name for name in ENGINES if name != "dgl" or dgl_problem() is None]


def case(weighted: bool, rows: int = 300, cols: int = 500) -> tuple[CSR, sp.csr_matrix]:
    matrix = sp.random(rows, cols, 0.05, "csr", random_state=7, dtype=np.float64)
    matrix.data = np.random.default_rng(0).normal(size=matrix.nnz) if weighted else np.ones(matrix.nnz)
    matrix = sp.csr_matrix(sp.diags(np.arange(rows) != 5, dtype=float) @ matrix)
    matrix.eliminate_zeros()
    matrix.sort_indices()
    values = torch.from_numpy(matrix.data.copy()) if weighted else None
    csr = CSR(
        torch.from_numpy(matrix.indptr.astype(np.int64)), torch.from_numpy(matrix.indices), cols, values
    )
    return csr, matrix


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("width", [1, 7, 16, 130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ENGINES)
def test_engines_equal_scipy(
    name: str, weighted: bool, dtype: torch.dtype, width: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "LEAST_WORK", 1)
    if name == "dgl" and (problem := dgl_problem()):
        pytest.skip(problem)
    csr, matrix = case(weighted)
    x = np.random.default_rng(1).normal(size=(matrix.shape[1], width))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        engine = choose_engine(name, weighted=weighted, device=CPU)
        got = engine.multiply(csr, torch.from_numpy(x).to(dtype))
    finally:
        torch.set_num_threads(before)
    assert got.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    np.testing.assert_allclose(got.numpy(), matrix @ x, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ENGINES)
def test_a_matrix_without_entries(name: str) -> None:
    if name == "dgl" and (problem := dgl_problem()):
        pytest.skip(problem)
    csr = CSR(torch.zeros(4, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), 5)
    got = choose_engine(name, weighted=False, device=CPU).multiply(csr, torch.ones(5, 3))
    assert torch.equal(got, torch.zeros(3, 3))


def test_auto_takes_the_faster_engine_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_engine("auto", weighted=True, device=CPU).name == "numba"
    monkeypatch.setattr("harness.graph.spmm.dgl_problem", lambda: "not installed")
    assert choose_engine("auto", weighted=False, device=CPU).name == "numba"
    monkeypatch.setattr("harness.graph.spmm.dgl_problem", lambda: None)
    assert choose_engine("auto", weighted=False, device=CPU).name == "dgl"
    assert choose_engine("auto", weighted=False, device=torch.device("cuda")).name == "torch"


def test_an_engine_that_is_missing_is_the_users_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.graph.spmm.dgl_problem", lambda: "dgl is not installed")
    with pytest.raises(
        UserError, match=r"train\.spmm: 'dgl': dgl is not installed \(use auto, numba or torch\)"
    ):
        choose_engine("dgl", weighted=False, device=CPU)
    with pytest.raises(UserError, match=r"'numba' runs on CPUs only"):
        choose_engine("numba", weighted=False, device=torch.device("cuda"))
