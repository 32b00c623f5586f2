"""Prepared graphs on disk: arrays by chunks of rows, locks, atomic directories, checksums.

No array need fit in memory. Plain file reads are used rather than memory maps: mapped pages would count as
this process's memory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import math
import mmap
import os
import shutil
import socket
import sys
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, NamedTuple

from harness.data.graph import Array, GraphData, check_graph
from harness.deferred import numpy as np
from harness.errors import DataError, UserError, writing
from harness.files import SMALL, open_regular, read_object, read_text, write_whole

CHUNK_BYTES = 4 << 20
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # what file systems without locks answer
SUMS = "checksums.json"  # see `seal`
SHARD = "shard.json"  # see `Absent`
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
    """Read an `.npy` header; DataError if it is none, or of an object dtype (it would be a pickle)."""
    try:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
        if read is None:
            raise ValueError(f"format version {version}")
        shape, fortran, dtype = read(stream, max_header_size=_MAX_HEADER)
    except _BAD_HEADER as error:
        why = (str(error).splitlines() or [type(error).__name__])[0][:100]
        raise DataError(f"no .npy header ({why})", file=file) from error
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

    A chunk has `step` rows, or as many as make a few MB. DataError if the stream ends early or goes on after the
    last row.
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
    """Yield an `.npy` file by chunks of rows; DataError as `read_header` and `read_rows`."""
    with open_regular(path) as stream:
        shape, dtype, fortran = read_header(stream, path)
        if not shape:
            raise DataError("is a single number, expected rows", file=path)
        if fortran:
            yield from read_columns(stream, stream.tell(), shape, dtype, path)
        else:
            yield from read_rows(stream, shape, dtype, path)


def map_npy(path: Path, fix: str, key: str | None = None) -> Array:
    """Memory-map a whole `.npy` read-only.

    DataError, with the `key` that named it and the `fix`, if it is missing, damaged or no regular file.
    """
    try:
        with open_regular(path) as stream:
            shape, dtype, fortran = read_header(stream, path)
            start, size = stream.tell(), os.fstat(stream.fileno()).st_size
        if size - start != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{size - start} bytes are not {dtype} {list(shape)}")
        return np.memmap(path, dtype, "r", start, shape, "F" if fortran else "C")
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror or error})", file=path, key=key, fix=fix) from error
    except (ValueError, UserError) as error:
        why = error.message if isinstance(error, UserError) else error
        raise DataError(f"not a whole .npy file ({why})", file=path, key=key, fix=fix) from error


def read_columns(
    stream: IO[bytes], offset: int, shape: tuple[int, ...], dtype: np.dtype[Any], file: Path | str
) -> Iterator[Array]:
    """Yield a matrix stored column by column from byte `offset` of a seekable stream by chunks of rows.

    DataError if it is no matrix, or the stream ends early.
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


@contextmanager
def npy_writer(path: Path, shape: tuple[int, ...], dtype: Any) -> Iterator[Callable[[Array], None]]:
    """Yield a function that appends rows [k, *shape[1:]] to a new `.npy` file of known shape, cast to its dtype.

    The file is synced to disk at the end. ValueError for rows of another shape, or too few or many of them.
    """
    written = 0

    def append(rows: Array) -> None:
        nonlocal written
        if rows.shape[1:] != shape[1:]:
            raise ValueError(f"rows of shape {rows.shape[1:]}, expected {shape[1:]}")
        np.ascontiguousarray(rows, dtype=dtype).tofile(stream)
        written += len(rows)

    with path.open("wb") as stream:
        header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, header)
        yield append
        if written != shape[0]:
            raise ValueError(f"{path}: {written} rows written, {shape[0]} promised")
        stream.flush()
        os.fsync(stream.fileno())


def _read_into(stream: IO[bytes], view: memoryview) -> int:
    done = 0
    while done < len(view):
        data = stream.read(len(view) - done)
        if not data:
            break
        view[done : done + len(data)] = data
        done += len(data)
    return done


