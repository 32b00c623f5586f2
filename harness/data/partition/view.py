"""Files of one partitioned graph: what each rank maps, and the table of sizes. Layout in `write_view`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from harness.data.graph import GraphData, compiled
from harness.deferred import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

META = "meta.json"
TOTAL = "total"


@dataclass(frozen=True)
class PartitionedGraph:
    """A graph (all of a data set or its training subgraph) and the part of each of its nodes."""

    indptr: Ints  # int64 [n+1]
    indices: Ints  # int32 or int64 [e], view ids, ascending in each row
    weights: NDArray[np.float32] | None  # [e]
    nodes: Ints  # int64 [n] data-set node of each view node
    parts: NDArray[np.int32]  # [n]
    train: Bools  # [n] training nodes
    count: int  # number of parts P
    inductive: bool
    topology: Path  # directory that holds indptr.npy, indices.npy (and weights.npy) of this graph

    def degree(self) -> NDArray[Any]:
        """Entries of each row, int64 [n]; of a weighted graph the sum of their weights, float64 [n]."""
        if self.weights is None:
            return np.diff(self.indptr)
        sums = np.empty(self.parts.size)
        row_sums(self.indptr, self.weights, sums)
        return sums


def write_view(view: PartitionedGraph, directory: Path) -> None:
    """Write the view's files; at any time at most one rank's are in memory (and those mapped).

    In `directory`: `meta.json`; `nodes.npy` int64 [n]; `parts.npy` int32 [n]; `local.npy` int32 [n], the
    place of a node among the inner nodes of its owner. In `rank{r}`:

    - `inner.npy` int64 [n_in] view ids, ascending;
    - `boundary.npy` int64 [n_bd] view ids by (owner, id); `boundary_ptr.npy` int64 [P+1], a segment an owner;
    - `indptr.npy` int64 [n_in+1], `indices.npy` int32 [e]: the inner rows; an inner column is its place in
      `inner`, boundary node k is n_in + k; ascending in each row;
    - `send_index.npy` int64: the places in `inner` that peer q has as boundary, in q's order, for q = 0..P-1;
      `send_ptr.npy` int64 [P+1];
    - `degree.npy` [n_in+n_bd]: `View.degree` of each inner, then boundary node (int32, weighted float64);
    - of a weighted graph `weights.npy` float32 [e], in the order of `indices.npy`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    local = np.empty(view.parts.size, np.int32)
    for r in range(view.count):
        inner = np.flatnonzero(view.parts == r)
        local[inner] = np.arange(inner.size, dtype=np.int32)
    np.save(directory / "nodes.npy", view.nodes.astype(np.int64, copy=False))
    np.save(directory / "parts.npy", view.parts)
    np.save(directory / "local.npy", local)
    rows = [_write_rank(view, r, local, directory / f"rank{r}") for r in range(view.count)]
    _write_sends(view.count, local, directory)
    meta = {
        "nodes": view.parts.size,
        "edges": view.indices.size,
        "parts": view.count,
        "inductive": view.inductive,
        "weighted": view.weights is not None,
        "topology": str(view.topology),
        "table": [*rows, _total(rows)],
    }
    (directory / META).write_text(json.dumps(meta, indent=1))


