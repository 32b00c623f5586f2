"""Subgraphs: nodes are drawn, then all edges between them are taken; on the host, or by torch on a device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from harness.data.partition import partition_nodes
from harness.data.prepared import atomic_directory, locked, may_keep
from harness.deferred import numba, torch
from harness.deferred import numpy as np
from harness.graph.block import Propagation
from harness.graph.csr import Floats, Ints, Topology, pointers, sums_of_rows
from harness.graph.devices import upload
from harness.graph.kernels import gather, next_u64, prefetch, stream, stream_bits, uniform, uniform_on_device
from harness.sampling.layer_kernels import inclusion
from harness.sampling.layerwise import AlphaRule, Scaled
from harness.sampling.sample import GraphOnDevice, LayerOnDevice, LayerSample, Sample, Tables
from harness.spec import PartitionSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

AHEAD = 4  # rows asked for before their turn; from 2 to 12 they are equally fast
FILTER_BITS = 2**18  # 32 KiB, what most processors' nearest cache holds
FILTER_BELOW = 8  # a filter pays where the nodes are at most 1 in so many of the graph's; measured


@dataclass(frozen=True, eq=False)
class Induced:
    """A subgraph's square matrix: row and column k are the k-th of the nodes that it was induced on."""

    indptr: Ints  # [n + 1]
    columns: NDArray[np.int32]  # [nnz], in each row in the order that the graph's row has them in
    places: Ints | None  # [nnz], where in the graph's `indices` they are; None where not asked for


def induced(topology: Topology, nodes: Ints, tables: Tables, *, places: bool = False) -> Induced:
    """Return all edges between `nodes`, each of which is both a row and a column, in their order.

    Takes time linear in the sum of the nodes' degrees. `nodes` are int64 [n], a ValueError if one is given twice; where
    they ascend, and the graph's columns do, the columns ascend. `places`: whether to say where in the graph the entries
    are.
    """
    with tables.borrow() as table:
        indptr, columns, found = _induce(topology.indptr, topology.indices, nodes, table, places)
    return Induced(indptr, columns, found if places else None)


def within(topology: Topology, nodes: Ints, tables: Tables) -> Topology:
    """Return the graph of all nodes whose edges are those between `nodes` (int64, ascending)."""
    weights = topology.weights
    found = induced(topology, nodes, tables, places=weights is not None)
    ends = np.zeros(topology.num_nodes + 1, np.int64)
    ends[nodes + 1] = np.diff(found.indptr)
    columns = nodes[found.columns].astype(np.int32)
    return Topology(ends.cumsum(), columns, None if weights is None else weights[found.places])


@numba.njit(cache=True, nogil=True)
def _induce(indptr, indices, nodes, table, with_places):  # type: ignore[no-untyped-def]
    """Return the subgraph's `indptr`, columns, and with `with_places` where in `indices` they are.

    Of a small part of a graph most entries lead out. A filter that the nearest cache holds stops nearly all
    of those; only what passes is looked up in the table, which is too large for it.
    """
    entries = _number(indptr, nodes, table)
    # The filter costs a pass of its own, which pays where it stops most entries.
    small = nodes.size * FILTER_BELOW <= table.size
    bits, mask = _filter(nodes if small else nodes[:0])  # of none where it is not read
    pointers = np.empty(nodes.size + 1, np.int64)
    columns = np.empty(entries + 1, np.int32)  # one more: what is not kept is written too, and overwritten
    places = np.empty(entries + 1 if with_places else 0, np.int64)
    for k in range(min(AHEAD, nodes.size)):
        _fetch(indptr, indices, nodes[k])
    at = np.uint64(0)  # unsigned: numba asks of a signed index whether it counts from the end
    pointers[0] = 0
    for k in range(nodes.size):
        _fetch(indptr, indices, nodes[min(k + AHEAD, nodes.size - 1)])
        row = np.uint64(indptr[nodes[k]]), np.uint64(indptr[nodes[k] + 1])
        if small:
            end = _pass(indices, row, bits, mask, columns, places, at)
            at = _number_passed(table, columns, places, at, end)
        else:
            at = _number_row(indices, row, table, columns, places, at)
        pointers[k + 1] = at
    # The table is as long as the graph, and is lent again: only what was written is cleared.
    for k in range(nodes.size):
        table[nodes[k]] = -1
    return pointers, columns[:at].copy(), places[: at if with_places else 0].copy()


# The next three write every entry, and keep it by moving on: a branch would be guessed wrong for those kept.


