"""Graphs of others as neutral files: objects of PyG, DGL, networkx and scipy, arrays of edges, and what tools write.

A graph may come directed, unsorted, with self-loops and repeated edges; its split as masks or numbers of nodes, its
labels and features as numbers of any type. What is changed is said. `harness.data.formats.imported` reads files.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard

import psutil

from harness.data.formats import as_labels, csr, dense_chunks, mask, spool_features
from harness.data.generated import split_masks
from harness.data.graph import Array, EdgeChunks, GraphData, check_graph, index_dtype, is_symmetric
from harness.data.prepared import chunk_rows, open_graph
from harness.data.registry import data_directory, dataset_name, prepare
from harness.deferred import numpy as np
from harness.errors import DataError, UserError
from harness.registry import NAME
from harness.spec import DatasetSpec

_CHUNK = 1 << 21  # edges
_PARTS = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}
_LABELS, _FEATURES = ("label", "labels", "y"), ("feat", "features", "x")
_DRAW = "splits=(0.6, 0.2, 0.2) draws one"


@dataclass
class Loose:
    """A graph as it came; `where` is what errors name.

    `edges` has E edges from source to destination; `features` [N, F] numbers (an array, or a scipy matrix), `labels`
    as for `as_labels`; `splits` names of sets to a bool mask [N] or [N, K] or to numbers of nodes, or three shares;
    `weights` [E], in the order of the edges.
    """

    edges: EdgeChunks
    nodes: int | None = None
    features: Any = None
    labels: Any = None
    splits: Any = None
    weights: Any = None
    where: Path = field(default_factory=lambda: Path("graph"))


def save_graph(
    name: str,
    graph: Any,
    *,
    features: Any = None,
    labels: Any = None,
    splits: Mapping[str, Any] | Sequence[float] | None = None,
    weights: Any = None,
    split: int = 0,
    data_dir: Path | str | None = None,
    report: Callable[[str], None] = print,
) -> Path:
    """Keep a graph under a name that suites can use; return its file, `NAME.npz` of the data directory.

    Edges are made symmetric and sorted, self-loops and repeated edges are dropped; `report` receives one line that says
    what was changed.

    Args:
        name: letters, digits, `.`, `_` and `-`.
        graph: PyG's `Data`, a DGL graph, a networkx graph, a scipy sparse matrix (row i aggregates its columns), or
            edges: integers [2, E] or [E, 2], from the first to the second.
        features: numbers [N, F], dense or scipy's, in place of the graph's own (`x`, `feat`).
        labels: in place of the graph's own (`y`, `label`): classes [N] or [N, 1] (negative or NaN: none), one-hot
            [N, C], or 0/1 [N, C].
        splits: in place of the graph's own masks: `train`, `val` and `test` to a bool mask [N] or [N, K] or to numbers
            of nodes; or three shares of the labelled nodes, which are drawn.
        weights: positive numbers [E], in place of the graph's own; those of repeated edges are added.
        split: which column of masks [N, K].
        data_dir: in place of $HARNESS_DATA.

    Raises:
        UserError: there is no data directory, the name is none, or the graph's kind is not known.
        DataError: the graph cannot be trained on: which array, row and column is wrong.
    """
    loose = loosen(graph)
    given = {"features": features, "labels": labels, "splits": splits, "weights": weights}
    loose = replace(loose, **{key: value for key, value in given.items() if value is not None})
    return save(name, lambda work: settle(loose, name, work, split), data_dir, report)


def save(
    name: str,
    make: Callable[[Path], tuple[GraphData, list[str]]],
    data_dir: Path | str | None,
    report: Callable[[str], None],
) -> Path:
    """Write the graph that `make` returns as a neutral file, and report the changes that it names.

    `make` may keep arrays in the directory that it is given.
    """
    if not NAME.fullmatch(name):
        raise UserError(f"bad name {name!r}", fix="letters, digits, '.', '_' or '-', a letter or digit first")
    directory = data_directory(Path(data_dir) if data_dir else None)
    if directory is None:
        raise UserError("no data directory", fix="give one: --data-dir, data_dir= or HARNESS_DATA")
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / f"{name}.npz"
    with tempfile.TemporaryDirectory(dir=directory, prefix=f".{name}.") as place:
        graph, changes = make(Path(place))
        check_graph(graph, name, symmetric=True)
        arrays: dict[str, Any] = {
            "indptr": graph.indptr, "indices": graph.indices, "feat": graph.features, "label": graph.labels,
            "train_mask": graph.train_mask, "val_mask": graph.val_mask, "test_mask": graph.test_mask,
        }  # fmt: skip
        written = Path(place) / target.name
        if graph.weights is not None:
            arrays["weight"] = graph.weights
        np.savez(written, **arrays)
        os.replace(written, target)
    sets = "/".join(f"{int(each.sum()):,}" for each in (graph.train_mask, graph.val_mask, graph.test_mask))
    text = f"{name}: {graph.nodes:,} nodes, {graph.edges:,} directed edges, {graph.features.shape[1]:,} features, "
    text += f"{graph.num_classes} {'labels' if graph.multilabel else 'classes'}, {sets} nodes train/val/test"
    report(f"{text}; changed: {', '.join(changes) or 'nothing'}")
    return target


def load_graph(name: str | Path, *, data_dir: Path | str | None = None, **options: Any) -> GraphData:
    """Return a data set by its name, prepared as for a trial: its arrays are memory-mapped and must not be written to.

    A path is that of a prepared one: a command finds it as HARNESS_GRAPH, see docs/external.md. `options` are the
    set's own (`harness data info NAME`). Raises UserError for an unknown name or option,
    DataUnavailable where its files are not here, DataError where they are damaged.
    """
    if isinstance(name, Path):
        return open_graph(name)
    place = Path(data_dir) if data_dir else None
    return open_graph(prepare(DatasetSpec(name=dataset_name(name, place), options=options), data_dir=place))


def to_pyg(graph: GraphData) -> Any:
    """Return a graph as PyG's `Data`: `x`, `edge_index` (int64 [2, E]), `y`, the masks, and `edge_weight` if weighted.

    Features share the graph's memory and must not be written to. Raises ImportError without torch_geometric.
    """
    import torch
    from torch_geometric.data import Data

    arrays = {"x": graph.features, "y": graph.labels, "train_mask": graph.train_mask}
    arrays |= {"val_mask": graph.val_mask, "test_mask": graph.test_mask}
    if graph.weights is not None:
        arrays["edge_weight"] = graph.weights
    edges = torch.from_numpy(np.stack(edges_of(graph)))
    return Data(edge_index=edges, num_nodes=graph.nodes, **{key: _tensor(value) for key, value in arrays.items()})


def to_dgl(graph: GraphData) -> Any:
    """Return a graph as DGL's: `feat`, `label` and the masks in `ndata`, `weight` in `edata` if it has weights.

    Features share the graph's memory and must not be written to. Raises ImportError without dgl.
    """
    import dgl
    import torch

    made = dgl.graph(tuple(map(torch.from_numpy, edges_of(graph))), num_nodes=graph.nodes)
    arrays = {"feat": graph.features, "label": graph.labels, "train_mask": graph.train_mask}
    arrays |= {"val_mask": graph.val_mask, "test_mask": graph.test_mask}
    made.ndata.update({key: _tensor(value) for key, value in arrays.items()})
    if graph.weights is not None:
        made.edata["weight"] = _tensor(graph.weights)
    return made


def edges_of(graph: GraphData) -> tuple[Array, Array]:
    """Return the edges' sources and destinations, int64 [E] each, ordered by destination, then source."""
    destinations = np.repeat(np.arange(graph.nodes, dtype=np.int64), np.diff(graph.indptr))
    return np.asarray(graph.indices).astype(np.int64), destinations


