"""Partitioners: the base class, those that come with the tool, and the promises that their parts keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from harness.data.graph import csr_from_edges, is_symmetric
from harness.data.partition.files import read_parts
from harness.data.partition.streaming import (
    WEIGHTS,
    CoarsenedOptions,
    KaMinParOptions,
    Level,
    StreamOptions,
    coarsened,
    kaminpar,
    stream,
)
from harness.data.partition.view import Ints, join_neighbours
from harness.deferred import numpy as np
from harness.errors import UserError
from harness.files import size_text
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
    are those of all nodes of the data set, also where the training subgraph alone is partitioned. `train` are the
    training nodes, bool [N]; None: all.
    """

    kind = "partitioner"
    group = "harness.partitioners"
    name: ClassVar[str]
    Options: ClassVar[type[Spec]] = Spec  # its own
    reads: ClassVar[frozenset[str]] = frozenset(("balance", "seed"))
    of_all_nodes: ClassVar[bool] = False
    memory: ClassVar[tuple[int, int]] = (0, 0)  # about the bytes a node and an entry that `parts` takes

    def __init__(self, spec: PartitionSpec, options: OptionsT) -> None:
        self.spec, self.options = spec, options
        self.train: NDArray[np.bool_] | None = None

    @abstractmethod
    def parts(self, indptr: Ints, indices: Ints) -> NDArray[Any]:
        """Return the part of each node, integers [N] from 0 to P-1; the same for an equal seed.

        `indptr` int64 [N+1], `indices` int32 or int64 [E]: CSR with ascending rows; P is at least 2 and at
        most N. Parts that are left empty are filled by `partition_nodes`.
        """


PARTITIONERS: Registry[type[Partitioner[Any]]] = Registry(Partitioner, "harness.data.partition")


def partition_nodes(
    indptr: Ints,
    indices: Ints,
    spec: PartitionSpec,
    source: PluginSource | None = None,
    *,
    train: NDArray[np.bool_] | None = None,
    room: int | None = None,
) -> NDArray[np.int32]:
    """Return the part of each node, int32 [N] with values 0..P-1; the same for an equal seed.

    `indptr` int64 [N+1], `indices` int32 or int64 [E]: CSR with ascending rows, of any direction; METIS
    sees the graph with its reverse edges added. What "balance: edges" equalises is the sum of degree + 1.
    `source`: where the code of the partitioner is, if it is a plugin's. `train`: bool [N], training nodes; None: all.
    `room`: bytes of this machine's memory, if they are a limit.

    No part is empty when N >= P, whatever the graph (isolated nodes, more components than parts, P = N):
    parts that a partitioner leaves empty get one node of low degree each from the largest parts. Only `file`
    may have empty parts, as the user's vector says.

    Raises UserError for P > N, for a partitioner that takes more than `room`, for a `file` that is absent or does not
    fit, and for a partitioner that gives a node to no part; DataError for a damaged file.
    """
    n = indptr.size - 1
    found = PARTITIONERS.load(spec.method, source)
    partitioner = found(spec, found.Options(**spec.options))
    partitioner.train = train
    if found.of_all_nodes:
        return partitioner.parts(indptr, indices).astype(np.int32)
    if spec.parts > n:
        raise UserError(f"{spec.parts} parts of a graph with {n} nodes", key="partition.parts", fix=f"at most {n}")
    if spec.parts == 1:
        return np.zeros(n, np.int32)
    if room is not None and (problem := lacks_room(spec, n, indices.size, room, source)):
        raise UserError(problem[0], key="partition.method", fix=problem[1])
    parts = np.asarray(partitioner.parts(indptr, indices))
    if parts.shape != (n,) or parts.dtype.kind not in "iu" or parts.min() < 0 or parts.max() >= spec.parts:
        what = f"partitioner '{spec.method}' gave no part from 0 to {spec.parts - 1} to each of {n} nodes"
        raise UserError(what, file=None if source is None else source.file, key="partition.method")
    return fill_empty(parts.astype(np.int32), np.diff(indptr), spec.parts)


def lacks_room(
    spec: PartitionSpec, nodes: int, entries: int, room: int, source: PluginSource | None = None, key: str = "method"
) -> tuple[str, str] | None:
    """Return why a graph's partitioner does not fit into `room` bytes, and what does; None if it does.

    `key`: the option that names the partitioner.
    """
    need = _takes(PARTITIONERS.load(spec.method, source), nodes, entries)
    if spec.parts == 1 or need <= room:
        return None
    others = [found.name for found in (KaMinPar, Coarsened, Stream) if _takes(found, nodes, entries) <= room]
    why = f"{spec.method} takes about {size_text(need)} for {nodes:,} nodes and {entries:,} entries"
    why += f", and this machine has {size_text(room)}"
    return why, f"{key}: {' or '.join(others)}" if others else "a machine with more memory"


