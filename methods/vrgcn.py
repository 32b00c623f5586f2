"""VR-GCN: few neighbours, and historical activations as control variate."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from pydantic import Field, model_validator

from harness import (
    Bytes,
    BytesCase,
    Metric,
    MiniBatchMethod,
    NodeBatchOptions,
    Sample,
    Sampler,
    Source,
    Step,
    Worker,
    numba,
    torch,
)
from harness import numpy as np
from harness.plugin import (
    BlockSize,
    DrawCounts,
    FeatureStore,
    GraphOnDevice,
    LayerOnDevice,
    LayerSample,
    Loaded,
    MemoryCase,
    MiniBatchOptions,
    RowStore,
    Tables,
    Topology,
    View,
    batch_seed,
    draw_neighbours,
    draw_on_device,
    draw_uniform_on_device,
    number_nodes,
    per_layer,
    pointers,
    row_of_entries,
    upload,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class HistorySample(LayerSample):
    """A layer's edges from fresh rows and from historical ones.

    The first `fresh` of the `sources` are fresh rows, of distinct nodes; the others are historical rows, of distinct
    nodes too, which may be the same.
    """

    fresh: int = 0

    @property
    def historical(self) -> NDArray[np.int64]:
        """The nodes whose historical rows are read."""
        return self.sources[self.fresh :]


def with_history(topology: Topology, drawn: LayerSample, tables: Tables, *, linear: bool = True) -> HistorySample:
    """Return the edges of a layer that reads historical rows where `drawn` has no fresh ones.

    `linear`: the estimate of an aggregation with its history as control variate,
    z_i = sum over drawn j of (deg_i / k_i) A_ij (h_j - hbar_j) + sum over all neighbours j of A_ij hbar_j,
    for fresh rows h and historical ones hbar: unbiased whatever hbar is, and exact where it is h. An edge
    from a fresh row counts deg/k, from a historical one 1 - deg/k if it was drawn and 1 if not, times its own
    weight; a row whose neighbours were all drawn reads nothing historical.

    Otherwise all edges, each from a fresh row if there is any, else from a historical one: for attention,
    which is not linear in the rows.

    Takes time linear in the destinations' degrees. `drawn` are k_i of the deg_i neighbours of each destination i, drawn
    uniformly (`draw_neighbours`); of the tables of the graph's nodes two are borrowed.
    """
    graph = topology.indptr, topology.indices, topology.weights
    sample = drawn.indptr, drawn.indices, drawn.sources
    with tables.borrow() as fresh, tables.borrow() as historical:
        indptr, columns, values, nodes = _with_history(*graph, *sample, linear, fresh, historical)
    needed = values if linear or topology.weights is not None else None
    sources = np.concatenate([drawn.sources, nodes])
    return HistorySample(sources, indptr, columns, needed, fresh=drawn.sources.size)


@numba.njit(cache=True, nogil=True)
def _with_history(  # type: ignore[no-untyped-def]
    indptr, indices, weights, drawn_ptr, drawn, sources, linear, fresh, historical
):
    """Return pointers, columns, values, nodes; `fresh` gives the columns drawn for a destination, or else all."""
    destinations = sources[: drawn_ptr.size - 1]
    most = drawn.size + (indptr[destinations + 1] - indptr[destinations]).sum()
    pointers, columns, values = np.zeros(drawn_ptr.size, np.int64), np.empty(most, np.int32), np.empty(most)
    nodes = np.empty(min(most, fresh.size), np.int64)
    met, filled, factor = 0, 0, 1.0
    if not linear:
        _show(fresh, sources, np.arange(sources.size), True)
    for i in range(destinations.size):
        start, end = indptr[sources[i]], indptr[sources[i] + 1]
        row = drawn[drawn_ptr[i] : drawn_ptr[i + 1]]
        if linear:
            factor = (end - start) / max(row.size, 1)
            _show(fresh, sources, row, True)
        for e in range(start, end):
            node, weight, rest = indices[e], 1.0 if weights is None else weights[e], 1.0
            if fresh[node] >= 0:
                columns[filled], values[filled] = fresh[node], factor * weight
                filled, rest = filled + 1, 1 - factor
            if rest != 0:
                if historical[node] < 0:
                    historical[node], nodes[met] = sources.size + met, node
                    met += 1
                columns[filled], values[filled] = historical[node], rest * weight
                filled += 1
        pointers[i + 1] = filled
        if linear:
            _show(fresh, sources, row, False)
    if not linear:
        fresh[sources] = -1
    historical[nodes[:met]] = -1
    return pointers, columns[:filled].copy(), values[:filled].copy(), nodes[:met].copy()


@numba.njit(inline="always")
def _show(table, nodes, columns, shown):  # type: ignore[no-untyped-def]
    for c in columns:
        table[nodes[c]] = c if shown else -1


@dataclass(frozen=True, eq=False)
class HistoryOnDevice(LayerOnDevice):
    """A `HistorySample` on a device."""

    fresh: int = 0

    @property
    def historical(self) -> Tensor:
        """The nodes whose historical rows are read, int64."""
        return self.sources[self.fresh :]


def draw_with_history(
    graph: GraphOnDevice, targets: Tensor, fanout: int, seed: int, *, linear: bool = True
) -> tuple[HistoryOnDevice, int]:
    """Draw neighbours on a device; return what `with_history` makes of them, and how many edges were drawn.

    `targets` are int64 [n], distinct. The host waits for the numbers of edges, drawn ones, sources and historical rows.
    """
    by_node, nothing = len(graph.indptr) - 1, targets[:0]
    starts, drawn = draw_uniform_on_device(graph, targets, fanout, seed)
    sources, columns = number_nodes(targets, graph.indices[drawn], by_node)
    ends, entries, row = graph.rows(targets)
    nodes, factor = graph.indices[entries], torch.ones_like(row, dtype=torch.float64)
    if linear:
        of = row_of_entries(starts, drawn.numel())
        at = ends[of] + drawn - graph.indptr[targets[of]]  # where in its row, of which all entries are here
        fresh = torch.full_like(nodes, -1).index_copy(0, at, columns)
        factor = (ends.diff() / starts.diff().clamp(min=1).double())[row]
    else:
        numbers = torch.full((by_node,), -1, dtype=torch.int32, device=nodes.device)
        numbers[sources] = torch.arange(sources.numel(), dtype=torch.int32, device=nodes.device)
        fresh = numbers[nodes]
        at = (fresh >= 0).nonzero().squeeze(1)
    is_fresh = fresh >= 0
    rest = torch.where(is_fresh, 1 - factor, 1)
    reads = rest != 0
    old = reads.nonzero().squeeze(1)
    historical, numbers = number_nodes(nothing, nodes[old], by_node)
    # An entry becomes an edge from a fresh row, one from a historical row, or both, in this order.
    places, count = pointers(is_fresh.int() + reads.int()), at.numel() + old.numel()
    to = torch.cat([places[at], places[old] + is_fresh[old]])
    found = torch.cat([fresh[at], sources.numel() + numbers])
    counts = torch.cat([factor[at], rest[old]])
    if graph.weights is not None:
        counts = counts * graph.weights[entries[torch.cat([at, old])]]
    values = counts.new_empty(count).index_copy(0, to, counts) if linear or graph.weights is not None else None
    every = torch.cat([sources, historical])
    layer = HistoryOnDevice(
        every, places[ends], found.new_empty(count).index_copy(0, to, found), graph.degree(every), values,
        fresh=sources.numel(),
    )  # fmt: skip
    return layer, drawn.numel()


class VRGCNOptions(NodeBatchOptions):
    """Options of sampling with historical activations."""

    fanouts: DrawCounts = Field(
        2,
        description="neighbours drawn for a node, one number for each graph layer (in mixhop each hop) but "
        "the first, which draws none, or one for all; -1: all neighbours, and no history",
    )

    @model_validator(mode="after")
    def _a_batch_reads_what_the_last_one_wrote(self) -> Self:
        if self.prefetch:
            raise ValueError("prefetch: a batch reads what the one before it wrote; leave it at 0")
        if self.storage != "sharded":
            raise ValueError("storage: aggregated features are with their owners; leave it at 'sharded'")
        return self


@dataclass(frozen=True, eq=False)
class HistorySampler:
    """Draws neighbours for every layer but the first; what is not drawn is read from histories."""

    source: Source
    fanouts: Sequence[int]  # neighbours of a node, for each layer but the first; -1: all
    attends: bool  # the model's aggregation is not linear

    def sample(self, targets: NDArray[np.int64], seed: int) -> Sample:
        """See `Sampler`; the first layer has no edges if its aggregation is known."""
        topology, tables = self.source.topology, self.source.tables
        layers: list[LayerSample] = []
        nodes, edges, metrics = targets, 0, {"history_nodes": 0, "written_nodes": 0}
        for depth, fanout in enumerate(reversed(self.fanouts)):
            drawn = draw_neighbours(topology, nodes, fanout, batch_seed(seed, 0, 0, depth), tables)
            nodes, edges = drawn.sources, edges + drawn.indices.size
            if fanout < 0:
                layers.append(drawn)
                continue
            layers.append(layer := with_history(topology, drawn, tables, linear=not self.attends))
            metrics["history_nodes"] += self._remote(layer.historical)
            metrics["written_nodes"] += self._remote(nodes)
        known = LayerSample(nodes, np.zeros(nodes.size + 1, np.int64), np.empty(0, np.int32))
        layers.append(draw_neighbours(topology, nodes, -1, 0, tables) if self.attends else known)
        return Sample(layers[::-1], targets.size, stats={"drawn_edges": edges + layers[-1].indices.size, **metrics})

    def _remote(self, nodes: NDArray[np.int64]) -> int:
        return int(np.count_nonzero(~self.source.local[nodes]))


class HistorySamplerOnDevice:
    """Draws on the source's device, which then keeps the graph, what a `HistorySampler` draws."""

    def __init__(self, source: Source, fanouts: Sequence[int], attends: bool) -> None:
        self._graph, self._fanouts, self._attends = GraphOnDevice.of(source.topology, source.device), fanouts, attends
        self._remote = torch.from_numpy(~source.local).to(source.device)

    def sample(self, targets: NDArray[np.int64], seed: int) -> Sample:
        """See `Sampler`; the host waits for sizes, and for how many rows of others are read and written."""
        graph, layers = self._graph, list[LayerOnDevice]()
        nodes = upload(targets, graph.indptr.device)
        edges, history, written = 0, 0, 0
        for depth, fanout in enumerate(reversed(self._fanouts)):
            at = batch_seed(seed, 0, 0, depth)
            if fanout < 0:
                layers.append(draw_on_device(graph, nodes, fanout, at))
                edges += layers[-1].edges
            else:
                layer, drawn = draw_with_history(graph, nodes, fanout, at, linear=not self._attends)
                layers.append(layer)
                remote = self._remote[layer.sources]
                read, wrote = torch.stack([remote[layer.fresh :].sum(), remote[: layer.fresh].sum()]).tolist()
                edges, history, written = edges + drawn, history + read, written + wrote
            last = layers[-1]
            nodes = last.sources[: last.fresh] if isinstance(last, HistoryOnDevice) else last.sources
        if self._attends:
            layers.append(draw_on_device(graph, nodes, -1, 0))
        else:  # the aggregation is known: no edge has to be read
            starts = nodes.new_zeros(nodes.numel() + 1)
            layers.append(LayerOnDevice(nodes, starts, graph.indices[:0], graph.degree(nodes), None))
        edges += layers[-1].edges
        counts = {"drawn_edges": edges, "history_nodes": history, "written_nodes": written}
        return Sample(layers[::-1], targets.size, stats={name: float(count) for name, count in counts.items()})