def content_hash(directory: Path, names: Sequence[str], kept: str) -> str:
    """Return the SHA-256 of the files `names` of a directory that exist, in that order.

    The file `kept` of the directory caches it while sizes and times of change are the same, or while the directory or
    its parent has checksums: then a change is damage.
    """
    if (known := known_hash(directory, names, kept)) is not None:
        return known
    joined = "".join(hash_file(directory / name) for name in names if (directory / name).exists())
    digest = hashlib.sha256(joined.encode()).hexdigest()
    with contextlib.suppress(OSError):  # it is only a shortcut: the directory may be read-only, or full
        write_whole(directory / kept, json.dumps({"stat": _stat(directory, names), "hash": digest}))
    return digest


def known_hash(directory: Path, names: Sequence[str], kept: str) -> str | None:
    """Return the cached `content_hash`; None if there is none, or the files have changed."""
    try:
        remembered = json.loads(read_text(directory / kept, SMALL))
        sealed = any((place / SUMS).exists() for place in (directory, directory.parent))
        unchanged = sealed or remembered["stat"] == _stat(directory, names)
        return str(remembered["hash"]) if unchanged else None
    except (OSError, UserError, ValueError, KeyError, TypeError, RecursionError):
        return None  # absent, or damaged: it is only a shortcut


def _stat(directory: Path, names: Sequence[str]) -> dict[str, list[int]]:
    there = (directory / name for name in names if (directory / name).exists())
    return {path.name: _identity(path) for path in there}


def _identity(path: Path) -> list[int]:
    # Size and time of change are anybody's to set: archives, `cp -p` and layers of containers do.
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def file_hashes(files: Sequence[Path], kept: Path) -> dict[str, str]:
    """Return the SHA-256 of files by their places, each read again only if it is not the one that `kept` remembers.

    The file `kept` need not exist, nor be writable.
    """
    now = {str(file.resolve()): _identity(file) for file in files}
    remembered, found = read_object(kept, SMALL) or {}, dict[str, list[Any]]()
    for place, stat in now.items():
        own = remembered.get(place)
        with contextlib.suppress(OSError):  # the reader of the file says why it cannot be read
            found[place] = own if isinstance(own, list) and own[:-1] == stat else [*stat, hash_file(Path(place))]
    if not found.items() <= remembered.items():
        with contextlib.suppress(OSError, UserError):
            write_whole(kept, json.dumps(found))
    return {place: own[-1] for place, own in found.items()}


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file; raises as `open_regular`."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


