"""What other tools write, as graphs: PyG's `.pt`, DGL's `.bin`, OGB's folder, tables, Matrix Market, scipy's `.npz`.

Nothing is unpickled but what an allow-list names.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from harness.data.formats import Npz, PackedText, reading
from harness.data.graph import Array, GraphData
from harness.data.imports import Loose, loosen, of_matrix, settle, whole
from harness.data.prepared import map_npy
from harness.errors import DataError, UserError
from harness.files import SMALL, open_regular, read_bytes

TABLES = {".csv": ",", ".tsv": "\t", ".txt": None, ".edges": None, ".parquet": None}
"""Suffixes of tables (`.gz` may follow all but the last), and what separates their columns; None: white space."""
_ROWS = 1 << 20
_LARGEST = 1 << 30  # bytes of a file of node numbers
_LINE = 1 << 24  # bytes of a line
_SOURCES, _TARGETS = ("source", "src", "from", "u"), ("target", "dst", "destination", "to", "v")


def read(
    path: Path, name: str, work: Path, *, features: Path | None, labels: Path | None, splits: str | None,
    split: int = 0,
) -> tuple[GraphData, list[str]]:  # fmt: skip
    """Read a file or folder as a graph that trains, its features into `work`, and say in words what was changed.

    `features`, `labels`: `.npy`, `.npz`, `.pt`, `.mtx` or tables, in place of the file's own; `splits`: a `.npz` or
    `.json` of train, val and test, a table of one word a node, or three shares such as "0.6,0.2,0.2".

    Raises DataError for what is missing, damaged or foreign, UserError for a kind of file that is not known.
    """
    if path.is_dir():
        from harness.data.formats.published import read_ogb

        return read_ogb(path, name, work), []
    loose = _graph(path)
    loose.where = path
    loose.features = loose.features if features is None else numbers(features)
    loose.labels = loose.labels if labels is None else numbers(labels)
    loose.splits = loose.splits if splits is None else _splits(splits)
    return settle(loose, name, work, split)


def _suffix(path: Path) -> str:
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix


def _graph(path: Path) -> Loose:
    suffix = _suffix(path)
    if suffix in TABLES:
        return _edge_table(path)
    if suffix in (".pt", ".pth"):
        return _of_pt(path)
    if suffix == ".bin":
        return _of_dgl(path)
    if suffix == ".mtx":
        return _market_graph(path)
    if suffix == ".npz":
        return of_matrix(_npz(path))
    known = ".pt, .bin, .csv, .tsv, .txt, .parquet, .mtx, .npz, or OGB's folder"
    raise UserError(f"no kind of graph has the suffix '{suffix}'", file=path, fix=known)


def numbers(path: Path) -> Any:
    """Read an array, or a scipy matrix: `.npy` (mapped), `.npz`, `.pt`, `.mtx`, or a table without words."""
    suffix = _suffix(path)
    if suffix == ".npy":
        return map_npy(path, "np.save an array of numbers")
    if suffix == ".mtx":
        return _market_array(path)
    if suffix == ".npz":
        return _npz(path)
    if suffix in (".pt", ".pth"):
        return _load(path)
    if suffix in TABLES:
        found = [chunk for _, chunk in _table(path)]
        return np.concatenate(found) if found else np.zeros((0, 0))
    raise UserError(f"no kind of array has the suffix '{suffix}'", file=path, fix=".npy, .npz, .pt, .mtx or a table")


def _npz(path: Path) -> Any:
    import scipy.sparse as sp

    with reading(path, "a scipy sparse matrix"):
        open_regular(path).close()
        with Npz(path) as npz:
            if "format" in npz:
                return sp.load_npz(path)
            members = [member for member in ("arr_0", "x", "y", "data", "feat", "label") if member in npz]
            if len(members) == 1:
                return npz.array(members[0], "n", (None, None) if members[0] in ("x", "feat") else (None,))
    raise DataError("is no scipy sparse matrix", file=path, fix="write it with scipy.sparse.save_npz")


@dataclass(frozen=True)
class _Market:
    """What the first lines of a Matrix Market file say; scipy's reader ends the process at a zero byte."""

    shape: tuple[int, int]
    entries: int
    dense: bool
    pattern: bool
    symmetric: bool
    lines: int


def _market(path: Path) -> _Market:
    with reading(path, "a Matrix Market file"), _opened(path) as stream:
        first, lines = stream.readline(_LINE).lower().split(), 1
        kinds = ((b"coordinate", b"array"), (b"real", b"double", b"integer", b"pattern"), (b"general", b"symmetric"))
        if first[:2] != [b"%%matrixmarket", b"matrix"] or len(first) != 5:
            raise ValueError("its first line is not %%MatrixMarket matrix ...")
        for word, known in zip(first[2:], kinds, strict=True):
            if word not in known:
                raise ValueError(f"{word.decode(errors='replace')} is not {' or '.join(map(bytes.decode, known))}")
        dense, line = first[2] == b"array", b"%"
        while line.startswith(b"%") or line.isspace():
            line, lines = stream.readline(_LINE), lines + 1
        sizes = [int(each) for each in line.split()]
        if (
            len(sizes) != 3 - dense
            or min(sizes) < 0
            or (dense and first[3:] not in ([k, b"general"] for k in kinds[1]))
        ):
            raise ValueError("its sizes are not rows, columns and entries")
        entries = sizes[0] * sizes[1] if dense else sizes[2]
        return _Market((sizes[0], sizes[1]), entries, dense, first[3] == b"pattern", first[4] == b"symmetric", lines)