class Recalled:
    """The exchange of a step: layers with a history read its rows behind the fresh ones, which it keeps.

    `rows` are [historical nodes, width] by layer.
    """

    def __init__(self, rows: dict[int, Tensor]) -> None:
        self._rows = rows
        self.fresh: dict[int, Tensor] = {}

    def __call__(self, h: Tensor, layer: int) -> Tensor:
        """See `Exchange`."""
        if layer not in self._rows:
            return h
        self.fresh[layer] = h.detach()
        return torch.cat([h, self._rows[layer]])


OptionsT = TypeVar("OptionsT", bound=MiniBatchOptions)


class HistoryMethod(MiniBatchMethod[OptionsT]):
    """Mini-batches some of whose layers read historical rows, behind those that the step computes itself.

    A history has a row for each node, with the node's owner, 0 at first; no gradient goes to it. All ranks read theirs
    before any of them writes the step's own rows, which happens behind the step.
    """

    def __init__(self, worker: Worker, options: OptionsT) -> None:
        super().__init__(worker, options)
        view, widths = worker.view, worker.model.widths
        self.histories: dict[int, RowStore] = {}
        for layer in self.remembered(options, worker.model.depth):
            shape = worker.partition.num_inner, widths[layer][0]
            self.histories[layer] = RowStore(
                worker.comm, torch.zeros(shape, device=worker.device, dtype=worker.dtype), view.owner, view.local_row,
                purpose="embedding", layer=layer, direction="forward", tables=self.source.tables,
            )  # fmt: skip
            if self.draws_on_device and isinstance(self.store, RowStore):
                self.histories[layer].placed = *self.store.placed[:2], None

    @classmethod
    @abstractmethod
    def remembered(cls, options: OptionsT, depth: int) -> Sequence[int]:
        """Return the layers that have a history."""

    def fresh(self, layer: Any) -> int:
        """Return how many sources of a drawn layer, the first ones, are fresh rows: by default its destinations."""
        return int(layer.num_dst)

    def state(self) -> dict[str, Any]:
        """See `Method`."""
        return {"histories": {layer: store.inner for layer, store in self.histories.items()}}

    def restore(self, state: dict[str, Any], done: int) -> None:
        """See `Method`."""
        for layer, rows in state["histories"].items():
            self.histories[layer].inner.copy_(rows)

    def steps(self, epoch: int) -> Iterator[Step]:
        """Yield one step for each batch; behind it the histories are written."""
        for step in map(self._recalling, self.loader.load(self.batches(epoch))):
            yield from step  # which holds the batch no longer than it is trained on

    def _recalling(self, loaded: Loaded) -> Iterator[Step]:
        layers = loaded.drawn.sample.layers
        split = {i: self.fresh(layers[i]) for i in self.histories}
        rows = {i: store.gather(layers[i].sources[split[i] :]) for i, store in self.histories.items()}
        yield replace(self.step(loaded), exchange=(recalled := Recalled(rows)))
        for i, store in self.histories.items():
            store.put(layers[i].sources[: split[i]], recalled.fresh[i])

    @staticmethod
    def histories_bytes(case: MemoryCase, sources: Mapping[int, int]) -> int:
        """Return the memory of the histories of some layers, and of what batches read, given their sources."""
        # Fresh and historical rows are there twice: as they came, and one behind the other.
        return case.itemsize * sum((case.train.inner + n) * case.model.widths[i][0] for i, n in sources.items())


