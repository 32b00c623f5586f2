"""What the readers share: one translation of errors, feature files, labels and masks."""

from __future__ import annotations

import json
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness.data.npy import Array, NpyWriter
from harness.errors import DataError

_CSV_ROWS = 1 << 17
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    ValueError,  # also UnicodeDecodeError, JSONDecodeError, pandas' ParserError
    TypeError,
    KeyError,
    IndexError,
    OverflowError,
    RecursionError,
    NotImplementedError,  # zipfile: a compression method it does not know
    RuntimeError,  # zipfile: an encrypted member
    MemoryError,  # a damaged length field
)


@contextmanager
def reading(file: Path, expected: str) -> Iterator[None]:
    """Turn whatever a parser raises over a bad `file` into a DataError that says what was `expected`."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"no such file, expected {expected}", file=error.filename or file) from error
    except _BROKEN as error:
        why = (str(error).splitlines() or [""])[0][:150] or type(error).__name__
        raise DataError(f"damaged or foreign, expected {expected} ({why})", file=file) from error


def spool_features(chunks: Iterable[Array], shape: tuple[int, int], work: Path, file: Path) -> Array:
    """Write feature chunks as float32 to `work/features.npy`; return it memory-mapped.

    Raises:
        DataError: a value is not finite (also: too large for float32), or rows are missing.
    """
    path, rows = work / "features.npy", 0
    try:
        with NpyWriter(path, shape, np.float32) as writer:
            for chunk in chunks:
                with np.errstate(over="ignore"):
                    values = chunk.astype(np.float32, copy=False)
                if not np.isfinite(values).all():
                    raise DataError(f"features near row {rows} are not finite numbers", file=file)
                writer.append(values)
                rows += len(values)
    except ValueError as error:
        raise DataError(f"features: {error}", file=file) from error
    return open_npy(path)


def open_npy(path: Path) -> Array:
    """Memory-map an `.npy` that this process has just written."""
    array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def read_json(path: Path, expected: str) -> dict[str, Any]:
    """Read a JSON object."""
    with reading(path, expected), path.open(encoding="utf-8") as stream:
        content = json.load(stream)
    if not isinstance(content, dict):
        raise DataError(f"expected {expected}, found a {type(content).__name__}", file=path)
    return content


def csv_chunks(file: Path, dtype: Any, separator: str = ",") -> Iterator[Array]:
    """Yield a gzipped table of numbers without a header as arrays [rows, columns]; `#` starts a comment."""
    import pandas as pd

    frames = partial(pd.read_csv, header=None, dtype=dtype, comment="#", chunksize=_CSV_ROWS)
    with reading(file, "rows of numbers, gzipped"), frames(file, sep=separator, compression="gzip") as table:
        for frame in table:
            yield frame.to_numpy()


def mask(ids: Any, nodes: int, file: Path, name: str) -> Array:
    """Bool [nodes], true at `ids` (integers 0..nodes-1, no order).

    Raises:
        DataError: an id is not an integer of that range.
    """
    with reading(file, f"node ids of the {name} set"):
        array = np.asarray(ids)
        if array.size == 0:
            array = np.zeros(0, dtype=np.int64)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise DataError(f"{name} set is not a list of node ids", file=file)
        if array.size and not 0 <= array.min() <= array.max() < nodes:
            raise DataError(f"{name} set names a node outside 0..{nodes - 1}", file=file)
    result = np.zeros(nodes, dtype=np.bool_)
    result[array] = True
    return result


def as_labels(values: Array, file: Path, classes: int | None = None) -> tuple[Array, int, bool]:
    """Bring labels into the form of `GraphData`: (labels, num_classes, multilabel).

    [N] or [N, 1] numbers are classes (negative or NaN = unlabelled); [N, C] are 0/1 for each class.

    Raises:
        DataError: another shape, a fraction, or nothing labelled.
    """
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim not in (1, 2) or values.dtype.kind not in "iufb":
        raise DataError(
            f"labels are {values.dtype} {list(values.shape)}, expected numbers [N] or [N, C]", file=file
        )
    if values.ndim == 2:
        if not ((values == 0) | (values == 1)).all():
            raise DataError("multi-label labels hold something other than 0 and 1", file=file)
        return values.astype(np.uint8), values.shape[1], True
    if values.dtype.kind == "f":
        values = values.astype(np.float64)
        known = ~np.isnan(values)
        if not (np.abs(values[known]) < 2**31).all() or (values[known] % 1 != 0).any():
            raise DataError("labels hold something other than class numbers", file=file)
        values = np.where(known, values, -1)
    if values.size and int(values.max()) > 2**31:
        raise DataError(f"class {values.max()} in a graph of {len(values)} nodes", file=file)
    labels = values.astype(np.int64)
    labels[labels < 0] = -1
    found = int(labels.max(initial=-1)) + 1
    if found == 0:
        raise DataError("no node is labelled", file=file)
    if found > max(2**16, len(labels)):
        raise DataError(f"class {found - 1} in a graph of {len(labels)} nodes", file=file)
    return labels, max(found, classes or 0), False


def built(file: Path, expected: str, build: Callable[[], tuple[Array, Array]]) -> tuple[Array, Array]:
    """Run a CSR builder over the edges of `file`, its ValueError told as a DataError."""
    with reading(file, expected):
        return build()
