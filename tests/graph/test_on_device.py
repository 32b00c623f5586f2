"""What torch's operations do on a device equals the compiled kernels' work, entry for entry; here on a CPU."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.graph import csr
from harness.graph.csr import induce_columns, select_rows, transpose

SIZES = {"seed": st.integers(0, 1000), "rows": st.integers(0, 20), "cols": st.integers(1, 20)}


def structure(seed: int, rows: int, cols: int) -> tuple[np.ndarray, np.ndarray]:
    """Return pointers and columns of a random matrix, some rows empty, some columns twice, in no order."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 6, rows) * (rng.random(rows) < 0.8)
    indptr = np.concatenate([[0], counts.cumsum()]).astype(np.int64)
    return indptr, rng.integers(0, cols, indptr[-1]).astype(np.int32)


def as_tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    return list(map(torch.from_numpy, arrays))


def equal(found: tuple[torch.Tensor, ...], want: tuple[np.ndarray, ...]) -> None:
    for one, other in zip(found, want, strict=True):
        np.testing.assert_array_equal(one.numpy(), other)
        assert one.numpy().dtype == other.dtype


@given(**SIZES)
def test_transpose(seed: int, rows: int, cols: int) -> None:
    indptr, indices = structure(seed, rows, cols)
    equal(csr.transpose_on_device(*as_tensors(indptr, indices), cols), transpose(indptr, indices, cols, True))


@given(**SIZES, first=st.integers(0, 20))
def test_induced_columns(seed: int, rows: int, cols: int, first: int) -> None:
    indptr, indices = structure(seed, rows, cols)
    first = min(first, cols)
    kept = np.flatnonzero(np.random.default_rng(seed).random(cols - first) < 0.5)
    new = np.full(cols - first, -1, np.int32)
    new[kept] = np.arange(first, first + kept.size)
    found = csr.induce_columns_on_device(*as_tensors(indptr, indices), first, torch.from_numpy(new))
    equal(found, induce_columns(indptr, indices, first, new, True))


@given(**SIZES, first=st.integers(0, 20))
def test_selected_rows(seed: int, rows: int, cols: int, first: int) -> None:
    indptr, indices = structure(seed, rows, cols)
    first = min(first, rows)
    kept = np.flatnonzero(np.random.default_rng(seed).random(rows - first) < 0.5)
    entries = int(np.diff(indptr)[np.concatenate([np.arange(first), first + kept])].sum())
    pointers, columns, places = as_tensors(indptr, indices, kept)
    found = csr.select_rows_on_device(pointers, columns, first, places, entries)
    equal(found, select_rows(indptr, indices, first, kept, entries))


@pytest.mark.parametrize("sizes", [[], [0], [3, 0, 2]])
def test_pointers_and_rows_of_entries(sizes: list[int]) -> None:
    pointers = csr.pointers(torch.tensor(sizes, dtype=torch.int64))
    assert pointers.tolist() == [0, *np.cumsum(sizes)]
    rows = csr.row_of_entries(pointers, sum(sizes))
    assert rows.tolist() == np.repeat(np.arange(len(sizes)), sizes).tolist()


@given(**SIZES)
def test_sums_of_rows_and_groups(seed: int, rows: int, cols: int) -> None:
    indptr, indices = structure(seed, rows, cols)
    rng = np.random.default_rng(seed)
    # Sums in the entries' order are those of numpy's unbuffered addition, bit for bit; sizes differ greatly.
    values = rng.normal(size=indices.size) * 10.0 ** rng.integers(-9, 9, indices.size)
    by_row, by_column, running = np.zeros(rows), np.zeros(cols), np.empty(indices.size)
    np.add.at(by_row, np.repeat(np.arange(rows), np.diff(indptr)), values)
    np.add.at(by_column, indices, values)
    pointers, columns, entries = as_tensors(indptr, indices, values)
    np.testing.assert_array_equal(csr.sums_of_rows(pointers, entries).numpy(), by_row)
    np.testing.assert_array_equal(csr.sums_by_group(entries, columns, cols).numpy(), by_column)
    place = np.concatenate([np.empty(0, np.int64), *map(np.arange, np.diff(indptr))])
    for first, last in pairwise(indptr):
        running[first:last] = np.abs(values[first:last]).cumsum()
    found = csr.running_sums(entries.abs(), torch.from_numpy(place), int(np.diff(indptr).max(initial=0)))
    np.testing.assert_allclose(found.numpy(), running, rtol=1e-14)