FORMAT_VERSION = 1
_ARRAYS = ("indptr", "indices", "features", "labels", "train_mask", "val_mask", "test_mask")
_OPTIONAL = "weights"
FINGERPRINT_DIGITS = 16
_META: dict[str, type] = {"name": str, "num_classes": int, "multilabel": bool, "origin": str, "note": str}


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the exclusive lock of `path` (a file `.NAME.lock` next to it); blocks while another process has it.

    The kernel drops the lock of a process that dies. On a file system without locks (Lustre without `-o flock`) nobody
    waits: two may then make the same thing, and one of them is kept whole (see `atomic_directory`).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.parent / f".{path.name}.lock"
    lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        flock(lock, file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def flock(lock: int, file: Path, how: int) -> None:
    """Lock an open file, as well as its file system can.

    BlockingIOError if another process has it and `how` says not to wait; OSError, with the file's name, if the system
    fails.
    """
    try:
        fcntl.flock(lock, how)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise OSError(error.errno, error.strerror, str(file)) from error


def may_keep(target: Path) -> bool:
    """Return whether a directory is there, or can be made: caches may be read-only, or another user's."""
    return target.exists() or os.access(target.parent, os.W_OK | os.X_OK)


@contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """Yield a new directory next to `target`; on success sync it and rename it to `target`, else remove it.

    A `target` that exists is replaced; of two that are put there at the same moment one stays. What processes that
    died left behind is removed first.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.name}.{socket.gethostname()}-"
    for path in target.parent.glob(f"{glob.escape(prefix)}*.tmp"):
        pid = path.name[len(prefix) :].split("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(path, ignore_errors=True)
    work = target.parent / f"{prefix}{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp"
    work.mkdir()
    try:
        with writing(target):
            yield work
        for path in [*work.rglob("*"), work]:
            sync(path)
        old = work.with_suffix(".old.tmp")
        with contextlib.suppress(FileNotFoundError):
            target.rename(old)
        try:
            work.rename(target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        shutil.rmtree(old, ignore_errors=True)
        sync(target.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def write_graph(graph: GraphData, directory: Path) -> None:
    """Write `graph` as the prepared directory `directory` (.npy files and meta.json), whole or not at all.

    DataError if it breaks a promise of `GraphData`.
    """
    check_graph(graph, graph.name)
    with atomic_directory(directory) as work:
        fill_graph(graph, work)


def fill_graph(graph: GraphData, work: Path) -> None:
    """Write the files of a prepared directory into `work`; `graph` is checked already.

    An array that is memory-mapped from its own place in `work` is left as it is: readers put there what
    would not fit in memory. Everything else found in `work` is removed.
    """
    names = _ARRAYS if graph.weights is None else (*_ARRAYS, _OPTIONAL)
    for name in names:
        path, array = work / f"{name}.npy", getattr(graph, name)
        # A slice of a memory map keeps the file's name, but its base is the map it was cut from.
        whole = isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap)
        if not (whole and os.path.realpath(str(array.filename)) == os.path.realpath(path)):
            with npy_writer(path, array.shape, array.dtype) as append:
                step = chunk_rows(array.shape, array.dtype.itemsize)
                for start in range(0, len(array), step):
                    append(array[start : start + step])
    meta = {key: getattr(graph, key) for key in _META}
    meta |= {"format": FORMAT_VERSION, "nodes": graph.nodes, "edges": graph.edges}
    (work / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
    for entry in work.iterdir():
        if entry.name != "meta.json" and entry.name not in {f"{name}.npy" for name in names}:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def fingerprint(directory: Path) -> str:
    """Return hex digits that say what a prepared graph contains: structure, features, labels, split, weights."""
    names = [f"{name}.npy" for name in (*_ARRAYS, _OPTIONAL)]
    return content_hash(directory, names, "fingerprint.json")[:FINGERPRINT_DIGITS]


class Absent:
    """The features [N, F] of a graph that are not here as a whole: their shape, and an error for who reads them."""

    itemsize = 4  # float32

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)

    def __getitem__(self, nodes: Any) -> Any:
        """Raise a UserError."""
        raise UserError(
            "a shard has the features of some parts alone", fix="prepare the graph in another HARNESS_CACHE"
        )

    def __len__(self) -> int:
        """Return N."""
        return self.shape[0]

    @property
    def ndim(self) -> int:
        """The number of dimensions, 2."""
        return len(self.shape)

    def write(self, directory: Path) -> None:
        """Have `open_graph` find this in place of the features."""
        write_whole(directory / SHARD, json.dumps({"features": self.shape}))


def open_graph(directory: Path) -> GraphData:
    """Open a prepared directory, arrays memory-mapped read-only; DataError if it is not whole or of another version.

    Features of a shard are `Absent`.
    """
    directory = Path(directory)
    meta = _read_meta(directory / "meta.json")
    names = (*_ARRAYS, _OPTIONAL) if (directory / f"{_OPTIONAL}.npy").exists() else _ARRAYS
    absent = read_object(directory / SHARD, SMALL)
    arrays: dict[str, Any] = {
        name: Absent(absent[name])
        if absent and name in absent
        else map_npy(directory / f"{name}.npy", "delete the directory")
        for name in names
    }
    nodes, edges = meta["nodes"], meta["edges"]
    lengths = {"indptr": nodes + 1, "indices": edges, _OPTIONAL: edges}
    for name, array in arrays.items():
        expected = lengths.get(name, nodes)
        if array.ndim == 0 or len(array) != expected:
            raise DataError(
                f"has shape {list(array.shape)}, meta.json says {expected} rows", file=directory / f"{name}.npy"
            )
    return GraphData(**arrays, **{key: meta[key] for key in _META})


def _read_meta(path: Path) -> dict[str, Any]:
    try:
        meta = json.loads(read_text(path, SMALL))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"not the meta.json of a prepared graph ({error})", file=path) from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT_VERSION:
        raise DataError(f"not a prepared graph of format {FORMAT_VERSION}", file=path, fix="delete the directory")
    for key, kind in {**_META, "nodes": int, "edges": int}.items():
        if not isinstance(meta.get(key), kind) or (kind is int and isinstance(meta[key], bool)):
            raise DataError(f"expected {kind.__name__}, found {meta.get(key)!r}", file=path, key=key)
    return meta


def sync(path: Path) -> None:
    """Have the kernel write a file, or a directory's entries, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# Checksums: with a flipped bit in a column index a kernel reads anywhere, and dies. CRC-32, which zlib computes at
# several GB/s: all of a prepared graph is read once by each run that uses it.
Report = Callable[[str], None]


def to_stderr(text: str) -> None:
    """Print a line on standard error."""
    print(text, file=sys.stderr)


def seal(directory: Path, pattern: str = "*.npy") -> None:
    """Keep the sizes and checksums of the files under a directory that match `pattern`, in its `checksums.json`."""
    files = sorted(path for path in directory.rglob(pattern) if path.is_file() and path.name != SUMS)
    sums = {path.relative_to(directory).as_posix(): [path.stat().st_size, _crc(path)] for path in files}
    write_whole(directory / SUMS, json.dumps(sums, indent=1) + "\n")


def damage(directory: Path) -> str | None:
    """Return in words which files of a sealed directory have changed; None if none has, or it never was sealed.

    OSError if a file exists and cannot be read: its content may be whole.
    """
    try:
        sums = json.loads((directory / SUMS).read_text(encoding="utf-8"))
        known = {str(name): (int(size), int(crc)) for name, (size, crc) in sums.items()}
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, AttributeError):
        return f"{SUMS} changed since it was made"
    names = []
    for name, (size, crc) in known.items():
        path = directory / name
        if not path.exists() or path.stat().st_size != size or _crc(path) != crc:
            names.append(name)
    more = f" and {len(names) - 1} more files" if len(names) > 1 else ""
    return f"{names[0]}{more} changed since it was made" if names else None


