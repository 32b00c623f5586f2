"""Feature normalisation, in place on disk, by chunks of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from sklearn.preprocessing import StandardScaler

from harness.data.npy import Array, chunk_rows, npy_chunks, read_header
from harness.errors import DataError

NORMALIZERS: dict[str, str] = {
    "none": "features as published",
    "row": "rows sum to 1; rows that sum to 0 stay (Planetoid's convention)",
    "standard": "columns have mean 0, deviation 1 over the training nodes (GraphSAINT's convention)",
}


def normalize_features(path: Path, mode: str, train_mask: Array) -> None:
    """Normalise the float32 [N, F] `.npy` at `path` in place; `train_mask` is bool [N].

    Raises:
        DataError: `standard` with no training node.
    """
    if mode == "standard":
        _rewrite(path, _standard(path, train_mask))
    elif mode == "row":
        _rewrite(path, _rows_to_one)


def _rows_to_one(chunk: Array) -> Array:
    total = chunk.sum(axis=1, dtype=np.float64, keepdims=True)
    scale = np.divide(1.0, total, out=np.zeros_like(total), where=total != 0)
    # A row that sums to zero is left as it is (it is all zeros in the published sets).
    return np.where(total != 0, chunk * scale, chunk).astype(np.float32)


def _standard(path: Path, train_mask: Array) -> Callable[[Array], Array]:
    if not train_mask.any():
        raise DataError("no training node to fit the standard scaler on", file=path, key="normalize")
    scaler, start = StandardScaler(), 0
    for chunk in npy_chunks(path):
        rows = chunk[train_mask[start : start + len(chunk)]]
        if len(rows):
            scaler.partial_fit(rows.astype(np.float64))
        start += len(chunk)
    return lambda chunk: scaler.transform(chunk.astype(np.float64)).astype(np.float32)


def _rewrite(path: Path, transform: Callable[[Array], Array]) -> None:
    with path.open("r+b") as stream:
        shape, dtype, _ = read_header(stream, path)
        offset, row = stream.tell(), dtype.itemsize * shape[1]
        for start, rows in _spans(shape):
            stream.seek(offset + start * row)
            chunk = np.frombuffer(stream.read(rows * row), dtype=dtype).reshape(rows, shape[1])
            stream.seek(offset + start * row)
            stream.write(transform(chunk).tobytes())


def _spans(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    step = chunk_rows(shape, 4)
    yield from ((start, min(step, shape[0] - start)) for start in range(0, shape[0], step))