class VRGCN(HistoryMethod[VRGCNOptions]):
    """Neighbour sampling with historical activations as control variate (Chen, Zhu and Song, ICML 2018).

    Let hbar_j be the row of node j that layer l last read fresh in training, 0 before. Every layer but the
    first aggregates z_i = sum over drawn j of (deg/k) A_ij (h_j - hbar_j) + sum over all neighbours j of
    A_ij hbar_j (the estimator CV): unbiased in what is drawn, and exact once the history is up to date; no
    gradient goes to hbar. With dropout, hbar has the mask of its time (CVD, section 5.1, is not here). The
    first layer's aggregation is of input features: exact, computed once before the first epoch (the paper's
    preprocessing). A node's self loop and own row are always fresh. Histories are with the nodes' owners and
    are written behind each step; where several ranks computed a node, the highest rank's row stays.

    gat has no linear aggregation to correct: its first layer reads the features of all neighbours, the others
    attend over all neighbours, to fresh rows where the batch has any and else to historical ones. Biased.

    In mixhop each hop is such a layer, and what its history keeps are rows of A^k H. A GPU draws by itself, from a copy
    of the graph, the same as a CPU.

    Exact with all neighbours, which needs no history, and all training nodes in one batch.

    Bytes a step, for the nodes whose first layer is computed: 4 (control) for each remote one and F values
    (feature) for the aggregation, F more for its own features unless gcn needs none (no `residual`). With gat
    instead 4 and F values for each remote one of those nodes and their neighbours. Cached ones are not sent.
    For each history, of width d: 4 (control) and d values (embedding) for each remote node whose row is read,
    and as much for each whose row is written. And 8 a peer (control) for the features, for a history's
    reading and for its writing. `feature_rate` and `feature_loss` are of whatever the first layer reads,
    aggregated features too. Set-up: the boundary's features, but for gat. `stat_history_nodes` and
    `stat_written_nodes` are the remote nodes read and written. Inference is exact: no sampled scores.
    """

    name = "vrgcn"
    colour = "#490092"
    on_device = True
    samples_targets = False  # the paper's inference is exact
    Options = VRGCNOptions
    space: ClassVar[dict[str, Any]] = {"batch_size": [256, 512, 1024], "fanouts": [1, 2, 4]}
    exact: ClassVar[dict[str, Any]] = {"fanouts": -1, "batch_size": 0}
    metrics = (
        Metric.of_method("history_nodes", "nodes of other ranks whose historical rows are read"),
        Metric.of_method("written_nodes", "nodes of other ranks whose historical rows are written"),
    )

    @classmethod
    def remembered(cls, options: VRGCNOptions, depth: int) -> Sequence[int]:
        """See `HistoryMethod`."""
        return [i for i, fanout in enumerate(_fanouts(options, depth), start=1) if fanout >= 0]

    def fresh(self, layer: Any) -> int:
        """See `HistoryMethod`."""
        return int(layer.fresh)

    def make_sampler(self, source: Source) -> Sampler:
        """See `MiniBatchMethod`."""
        fanouts, attends = _fanouts(self.options, source.depth), self.worker.model.attends
        on_host = source.device.type == "cpu"
        return (HistorySampler if on_host else HistorySamplerOnDevice)(source, fanouts, attends)

    def step(self, loaded: Loaded) -> Step:
        """See `MiniBatchMethod`; own features and aggregated ones came together."""
        step, model = super().step(loaded), self.worker.model
        if model.attends:
            return step
        own = loaded.inputs.shape[1] - model.widths[0][0]
        return replace(step, inputs=loaded.inputs[:, :own], aggregated=loaded.inputs[:, own:])

    def make_store(self, view: View) -> FeatureStore:
        """Return the store of the rows that the first layer reads: own features and aggregated ones."""
        worker, features = self.worker, self.worker.features
        if worker.model.attends:
            return features
        aggregated = worker.aggregate_features()
        rows = torch.cat([features.inner, aggregated], 1) if worker.model.reads_own else aggregated
        return FeatureStore(worker.comm, rows, view.owner, view.local_row, tables=self.source.tables)

    @classmethod
    def bytes_per_epoch(cls, options: VRGCNOptions, case: BytesCase) -> Bytes | None:
        """Return the bytes of the class's docstring; None if histories differ in width."""
        model = case.model
        remembered = cls.remembered(options, model.depth)
        widths = {model.widths[i][0] for i in remembered}
        if len(widths) > 1:
            return None
        wide = 1 if model.attends else 1 + model.reads_own
        sent = case.mini_batch(options, width=wide * model.widths[0][0])
        assert sent is not None
        moved = case.count("history_nodes") + case.count("written_nodes")
        calls = 2 * len(remembered) * case.steps
        return sent | {
            "embedding": moved * sum(widths) * case.itemsize,
            "control": sent["control"] + 4 * moved + 8 * case.pairs * calls,
        }

    @classmethod
    def memory(cls, options: VRGCNOptions, case: MemoryCase) -> dict[str, int]:
        """Return the components of the largest batch (see `MemoryCase.largest_blocks`), and the histories.

        At most those of all neighbours are read in each layer. A GPU has the graph, too.
        """
        model, fanouts = case.model, _fanouts(options, case.model.depth)
        rows = case.batch_rows(options.batch_size)
        blocks = case.largest_blocks(rows, fanouts, each=True)
        rows = blocks[0].src if blocks else rows
        first = case.largest_blocks(rows, [-1], each=True) if model.attends else [BlockSize(rows, rows, 0)]
        remembered = cls.remembered(options, model.depth)
        for i in remembered:
            block, read = blocks[i - 1], case.edges_of(blocks[i - 1].dst)
            blocks[i - 1] = BlockSize(block.dst, block.src + min(case.nodes, read), block.edges + read)
        components = case.mini_batch(first + blocks, options)
        width = model.widths[0][0]
        if not model.attends:
            own = model.reads_own
            components["aggregated features"] = case.itemsize * width * (case.train.inner * (1 + own) + rows * own)
        components |= case.drawn_on_device(case.edges, options, entry=80)
        sources = {i: blocks[i - 1].src for i in remembered}
        return components | {"histories": cls.histories_bytes(case, sources)}


def _fanouts(options: VRGCNOptions, depth: int) -> list[int]:
    """Return the fan-outs of all layers but the first."""
    return per_layer(options.fanouts, depth - 1, "fanouts")