def _tensor(array: Array) -> Any:
    import warnings

    import torch

    with warnings.catch_warnings():  # that the map is read-only, which the docstring says
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(np.asarray(array))


def loosen(graph: Any) -> Loose:
    """Return a graph of another library as it is; UserError for what is none."""
    package = type(graph).__module__.partition(".")[0]
    if isinstance(graph, Loose):
        return graph
    if package == "networkx":
        return _of_networkx(graph)
    if package == "dgl":
        return _of_dgl(graph)
    if hasattr(graph, "edge_index"):
        return _of_pyg(graph)
    if hasattr(graph, "tocoo"):
        return of_matrix(graph)
    try:
        pairs = _numbers(graph, "edges")
    except DataError:
        known = "PyG's Data, a graph of DGL or networkx, a scipy matrix, or edges [2, E]"
        raise UserError(f"a {type(graph).__name__} is no graph that is known", fix=f"give {known}") from None
    if pairs.ndim != 2 or 2 not in pairs.shape:
        raise DataError(f"edges are {list(pairs.shape)}, expected integers [2, E] or [E, 2]")
    return Loose(chunks_of(*(pairs if len(pairs) == 2 else pairs.T)))


def chunks_of(sources: Array, destinations: Array) -> EdgeChunks:
    """Return a stream of edges that are in memory, or mapped; DataError for a number that names no node."""

    def stream() -> Iterator[tuple[Array, Array]]:
        for start in range(0, len(sources), _CHUNK):
            pair = [whole(ends[start : start + _CHUNK], start) for ends in (sources, destinations)]
            yield pair[0], pair[1]

    return stream


