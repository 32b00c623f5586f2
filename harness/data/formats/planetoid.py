"""Planetoid's files, whose pickles are read through an allow-list.

The opcodes are scanned against an allow-list first; the few names such files use (numpy arrays, scipy CSR,
defaultdict, list) stand for inert records, from which arrays are built here after checks of our own.

Split: Planetoid's public one. The first `len(y)` nodes (20 a class) train, the next 500 validate, those of
`test.index` test. CiteSeer's test range has gaps: nodes without features, label and edges, which stay as
isolated nodes of label -1.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from harness.data.catalog import NUMBER, Bounds
from harness.data.formats import as_labels, csr, dense_chunks, mask, reading, spool_features
from harness.data.graph import Array, GraphData
from harness.errors import DataError
from harness.files import SMALL, read_bytes

_OPCODES = """
    PROTO FRAME STOP MARK POP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 STRING BINSTRING
    SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINBYTES SHORT_BINBYTES EMPTY_LIST LIST APPEND APPENDS
    EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT DICT SETITEM SETITEMS PUT BINPUT LONG_BINPUT MEMOIZE GET
    BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE NEWOBJ BUILD
"""
_DTYPES = frozenset(f"{kind}{size}" for kind in "iuf" for size in (1, 2, 4, 8) if f"{kind}{size}" != "f1")


_LARGEST = 1 << 30
_MOST_MADE = 200  # tuples and calls of a pickle; the published ones have up to 20


class _Record:
    """Stands for an object of the pickle: keeps what it was made from, does nothing with it."""

    arguments: tuple[Any, ...] = ()
    state: Any = None

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _NdArray(_Record): ...


class _Dtype(_Record): ...


class _Csr(_Record): ...


def _empty(wanted: type[_Record], name: str, kind: Any, *_: Any) -> _Record:
    if kind is not wanted:
        raise pickle.UnpicklingError(f"only {name} is reconstructed")
    empty: _Record = wanted()
    return empty


def _list(*arguments: Any) -> list[Any]:
    if arguments:
        raise pickle.UnpicklingError("copies a list")
    return []


def _mapping(*arguments: Any) -> dict[Any, Any]:
    pairs = [a for a in arguments if isinstance(a, list)]
    return dict(pairs[0]) if pairs else {}


_EMPTY_ARRAY, _EMPTY_CSR = partial(_empty, _NdArray, "numpy.ndarray"), partial(_empty, _Csr, "csr_matrix")
_GLOBALS: dict[str, Callable[..., Any]] = {
    "numpy.ndarray": _NdArray,
    "numpy.dtype": _Dtype,
    "numpy.core.multiarray._reconstruct": _EMPTY_ARRAY,
    "numpy._core.multiarray._reconstruct": _EMPTY_ARRAY,
    "scipy.sparse.csr.csr_matrix": _Csr,
    "scipy.sparse._csr.csr_matrix": _Csr,
    "copy_reg._reconstructor": _EMPTY_CSR,
    "copyreg._reconstructor": _EMPTY_CSR,
    "collections.defaultdict": _mapping,
    "collections.OrderedDict": _mapping,
    "__builtin__.list": _list,
    "builtins.list": _list,
    "__builtin__.object": _Record,
    "builtins.object": _Record,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _GLOBALS[f"{module}.{name}"]
        except KeyError:
            raise pickle.UnpicklingError(f"names {module}.{name}, which is not loaded") from None

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("has a persistent id")


def load_pickle(path: Path, limit: int = _LARGEST) -> Any:
    """Return what the pickle `path`, of at most `limit` bytes, holds: an array, a scipy CSR matrix, or a dict of lists.

    DataError if it is missing, damaged, or names or does anything else.
    """
    with reading(path, "a file of a Planetoid set"):
        data = read_bytes(path, limit)
    with reading(path, "a Planetoid pickle", Exception):  # pickle documents that a damaged file may raise any
        _scan(data)
        value = _Unpickler(io.BytesIO(data), encoding="latin1").load()
        return _build(value)


def _scan(data: bytes) -> None:
    allowed, made = set(_OPCODES.split()), 0
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name not in allowed:
            raise pickle.UnpicklingError(f"has the opcode {opcode.name}")
        # Python hashes a tuple in a tuple by recursion, without looking where its stack ends; each call may copy.
        made += opcode.name.startswith(("TUPLE", "REDUCE", "NEWOBJ"))
        if made > _MOST_MADE:
            raise pickle.UnpicklingError(f"makes more than {_MOST_MADE} tuples and objects")
        # The unpickler reserves memory for the highest memo number it meets, however few there are.
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and not 0 <= int(argument or 0) <= len(data):
            raise pickle.UnpicklingError("has a memo number beyond its size")


def _build(value: Any) -> Any:
    if isinstance(value, _Csr):
        return _csr(value.state)
    if isinstance(value, _NdArray):
        return _array(value)
    if isinstance(value, dict):
        return value
    raise pickle.UnpicklingError(f"holds a {type(value).__name__}")


def _array(record: Any) -> Array:
    if not isinstance(record, _NdArray):
        raise pickle.UnpicklingError("expected an array")
    _, shape, dtype, fortran, data = record.state
    if not isinstance(dtype, _Dtype) or dtype.arguments[0] not in _DTYPES:
        raise pickle.UnpicklingError("array of an unknown dtype")
    order = dtype.state[1]
    if order not in ("<", ">", "|", "="):
        raise pickle.UnpicklingError("array of an unknown byte order")
    raw = data.encode("latin1") if isinstance(data, str) else bytes(data)
    kind = np.dtype(f"{order}{dtype.arguments[0]}")
    flat = np.frombuffer(raw, dtype=kind).astype(kind.newbyteorder("="))
    return flat.reshape([int(size) for size in shape], order="F" if fortran else "C")


def _csr(state: Any) -> sp.csr_matrix:
    data, indices, indptr = (_array(state[key]) for key in ("data", "indices", "indptr"))
    rows, columns = (int(size) for size in state["_shape"])
    if rows < 0 or not 0 < columns < 2**31 or indptr.shape != (rows + 1,) or data.shape != indices.shape:
        raise pickle.UnpicklingError("a CSR matrix whose parts do not fit")
    if indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        raise pickle.UnpicklingError("a CSR matrix whose indptr does not rise")
    if len(indices) and not 0 <= indices.min() <= indices.max() < columns:
        raise pickle.UnpicklingError("a CSR matrix with a column out of range")
    return sp.csr_matrix((data, indices, indptr), shape=(rows, columns))


PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
_VALIDATION = 500


def read(source: Path, name: str, work: Path) -> GraphData:
    """Read the set `name` from the directory `source`."""
    files = {part: source / f"ind.{name}.{part}" for part in PARTS}
    bounds = Bounds.of(name)
    y, ally, ty = (_matrix(files[part], bounds, dense=True) for part in ("y", "ally", "ty"))
    allx, tx = (_matrix(files[part], bounds, dense=False) for part in ("allx", "tx"))
    test = _test_index(files["test.index"], allx.shape[0], tx.shape[0])
    nodes = int(test.max()) + 1
    if allx.shape[0] != ally.shape[0] or tx.shape[0] != ty.shape[0] or allx.shape[1] != tx.shape[1]:
        raise DataError(f"x {allx.shape}, {tx.shape} and y {ally.shape}, {ty.shape} do not fit", file=files["tx"])
    if ally.shape[1] != ty.shape[1] or y.shape[1] != ty.shape[1] or not 0 < len(y) <= len(ally):
        raise DataError(f"y {y.shape}, ally {ally.shape} and ty {ty.shape} do not fit", file=files["y"])

    gap = sp.csr_matrix((nodes - allx.shape[0], allx.shape[1]), dtype=np.float32).tolil()
    gap[test - allx.shape[0]] = tx
    features = sp.vstack([allx, gap.tocsr()], format="csr", dtype=np.float32)
    one_hot = np.zeros((nodes, ty.shape[1]), dtype=np.int64)
    one_hot[: len(ally)], one_hot[test] = ally, ty
    labels = as_labels(np.where(one_hot.any(1), one_hot.argmax(1), -1), files["ally"], classes=ty.shape[1])
    pairs = _edges(files["graph"], nodes, bounds)
    edges = csr(lambda: iter([(pairs[:, 0], pairs[:, 1])]), nodes, files["graph"], "neighbour lists")
    dense = spool_features(dense_chunks(features), features.shape, work, files["allx"])
    last = min(len(y) + _VALIDATION, allx.shape[0])
    split = [
        mask(np.arange(len(y)), nodes, files["y"], "training"),
        mask(np.arange(len(y), last), nodes, files["ally"], "validation"),
        mask(test, nodes, files["test.index"], "test"),
    ]
    return GraphData.of(name, csr=edges, features=dense, labels=labels, split=split)


def _matrix(file: Path, bounds: Bounds, *, dense: bool) -> Any:
    value = load_pickle(file, min(_LARGEST, bounds.unpacked))
    wanted, what = (np.ndarray, "one-hot labels") if dense else (sp.csr_matrix, "a sparse feature matrix")
    if not isinstance(value, wanted) or value.ndim != 2 or 0 in value.shape:
        raise DataError(f"expected {what}", file=file)
    bounds.check(file, nodes=value.shape[0], features=0 if dense else value.shape[1])
    if dense and not (((value == 0) | (value == 1)).all() and (value.sum(1) <= 1).all()):
        raise DataError("expected one-hot labels", file=file)
    return value


def _test_index(file: Path, before: int, count: int) -> Array:
    with reading(file, "one node id a line"):
        index = np.array(
            [int(line) for line in read_bytes(file, count * NUMBER + SMALL).decode("ascii").split()], dtype=np.int64
        )
    if len(index) != count or len(np.unique(index)) != count:
        raise DataError(f"{len(index)} node ids, expected {count} different ones", file=file)
    # CiteSeer's gaps are 15 of 1,015; a damaged digit must not ask for a graph of any size.
    if index.min() != before or index.max() >= before + 2 * count:
        raise DataError(f"test nodes span {index.min()}..{index.max()}, expected {before}.. without gaps", file=file)
    return index


def _edges(file: Path, nodes: int, bounds: Bounds) -> Array:
    graph = load_pickle(file, min(_LARGEST, bounds.unpacked))
    if not isinstance(graph, dict) or len(graph) != nodes:
        raise DataError(f"expected the neighbour lists of {nodes} nodes", file=file)
    with reading(file, "a dict of lists of node ids"):
        bounds.check(file, edges=sum(map(len, graph.values())))  # one list may stand for every node's
        pairs = [(int(j), int(i)) for i, neighbours in graph.items() for j in neighbours]
        return np.array(pairs, dtype=np.int64).reshape(-1, 2)