def _market_chunks(path: Path, market: _Market) -> Iterator[Array]:
    """Yield the rows of numbers, of coordinates from 0 on; DataError for what the first lines do not say."""
    count, columns = 0, 1 if market.dense else 3 - market.pattern
    for start, chunk in _table(path, skiprows=market.lines):
        if chunk.ndim != 2 or chunk.shape[1] != columns:
            raise DataError(f"rows have {chunk.shape[1]} numbers, expected {columns}", file=path)
        count += len(chunk)
        if not market.dense:
            ends = chunk[:, :2] - 1
            if not ((ends >= 0) & (ends < market.shape)).all():
                at = int(((ends < 0) | (ends >= market.shape)).any(axis=1).argmax())
                raise DataError(f"entry {start + at} is outside of {list(market.shape)}", file=path)
            mirror = chunk[ends[:, 0] != ends[:, 1]][:, [1, 0, *range(2, columns)]] if market.symmetric else chunk[:0]
            chunk = np.concatenate([chunk, mirror])
            chunk[:, :2] -= 1
        yield chunk
    if count != market.entries:
        raise DataError(f"has {count} entries, its first lines say {market.entries}", file=path)


def _market_graph(path: Path) -> Loose:
    market = _market(path)
    if market.dense or market.shape[0] != market.shape[1]:
        raise DataError(f"is {list(market.shape)}, expected coordinates of a square", file=path)

    def stream() -> Iterator[tuple[Array, Array]]:
        for chunk in _market_chunks(path, market):
            yield whole(chunk[:, 1]), whole(chunk[:, 0])

    weights = None
    if not market.pattern:
        values = [chunk[:, 2] for chunk in _market_chunks(path, market)]
        weights = None if all((each == 1).all() for each in values) else np.concatenate(values)
    return Loose(stream, market.shape[0], weights=weights)


def _market_array(path: Path) -> Any:
    import scipy.sparse as sp

    market = _market(path)
    found = np.concatenate([np.zeros((0, 1 if market.dense else 3 - market.pattern)), *_market_chunks(path, market)])
    if market.dense:
        return found.reshape(market.shape, order="F")
    values = np.ones(len(found)) if market.pattern else found[:, 2]
    return sp.coo_matrix((values, (found[:, 0].astype(np.int64), found[:, 1].astype(np.int64))), market.shape)


def _edge_table(path: Path) -> Loose:
    names = _names(path)
    lower = [str(each).lower() for each in names or ()]
    ends = [
        next((i for i, each in enumerate(lower) if each in known), at) for at, known in enumerate((_SOURCES, _TARGETS))
    ]
    weight = lower.index("weight") if "weight" in lower else None

    def stream() -> Iterator[tuple[Array, Array]]:
        for start, chunk in _table(path):
            if chunk.ndim != 2 or chunk.shape[1] < 2:
                raise DataError("has one column, expected the edges' sources and destinations", file=path)
            try:
                yield whole(chunk[:, ends[0]], start), whole(chunk[:, ends[1]], start)
            except DataError as error:
                raise DataError(error.message, file=path) from error

    if weight is None:
        return Loose(stream)
    return Loose(stream, weights=np.concatenate([chunk[:, weight] for _, chunk in _table(path)] or [np.zeros(0)]))


def _names(path: Path) -> list[str] | None:
    """Return the names of a table's columns; None where its first row has numbers."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        with reading(path, "a Parquet file"), open_regular(path) as stream:
            return list(map(str, pq.ParquetFile(stream).schema_arrow.names))
    import pandas as pd

    with reading(path, "rows of numbers"), _opened(path) as stream:
        first = pd.read_csv(stream, header=None, nrows=1, comment="#", dtype=str, sep=_separator(path))
    row = [str(each).strip() for each in first.iloc[0]]
    return None if all(_is_number(each) for each in row) else row


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _separator(path: Path) -> str:
    return TABLES.get(_suffix(path)) or r"\s+"


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file of text, packed or not: a regular one, and of a packed one no endless line."""
    with ExitStack() as stack:
        if path.suffix == ".gz":
            text = stack.enter_context(PackedText(path, sys.maxsize, _LINE))
            yield stack.enter_context(io.BufferedReader(text, SMALL))
        else:
            yield stack.enter_context(open_regular(path))