def whole(ends: Array, start: int = 0) -> Array:
    """Return ends of edges as int64; DataError for what is no integer from 0 on, by the number of its edge."""
    if ends.dtype.kind not in "iuf":
        raise DataError(f"edges are {ends.dtype}, expected integers: nodes are numbered from 0")
    with np.errstate(invalid="ignore"):
        found = np.ascontiguousarray(ends, dtype=np.int64)
    if (bad := (found != ends) | (found < 0)).any():
        at = int(bad.argmax())
        raise DataError(f"edge {start + at} names node {ends[at]}: nodes are numbered from 0")
    return found


def _of_pyg(data: Any) -> Loose:
    if (edges := data.edge_index) is None:
        raise UserError(
            f"the {type(data).__name__} has no edge_index", fix="give its edges as edge_index, int64 [2, E]"
        )
    pairs, weights = _numbers(edges, "edge_index"), getattr(data, "edge_weight", None)
    if pairs.ndim != 2 or len(pairs) != 2:
        raise DataError(f"edge_index is {list(pairs.shape)}, expected integers [2, E]")
    own = getattr(data, "edge_attr", None)
    if weights is None and own is not None and math.prod(own.shape) == pairs.shape[1]:  # else features of edges
        weights = own
    return Loose(
        chunks_of(*pairs), getattr(data, "num_nodes", None), getattr(data, "x", None), getattr(data, "y", None),
        {part: own for part in _PARTS if (own := getattr(data, f"{part}_mask", None)) is not None}, weights,
    )  # fmt: skip


def _of_dgl(graph: Any) -> Loose:
    sources, destinations = (_numbers(ends, "edges") for ends in graph.edges())
    data = graph.ndata
    return Loose(
        chunks_of(sources, destinations), graph.num_nodes(), _first(data, _FEATURES), _first(data, _LABELS),
        {part: data[f"{part}_mask"] for part in _PARTS if f"{part}_mask" in data}, _first(graph.edata, ("weight", "w")),
    )  # fmt: skip


def _of_networkx(graph: Any) -> Loose:
    number = {node: at for at, node in enumerate(graph)}
    pairs = np.array([(number[a], number[b]) for a, b in graph.edges()], dtype=np.int64).reshape(-1, 2)

    def attribute(names: Sequence[str]) -> list[Any] | None:
        for name in names:
            found = [values.get(name) for _, values in graph.nodes(data=True)]
            if not any(each is None for each in found):
                return found
        return None

    words, weights = attribute(("split",)), [values.get("weight") for _, _, values in graph.edges(data=True)]
    splits = {part: [each in words_ for each in words] for part, words_ in _PARTS.items()} if words else {}
    unweighted = any(each is None for each in weights)
    known = None if unweighted or not weights else weights
    return Loose(chunks_of(*pairs.T), len(number), attribute(_FEATURES), attribute(_LABELS), splits, known)


def of_matrix(matrix: Any) -> Loose:
    """Return a scipy sparse matrix [N, N] as a graph: row i aggregates its columns; ones alone are no weights."""
    found = matrix.tocoo()
    if found.shape[0] != found.shape[1]:
        raise DataError(f"the adjacency is {list(found.shape)}, expected a square")
    weights = None if (found.data == 1).all() else found.data
    return Loose(chunks_of(found.col, found.row), found.shape[0], weights=weights)