@numba.njit(cache=True, nogil=True)
def _pass(indices, row, bits, mask, columns, places, at):  # type: ignore[no-untyped-def]
    """Write, from `at` on, the neighbours that pass the filter, and their places; return the end."""
    for e in range(row[0], row[1]):
        columns[at] = indices[e]
        if places.size > 0:
            places[at] = e
        digits = np.uint64(np.uint32(indices[e])) & mask
        at += (bits[digits >> np.uint64(6)] >> (digits & np.uint64(63))) & np.uint64(1)
    return at


@numba.njit(cache=True, nogil=True)
def _number_passed(table, columns, places, at, end):  # type: ignore[no-untyped-def]
    """Move together, from `at` on, what of `columns[at:end]` the table knows, numbered; return the end."""
    for e in range(at, end):
        column = table[np.uint32(columns[e])]
        columns[at] = column
        if places.size > 0:
            places[at] = places[e]
        at += np.uint64(column >= 0)
    return at


@numba.njit(cache=True, nogil=True)
def _number_row(indices, row, table, columns, places, at):  # type: ignore[no-untyped-def]
    """Write, from `at` on, a row's neighbours that the table knows, numbered, and places; return the end."""
    for e in range(row[0], row[1]):
        column = table[np.uint32(indices[e])]
        columns[at] = column
        if places.size > 0:
            places[at] = e
        at += np.uint64(column >= 0)
    return at


@numba.njit(cache=True, nogil=True)
def _number(indptr, nodes, table):  # type: ignore[no-untyped-def]
    """Write each node's position into `table` int32 [N] of -1; return the sum of their degrees."""
    entries = 0
    for k in range(nodes.size):
        if table[nodes[k]] >= 0:
            raise ValueError("a node of a subgraph is given twice")
        table[nodes[k]] = k
        entries += indptr[nodes[k] + 1] - indptr[nodes[k]]
    return entries


@numba.njit(cache=True, nogil=True)
def _filter(nodes):  # type: ignore[no-untyped-def]
    """Return bits, uint64, of which those are 1 that nodes' last digits point to, and the mask of the digits.

    A node that is not given finds a 1 with a chance of 1/16 at most; in a graph of as many nodes as there
    are bits, never.
    """
    size = FILTER_BITS
    while size < 16 * nodes.size:
        size *= 2
    bits, mask = np.zeros(size >> 6, np.uint64), np.uint64(size - 1)
    for k in range(nodes.size):
        digits = np.uint64(nodes[k]) & mask
        bits[digits >> np.uint64(6)] |= np.uint64(1) << (digits & np.uint64(63))
    return bits, mask


@numba.njit(cache=True, nogil=True)
def _fetch(indptr, indices, row):  # type: ignore[no-untyped-def]
    """Ask for every cache line of a row ahead of its use; to wait for them took half of the time."""
    for e in range(np.uint64(indptr[row]), np.uint64(indptr[row + 1]), np.uint64(16)):  # int32 numbers of a line
        prefetch(indices, e)


def induce(topology: Topology, nodes: Ints, tables: Tables) -> LayerSample:
    """Return what `induced` does, as a layer: `nodes` are its destinations and its sources."""
    found = induced(topology, nodes, tables, places=topology.weights is not None)
    return as_layer(nodes, as_graph(topology, found))


def as_graph(topology: Topology, found: Induced) -> Topology:
    """Return what was induced as a graph of its own; where edges have weights, `found` needs their places."""
    weights = None if topology.weights is None else gather(topology.weights, found.places)
    return Topology(found.indptr, found.columns, weights)


def as_layer(nodes: Ints, graph: Topology) -> LayerSample:
    """Return the graph that was induced on `nodes` as a layer."""
    if graph.weights is None:
        return LayerSample(nodes, graph.indptr, graph.indices, symmetric="values")
    values = graph.weights.astype(np.float64)
    ascending = bool((nodes[1:] > nodes[:-1]).all())  # or a row's columns do not ascend
    return LayerSample(nodes, graph.indptr, graph.indices, values, symmetric="structure" if ascending else "no")


def missing_degree(whole: Topology, nodes: Ints, graph: Topology) -> Floats:
    """Return the degrees of `nodes` in a graph / those in the one induced on them; 1 where these are 0."""
    inside, outside = graph.degree(np.arange(nodes.size)), whole.degree(nodes)
    return np.divide(outside, inside, out=np.ones(nodes.size), where=inside > 0)


