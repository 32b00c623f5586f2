"""Partitioners: the base class, how they are found, and what their parts have to be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from harness.data.partition.view import Ints, join_neighbours
from harness.deferred import numpy as np
from harness.errors import UserError
from harness.registry import Registered, Registry
from harness.spec import PartitionSpec, PluginSource, Spec

if TYPE_CHECKING:
    from numpy.typing import NDArray

OptionsT = TypeVar("OptionsT", bound=Spec)


class Partitioner(Registered, ABC, Generic[OptionsT]):
    """A way to give every node to one part.

    A subclass sets `name` and defines `parts`. Of a suite's `partition` it is given the whole section, and
    its own options: `partition: {method: {ldg: {slack: 0.1}}, parts: 4}`.

    `reads` are the keys of the suite's section that its parts depend on, besides `parts`. With `of_all_nodes` its parts
    are those of all nodes of the data set, also where the training subgraph alone is partitioned.
    """

    kind = "partitioner"
    group = "harness.partitioners"
    name: ClassVar[str]
    Options: ClassVar[type[Spec]] = Spec  # its own
    reads: ClassVar[frozenset[str]] = frozenset(("balance", "seed"))
    of_all_nodes: ClassVar[bool] = False

    def __init__(self, spec: PartitionSpec, options: OptionsT) -> None:
        self.spec, self.options = spec, options

    @abstractmethod
    def parts(self, indptr: Ints, indices: Ints) -> NDArray[Any]:
        """Return the part of each node, integers [N] from 0 to P-1; the same for an equal seed.

        `indptr` int64 [N+1], `indices` int32 or int64 [E]: CSR with ascending rows; P is at least 2 and at
        most N. Parts that are left empty are filled by `partition_nodes`.
        """


PARTITIONERS: Registry[type[Partitioner[Any]]] = Registry(Partitioner, "harness.data.partition")


def partition_nodes(
    indptr: Ints, indices: Ints, spec: PartitionSpec, source: PluginSource | None = None
) -> NDArray[np.int32]:
    """Return the part of each node, int32 [N] with values 0..P-1; the same for an equal seed.

    `indptr` int64 [N+1], `indices` int32 or int64 [E]: CSR with ascending rows, of any direction; METIS
    sees the graph with its reverse edges added. What "balance: edges" equalises is the sum of degree + 1.
    `source`: where the code of the partitioner is, if it is a plugin's.

    No part is empty when N >= P, whatever the graph (isolated nodes, more components than parts, P = N):
    parts that a partitioner leaves empty get one node of low degree each from the largest parts. Only `file`
    may have empty parts, as the user's vector says.

    Raises UserError for P > N, for a `file` that is absent or does not fit, and for a partitioner that gives
    a node to no part; DataError for a damaged file.
    """
    n = indptr.size - 1
    found = PARTITIONERS.load(spec.method, source)
    partitioner = found(spec, found.Options(**spec.options))
    if found.of_all_nodes:
        return partitioner.parts(indptr, indices).astype(np.int32)
    if spec.parts > n:
        raise UserError(f"{spec.parts} parts of a graph with {n} nodes", key="partition.parts", fix=f"at most {n}")
    if spec.parts == 1:
        return np.zeros(n, np.int32)
    parts = np.asarray(partitioner.parts(indptr, indices))
    if parts.shape != (n,) or parts.dtype.kind not in "iu" or parts.min() < 0 or parts.max() >= spec.parts:
        what = f"partitioner '{spec.method}' gave no part from 0 to {spec.parts - 1} to each of {n} nodes"
        raise UserError(what, file=None if source is None else source.file, key="partition.method")
    return fill_empty(parts.astype(np.int32), np.diff(indptr), spec.parts)


def extend_parts(indptr: Ints, indices: Ints, placed: NDArray[np.int32], spec: PartitionSpec) -> NDArray[np.int32]:
    """Return int32 [N] in which the nodes that `placed` (int32 [N]) leaves at -1 have joined a part.

    In ascending order, each joins the part most of its in-neighbours placed so far are in; ties and nodes without
    placed in-neighbours join the least loaded part (by nodes or by edges, as `spec.balance` says), of those the first.
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


def fill_empty(parts: NDArray[np.int32], degree: Ints, count: int) -> NDArray[np.int32]:
    """Move one node of lowest degree from the then largest part into each empty one."""
    size = np.bincount(parts, minlength=count)
    for empty in np.flatnonzero(size == 0):
        largest = int(size.argmax())
        members = np.flatnonzero(parts == largest)
        parts[members[degree[members].argmin()]] = empty
        size[largest] -= 1
        size[empty] += 1
    return parts