def _table(path: Path, skiprows: int = 0) -> Iterator[tuple[int, Array]]:
    """Yield a table's numbers by chunks of rows, each with the number of its first row; DataError for words."""
    start = 0
    for frame in _frames(path, skiprows):
        try:
            chunk = frame.to_numpy(np.float64 if any(dtype.kind == "f" for dtype in frame.dtypes) else None)
        except (TypeError, ValueError):
            chunk = np.zeros(0, object)
        if chunk.dtype.kind not in "iufb":
            words = next((name for name, dtype in frame.dtypes.items() if dtype.kind not in "iufb"), "")
            raise DataError(f"column {words} has words, expected numbers; nodes are numbered from 0", file=path)
        yield start, chunk
        start += len(chunk)


def _frames(path: Path, skiprows: int = 0) -> Iterator[Any]:
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        with reading(path, "a Parquet file"), open_regular(path) as stream:
            yield from (batch.to_pandas() for batch in pq.ParquetFile(stream).iter_batches(_ROWS))
        return
    import pandas as pd

    header = None if skiprows or _names(path) is None else 0
    with reading(path, "rows of numbers"), _opened(path) as stream:
        yield from pd.read_csv(
            stream, header=header, comment="#", chunksize=_ROWS, skiprows=skiprows, sep=_separator(path)
        )


def _splits(given: str) -> Any:
    shares = given.split(",")
    if len(shares) == 3 and all(_is_number(each) for each in shares):
        return [float(each) for each in shares]
    path = Path(given)
    if path.suffix == ".json":
        with reading(path, sets := '{"train": [...], "val": [...], "test": [...]}'):
            if not isinstance(found := json.loads(read_bytes(path, _LARGEST)), dict):
                raise DataError(f"is a {type(found).__name__}, expected {sets}", file=path)
            return found
    if path.suffix == ".npz":
        with Npz(path) as npz:
            return {part: npz.array(part, "n", (None,)) for part in ("train", "val", "valid", "test") if part in npz}
    if _suffix(path) in TABLES:
        words = np.concatenate([frame.iloc[:, -1].to_numpy(object) for frame in _frames(path)])
        return {part: words == part for part in ("train", "val", "valid", "test") if (words == part).any()}
    raise UserError(
        f"no kind of split has the suffix '{path.suffix}'", file=path, fix=".npz, .json, a table, or shares"
    )


class _Stand:
    """Stands for an object of PyG: keeps what it was made of, does nothing with it."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state if isinstance(state, dict) else {})


_PYG = {
    f"torch_geometric.data.{module}.{name}": type(name, (_Stand,), {})
    for module, names in {
        "data": ("Data", "DataEdgeAttr", "DataTensorAttr"),
        "storage": ("GlobalStorage", "NodeStorage", "EdgeStorage"),
    }.items()
    for name in names
}


def _load(path: Path) -> Any:
    import torch

    known = torch.serialization.safe_globals([(stand, place) for place, stand in _PYG.items()])
    # Pickle documents that a damaged file may raise any exception.
    with reading(path, "tensors, or PyG's Data", Exception), open_regular(path) as stream, known:
        return torch.load(stream, map_location="cpu", weights_only=True)


def _of_pt(path: Path) -> Loose:
    found = _load(path)
    if isinstance(found, tuple):  # PyG's data sets: what is stored, slices of several graphs, the class
        found, slices = found[0], next(iter(found[1:]), None)
        if isinstance(slices, Mapping) and any(len(each) > 2 for each in slices.values()):
            raise DataError("has several graphs, expected one", file=path)
    values = _values(found)
    if "edge_index" not in values:
        raise DataError("has no edge_index", file=path, fix="write PyG's Data, or a dict of its tensors")
    return loosen(type("Data", (), {"edge_attr": None, **values})())


def _values(found: Any) -> dict[str, Any]:
    if isinstance(found, Mapping):
        return {str(key): value for key, value in found.items()}
    own = getattr(found, "__dict__", {})
    if "_store" in own:
        return _values(own["_store"])
    if "_mapping" in own:
        return _values(own["_mapping"])
    return {key: value for key, value in own.items() if not key.startswith("_")}


def _dgl_refusal(path: str) -> str:
    """Return why DGL refuses a file, "" if it does not."""
    import dgl

    try:
        dgl.load_graphs(path)
    except dgl.DGLError as error:
        return str(error).splitlines()[0].rpartition(": ")[2][:100] or "DGLError"
    return ""


def _of_dgl(path: Path) -> Loose:
    try:
        import dgl
    except ImportError as error:
        raise UserError("needs dgl, which is not installed", file=path, fix="pip install 'gnn-harness[dgl]'") from error
    with reading(path, "DGL's graphs"):
        open_regular(path).close()
        # A damaged file may end the process that reads it: another one tries first.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            try:
                why = pool.submit(_dgl_refusal, str(path)).result()
            except BrokenProcessPool:
                why = "it ends DGL's reader"
        if why:
            raise DataError(f"damaged or foreign, expected DGL's graphs ({why})", file=path)
        graphs, labels = dgl.load_graphs(str(path))
    if len(graphs) != 1:
        raise DataError(f"has {len(graphs)} graphs, expected one", file=path)
    loose = loosen(graphs[0])
    own = [value for value in labels.values() if len(value) == graphs[0].num_nodes()]
    return loose if loose.labels is not None or len(own) != 1 else Loose(**vars(loose) | {"labels": own[0]})
