"""Giving every node of a graph to one part."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pymetis
from numpy.typing import NDArray

from harness.data.csr import csr_from_edges, is_symmetric
from harness.data.partition_kernels import Ints, join_neighbours
from harness.data.spec import PartitionSpec
from harness.errors import DataError, UserError

PARTITIONERS: dict[str, str] = {
    "metis": "multilevel k-way METIS: least communication volume or edge cut, balanced nodes or edges",
    "random": "balanced parts of randomly drawn nodes (the worst case for communication)",
    "chunk": "contiguous node ranges, balanced by nodes or edges",
    "file": "a .npy vector of yours with the part of each node",
}
VECTOR = "np.save an integer vector [N]"
METIS_OBJECTIVE = {"cut": 0, "volume": 1}  # mobjtype_et of metis.h; pymetis takes the number only


def partition_nodes(indptr: Ints, indices: Ints, spec: PartitionSpec) -> NDArray[np.int32]:
    """Return the part of each node, int32 [N] with values 0..P-1; the same for an equal seed.

    `indptr` int64 [N+1], `indices` int32 or int64 [E]: CSR with ascending rows, of any direction; METIS
    sees the graph with its reverse edges added. What "balance: edges" equalises is the sum of degree + 1.

    No part is empty when N >= P, whatever the graph (isolated nodes, more components than parts, P = N):
    parts that METIS leaves empty get one node of low degree each from the largest parts. Only `file`
    may have empty parts, as the user's vector says.

    Raises UserError for P > N and for a `file` that is absent or does not fit, DataError for a damaged one.
    """
    n = indptr.size - 1
    if spec.method == "file":
        return _read_parts(spec.file, n, spec.parts)
    if spec.parts > n:
        raise UserError(
            f"{spec.parts} parts of a graph with {n} nodes", key="partition.parts", fix=f"at most {n}"
        )
    if spec.parts == 1:
        return np.zeros(n, np.int32)
    weight = node_weights(indptr, spec)
    if spec.method == "metis":
        return _metis(indptr, indices, weight, spec)
    order = np.arange(n) if spec.method == "chunk" else _shuffled(n, spec.seed)
    parts = np.empty(n, np.int32)
    bounds = _even_bounds(weight[order], spec.parts)
    parts[order] = np.repeat(np.arange(spec.parts, dtype=np.int32), np.diff(bounds))
    return parts


def _shuffled(n: int, seed: int) -> NDArray[np.int64]:
    """Return a permutation of 0..n-1 in a stream of its own.

    `default_rng(seed).permutation(n)` is how splits are commonly drawn: with it, a data set's training nodes
    would be the first parts' nodes.
    """
    return np.random.default_rng([seed, len("partition")]).permutation(n)


def extend_parts(
    indptr: Ints, indices: Ints, placed: NDArray[np.int32], spec: PartitionSpec
) -> NDArray[np.int32]:
    """Return int32 [N] in which the nodes that `placed` (int32 [N]) leaves at -1 have joined a part.

    In ascending order, each joins the part most of its in-neighbours placed so far are in; ties and nodes
    without placed in-neighbours join the least loaded part (by nodes or by edges, as `spec.balance` says).
    """
    parts = placed.copy()
    weight = node_weights(indptr, spec)
    known = parts >= 0
    load = np.bincount(parts[known], weight[known], spec.parts).astype(np.int64)
    join_neighbours(indptr, indices, parts, weight, load)
    return parts


def node_weights(indptr: Ints, spec: PartitionSpec) -> NDArray[np.int64]:
    """int64 [N]: what a node adds to the load of its part."""
    if spec.balance == "nodes":
        return np.ones(indptr.size - 1, np.int64)
    return np.diff(indptr).astype(np.int64) + 1


def _metis(indptr: Ints, indices: Ints, weight: NDArray[np.int64], spec: PartitionSpec) -> NDArray[np.int32]:
    if not is_symmetric(indptr, indices):
        graph_edges = partial(_edge_chunks, indptr, indices)
        indptr, indices = csr_from_edges(graph_edges, indptr.size - 1, symmetrise=True)
    # METIS copies anything that is not of its own index type, and gives up on lists this long
    index = pymetis.zero_copy_dtype()
    graph = pymetis.CSRAdjacency(indptr.astype(index, copy=False), indices.astype(index, copy=False))
    options = pymetis.Options(objtype=METIS_OBJECTIVE[spec.objective], seed=spec.seed % 2**31)
    # k-way for every P: recursive bisection, pymetis' default up to 8 parts, minimises the cut only
    result = pymetis.part_graph(
        spec.parts,
        graph,
        vweights=None if spec.balance == "nodes" else weight.astype(index, copy=False),
        recursive=False,
        options=options,
    )
    parts = np.asarray(result.vertex_part, dtype=np.int32)
    return _fill_empty(parts, np.diff(indptr), spec.parts)


def _edge_chunks(indptr: Ints, indices: Ints, rows: int = 1 << 16) -> Iterator[tuple[Ints, Ints]]:
    """Edges as (source, destination) arrays, `rows` CSR rows at a time."""
    for start in range(0, indptr.size - 1, rows):
        bounds = indptr[start : start + rows + 1]
        yield (
            indices[bounds[0] : bounds[-1]],
            np.repeat(np.arange(start, start + bounds.size - 1), np.diff(bounds)),
        )


def _fill_empty(parts: NDArray[np.int32], degree: Ints, count: int) -> NDArray[np.int32]:
    """Move one node of lowest degree from the then largest part into each empty one."""
    size = np.bincount(parts, minlength=count)
    for empty in np.flatnonzero(size == 0):
        largest = int(size.argmax())
        members = np.flatnonzero(parts == largest)
        parts[members[degree[members].argmin()]] = empty
        size[largest] -= 1
        size[empty] += 1
    return parts


def _even_bounds(weight: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """int64 [count+1]: cut 0..len(weight) into `count` non-empty ranges of nearly equal weight."""
    total = np.concatenate([[0], np.cumsum(weight)])
    goal = np.arange(count + 1) * total[-1] / count
    after = np.searchsorted(total, goal).clip(1, weight.size)
    bounds = after - (goal - total[after - 1] < total[after] - goal)
    step = np.arange(count + 1)
    bounds = np.maximum.accumulate(bounds - step) + step
    bounds[0], bounds[-1] = 0, weight.size
    # a heavy node can swallow several goals: leave one node for each part before and after
    return np.asarray(np.clip(bounds, step, weight.size - count + step), np.int64)


def _read_parts(path: Path | None, n: int, count: int) -> NDArray[np.int32]:
    key = "partition.file"
    if path is None:
        raise UserError("method 'file' needs a vector", key=key, fix="file: path of a .npy")
    try:
        vector = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise UserError(
            f"cannot be read ({error.strerror or error})", file=path, key=key, fix="a .npy of integers"
        ) from error
    except (ValueError, EOFError) as error:
        raise DataError(
            "not a whole .npy vector", file=path, key=key, fix="np.save an integer vector"
        ) from error
    if not isinstance(vector, np.ndarray) or vector.ndim != 1 or vector.dtype.kind not in "iu":
        raise UserError("not a vector of integers", file=path, key=key, fix=VECTOR)
    if vector.size != n:
        raise UserError(f"{vector.size} entries for {n} nodes", file=path, key=key, fix="one entry per node")
    if n and (vector.min() < 0 or vector.max() >= count):
        found = f"values {vector.min()}..{vector.max()}"
        raise UserError(f"{found} for {count} parts", file=path, key=key, fix=f"0..{count - 1}")
    return vector.astype(np.int32)
