"""The partitioners that come with the tool."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pymetis

from harness.data.graph import csr_from_edges, is_symmetric
from harness.data.partition import Partitioner, node_weights
from harness.data.partition.view import Ints
from harness.data.store import map_npy
from harness.deferred import numpy as np
from harness.errors import UserError
from harness.spec import Spec

if TYPE_CHECKING:
    from numpy.typing import NDArray

METIS_OBJECTIVE = {"cut": 0, "volume": 1}  # mobjtype_et of metis.h; pymetis takes the number only


class Metis(Partitioner[Spec]):
    """Multilevel k-way METIS: least communication volume or edge cut, balanced nodes or edges."""

    name = "metis"
    reads = frozenset(("objective", "balance", "seed"))

    def parts(self, indptr: Ints, indices: Ints) -> NDArray[np.int32]:
        """See `Partitioner`."""
        weight = node_weights(indptr, self.spec)
        if not is_symmetric(indptr, indices):
            graph_edges = partial(_edge_chunks, indptr, indices)
            indptr, indices = csr_from_edges(graph_edges, indptr.size - 1, symmetrise=True)
        # METIS copies anything that is not of its own index type, and gives up on lists this long
        index = pymetis.zero_copy_dtype()
        graph = pymetis.CSRAdjacency(indptr.astype(index, copy=False), indices.astype(index, copy=False))
        options = pymetis.Options(objtype=METIS_OBJECTIVE[self.spec.objective], seed=self.spec.seed % 2**31)
        # k-way for every P: recursive bisection, pymetis' default up to 8 parts, minimises the cut only
        result = pymetis.part_graph(
            self.spec.parts,
            graph,
            vweights=None if self.spec.balance == "nodes" else weight.astype(index, copy=False),
            recursive=False,
            options=options,
        )
        return np.asarray(result.vertex_part, dtype=np.int32)


def _edge_chunks(indptr: Ints, indices: Ints, rows: int = 1 << 16) -> Iterator[tuple[Ints, Ints]]:
    """Edges as (source, destination) arrays, `rows` CSR rows at a time."""
    for start in range(0, indptr.size - 1, rows):
        bounds = indptr[start : start + rows + 1]
        yield (indices[bounds[0] : bounds[-1]], np.repeat(np.arange(start, start + bounds.size - 1), np.diff(bounds)))


class Random(Partitioner[Spec]):
    """Balanced parts of randomly drawn nodes (the worst case for communication)."""

    name = "random"

    def parts(self, indptr: Ints, indices: Ints) -> NDArray[np.int32]:
        """See `Partitioner`.

        The permutation is of a stream of its own: `default_rng(seed).permutation(n)` is how splits are
        commonly drawn, and with it a data set's training nodes would be the first parts' nodes.
        """
        order = np.random.default_rng([self.spec.seed, len("partition")]).permutation(indptr.size - 1)
        return _in_order(node_weights(indptr, self.spec), order, self.spec.parts)


class Chunk(Partitioner[Spec]):
    """Contiguous node ranges, balanced by nodes or edges."""

    name = "chunk"
    reads = frozenset(("balance",))

    def parts(self, indptr: Ints, indices: Ints) -> NDArray[np.int32]:
        """See `Partitioner`."""
        return _in_order(node_weights(indptr, self.spec), np.arange(indptr.size - 1), self.spec.parts)


class File(Partitioner[Spec]):
    """A .npy vector of yours with the part of each node."""

    name = "file"
    reads = frozenset(("file",))
    of_all_nodes = True

    def parts(self, indptr: Ints, indices: Ints) -> NDArray[np.int32]:
        """See `Partitioner`."""
        path, n, count, key = self.spec.file, indptr.size - 1, self.spec.parts, "partition.file"
        if path is None:
            raise UserError("method 'file' needs a vector", key=key, fix="file: path of a .npy")
        vector = map_npy(path, "np.save an integer vector", key)
        if vector.ndim != 1 or vector.dtype.kind not in "iu":
            raise UserError("not a vector of integers", file=path, key=key, fix="np.save an integer vector [N]")
        if vector.size != n:
            raise UserError(f"{vector.size} entries for {n} nodes", file=path, key=key, fix="one entry per node")
        if n and (vector.min() < 0 or vector.max() >= count):
            found = f"values {vector.min()}..{vector.max()}"
            raise UserError(f"{found} for {count} parts", file=path, key=key, fix=f"0..{count - 1}")
        return vector.astype(np.int32)


def _in_order(weight: NDArray[np.int64], order: NDArray[np.int64], count: int) -> NDArray[np.int32]:
    """Cut the nodes in an order into `count` non-empty ranges of nearly equal weight."""
    total = np.concatenate([[0], np.cumsum(weight[order])])
    goal = np.arange(count + 1) * total[-1] / count
    after = np.searchsorted(total, goal).clip(1, weight.size)
    bounds = after - (goal - total[after - 1] < total[after] - goal)
    step = np.arange(count + 1)
    bounds = np.maximum.accumulate(bounds - step) + step
    bounds[0], bounds[-1] = 0, weight.size
    # a heavy node can swallow several goals: leave one node for each part before and after
    bounds = np.clip(bounds, step, weight.size - count + step)
    parts = np.empty(order.size, np.int32)
    parts[order] = np.repeat(np.arange(count, dtype=np.int32), np.diff(bounds))
    return parts