def _write_rank(view: PartitionedGraph, rank: int, local: NDArray[np.int32], directory: Path) -> dict[str, Any]:
    """Write all of a rank but its send lists; return its row of the table."""
    directory.mkdir()
    inner = np.flatnonzero(view.parts == rank)
    seen = np.zeros(view.parts.size, np.bool_)
    mark_columns(view.indptr, view.indices, inner, seen)
    seen[inner] = False
    boundary = np.flatnonzero(seen)
    cut = int(count_selected(view.indptr, view.indices, inner, seen).sum())
    owner = view.parts[boundary]
    boundary = boundary[np.argsort(owner, kind="stable")]

    position = np.where(view.parts == rank, local, np.int32(-1))
    position[boundary] = inner.size + np.arange(boundary.size, dtype=np.int32)
    indptr = _pointer(np.diff(view.indptr)[inner])
    np.save(directory / "indptr.npy", indptr)
    indices = np.lib.format.open_memmap(directory / "indices.npy", mode="w+", dtype=np.int32, shape=(int(indptr[-1]),))
    local_rows(view.indptr, view.indices, inner, position, indices)
    indices.flush()

    np.save(directory / "inner.npy", inner.astype(np.int64))
    np.save(directory / "boundary.npy", boundary.astype(np.int64))
    np.save(directory / "boundary_ptr.npy", _pointer(np.bincount(owner, minlength=view.count)))
    degree = view.degree()[np.concatenate([inner, boundary])]
    np.save(directory / "degree.npy", degree.astype(np.int32 if view.weights is None else np.float64))
    if view.weights is not None:
        weights = np.empty(int(indptr[-1]), np.float32)
        local_weights(view.indptr, view.indices, inner, position, view.weights, weights)
        np.save(directory / "weights.npy", weights)
    return {
        "part": rank,
        "inner": inner.size,
        "boundary": boundary.size,
        "edges": int(indptr[-1]),
        "edges_cut": cut,
        "train_nodes": int(view.train[inner].sum()),
    }


def _write_sends(count: int, local: NDArray[np.int32], directory: Path) -> None:
    """Turn the peers' boundary segments into each rank's send list."""
    ranks = [directory / f"rank{r}" for r in range(count)]
    boundaries = [np.load(rank / "boundary.npy", mmap_mode="r") for rank in ranks]
    pointers = [np.load(rank / "boundary_ptr.npy") for rank in ranks]
    for r, rank in enumerate(ranks):
        wanted = [nodes[ptr[r] : ptr[r + 1]] for nodes, ptr in zip(boundaries, pointers, strict=True)]
        np.save(rank / "send_index.npy", local[np.concatenate(wanted)].astype(np.int64))
        np.save(rank / "send_ptr.npy", _pointer(np.array([nodes.size for nodes in wanted])))