def _first(data: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((data[name] for name in names if name in data), None)


def _numbers(values: Any, name: str) -> Array:
    """Return an array or tensor, on whatever device, as NumPy's; DataError if it does not hold numbers."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    try:
        found = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}: {error}") from error
    if found.dtype.kind not in "iufb":
        raise DataError(f"{name} are {found.dtype}, expected numbers")
    return found


def _is_sparse(values: Any) -> TypeGuard[Any]:
    return hasattr(values, "tocsr")


def settle(loose: Loose, name: str, work: Path, split: int = 0) -> tuple[GraphData, list[str]]:
    """Return a graph that trains, and in words what was changed; its features are written to `work`.

    DataError, which names `loose.where`, for what cannot be mended.
    """
    try:
        changes = list[str]()
        features = _features(loose, work, changes)
        labels = _labels(loose, len(features), changes)
        masks = _masks(loose, len(features), labels[0], split, changes)
        indptr, indices, weights = _edges(loose, len(features), changes)
    except DataError as error:
        if error.file is not None:
            raise
        raise DataError(error.message, file=loose.where, key=error.key, fix=error.fix) from error
    graph = GraphData.of(name, csr=(indptr, indices), features=features, labels=labels, split=masks, weights=weights)
    return graph, changes


def _features(loose: Loose, work: Path, changes: list[str]) -> Array:
    given = loose.features
    if given is None:
        raise DataError("has no features", fix="give them: numbers [N, F]")
    # A sparse matrix has an offset for each row, in its shape alone.
    if _is_sparse(given) and given.shape[0] > psutil.virtual_memory().total // 16:
        raise DataError(f"features are {list(given.shape)}: more rows than fit in memory")
    found = given.tocsr() if _is_sparse(given) else _numbers(given, "features")
    if found.ndim == 1:
        found = found[:, None]
    if found.ndim != 2 or not found.shape[1] or (loose.nodes or found.shape[0]) != found.shape[0]:
        raise DataError(f"features are {list(found.shape)}, expected numbers [{loose.nodes or 'N'}, F]")
    if found.dtype.kind == "f" and found.dtype.itemsize > 4:
        changes.append(f"features from {found.dtype} to float32")
    step = chunk_rows(found.shape, 8)
    chunks = dense_chunks(found) if _is_sparse(found) else (found[i : i + step] for i in range(0, len(found), step))
    return spool_features(chunks, found.shape, work, loose.where)


def _labels(loose: Loose, nodes: int, changes: list[str]) -> tuple[Array, int, bool]:
    if loose.labels is None:
        raise DataError("has no labels", fix="give them: classes [N], or 0/1 [N, C]")
    given = _numbers(loose.labels.toarray() if _is_sparse(loose.labels) else loose.labels, "labels")
    if len(given) != nodes:
        raise DataError(f"labels are {list(given.shape)}, the graph has {nodes} nodes")
    labels, classes, several = as_labels(given, loose.where)
    if given.ndim == 2 and given.shape[1] > 1 and not several:
        changes.append("one-hot labels to classes")
    return labels, classes, several


def _masks(loose: Loose, nodes: int, labels: Array, split: int, changes: list[str]) -> list[Array]:
    given = loose.splits
    if given is None or (isinstance(given, Mapping) and not given):
        raise DataError("has no split", fix=f"give masks or numbers of nodes for train, val and test; {_DRAW}")
    if not isinstance(given, Mapping):
        return _drawn(given, labels, changes)
    unknown = [each for each in given if not any(each in names for names in _PARTS.values())]
    if unknown:
        raise DataError(f"splits has {unknown[0]!r}, expected train, val and test")
    masks = []
    for part, names in _PARTS.items():
        own = next((given[each] for each in names if each in given), None)
        masks.append(np.zeros(nodes, np.bool_) if own is None else _mask(own, part, nodes, split, loose.where))
    if not masks[0].any():
        raise DataError("train has no node", fix=_DRAW)
    shared = np.sum(masks, axis=0) > 1
    if shared.any():
        raise DataError(f"node {int(shared.argmax())} is in two sets of the split")
    return masks


def _mask(given: Any, part: str, nodes: int, split: int, where: Path) -> Array:
    found = _numbers(given, part)
    if found.ndim == 2 and found.shape[1] > 1 and found.shape[0] == nodes:
        if not 0 <= split < found.shape[1]:
            raise DataError(f"split {split} of {found.shape[1]}", fix=f"0 to {found.shape[1] - 1}")
        found = found[:, split]
    found = found.reshape(-1)
    if found.dtype.kind == "b" or (found.dtype == np.uint8 and len(found) == nodes and found.max(initial=0) <= 1):
        if len(found) != nodes:
            raise DataError(f"{part} has {len(found)} entries, the graph has {nodes} nodes")
        return found.astype(np.bool_)
    return mask(found, nodes, where, part)


def _drawn(shares: Sequence[float], labels: Array, changes: list[str]) -> list[Array]:
    try:
        given = [float(each) for each in shares]
    except (TypeError, ValueError):
        raise DataError("splits are neither sets nor shares", fix=f"give train, val and test; {_DRAW}") from None
    if len(given) != 3 or min(given) < 0 or not 0 < given[0] <= math.fsum(given) <= 1 + 1e-9:
        raise DataError(f"splits are {given}, expected shares of train, val and test, at most 1 together")
    known = np.flatnonzero(labels >= 0) if labels.ndim == 1 else np.arange(len(labels))
    changes.append("a split was drawn with seed 0")
    drawn = split_masks(np.random.default_rng(0), len(known), given)
    return [np.isin(np.arange(len(labels)), known[own]) for own in drawn]


def _edges(loose: Loose, nodes: int, changes: list[str]) -> tuple[Array, Array, Array | None]:
    count = loops = 0

    def counted() -> Iterator[tuple[Array, Array]]:
        nonlocal count, loops
        count = loops = 0  # the stream is read twice
        for sources, destinations in loose.edges():
            count, loops = count + len(sources), loops + int((sources == destinations).sum())
            yield sources, destinations

    def said(number: int, one: str, what: str) -> None:
        if number:
            changes.append(f"{number:,} {one}{'s' * (number > 1)} {what}")

    if loose.weights is not None:
        return _weighted(loose, nodes, changes)
    indptr, indices = csr(counted, nodes, loose.where, symmetrise=False)
    said(loops, "self-loop", "dropped")
    said(count - loops - len(indices), "repeated edge", "dropped")
    if not is_symmetric(indptr, indices):
        before = len(indices)
        del indptr, indices  # edges are what memory is short for
        indptr, indices = csr(loose.edges, nodes, loose.where)
        said(len(indices) - before, "reverse edge", "added")
    return indptr, indices, None


def _weighted(loose: Loose, nodes: int, changes: list[str]) -> tuple[Array, Array, Array]:
    import scipy.sparse as sp

    weights = _numbers(loose.weights, "weights").astype(np.float64).reshape(-1)
    pairs = [np.concatenate(ends) for ends in zip(*loose.edges(), strict=True)] or [np.zeros(0, np.int64)] * 2
    if len(weights) != len(pairs[0]):
        raise DataError(f"{len(weights)} weights, the graph has {len(pairs[0])} edges")
    if not ((weights > 0) & np.isfinite(weights)).all():
        at = int((~((weights > 0) & np.isfinite(weights))).argmax())
        raise DataError(f"the weight of edge {at} is {weights[at]}: weights must be positive and finite")
    if len(pairs[0]) and int(max(ends.max() for ends in pairs)) >= nodes:
        raise DataError(f"an edge names a node outside 0..{nodes - 1}")
    proper = pairs[0] != pairs[1]
    matrix = sp.coo_matrix((weights[proper], (pairs[1][proper], pairs[0][proper])), shape=(nodes, nodes)).tocsr()
    back = matrix.T.tocsr()
    lacking = back - back.multiply(matrix.astype(np.bool_))  # reverse edges that are not there
    lacking.eliminate_zeros()
    parts = {"self-loop": len(weights) - int(proper.sum()), "repeated edge": int(proper.sum()) - matrix.nnz}
    changes += [
        f"{n:,} {one}{'s' * (n > 1)} {'added up' if 'rep' in one else 'dropped'}" for one, n in parts.items() if n
    ]
    if lacking.nnz:
        changes.append(f"{lacking.nnz:,} reverse edge{'s' * (lacking.nnz > 1)} added")
        matrix = (matrix + lacking).tocsr()
    matrix.sort_indices()
    return matrix.indptr.astype(np.int64), matrix.indices.astype(index_dtype(nodes)), matrix.data.astype(np.float32)
