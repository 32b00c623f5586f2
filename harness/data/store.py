"""Prepared graphs on disk, and the tools every cache is built with: a lock and an atomic directory."""

from __future__ import annotations

import fcntl
import glob
import json
import mmap
import os
import shutil
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from harness.data.graph import GraphData, check_graph
from harness.data.npy import write_npy
from harness.errors import DataError

FORMAT_VERSION = 1
_ARRAYS = ("indptr", "indices", "features", "labels", "train_mask", "val_mask", "test_mask")
_OPTIONAL = "weights"
_META: dict[str, type] = {"name": str, "num_classes": int, "multilabel": bool, "origin": str, "note": str}


def cache_root() -> Path:
    """$HARNESS_CACHE, else $XDG_CACHE_HOME/harness, else ~/.cache/harness (absolute; may not exist yet)."""
    if own := os.environ.get("HARNESS_CACHE"):
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "harness"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the exclusive lock of `path` (a file `.NAME.lock` beside it); blocks while another process has it.

    The kernel drops the lock of a process that dies.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / f".{path.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """Yield a new directory beside `target`; on success sync it and rename it to `target`, else remove it.

    A `target` that exists is replaced. What processes that died left behind is removed first.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(target)
    work = target.parent / f"{_prefix(target)}{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp"
    work.mkdir()
    try:
        yield work
        _sync_tree(work)
        if target.exists():
            old = work.with_suffix(".old.tmp")
            target.rename(old)
            work.rename(target)
            shutil.rmtree(old)
        else:
            work.rename(target)
        _sync(target.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def write_graph(graph: GraphData, directory: Path) -> None:
    """Write `graph` as the prepared directory `directory` (.npy files and meta.json), whole or not at all.

    Raises:
        DataError: the graph breaks a promise of `GraphData`.
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
        if not _is_file(array, path):
            write_npy(path, array)
    meta = {key: getattr(graph, key) for key in _META}
    meta |= {"format": FORMAT_VERSION, "nodes": graph.nodes, "edges": graph.edges}
    (work / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
    for entry in work.iterdir():
        if entry.name != "meta.json" and entry.name not in {f"{name}.npy" for name in names}:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _is_file(array: Any, path: Path) -> bool:
    # A slice of a memory map keeps the file's name, but its base is the map it was cut from.
    whole = isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap)
    return whole and os.path.realpath(str(array.filename)) == os.path.realpath(path)


def open_graph(directory: Path) -> GraphData:
    """Open a prepared directory; every array is memory-mapped read-only.

    Raises:
        DataError: a file is missing, damaged or of another version.
    """
    directory = Path(directory)
    meta = _read_meta(directory / "meta.json")
    names = (*_ARRAYS, _OPTIONAL) if (directory / f"{_OPTIONAL}.npy").exists() else _ARRAYS
    arrays = {name: _open_npy(directory / f"{name}.npy") for name in names}
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
        meta = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"not the meta.json of a prepared graph ({error})", file=path) from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT_VERSION:
        raise DataError(f"not a prepared graph of format {FORMAT_VERSION}", file=path, fix="delete the directory")
    for key, kind in {**_META, "nodes": int, "edges": int}.items():
        if not isinstance(meta.get(key), kind):
            raise DataError(f"expected {kind.__name__}, found {meta.get(key)!r}", file=path, key=key)
    return meta


def _open_npy(path: Path) -> Any:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"not a whole .npy file ({error})", file=path, fix="delete the directory") from error


def _prefix(target: Path) -> str:
    return f".{target.name}.{socket.gethostname()}-"


def _remove_leftovers(target: Path) -> None:
    for path in target.parent.glob(f"{glob.escape(_prefix(target))}*.tmp"):
        pid = path.name[len(_prefix(target)) :].split("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(path, ignore_errors=True)


def _sync_tree(directory: Path) -> None:
    for root, _, files in os.walk(directory):
        for name in files:
            _sync(Path(root) / name)
        _sync(Path(root))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