def _takes(found: type[Partitioner[Any]], nodes: int, entries: int) -> int:
    return nodes * found.memory[0] + entries * found.memory[1]


def within_memory(spec: PartitionSpec, nodes: int, entries: int) -> PartitionSpec:
    """Return a specification that names the first partitioner that its `memory` has room for.

    METIS, KaMinPar, METIS on a coarsened graph, a stream.

    One without `memory` is returned as it is. Raises UserError where none has room, or balances what is asked for.
    """
    if spec.memory is None:
        return spec
    for found in (Metis, KaMinPar, Coarsened, Stream):
        if spec.parts == 1 or _takes(found, nodes, entries) <= spec.memory:
            break
    else:
        need = size_text(_takes(found, nodes, entries))
        raise UserError(f"{nodes:,} nodes need {need} at least", key="partition.memory", fix="give more")
    if found is not Metis and spec.balance not in ("nodes", "edges"):
        raise UserError(
            f"{found.name} has room, and balances nodes or edges alone", key="partition.balance", fix="nodes"
        )
    read = {"objective": spec.objective} if "objective" in found.reads else {}
    kept = spec.model_dump(exclude={"memory", "method", "objective"})
    return PartitionSpec.model_validate({**kept, **read, "method": found.name})


def extend_parts(indptr: Ints, indices: Ints, placed: NDArray[np.int32], spec: PartitionSpec) -> NDArray[np.int32]:
    """Return int32 [N] in which the nodes that `placed` (int32 [N]) leaves at -1 have joined a part.

    In ascending order, each joins the part most of its in-neighbours placed so far are in; ties and nodes without
    placed in-neighbours join the least loaded part (by nodes or by edges, as `spec.balance` says), of those the first.
    """
    parts = placed.copy()
    weight = node_weights(indptr, spec.balance)
    known = parts >= 0
    load = np.bincount(parts[known], weight[known], spec.parts).astype(np.int64)
    join_neighbours(indptr, indices, parts, weight, load)
    return parts


def node_weights(indptr: Ints, balance: str) -> NDArray[np.int64]:
    """int64 [N]: what a node adds to the load of its part: its edges and 1, or by any other `balance` 1."""
    if balance == "edges":
        return np.diff(indptr).astype(np.int64) + 1
    return np.ones(indptr.size - 1, np.int64)


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


CLUSTER = 512  # nodes of a cluster of `node_order`: their rows of 256 float32 fill half of a megabyte