def clusters(
    topology: Topology, count: int, seed: int, *, keep: Path | None = None, method: str = "metis"
) -> NDArray[np.int32]:
    """Return the cluster of each node, int32 [N] with values 0..count-1, none of them empty.

    METIS, or the partitioner `method`, cuts as few edges as it finds between clusters of equally many nodes (METIS
    within 3 %), whatever the edges' weights; the same for an equal seed. It may take minutes, and several times the
    graph's memory. One cluster needs none. Into `keep`, a directory of the graph's own, the first process that asks
    puts the clusters; others wait, and all map the one copy. UserError for more clusters than nodes.
    """
    name = f"clusters-{count}-{seed}" + ("" if method == "metis" else f"-{method}")
    if keep is None or not may_keep(keep / name):
        spec = PartitionSpec(parts=count, method=method, objective="cut", seed=seed)
        return partition_nodes(topology.indptr, topology.indices, spec)
    target = keep / name
    if not target.exists():
        with locked(target):
            if not target.exists():
                with atomic_directory(target) as work:
                    np.save(work / "clusters.npy", clusters(topology, count, seed, method=method))
    found: NDArray[np.int32] = np.load(target / "clusters.npy", mmap_mode="r")
    return found


@dataclass(frozen=True, eq=False)
class InducedOnDevice:
    """An `Induced`, on a device."""

    indptr: Tensor  # int64 [n + 1]
    columns: Tensor  # int32 [nnz]
    places: Tensor  # int64 [nnz]


def induced_on_device(graph: GraphOnDevice, nodes: Tensor) -> InducedOnDevice:
    """Return all edges between distinct `nodes` (int64), as `subgraphs.induced` does.

    The host waits for the sum of their degrees and for the number of edges.
    """
    ends, entries, _ = graph.rows(nodes)
    number = torch.full((len(graph.indptr) - 1,), -1, dtype=torch.int32, device=nodes.device)
    number[nodes] = torch.arange(nodes.numel(), dtype=torch.int32, device=nodes.device)
    columns = number[graph.indices[entries]]
    kept = columns >= 0
    places = kept.nonzero().squeeze(1)
    return InducedOnDevice(pointers(kept)[ends], columns[places], entries[places])


def as_layer_on_device(graph: GraphOnDevice, nodes: Tensor, found: InducedOnDevice) -> LayerOnDevice:
    """Return what was induced on `nodes`, of a graph of symmetric structure, as a layer."""
    values = None if graph.weights is None else graph.weights[found.places]
    # An edge may have another weight than the one back.
    return LayerOnDevice(
        nodes, found.indptr, found.columns, graph.degree(nodes), values, symmetric=values is None
    )  # fmt: skip


def induce_on_device(graph: GraphOnDevice, nodes: Ints | Tensor) -> LayerOnDevice:
    """Return all edges between distinct `nodes` (int64), as `subgraphs.induce` does; waits as `induced_on_device`."""
    nodes = upload(nodes, graph.indptr.device)
    return as_layer_on_device(graph, nodes, induced_on_device(graph, nodes))


def missing_degree_on_device(graph: GraphOnDevice, layer: LayerOnDevice) -> Tensor:
    """Return what `subgraphs.missing_degree` does of a layer that was induced, float64 [n]."""
    values = layer.values
    inside = layer.indptr.diff().double() if values is None else sums_of_rows(layer.indptr, values.double())
    return torch.where(inside > 0, layer.degree / inside, 1.0)


@dataclass(frozen=True, eq=False)
class SubgraphBatchOnDevice:
    """A `SubgraphBatch`, on a device."""

    layer: LayerOnDevice
    weights: Tensor | None  # float64 [n]


WeighOnDevice = Callable[["Tensor", InducedOnDevice], SubgraphBatchOnDevice]
"""What `Normaliser.weigh` does, of nodes (int64, ascending) and what was induced on them."""


class NodeSampler(Protocol):
    """Draws the nodes of a subgraph. Threads may call at once; the nodes depend on the seed alone."""

    def sample(self, seed: int) -> Ints:
        """Return distinct nodes, int64, ascending, by a seed in [0, 2^63)."""


@dataclass(frozen=True, eq=False)
class SubgraphBatch:
    """A drawn subgraph: a square `layer`, for all layers of a model."""

    layer: LayerSample
    weights: Floats | None  # [n], what the losses of its nodes count; None: all the same


@dataclass(frozen=True, eq=False)
class Normaliser(ABC):
    """Says what the edges of a subgraph of a graph count, and the losses of its nodes."""

    topology: Topology

    @property
    def needs_places(self) -> bool:
        """Whether it asks of `induced` where in the graph a subgraph's edges are; the default: for their weights."""
        return self.topology.weights is not None

    @abstractmethod
    def weigh(self, nodes: Ints, found: Induced) -> SubgraphBatch:
        """Return the subgraph of the ascending `nodes`."""

    def on_device(self, graph: GraphOnDevice) -> WeighOnDevice:
        """Return what weighs the subgraphs of `graph`, a copy of the topology, where that is."""
        raise NotImplementedError(f"{type(self).__name__} weighs on the host")


