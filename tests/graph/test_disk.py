"""Features in files: what is read is what was written, and is read once."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.errors import DataError
from harness.graph.disk import AT_ONCE, READERS, RowsOnDisk

WIDTH = 5
SHARE = AT_ONCE // (4 * WIDTH)  # rows of float32 that a thread reads at once
ROWS = (READERS + 1) * SHARE + 7
VALUES = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
RANDOM = np.random.default_rng(1)
ASKED = {
    "none": np.empty(0, np.int64),
    "all": np.arange(ROWS),
    "twice": np.concatenate([np.arange(ROWS), np.arange(ROWS)[::-1]]),
    "every second": np.arange(0, ROWS, 2, dtype=np.int32),
    "some": RANDOM.integers(0, ROWS, 2 * SHARE),
    "ends": np.array([ROWS - 1, 0, ROWS - 1]),
}


def written(folder: Path, dtype: str) -> tuple[Path, torch.Tensor]:
    """Write the values rounded to `dtype`; return the file and what it has to give."""
    rounded = torch.from_numpy(VALUES).to(getattr(torch, dtype))
    stored = rounded.view(torch.int16).numpy().view(np.uint16) if dtype == "bfloat16" else rounded.numpy()
    np.save(folder / "rows.npy", stored)
    return folder / "rows.npy", rounded.float()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("held", [False, True])
def test_rows_are_those_of_the_file_in_the_order_of_asking(tmp_path: Path, dtype: str, held: bool) -> None:
    file, want = written(tmp_path, dtype)
    rows = RowsOnDisk(file)
    assert (rows.stored, rows.row_bytes) == (getattr(torch, dtype), WIDTH * rows.stored.itemsize)
    kept = RANDOM.permutation(ROWS)[: ROWS // 2] if held else np.empty(0, np.int64)
    if held:
        assert rows.hold(kept, torch.float64) == kept.size
    for asked in ASKED.values():
        before, out = rows.count, torch.full((asked.size, WIDTH), torch.nan, dtype=torch.float64)
        read = rows.read(asked, out)
        assert torch.equal(out, want.double()[torch.from_numpy(asked).long()])
        assert read == rows.count - before == np.setdiff1d(asked, kept).size


def test_rows_go_where_they_are_wanted_and_nowhere_else(tmp_path: Path) -> None:
    file, want = written(tmp_path, "float32")
    out = torch.full((9, WIDTH), -1.0)
    RowsOnDisk(file).read(np.array([4, 4, 2]), out, np.array([8, 1, 3]))
    assert torch.equal(out[[8, 1, 3]], want[[4, 4, 2]])
    assert (out[[0, 2, 4, 5, 6, 7]] == -1).all()


def test_what_is_held_is_replaced(tmp_path: Path) -> None:
    rows = RowsOnDisk(written(tmp_path, "float32")[0])
    rows.hold(np.array([1, 2]), torch.float32)
    rows.hold(np.array([2, 3]), torch.float32)
    assert rows.read(np.array([1, 2, 3]), torch.empty(3, WIDTH)) == 1


def test_a_file_that_ends_early_is_named(tmp_path: Path) -> None:
    file, _ = written(tmp_path, "float32")
    rows = RowsOnDisk(file)
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(DataError, match=r"rows\.npy: ends early \(remove its directory, and it is made again\)"):
        rows.read(np.array([ROWS - 1]), torch.empty(1, WIDTH))
    with pytest.raises(DataError, match=r"rows\.npy: not a whole \.npy file .* \(remove its directory"):
        RowsOnDisk(file)
    np.save(file, VALUES.astype(np.int64))
    with pytest.raises(DataError, match="has values of int64"):
        RowsOnDisk(file)
