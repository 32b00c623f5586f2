"""`.npz` members as streams of row chunks; numpy's own loader would hold each array whole."""

from __future__ import annotations

import math
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Self

import numpy as np

from harness.data.formats.common import reading
from harness.data.npy import CHUNK_BYTES, Array, Header, read_columns, read_header, read_rows
from harness.errors import DataError

_KINDS = {"i": "integers", "f": "floats", "b": "booleans", "n": "numbers"}
_ACCEPT = {"i": "iu", "f": "f", "b": "b", "n": "iufb"}
_STEP = CHUNK_BYTES // 8
Shape = tuple[int | None, ...]


class Npz:
    """An open `.npz`; every method raises DataError (file, member, what was expected) for anything wrong.

    A member's CRC is checked when it has been read to its end, as every member here is by someone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with reading(path, "an .npz file"):
            self._zip = zipfile.ZipFile(path)
        self._sizes = {info.filename: info.file_size for info in self._zip.infolist()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._zip.close()

    def __contains__(self, name: str) -> bool:
        return f"{name}.npy" in self._sizes

    def any_shape(self, name: str) -> tuple[int, ...]:
        """Shape of member `name`, whatever it is."""
        where = self._where(name)
        with reading(where, "an array"), self._zip.open(f"{name}.npy") as stream:
            return read_header(stream, where).shape

    def shape(self, name: str, kind: str, shape: Shape) -> tuple[int, ...]:
        """Shape of member `name`, which must be of `kind` (i, f, b, n = any number) and fit `shape`."""
        with self._open(name, kind, shape) as (_, header):
            return header.shape

    def array(self, name: str, kind: str, shape: Shape) -> Array:
        """Member `name` whole, in the dtype it has."""
        with self._open(name, kind, shape) as (stream, header):
            flat = np.empty(int(np.prod(header.shape, dtype=np.int64)), dtype=header.dtype)
            at = 0
            for chunk in read_rows(stream, flat.shape, header.dtype, self._where(name)):
                flat[at : at + len(chunk)] = chunk
                at += len(chunk)
        return flat.reshape(header.shape, order="F" if header.fortran else "C")

    def chunks(self, name: str, kind: str, shape: Shape) -> Iterator[Array]:
        """Member `name` by chunks of rows of a few MB."""
        with self._open(name, kind, shape) as (stream, header):
            if not header.fortran:
                yield from read_rows(stream, header.shape, header.dtype, self._where(name))
                return
            # Columns cannot be gathered from a compressed stream: it is unpacked to disk first.
            with TemporaryFile() as unpacked:
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
            _skip(stream, start * header.dtype.itemsize, where)
            position = start
            for chunk in read_rows(stream, (total - start,), header.dtype, where, _STEP):
                if position >= stop:
                    break
                yield chunk[: stop - position]
                position += len(chunk)

    @contextmanager
    def _open(self, name: str, kind: str, shape: Shape) -> Iterator[tuple[IO[bytes], Header]]:
        expected = f"{_KINDS[kind]} [{', '.join('any' if s is None else str(s) for s in shape)}]"
        where = self._where(name)
        if name not in self:
            raise DataError(f"has no array '{name}', expected {expected}", file=self.path)
        with reading(where, expected), self._zip.open(f"{name}.npy") as stream:
            header = read_header(stream, where)
            found, dtype = header.shape, header.dtype
            fits = len(found) == len(shape) and all(
                want in (None, have) for want, have in zip(shape, found, strict=True)
            )
            if dtype.kind not in _ACCEPT[kind] or not fits:
                raise DataError(f"is {dtype} {list(found)}, expected {expected}", file=where)
            body = self._sizes[f"{name}.npy"] - stream.tell()
            if body != math.prod(found) * dtype.itemsize:
                raise DataError(f"has {body} bytes of data, which is not {dtype} {list(found)}", file=where)
            yield stream, header

    def _where(self, name: str) -> Path:
        return self.path / name


def _skip(stream: IO[bytes], size: int, file: Path) -> None:
    while size:
        data = stream.read(min(size, CHUNK_BYTES))
        if not data:
            raise DataError("ends early", file=file)
        size -= len(data)
