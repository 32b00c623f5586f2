from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.graph import csr
from harness.graph.csr import CSR, Topology, induce_columns, select_rows


def random_csr(seed: int, rows: int, cols: int, density: float, weighted: bool) -> tuple[CSR, sp.csr_matrix]:
    matrix = sp.random(rows, cols, density, "csr", random_state=seed, dtype=np.float64)
    matrix.sort_indices()
    if not weighted:
        matrix.data[:] = 1
    values = torch.from_numpy(matrix.data.copy()) if weighted else None
    csr = CSR(torch.from_numpy(matrix.indptr.astype(np.int64)), torch.from_numpy(matrix.indices), cols, values)
    return csr, matrix


def as_scipy(csr: CSR) -> sp.csr_matrix:
    data = np.ones(csr.nnz) if csr.values is None else csr.values.numpy()
    return sp.csr_matrix((data, csr.indices.numpy(), csr.indptr.numpy()), (csr.num_rows, csr.num_cols))


@given(
    seed=st.integers(0, 1000),
    rows=st.integers(0, 30),
    cols=st.integers(0, 30),
    density=st.sampled_from([0, 0.1, 0.5, 1]),
    weighted=st.booleans(),
)
def test_transpose_equals_scipys(seed: int, rows: int, cols: int, density: float, weighted: bool) -> None:
    csr, matrix = random_csr(seed, rows, cols, density, weighted)
    back = csr.transpose()
    assert (back.num_rows, back.num_cols) == (cols, rows)
    np.testing.assert_array_equal(as_scipy(back).toarray(), matrix.T.toarray())
    for row in range(cols):
        part = back.indices[back.indptr[row] : back.indptr[row + 1]].numpy()
        assert (np.diff(part) > 0).all()


def symmetric_structure(seed: int, size: int, density: float) -> CSR:
    """Return a matrix of symmetric structure, whose values are not, and some of whose rows are empty."""
    rng = np.random.default_rng(seed)
    pattern = np.triu(rng.random((size, size)) < density)
    pattern |= pattern.T
    empty = rng.random(size) < 0.2
    pattern[empty] = pattern[:, empty] = False
    matrix = sp.csr_matrix(pattern * (1 + rng.random((size, size))))
    structure = torch.from_numpy(matrix.indptr.astype(np.int64)), torch.from_numpy(matrix.indices)
    return CSR(*structure, size, torch.from_numpy(matrix.data))


@given(seed=st.integers(0, 1000), size=st.integers(0, 30), density=st.sampled_from([0, 0.1, 0.5, 1]))
def test_transpose_of_a_symmetric_structure_permutes_values(seed: int, size: int, density: float) -> None:
    csr = symmetric_structure(seed, size, density)
    back = csr.transpose_symmetric()
    assert back.indptr is csr.indptr
    assert back.indices is csr.indices
    np.testing.assert_array_equal(as_scipy(back).toarray(), as_scipy(csr).toarray().T)
    assert back.values is not None
    np.testing.assert_array_equal(back.values.numpy(), csr.transpose().values)
    plain = CSR(csr.indptr, csr.indices, size)
    assert plain.transpose_symmetric() is plain


@pytest.mark.parametrize(
    ("indptr", "indices", "cols"),
    [
        ([0, 2, 2], [0, 1], 2),  # (0, 1) without (1, 0)
        ([0, 1, 2, 3], [1, 2, 0], 3),  # a directed cycle: as many entries in each row as in each column
        ([0, 2, 4], [1, 0, 0, 1], 2),  # symmetric, but columns descend
        ([0, 1, 2], [0, 2], 3),  # not square: a column without a row
        ([0, 1, 2], [0, 1], 3),
        ([0, 1, 2], [1, 5], 2),
    ],
)
def test_transpose_symmetric_refuses_what_is_not(indptr: list[int], indices: list[int], cols: int) -> None:
    values = torch.arange(len(indices), dtype=torch.float64)
    csr = CSR(torch.tensor(indptr), torch.tensor(indices, dtype=torch.int32), cols, values)
    with pytest.raises(ValueError, match="not symmetric"):
        csr.transpose_symmetric()


@given(seed=st.integers(0, 1000), first=st.integers(0, 8), total=st.integers(8, 16))
def test_inducing_columns_equals_slicing(seed: int, first: int, total: int) -> None:
    csr, matrix = random_csr(seed, 10, total, 0.4, False)
    kept = np.flatnonzero(np.random.default_rng(seed).random(total - first) < 0.5)
    column = np.full(total - first, -1, np.int32)
    column[kept] = first + np.arange(kept.size)
    old = csr.indices.numpy()
    indptr, indices, order = induce_columns(csr.indptr.numpy(), old, first, column, True)
    kept_columns = np.concatenate([np.arange(first), first + kept])
    np.testing.assert_array_equal(kept_columns[indices], old[order])
    want = matrix[:, np.concatenate([np.arange(first), first + kept]).astype(int)]
    got = sp.csr_matrix((np.ones(indices.size), indices, indptr), want.shape)
    np.testing.assert_array_equal(got.toarray(), want.toarray())


@pytest.mark.slow
@given(seed=st.integers(0, 1000), parts=st.integers(1, 4), total=st.integers(0, 16), weighted=st.booleans())
def test_splitting_columns_equals_slicing(seed: int, parts: int, total: int, weighted: bool) -> None:
    csr, matrix = random_csr(seed, 10, total, 0.4, weighted)
    rng = np.random.default_rng(seed)
    part, column, columns = rng.integers(0, parts, total).astype(np.int32), np.zeros(total, np.int32), []
    for k in range(parts):
        columns.append(rng.permutation(np.flatnonzero(part == k)))
        column[columns[k]] = np.arange(columns[k].size)
    for split, chosen in zip(csr.split_columns(part, column, [c.size for c in columns]), columns, strict=True):
        want = matrix[:, chosen].toarray()
        values = np.ones(split.nnz) if split.values is None else split.values.numpy()
        got = sp.csr_matrix((values, split.indices.numpy(), split.indptr.numpy()), want.shape)
        np.testing.assert_array_equal(got.toarray(), want)


@given(seed=st.integers(0, 1000), first=st.integers(0, 8), total=st.integers(8, 16))
def test_selecting_rows_equals_slicing(seed: int, first: int, total: int) -> None:
    csr, matrix = random_csr(seed, total, 9, 0.4, False)
    kept = np.flatnonzero(np.random.default_rng(seed).random(total - first) < 0.5)
    want = matrix[np.concatenate([np.arange(first), first + kept]).astype(int)]
    indptr, indices = select_rows(csr.indptr.numpy(), csr.indices.numpy(), first, kept, want.nnz)
    got = sp.csr_matrix((np.ones(indices.size), indices, indptr), want.shape)
    np.testing.assert_array_equal(got.toarray(), want.toarray())


@given(degrees=st.lists(st.integers(0, 9), max_size=30), rows=st.integers(0, 40))
def test_most_edges_are_the_longest_rows(degrees: list[int], rows: int) -> None:
    indptr = np.cumsum([0, *degrees])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csr, "DEGREES_AT_ONCE", 7)
        found = Topology(indptr, np.zeros(0, np.int32)).most_edges(rows)
    assert found == sum(sorted(degrees, reverse=True)[:rows])
