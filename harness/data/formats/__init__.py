"""Readers of raw formats: `read(source, name, work) -> GraphData`.

`work` is the directory under construction that the graph will be written to: a reader puts arrays that are
large into it as they will stay (`features.npy`), and returns them memory-mapped. Every reader raises
`DataError`, and nothing else, for a file that is missing, damaged, truncated or foreign.

This module has the checks that they share: arrays, JSON and CSV are read without trust.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import math
import os
import shutil
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import IO, TYPE_CHECKING, Any, Self

import psutil

from harness.data.catalog import NUMBER
from harness.data.graph import Array, EdgeChunks, Shape, csr_from_edges, fits, shape_text
from harness.data.prepared import CHUNK_BYTES, Header, chunk_rows, npy_writer, read_columns, read_header, read_rows
from harness.deferred import numpy as np
from harness.errors import DataError, UserError
from harness.files import SMALL, open_regular, read_bytes, size_text

if TYPE_CHECKING:
    import scipy.sparse as sp

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
def reading(
    file: Path, expected: str, broken: type[Exception] | tuple[type[Exception], ...] = _BROKEN
) -> Iterator[None]:
    """Turn what a parser raises over a bad `file`, any of `broken`, into a DataError that says what was `expected`."""
    try:
        yield
    except DataError:
        raise
    except UserError as error:  # no regular file, or too large
        raise DataError(error.message, file=error.file or file, fix=error.fix) from error
    except FileNotFoundError as error:
        raise DataError(f"no such file, expected {expected}", file=error.filename or file) from error
    except broken as error:
        why = (str(error).splitlines() or [""])[0][:150] or type(error).__name__
        raise DataError(f"damaged or foreign, expected {expected} ({why})", file=file) from error


def spool_features(chunks: Iterable[Array], shape: tuple[int, int], work: Path, file: Path) -> Array:
    """Write feature chunks as float32 to `work/features.npy`; return it memory-mapped.

    DataError if a value is not finite (also: too large for float32), or rows are missing.
    """
    path, rows = work / "features.npy", 0
    if shape[1] > MAX_WIDTH:
        raise DataError(f"{shape[1]} features a node, at most {MAX_WIDTH} are read", file=file)
    require_space(4 * math.prod(shape), work.parent, file)
    try:
        with npy_writer(path, shape, np.float32) as append:
            for chunk in chunks:
                with np.errstate(over="ignore"):
                    values = chunk.astype(np.float32, copy=False)
                if not (fine := np.isfinite(values).all(axis=1)).all():
                    row = int(np.argmin(fine))
                    column = int(np.argmin(np.isfinite(values[row])))
                    large = np.isfinite(chunk[row]).all()
                    what = "is too large for float32" if large else "is not a finite number"
                    raise DataError(f"the feature of row {rows + row}, column {column} {what}", file=file)
                append(values)
                rows += len(values)
    except ValueError as error:
        raise DataError(f"features: {error}", file=file) from error
    return open_npy(path)


def require_space(size: int, directory: Path, file: Path) -> None:
    """Raise a DataError if what is read from `file` takes more bytes than are free in a `directory`."""
    free = shutil.disk_usage(directory).free
    if size > free:
        what = f"takes {size_text(size)} when it is prepared, {size_text(free)} are free in {directory}"
        raise DataError(what, file=file, fix="set HARNESS_CACHE")


def open_npy(path: Path) -> Array:
    """Memory-map an `.npy` that this process has just written."""
    array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def read_json(path: Path, expected: str, limit: int) -> dict[str, Any]:
    """Read a JSON object of at most `limit` bytes."""
    with reading(path, expected):
        content = json.loads(read_bytes(path, limit))
    if not isinstance(content, dict):
        raise DataError(f"expected {expected}, found a {type(content).__name__}", file=path)
    return content


def csv_chunks(file: Path, dtype: Any, rows: int, columns: int, separator: str = ",") -> Iterator[Array]:
    """Yield a gzipped table of numbers without a header as arrays [k, columns]; `#` starts a comment.

    DataError for more than so many `rows` or `columns`, or more text than they can be; nothing of that is kept.
    """
    import pandas as pd

    text = PackedText(file, rows * columns * NUMBER + SMALL, columns * NUMBER + 1024)
    with reading(file, "rows of numbers, gzipped"), text, io.BufferedReader(text, SMALL) as stream:
        table = pd.read_csv(stream, header=None, dtype=dtype, comment="#", sep=separator, iterator=True)
        step, found = 1, 0
        with table, suppress(StopIteration):
            while True:
                values = table.get_chunk(step).to_numpy()
                found += len(values)
                if found > rows or values.shape[1] > columns:
                    many = f"{found} rows" if found > rows else f"{values.shape[1]} columns"
                    raise DataError(f"has {many}, at most {rows} of {columns} were expected", file=file)
                yield values
                step = max(1, min(_CSV_ROWS, _STEP // values.shape[1]))


class PackedText(io.RawIOBase):
    """The text of a gzipped file; DataError for more bytes of it, or in a line, than were expected."""

    def __init__(self, file: Path, most: int, line: int) -> None:
        self._file, self._most, self._line = file, most, line
        self._read = self._open = 0
        self._packed: IO[bytes] | None = None
        self._text: gzip.GzipFile | None = None

    def readable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See `io.RawIOBase`; DataError where there is too much text."""
        if self._text is None:
            self._packed = open_regular(self._file)
            self._text = gzip.GzipFile(fileobj=self._packed)
        data = self._text.read(len(buffer))
        self._read += len(data)
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
        longest = int(np.diff(ends, prepend=-1 - self._open).max(initial=0))
        self._open = len(data) - int(ends[-1]) - 1 if ends.size else self._open + len(data)
        if self._read > self._most:
            raise DataError(f"unpacks to more than {size_text(self._most)}", file=self._file)
        if max(longest, self._open) > self._line:
            raise DataError(f"has a line of more than {self._line} bytes", file=self._file)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """See `io.RawIOBase`."""
        for stream in (self._text, self._packed):
            if stream is not None:
                stream.close()
        super().close()