def node_order(indptr: Ints, indices: Ints, spec: PartitionSpec, room: int | None = None) -> Ints:
    """Return the nodes in an order in which neighbours are near each other, int64 [N], as `spec.order` says.

    `metis`: clusters of about `CLUSTER` nodes, one behind the other; `rcm`: reverse Cuthill-McKee, breadth first.
    """
    n = indptr.size - 1
    if spec.order == "metis":
        own = PartitionSpec(parts=max(1, n // CLUSTER), seed=spec.seed)
        if room is not None and (problem := lacks_room(own, n, indices.size, room)):
            raise UserError(problem[0], key="partition.order", fix="order: rcm")
        return np.argsort(partition_nodes(indptr, indices, own), kind="stable")
    from scipy import sparse

    graph = sparse.csr_matrix((np.ones(indices.size, np.int8), indices, indptr), shape=(n, n))
    return np.asarray(sparse.csgraph.reverse_cuthill_mckee(graph), np.int64)


UNBALANCED = 2.0  # boundary imbalance above which plan, partition and report warn


def boundary_warning(name: str, spec: PartitionSpec, imbalance: float) -> str | None:
    """Say that an epoch on the data `name` waits for the largest boundary, and what to try; None up to `UNBALANCED`."""
    if not imbalance > UNBALANCED:
        return None
    advice = "`objective: cut`" if spec.objective == "volume" else "fewer parts or another partitioner"
    advice = advice if spec.method == Metis.name else "`method: metis`"
    what = f"the largest boundary is {imbalance:.3g} times the mean, and a synchronous epoch waits for it"
    return f"{name}, {spec.method}, {spec.parts} parts: {what} (try {advice})"


METIS_OBJECTIVE = {"cut": 0, "volume": 1}  # mobjtype_et of metis.h; pymetis takes the number only
METIS_OK, METIS_NO_MEMORY = 1, -3


class Metis(Partitioner[Spec]):
    """Multilevel k-way METIS: least edge cut or communication volume, balanced nodes, edges, training nodes or several.

    `balance: nodes+train` has both within 3 % of even, as far as METIS finds such parts.
    """

    name = "metis"
    reads = frozenset(("objective", "balance", "seed"))
    memory = (1100, 60)  # docs/design/partitions.md

    def parts(self, indptr: Ints, indices: Ints) -> NDArray[np.int32]:
        """See `Partitioner`."""
        import pymetis

        own, balanced = self.train, self.spec.balance.split("+")
        weights = [own if name == "train" and own is not None else node_weights(indptr, name) for name in balanced]
        indptr, indices = _symmetric(indptr, indices)
        # METIS copies anything that is not of its own index type, and gives up on lists this long
        index = pymetis.zero_copy_dtype()
        indptr, indices = indptr.astype(index, copy=False), indices.astype(index, copy=False)
        options = pymetis.Options(objtype=METIS_OBJECTIVE[self.spec.objective], seed=self.spec.seed % 2**31)
        if balanced not in (["nodes"], ["edges"]):
            return _balance_several(indptr, indices, np.stack(weights, 1).astype(index), self.spec.parts, options)
        return _k_way(indptr, indices, self.spec.parts, options, None if balanced == ["nodes"] else weights[0])


def _k_way(
    indptr: Ints, indices: Ints, count: int, options: Any, nodes: NDArray[Any] | None, edges: Any = None
) -> NDArray[np.int32]:
    """Return the parts that METIS finds of a symmetric graph whose nodes, and entries, weigh so much; None: 1 each."""
    import pymetis

    index = pymetis.zero_copy_dtype()
    graph = pymetis.CSRAdjacency(indptr.astype(index, copy=False), indices.astype(index, copy=False))
    nodes, edges = (None if each is None else each.astype(index, copy=False) for each in (nodes, edges))
    # k-way for every P: recursive bisection, pymetis' default up to 8 parts, minimises the cut only
    found = pymetis.part_graph(count, graph, vweights=nodes, eweights=edges, recursive=False, options=options)
    return np.asarray(found.vertex_part, dtype=np.int32)


def _balance_several(indptr: Ints, indices: Ints, weights: Ints, count: int, options: Any) -> NDArray[np.int32]:
    """Return parts that balance each column of `weights` [N, n]; pymetis has one weight a node, its METIS many."""
    import ctypes

    import pymetis

    library: Any = pymetis._internal
    metis, index = ctypes.CDLL(library.__file__), weights.dtype
    # All arguments are pointers.
    sizes = [np.array([number], index) for number in (*weights.shape, count, 0)]
    keys, chosen, parts = library.options_indices, np.empty(64, index), np.empty(len(weights), index)
    metis.METIS_SetDefaultOptions(chosen.ctypes)
    for key in ("objtype", "seed"):
        chosen[int(getattr(keys, key.upper()))] = getattr(options, key)
    nodes, columns, wanted, cost = (size.ctypes for size in sizes)
    graph = indptr.ctypes, indices.ctypes, weights.ctypes, None, None
    status = metis.METIS_PartGraphKway(nodes, columns, *graph, wanted, None, None, chosen.ctypes, cost, parts.ctypes)
    if status == METIS_NO_MEMORY:
        raise MemoryError("METIS")
    if status != METIS_OK:
        raise UserError(f"METIS refuses the graph ({status})", key="partition.balance", fix="balance one of them")
    return parts.astype(np.int32)


def _symmetric(indptr: Ints, indices: Ints) -> tuple[Ints, Ints]:
    """Return a graph as it is if it is symmetric, else with its reverse edges added."""
    if is_symmetric(indptr, indices):
        return indptr, indices
    return csr_from_edges(partial(_edge_chunks, indptr, indices), indptr.size - 1, symmetrise=True)


def _edge_chunks(indptr: Ints, indices: Ints, rows: int = 1 << 16) -> Iterator[tuple[Ints, Ints]]:
    """Edges as (source, destination) arrays, `rows` CSR rows at a time."""
    for start in range(0, indptr.size - 1, rows):
        bounds = indptr[start : start + rows + 1]
        yield (indices[bounds[0] : bounds[-1]], np.repeat(np.arange(start, start + bounds.size - 1), np.diff(bounds)))


class KaMinPar(Partitioner[KaMinParOptions]):
    """KaMinPar: multilevel k-way, least edge cut, in less memory than METIS (Gottesbueren et al., ESA 2021).

    Needs `kaminpar` (the extra of that name).
    """

    name = "kaminpar"
    Options = KaMinParOptions
    memory = (0, 18)

    def parts(self, indptr: Ints, indices: Ints) -> Ints:
        """See `Partitioner`; KaMinPar sees the graph with its reverse edges added."""
        spec, weight = self.spec, None if self.spec.balance == "nodes" else node_weights(indptr, self.spec.balance)
        return kaminpar(*_symmetric(indptr, indices), weight, spec.parts, spec.seed, self.options)


class Coarsened(Partitioner[CoarsenedOptions]):
    """METIS on a graph of clusters of clusters, least edge cut, in memory of some 50 bytes a node and files.

    Clusters are found by label propagation and bounded in size, parts are made better on each level on the way back
    (Meyerhenke, Sanders and Schulz, SEA 2014). Graphs of clusters lie in files of the system's temporary directory.
    """

    name = "coarsened"
    Options = CoarsenedOptions
    memory = (50, 0)

    def parts(self, indptr: Ints, indices: Ints) -> Ints:
        """See `Partitioner`; METIS sees the graph with its reverse edges added."""
        indptr, indices = _symmetric(indptr, indices)
        finest = Level(indptr, indices, np.empty(0, np.int32), node_weights(indptr, self.spec.balance))
        return coarsened(finest, self.spec.parts, self.options, self._coarsest)

    def _coarsest(self, level: Level) -> Ints:
        import pymetis

        edges = None
        if level.edges.size:
            edges = np.maximum(1, level.edges / max(1.0, float(level.edges.sum(dtype=np.int64)) / WEIGHTS))
        options = pymetis.Options(seed=self.spec.seed % 2**31)
        return _k_way(level.indptr, level.indices, self.spec.parts, options, level.nodes, edges)


class Stream(Partitioner[StreamOptions]):
    """A stream of nodes, each of which joins a part for good, or until the next pass; memory of 16 bytes a node.

    `fennel`: the part with most of the node's neighbours, less a cost that grows with the part's size (Tsourakakis et
    al., WSDM 2014, gamma 1.5). `ldg`: neighbours times the part's room (Stanton and Kliot, KDD 2012). Several `passes`:
    restreaming (Nishimura and Ugander, KDD 2013).
    """

    name = "stream"
    Options = StreamOptions
    memory = (16, 0)

    def parts(self, indptr: Ints, indices: Ints) -> Ints:
        """See `Partitioner`."""
        weight = node_weights(indptr, self.spec.balance).astype(np.float64)
        return stream(indptr, indices, weight, self.spec.parts, self.spec.seed, self.options)


class Random(Partitioner[Spec]):
    """Balanced parts of randomly drawn nodes (the worst case for communication)."""

    name = "random"

    def parts(self, indptr: Ints, indices: Ints) -> NDArray[np.int32]:
        """See `Partitioner`.

        The permutation is of a stream of its own: `default_rng(seed).permutation(n)` is how splits are
        commonly drawn, and with it a data set's training nodes would be the first parts' nodes.
        """
        order = np.random.default_rng([self.spec.seed, len("partition")]).permutation(indptr.size - 1)
        return _in_order(node_weights(indptr, self.spec.balance), order, self.spec.parts)


class Chunk(Partitioner[Spec]):
    """Contiguous node ranges, balanced by nodes or edges."""

    name = "chunk"
    reads = frozenset(("balance",))

    def parts(self, indptr: Ints, indices: Ints) -> NDArray[np.int32]:
        """See `Partitioner`."""
        return _in_order(node_weights(indptr, self.spec.balance), np.arange(indptr.size - 1), self.spec.parts)


class File(Partitioner[Spec]):
    """A file with the part of each node: .npy, text of METIS, ParMETIS or KaMinPar, or DGL's .json (`read_parts`)."""

    name = "file"
    reads = frozenset(("file",))
    of_all_nodes = True

    def parts(self, indptr: Ints, indices: Ints) -> NDArray[np.int32]:
        """See `Partitioner`."""
        path, n, count, key = self.spec.file, indptr.size - 1, self.spec.parts, "partition.file"
        if path is None:
            raise UserError("method 'file' needs a vector", key=key, fix="file: path of a .npy, a text, or DGL's .json")
        vector = read_parts(path, n)
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
