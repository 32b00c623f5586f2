"""`.npy` files read and written by chunks of rows, so that no array need fit in memory.

Plain file reads are used rather than memory maps: mapped pages would count as this process's memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tokenize import TokenError
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

import numpy as np

from harness.errors import DataError

Array = np.ndarray[Any, np.dtype[Any]]
CHUNK_BYTES = 4 << 20
_MAX_HEADER = 10_000
_BAD_HEADER = (ValueError, TypeError, SyntaxError, TokenError, EOFError, RecursionError, MemoryError, OverflowError)


def chunk_rows(shape: tuple[int, ...], itemsize: int) -> int:
    """Rows of one chunk of about `CHUNK_BYTES`; at least 1."""
    return max(1, CHUNK_BYTES // max(1, itemsize * int(np.prod(shape[1:], dtype=np.int64))))


class Header(NamedTuple):
    """What an `.npy` header says; `fortran`: stored column by column (and more than one column)."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool


def read_header(stream: IO[bytes], file: Path | str) -> Header:
    """Read an `.npy` header.

    Raises:
        DataError: not an `.npy` header, or an object dtype (it would be a pickle).
    """
    try:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
        if read is None:
            raise ValueError(f"format version {version}")
        shape, fortran, dtype = read(stream, max_header_size=_MAX_HEADER)
    except _BAD_HEADER as error:
        raise DataError(f"no .npy header ({_short(error)})", file=file) from error
    if dtype.hasobject:
        raise DataError("holds Python objects (a pickle), which are never loaded", file=file)
    if dtype.names is not None or dtype.subdtype is not None or dtype.itemsize == 0:
        raise DataError(f"dtype {dtype} is not a number", file=file)
    if any(size < 0 for size in shape):
        raise DataError(f"shape {shape} is negative", file=file)
    return Header(tuple(shape), dtype, fortran and len(shape) > 1)


def read_rows(
    stream: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any], file: Path | str, step: int = 0
) -> Iterator[Array]:
    """Yield the body of a C-ordered `.npy` stream by chunks of rows, each a fresh array; all of it is read.

    A chunk has `step` rows, or as many as make a few MB.

    Raises:
        DataError: the stream ends early or goes on after the last row.
    """
    row_items = int(np.prod(shape[1:], dtype=np.int64))
    step = step or chunk_rows(shape, dtype.itemsize)
    for start in range(0, shape[0], step):
        rows = min(step, shape[0] - start)
        data = bytearray(rows * row_items * dtype.itemsize)
        if _read_into(stream, memoryview(data)) < len(data):
            raise DataError(f"ends early: {shape[0]} rows expected", file=file)
        yield np.frombuffer(data, dtype=dtype).reshape(rows, *shape[1:])
    if stream.read(1):
        raise DataError("has bytes after its last row", file=file)


def npy_chunks(path: Path) -> Iterator[Array]:
    """Yield an `.npy` file by chunks of rows.

    Raises:
        DataError: see `read_header` and `read_rows`.
    """
    with path.open("rb") as stream:
        shape, dtype, fortran = read_header(stream, path)
        if not shape:
            raise DataError("is a single number, expected rows", file=path)
        if fortran:
            yield from read_columns(stream, stream.tell(), shape, dtype, path)
        else:
            yield from read_rows(stream, shape, dtype, path)


def read_columns(
    stream: IO[bytes], offset: int, shape: tuple[int, ...], dtype: np.dtype[Any], file: Path | str
) -> Iterator[Array]:
    """Yield a matrix stored column by column from byte `offset` of a seekable stream by chunks of rows.

    Raises:
        DataError: not a matrix, or the stream ends early.
    """
    if len(shape) != 2:
        raise DataError(f"is stored column by column with shape {shape}", file=file)
    rows, columns = shape
    step = chunk_rows(shape, dtype.itemsize)
    for start in range(0, rows, step):
        size = min(step, rows - start) * dtype.itemsize
        data = bytearray(size * columns)
        view = memoryview(data)
        for column in range(columns):
            stream.seek(offset + (column * rows + start) * dtype.itemsize)
            if _read_into(stream, view[column * size : (column + 1) * size]) < size:
                raise DataError(f"ends early: {rows} rows expected", file=file)
        yield np.frombuffer(data, dtype=dtype).reshape(columns, -1).T


class NpyWriter:
    """Writes an `.npy` file of known shape row chunk by row chunk; synced to disk when closed whole."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: Any) -> None:
        self._path, self._shape, self._dtype = path, shape, np.dtype(dtype)
        self._rows = 0
        self._stream = path.open("wb")
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._stream, header)

    def append(self, rows: Array) -> None:
        """Append `rows` [k, *shape[1:]], cast to the file's dtype."""
        if rows.shape[1:] != self._shape[1:]:
            raise ValueError(f"rows of shape {rows.shape[1:]}, expected {self._shape[1:]}")
        np.ascontiguousarray(rows, dtype=self._dtype).tofile(self._stream)
        self._rows += len(rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stream:
            if kind is None and self._rows != self._shape[0]:
                raise ValueError(f"{self._path}: {self._rows} rows written, {self._shape[0]} promised")
            self._stream.flush()
            os.fsync(self._stream.fileno())


def write_npy(path: Path, array: Array) -> None:
    """Write `array` as `.npy` in C order by chunks, synced to disk."""
    with NpyWriter(path, array.shape, array.dtype) as writer:
        step = chunk_rows(array.shape, array.dtype.itemsize)
        for start in range(0, len(array), step):
            writer.append(array[start : start + step])


def _read_into(stream: IO[bytes], view: memoryview) -> int:
    done = 0
    while done < len(view):
        data = stream.read(len(view) - done)
        if not data:
            break
        view[done : done + len(data)] = data
        done += len(data)
    return done


def _short(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:100]