class Subgraphs:
    """Draws subgraphs of a graph whose structure is symmetric: nodes by a sampler, weighed by a normaliser.

    Behind that `changes` are made to their layers, one after the other.
    """

    def __init__(
        self, topology: Topology, sampler: NodeSampler, normaliser: Normaliser, tables: Tables,
        changes: Sequence[Callable[[LayerSample], LayerSample]] = (),
    ) -> None:  # fmt: skip
        self.sampler, self.normaliser = sampler, normaliser
        self.topology, self._tables, self._changes = topology, tables, changes

    def sample(self, seed: int) -> SubgraphBatch:
        """Draw a subgraph by a seed in [0, 2^63); its nodes ascend. Threads may call at once."""
        nodes = self.sampler.sample(seed)
        found = induced(self.topology, nodes, self._tables, places=self.normaliser.needs_places)
        batch = self.normaliser.weigh(nodes, found)
        for change in self._changes:
            batch = replace(batch, layer=change(batch.layer))
        return batch


@runtime_checkable
class DeviceNodes(Protocol):
    """A `NodeSampler` whose nodes a device can draw itself."""

    def draws_on_device(self, graph: GraphOnDevice) -> Callable[[int], Tensor]:
        """Return what draws distinct nodes, int64, ascending, by a seed; the host waits for their number."""


class SubgraphsOnDevice:
    """Draws what `Subgraphs` does; nodes that the device cannot draw itself are the host's, and uploaded.

    `symmetric`: False: forget that a matrix equals its transpose. `change` is made to their layers, as the `changes` of
    a `Subgraphs`.
    """

    def __init__(
        self, host: Subgraphs, device: torch.device, *, symmetric: bool = True,
        change: Callable[[LayerOnDevice], LayerOnDevice] | None = None,
    ) -> None:  # fmt: skip
        graph = GraphOnDevice.of(host.topology, device)
        self._graph, self._symmetric, self._change, sampler = graph, symmetric, change, host.sampler
        self._weigh = host.normaliser.on_device(graph)
        on_host: Callable[[int], Tensor] = lambda seed: upload(sampler.sample(seed), device)  # noqa: E731
        self._draw = sampler.draws_on_device(graph) if isinstance(sampler, DeviceNodes) else on_host

    def sample(self, seed: int) -> SubgraphBatchOnDevice:
        """See `Subgraphs.sample`."""
        nodes = self._draw(seed)
        batch = self._weigh(nodes, induced_on_device(self._graph, nodes))
        if self._change is not None:
            batch = replace(batch, layer=self._change(batch.layer))
        return batch if self._symmetric else replace(batch, layer=replace(batch.layer, symmetric=False))


class ClippedNodes:
    """Drops nodes at random until their number is a multiple (JPDC section 6.2: "node clipping").

    Fewer nodes than one `multiple` stay as they are.
    """

    def __init__(self, sampler: NodeSampler, multiple: int) -> None:
        self._nodes, self._multiple = sampler, multiple

    def sample(self, seed: int) -> Ints:
        """See `NodeSampler`."""
        nodes = self._nodes.sample(seed)
        # Dropped by the draw's own seed: the nodes stay a function of it.
        extra = nodes.size % self._multiple
        if extra in (0, nodes.size):
            return nodes
        return np.delete(nodes, np.random.default_rng(seed).choice(nodes.size, extra, replace=False))


class SubgraphSampler:
    """Draws a subgraph, on which all `depth` graph layers of the model run; takes no targets.

    `stats` are recorded with each draw, e.g. `alpha`, the factor of local nodes, of which `alphas` are summed.
    """

    def __init__(
        self, subgraphs: Subgraphs | SubgraphsOnDevice, depth: int, stats: dict[str, float] | None = None
    ) -> None:
        self._subgraphs, self._depth, self._stats = subgraphs, depth, stats or {}

    def sample(self, targets: Ints, seed: int) -> Sample:
        """See `Sampler`."""
        drawn = self._subgraphs.sample(seed)
        return Sample([drawn.layer] * self._depth, None, drawn.weights, self._stats)