def mask(ids: Any, nodes: int, file: Path, name: str) -> Array:
    """Bool [nodes], true at `ids` (integers 0..nodes-1, no order); DataError if one is not of that range."""
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


def _labels_by_class(values: Array, file: Path) -> tuple[Array, int, bool]:
    classes = values.shape[1]
    if not classes:
        raise DataError("labels have no column", file=file)
    if not ((values == 0) | (values == 1)).all():
        raise DataError("multi-label labels hold something other than 0 and 1", file=file)
    if (values.sum(axis=1) == 1).all():
        return values.argmax(axis=1).astype(np.int64), classes, False
    return values.astype(np.uint8), classes, True


def as_labels(values: Array, file: Path, classes: int | None = None) -> tuple[Array, int, bool]:
    """Bring labels into the form of `GraphData`: (labels, num_classes, multilabel).

    [N] or [N, 1] numbers are classes (negative or NaN = unlabelled); [N, C] are 0/1 for each class, and where each row
    has one 1 they are classes, too. DataError for another shape, a fraction, or nothing labelled.
    """
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim not in (1, 2) or values.dtype.kind not in "iufb":
        raise DataError(f"labels are {values.dtype} {list(values.shape)}, expected numbers [N] or [N, C]", file=file)
    if values.ndim == 2:
        return _labels_by_class(values, file)
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


def csr(
    edges: EdgeChunks, nodes: int, file: Path, expected: str = "an edge list", *, symmetrise: bool = True
) -> tuple[Array, Array]:
    """Run `csr_from_edges` over the edges of `file`, its ValueError as a DataError."""
    with reading(file, expected):
        return csr_from_edges(edges, nodes, symmetrise=symmetrise)


def dense_chunks(matrix: sp.csr_matrix) -> Iterator[Array]:
    """Yield a sparse float32 matrix by dense chunks of rows of a few MB."""
    step = chunk_rows(matrix.shape, 4)
    yield from (matrix[start : start + step].toarray() for start in range(0, matrix.shape[0], step))


MAX_WIDTH = 1 << 20  # features of a node: a row is in memory whole
_MOST_DEFLATED = 1032  # bytes that one byte of a deflated stream can stand for
_KINDS = {"i": ("integers", "iu"), "f": ("floats", "f"), "b": ("booleans", "b"), "n": ("numbers", "iufb")}
_STEP = CHUNK_BYTES // 8