def _crc(path: Path) -> int:
    crc, chunk = 0, bytearray(CHUNK_BYTES)
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(chunk):
            crc = zlib.crc32(memoryview(chunk)[:count], crc)
    return crc


def made_once(target: Path, mark: str, build: Callable[[Path], None], report: Report, *, check: bool = True) -> Path:
    """Return the sealed directory `target`, which has the file `mark`; `build` fills a new one, whole or not at all.

    One whose files have changed (`check`) is renamed to `NAME.damaged`, in place of an earlier one, and built again;
    `report` receives a line. Of several processes one builds. DataError if a damaged one cannot be renamed.
    """
    if (target / mark).is_file() and not (check and damage(target)):
        return target
    with locked(target):
        if (target / mark).is_file() and (why := damage(target)) is not None:
            aside = target.with_name(f"{target.name}.damaged")
            try:
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(aside)
                os.rename(target, aside)
            except OSError as error:
                what = f"damaged: {why}, and cannot be set aside: {error.strerror}"
                fix = "remove it, or set HARNESS_CACHE to another directory"
                raise DataError(what, file=target, fix=fix) from error
            report(f"damaged: {why}; set aside as {aside}, and made again")
        if not (target / mark).is_file():
            with atomic_directory(target) as work:
                build(work)
                seal(work)
    return target