@dataclass(frozen=True, eq=False)
class IndependentNodes(Normaliser):
    """Draws each node independently, with a chance of its own, and weighs by these chances.

    An edge j -> i of a subgraph counts w_ij / p_j: for a destination i that is in it, the sum has the full
    aggregation as its expectation. A node's loss counts 1/p_i: the sum of losses, were the logits exact, has the
    sum over all nodes as its expectation.
    """

    probabilities: Floats  # [N], p, in [0, 1]

    def sample(self, seed: int) -> Ints:
        """See `NodeSampler`."""
        nodes: Ints = _draw_nodes(self.probabilities, seed)
        return nodes

    def weigh(self, nodes: Ints, found: Induced) -> SubgraphBatch:
        """See `Normaliser`."""
        inverse = 1 / self.probabilities[nodes]
        layer = as_layer(nodes, as_graph(self.topology, found))
        return SubgraphBatch(replace(layer, src_scale=inverse), inverse)

    def draws_on_device(self, graph: GraphOnDevice) -> Callable[[int], Tensor]:
        """See `DeviceNodes`: the same nodes as on the host."""
        device = graph.indptr.device
        chances = torch.from_numpy(self.probabilities).to(device)
        first = torch.zeros(1, dtype=torch.int64, device=device)

        def draw(seed: int) -> Tensor:
            bits = stream_bits(seed, first, chances.numel()).squeeze(1)
            return (uniform_on_device(bits) < chances).nonzero().squeeze(1)

        return draw

    def on_device(self, graph: GraphOnDevice) -> WeighOnDevice:
        """See `Normaliser`."""
        inverse = 1 / torch.from_numpy(self.probabilities).to(graph.indptr.device)

        def weigh(nodes: Tensor, found: InducedOnDevice) -> SubgraphBatchOnDevice:
            layer = as_layer_on_device(graph, nodes, found)
            return SubgraphBatchOnDevice(replace(layer, src_scale=inverse[nodes]), inverse[nodes])

        return weigh


class ImportanceSubgraphs(Subgraphs):
    """Draws nodes independently, and induces (GraphSAINT, Zeng et al., ICLR 2020, section 3.4).

    Node j is drawn with p_j = min(1, c q_j), q_j = sum_i A_ij^2 over all nodes i of the graph, self loops
    left out; c is such that `size` nodes are expected. In the paper `size` are drawn with replacement, and
    chances are estimated from draws; here they are exact (see `IndependentNodes`). Nodes that no edge starts from
    have the smallest positive q, so that every node is seen.

    Args:
        topology, tables: the graph, all of whose nodes are candidates, and tables of them.
        propagation: the model's weighting of edges.
        size: nodes expected in a subgraph; -1, or as many as there are candidates: all of them.
        local: bool [N], nodes whose features are here; without it `skew` and `local_only` are a ValueError.
        skew: multiplies the q of local nodes by alpha.
        local_only: remote nodes are no candidates, and edges from them are missing (biased).

    Attributes:
        probabilities: float64 [N], p.
        alpha: what q of local nodes was multiplied with; 1 without `skew`.
    """

    def __init__(
        self,
        topology: Topology,
        propagation: Propagation,
        tables: Tables,
        size: int,
        *,
        local: NDArray[np.bool_] | None = None,
        skew: AlphaRule | None = None,
        local_only: bool = False,
    ) -> None:
        self.alpha, weights = 1.0, Scaled.of(topology, propagation).global_weights()
        positive = weights[weights > 0]
        weights[weights == 0] = positive.min() if positive.size else 1.0
        if skew is not None or local_only:
            if local is None:
                raise ValueError("to skew or to leave out remote nodes needs to know which are local")
            if local_only:
                weights[~local] = 0
            if skew is not None:
                own, remote = weights[local], weights[~local]
                candidates = own.size, int(np.count_nonzero(remote))
                self.alpha = skew.alpha_of(*candidates, float(own.sum()), float(remote.sum()), size)
                weights[local] *= self.alpha
        self.probabilities = inclusion(weights, size if size >= 0 else weights.size)
        nodes = IndependentNodes(topology, self.probabilities)
        super().__init__(topology, nodes, nodes, tables)


@numba.njit(cache=True, nogil=True)
def _draw_nodes(probabilities, seed):  # type: ignore[no-untyped-def]
    """Return the nodes drawn, int64, ascending: a uniform number for each is below its probability."""
    nodes = np.empty(probabilities.size + 1, np.int64)
    state = stream(seed, 0)
    at = 0
    for j in range(probabilities.size):
        state, value = next_u64(state)
        nodes[at] = j  # kept by moving on: a branch would be guessed wrong for every node drawn
        at += uniform(value) < probabilities[j]
    return nodes[:at].copy()