class Npz:
    """An open `.npz`; every method raises DataError (file, member, what was expected) for anything wrong.

    A member's CRC is checked when it has been read to its end, as every member here is by someone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with reading(path, "an .npz file"), ExitStack() as stack:
            self._file = stack.enter_context(open_regular(path))
            self._zip = zipfile.ZipFile(self._file)
            stack.pop_all()
        self._members = {info.filename: info for info in self._zip.infolist()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()
        self._file.close()

    def __contains__(self, name: str) -> bool:
        return f"{name}.npy" in self._members

    def shape(self, name: str, kind: str, shape: Shape) -> tuple[int, ...]:
        """Shape of member `name`, which must be of `kind` (i, f, b, n = any number) and fit `shape`."""
        with self._open(name, kind, shape) as (_, header):
            return header.shape

    def array(self, name: str, kind: str, shape: Shape) -> Array:
        """Member `name` whole, in the dtype it has."""
        with self._open(name, kind, shape) as (stream, header):
            size, most = math.prod(header.shape) * header.dtype.itemsize, psutil.virtual_memory().total
            if size > most:
                what = f"takes {size_text(size)} of memory, this machine has {size_text(most)}"
                raise DataError(what, file=self._where(name))
            flat = np.empty(math.prod(header.shape), dtype=header.dtype)
            at = 0
            for chunk in read_rows(stream, flat.shape, header.dtype, self._where(name)):
                flat[at : at + len(chunk)] = chunk
                at += len(chunk)
        return flat.reshape(header.shape, order="F" if header.fortran else "C")

    def rows(self, name: str, count: int) -> Array:
        """Member `name` whole, numbers [count] or [count, any]."""
        where = self._where(name)
        with reading(where, "an array"), self._zip.open(f"{name}.npy") as stream:
            shape = read_header(stream, where).shape
        return self.array(name, "n", (count, None) if len(shape) == 2 else (count,))

    def chunks(self, name: str, kind: str, shape: Shape) -> Iterator[Array]:
        """Member `name` by chunks of rows of a few MB."""
        with self._open(name, kind, shape) as (stream, header):
            if not header.fortran:
                yield from read_rows(stream, header.shape, header.dtype, self._where(name))
                return
            # Columns cannot be gathered from a compressed stream: it is unpacked to disk first.
            with TemporaryFile() as unpacked:
                require_space(math.prod(header.shape) * header.dtype.itemsize, Path(gettempdir()), self.path)
                shutil.copyfileobj(stream, unpacked, CHUNK_BYTES)
                yield from read_columns(unpacked, 0, header.shape, header.dtype, self._where(name))

    def paired_chunks(self, first: str, second: str, count: int) -> Iterator[tuple[Array, Array]]:
        """Two integer members of length `count`, read side by side."""
        columns = (self._flat(name, (count,), 0, count) for name in (first, second))
        yield from zip(*columns, strict=True)

    def row_pair_chunks(self, name: str) -> Iterator[tuple[Array, Array]]:
        """The two rows of an integer member [2, E], read side by side, whichever way it is stored."""
        shape: Shape = (2, None)
        with self._open(name, "i", shape) as (stream, header):
            count = header.shape[1]
            if header.fortran:
                pairs = read_rows(stream, (count, 2), header.dtype, self._where(name), _STEP)
                yield from ((pair[:, 0], pair[:, 1]) for pair in pairs)
                return
        rows = (self._flat(name, shape, row * count, (row + 1) * count) for row in (0, 1))
        yield from zip(*rows, strict=True)

    def _flat(self, name: str, shape: Shape, start: int, stop: int) -> Iterator[Array]:
        with self._open(name, "i", shape) as (stream, header):
            where, total = self._where(name), int(np.prod(header.shape, dtype=np.int64))
            before = start * header.dtype.itemsize
            while before:  # not `seek`, which would give up on the checksum
                data = stream.read(min(before, CHUNK_BYTES))
                if not data:
                    raise DataError("ends early", file=where)
                before -= len(data)
            position = start
            for chunk in read_rows(stream, (total - start,), header.dtype, where, _STEP):
                if position >= stop:
                    break
                yield chunk[: stop - position]
                position += len(chunk)

    @contextmanager
    def _open(self, name: str, kind: str, shape: Shape) -> Iterator[tuple[IO[bytes], Header]]:
        name_of_kind, accepted = _KINDS[kind]
        expected = f"{name_of_kind} {shape_text(shape)}"
        where = self._where(name)
        if name not in self:
            raise DataError(f"has no array '{name}', expected {expected}", file=self.path)
        with reading(where, expected), self._zip.open(f"{name}.npy") as stream:
            header = read_header(stream, where)
            found, dtype = header.shape, header.dtype
            if dtype.kind not in accepted or not fits(found, shape):
                raise DataError(f"is {dtype} {list(found)}, expected {expected}", file=where)
            self._check_size(self._members[f"{name}.npy"], where)
            body = self._members[f"{name}.npy"].file_size - stream.tell()
            if body != math.prod(found) * dtype.itemsize:
                raise DataError(f"has {body} bytes of data, which is not {dtype} {list(found)}", file=where)
            yield stream, header

    def _check_size(self, member: zipfile.ZipInfo, where: Path) -> None:
        # A member may say that it holds more than its bytes in the file can stand for.
        packed = min(member.compress_size, os.fstat(self._file.fileno()).st_size)
        stored = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: _MOST_DEFLATED}.get(member.compress_type)
        if stored is None:
            raise DataError("is packed in a way that numpy never does", file=where, fix="write it with numpy.savez")
        if member.file_size > packed * stored + _MOST_DEFLATED:
            what = f"says that it holds {size_text(member.file_size)}, of {size_text(packed)} in the file"
            raise DataError(what, file=where)

    def _where(self, name: str) -> Path:
        return self.path / name