def _total(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums over parts; `volume` = sum of boundary; imbalances as in `imbalance`."""
    keys = ("inner", "boundary", "edges", "edges_cut", "train_nodes")
    total: dict[str, Any] = {"part": TOTAL, **{key: sum(row[key] for row in rows) for key in keys}}
    total["volume"] = total["boundary"]
    for name, key in (("imbalance", "inner"), ("edge_imbalance", "edges")):
        total[name] = imbalance([row[key] for row in rows])
    return total


def imbalance(sizes: Sequence[float]) -> float:
    """Largest / mean size of the parts; 1 if all are empty."""
    mean = sum(sizes) / len(sizes)
    return max(sizes) / mean if mean else 1.0


def write_induced(graph: GraphData, nodes: Ints, directory: Path) -> Rows:
    """Write and map the CSR (and `weights.npy`) of the subgraph of `nodes`, which are numbered in their order."""
    indptr, indices, weights = graph.indptr, graph.indices, graph.weights
    directory.mkdir(parents=True, exist_ok=True)
    position: Ints = np.full(indptr.size - 1, -1, indices.dtype)
    position[nodes] = np.arange(nodes.size, dtype=indices.dtype)
    pointer = _pointer(count_selected(indptr, indices, nodes, position >= 0))
    np.save(directory / "indptr.npy", pointer)
    shape = (int(pointer[-1]),)
    columns = np.lib.format.open_memmap(directory / "indices.npy", mode="w+", dtype=indices.dtype, shape=shape)
    none = np.empty(0, np.float32)
    kept_weights = none if weights is None else np.empty(shape, np.float32)
    induced_rows(indptr, indices, nodes, position, columns, none if weights is None else weights, kept_weights)
    columns.flush()
    if weights is None:
        return pointer, columns, None
    np.save(directory / "weights.npy", kept_weights)
    return pointer, columns, kept_weights


def _pointer(sizes: Ints) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


Ints: TypeAlias = "NDArray[np.integer[Any]]"
Rows: TypeAlias = "tuple[Ints, Ints, NDArray[np.float32] | None]"  # a graph's pointers, columns, weights if any
Bools: TypeAlias = "NDArray[np.bool_]"
Floats: TypeAlias = "NDArray[np.floating[Any]]"


@compiled
def count_selected(indptr: Ints, indices: Ints, rows: Ints, selected: Bools) -> Ints:
    """int64 [len(rows)]: how many entries of each of `rows` are `selected` (bool [N]) columns."""
    out = np.zeros(rows.size, np.int64)
    for k in range(rows.size):
        for e in range(indptr[rows[k]], indptr[rows[k] + 1]):
            out[k] += selected[indices[e]]
    return out


@compiled
def induced_rows(
    indptr: Ints, indices: Ints, rows: Ints, position: Ints, out: Ints, weights: Floats, out_weights: Floats
) -> None:
    """Fill `out` with the entries of `rows` that have a `position` (int32 [N], -1 = left out), renumbered, ascending.

    `out_weights` gets their `weights` [E]; both are empty for a graph without weights.
    """
    w = 0
    for i in rows:
        start, ascending = w, True
        for e in range(indptr[i], indptr[i + 1]):
            p = position[indices[e]]
            if p >= 0:
                ascending = ascending and (w == start or out[w - 1] < p)
                out[w] = p
                if weights.size:
                    out_weights[w] = weights[e]
                w += 1
        if not ascending:
            order = np.argsort(out[start:w])
            out[start:w] = out[start:w][order]
            if weights.size:
                out_weights[start:w] = out_weights[start:w][order]


@compiled
def mark_columns(indptr: Ints, indices: Ints, rows: Ints, seen: Bools) -> None:
    """Set `seen` (bool [N]) for every column of `rows`."""
    for i in rows:
        for e in range(indptr[i], indptr[i + 1]):
            seen[indices[e]] = True


@compiled
def local_rows(indptr: Ints, indices: Ints, inner: Ints, position: Ints, out: Ints) -> None:
    """Fill `out` with the rows of `inner`, columns renumbered by `position` (int32 [N]), each ascending.

    `position` sends inner nodes to 0..len(inner)-1 in ascending order, so only the boundary columns of a
    row, which are ordered by owner first, can need sorting.
    """
    w = 0
    for i in inner:
        for e in range(indptr[i], indptr[i + 1]):
            p = position[indices[e]]
            if p < inner.size:
                out[w] = p
                w += 1
        start, ascending = w, True
        for e in range(indptr[i], indptr[i + 1]):
            p = position[indices[e]]
            if p >= inner.size:
                ascending = ascending and (w == start or out[w - 1] < p)
                out[w] = p
                w += 1
        if not ascending:
            out[start:w].sort()


@compiled
def local_weights(indptr: Ints, indices: Ints, inner: Ints, position: Ints, weights: Floats, out: Floats) -> None:
    """Fill `out` with the weights of the entries that `local_rows` writes, in the same order."""
    w = 0
    for i in inner:
        start, end = indptr[i], indptr[i + 1]
        order = np.argsort(position[indices[start:end]])
        for k in order:
            out[w] = weights[start + k]
            w += 1


@compiled
def row_sums(indptr: Ints, weights: Floats, out: Floats) -> None:
    """Fill `out` float64 [N] with the sum of each row's weights."""
    for i in range(out.size):
        total = 0.0
        for e in range(indptr[i], indptr[i + 1]):
            total += weights[e]
        out[i] = total


@compiled
def join_neighbours(indptr: Ints, indices: Ints, parts: Ints, weight: Ints, load: Ints) -> None:
    """Place the nodes with `parts[i] < 0` as `extend_parts` says; `load` int64 [P] grows by `weight` int64 [N]."""
    votes = np.zeros(load.size, np.int64)
    for i in range(parts.size):
        if parts[i] >= 0:
            continue
        votes[:] = 0
        for e in range(indptr[i], indptr[i + 1]):
            if parts[indices[e]] >= 0:
                votes[parts[indices[e]]] += 1
        best = 0
        for p in range(1, load.size):
            if votes[p] > votes[best] or (votes[p] == votes[best] and load[p] < load[best]):
                best = p
        parts[i] = best
        load[best] += weight[i]
