"""MiniBatchMethod: training on sampled blocks whose input features are fetched from their owners."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from harness.deferred import numba, torch
from harness.deferred import numpy as np
from harness.graph.block import Block
from harness.graph.csr import Floats, Ints, Topology, on_host
from harness.graph.devices import upload
from harness.graph.kernels import batch_seed
from harness.graph.partition import HIDDEN, View
from harness.metrics import Metric
from harness.models.functional import drop_values
from harness.runtime.batches import PRESAMPLED, SCORED, Batch, Loader, node_batches
from harness.runtime.comm import Communicator
from harness.runtime.cost_models import Bytes, BytesCase, Components, MemoryCase
from harness.runtime.evaluation import inference, score_counts, scores_of_all
from harness.runtime.features import FeatureStore, HostStore, RankRows, RowStore, choose
from harness.runtime.method import Method, case_of
from harness.runtime.row_plan import RowPlan
from harness.runtime.run_config import BatchCache, MethodOptions, MiniBatchOptions, NodeBatchOptions
from harness.runtime.step import Loss, Step, SyncExchange
from harness.sampling.neighbours import draw_uniform, take_entries
from harness.sampling.sample import Sample, Sampler, Source, Tables

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from harness.models.gnn import Exchange
    from harness.runtime.worker import Worker


@dataclass
class Asked:
    """What was asked of other ranks: nodes, the neighbours that came for them, and the seconds that it took."""

    nodes: int = 0
    neighbours: int = 0
    seconds: float = 0.0

    @property
    def metrics(self) -> dict[str, float]:
        """As metrics of `MiniBatchMethod`."""
        return {"asked_nodes": self.nodes, "asked_neighbours": self.neighbours, "asked_s": self.seconds}


@dataclass
class Line:
    """The communicator that a topology asks over, and what it has asked."""

    comm: Communicator
    asked: Asked = field(default_factory=Asked)


@dataclass(frozen=True, eq=False)
class OwnedTopology(Topology):
    """A view's graph of which a rank reads the rows of its own nodes only, and asks the owners for others.

    Every rank knows the degrees (`indptr`; with edge weights also their `sums`) and each node's owner. Where neighbours
    are drawn uniformly the owners draw them: that depends on the seed, the node and its neighbours alone, so that
    they draw what the asker would. One thread at a time may ask, and all ranks ask in the same order.

    Traffic of `rows`, unless nodes are `own`: 24 bytes a peer, 4 for each remote node, and 4 for each neighbour that
    comes for it (8 with edge weights), all control.
    """

    view: View = field(kw_only=True)
    tables: Tables = field(kw_only=True)
    sums: Floats | None = field(kw_only=True)  # [N], of each node's weights; None without weights
    line: Line = field(kw_only=True)

    @classmethod
    def of(cls, view: View, comm: Communicator, tables: Tables) -> OwnedTopology:
        """Return the topology of a view; every rank must call.

        Traffic with edge weights: 8 bytes for each inner node to each peer (control).
        """
        whole, inner = view.topology, np.asarray(view.partition.inner).astype(np.int64)
        sums = None
        if whole.weights is not None:
            sizes = np.bincount(view.owner, minlength=comm.world).tolist()
            degrees = np.tile(whole.degree(inner), comm.world)
            sums = np.empty(whole.num_nodes)
            sums[np.lexsort((view.local_row, view.owner))] = _move(comm, degrees, [inner.size] * comm.world, sizes)
        graph = whole.indptr, whole.indices, whole.weights
        return cls(*graph, view=view, tables=tables, sums=sums, line=Line(comm))

    @contextmanager
    def over(self, comm: Communicator) -> Iterator[Asked]:
        """Ask over `comm` in this context, which counts for itself."""
        line = self.line
        before = line.comm, line.asked
        line.comm, line.asked = comm, Asked()
        try:
            yield line.asked
        finally:
            line.comm, line.asked = before

    def degree(self, nodes: Ints) -> Floats:
        """See `Topology.degree`."""
        return super().degree(nodes) if self.sums is None else self.sums[nodes]

    def rows(self, nodes: Ints, *, own: bool = False, fanout: int = -1, seed: int = 0) -> tuple[Topology, Ints]:
        """See `Topology.rows`; of rows that are not `own` all neighbours, or those that are drawn.

        ValueError if nodes that are said to be `own` are not.
        """
        comm, asked, owner = self.line.comm, self.line.asked, self.view.owner
        is_own = owner[nodes] == comm.rank
        if own:
            if not is_own.all():
                raise ValueError("nodes of other ranks are said to be this rank's own")
            return self, nodes
        plan = self._plan(nodes)
        degrees = self.indptr[nodes + 1] - self.indptr[nodes]
        lengths = degrees if fanout < 0 else np.minimum(degrees, fanout)
        start = time.perf_counter()
        answer = self._ask(plan, lengths[plan.asked_at], fanout, seed)
        asked.seconds += time.perf_counter() - start
        asked.nodes += plan.asked.size
        asked.neighbours += answer.indices.size
        at = np.flatnonzero(is_own)
        found = self._draw(nodes[at], fanout, seed)
        return _merge(lengths, np.concatenate([at, plan.asked_at]), [found, answer]), np.arange(nodes.size)

    def announce(self, nodes: Ints) -> tuple[RowPlan, list[int], Ints]:
        """Name distinct `nodes` (int64) to their owners, which then draw for them; every rank must call.

        Returns whose they are, how many nodes each rank names to this one, and which, int64, grouped by rank. Traffic:
        8 bytes a peer and 4 for each remote node (control).
        """
        comm, asked, plan = self.line.comm, self.line.asked, self._plan(nodes)
        start = time.perf_counter()
        counts = comm.exchange_counts(plan.counts)
        named = self._own_nodes(_move(comm, plan.asked, plan.counts, counts))
        asked.seconds += time.perf_counter() - start
        asked.nodes += plan.asked.size
        return plan, counts, named

    def _own_nodes(self, rows: NDArray[np.int32]) -> Ints:
        return np.asarray(self.view.partition.inner)[rows].astype(np.int64)

    def _plan(self, nodes: Ints) -> RowPlan:
        comm, uncached = self.line.comm, np.empty(0, np.int32)
        with self.tables.borrow() as table:
            return RowPlan.of(
                nodes, self.view.owner, self.view.local_row, uncached, table, rank=comm.rank, world=comm.world
            )

    def _ask(self, plan: RowPlan, lengths: Ints, fanout: int, seed: int) -> Topology:
        """Return the rows that the owners of the asked nodes send, `lengths` long, and send what peers ask for."""
        comm, ones = self.line.comm, [1] * self.line.comm.world
        questions = np.array([(count, fanout, seed) for count in plan.counts], np.int64)
        theirs = _move(comm, questions, ones, ones)
        counts = theirs[:, 0].tolist()
        wanted = self._own_nodes(_move(comm, plan.asked, plan.counts, counts))
        answers = [
            self._draw(nodes, int(fanout), int(seed))
            for nodes, (_, fanout, seed) in zip(np.split(wanted, np.cumsum(counts)[:-1]), theirs, strict=True)
        ]
        sent = [answer.indices.size for answer in answers]
        pointers = np.concatenate([[0], lengths.cumsum()])
        coming = np.diff(pointers[np.concatenate([[0], np.cumsum(plan.counts)])]).tolist()
        indices = _move(comm, np.concatenate([answer.indices for answer in answers]), sent, coming)
        if self.weights is None:
            return Topology(pointers, indices)
        weights = [answer.weights for answer in answers if answer.weights is not None]
        return Topology(pointers, indices, _move(comm, np.concatenate(weights), sent, coming))

    def _draw(self, nodes: Ints, fanout: int, seed: int) -> Topology:
        """Return a row for each of some own nodes, with what is drawn of theirs."""
        pointers, entries = draw_uniform(self.indptr, nodes, nodes, fanout, seed)
        indices = take_entries(self.indices, entries, np.empty(entries.size, np.int32))
        if self.weights is None:
            return Topology(pointers, indices)
        return Topology(pointers, indices, take_entries(self.weights, entries, np.empty(entries.size, np.float32)))


def _move(comm: Communicator, array: NDArray[Any], send: list[int], receive: list[int]) -> NDArray[Any]:
    """Exchange rows that are in the host's memory; see `Communicator.exchange_rows`."""
    device = torch.device("cpu") if comm.by_sockets else comm.device
    moved = comm.exchange_rows(upload(array, device), send, receive, purpose="control")
    found: NDArray[Any] = moved.cpu().numpy()
    return found


def gather_arrays(comm: Communicator, own: Sequence[NDArray[Any]]) -> list[list[NDArray[Any]]]:
    """Return each rank's arrays, in the host's memory; every rank must call, with equally many.

    Their lengths may differ between ranks, their dtypes, of whole 4 bytes, may not. Traffic (control): to each peer
    the arrays, and 8 bytes for each.
    """
    world, lengths = comm.world, [array.size for array in own]
    sizes = _move(comm, np.tile(lengths, world), [len(own)] * world, [len(own)] * world).reshape(world, -1)
    words, counts = np.concatenate([array.view(np.int32) for array in own]), sizes * [a.itemsize // 4 for a in own]
    found = _move(comm, np.tile(words, world), [words.size] * world, counts.sum(1).tolist())
    parts = iter(np.split(found, counts.cumsum()[:-1]))
    return [[next(parts).copy().view(array.dtype) for array in own] for _ in range(world)]


def _merge(lengths: Ints, at: Ints, parts: Sequence[Topology]) -> Topology:
    """Return rows of `lengths`; those of the `parts`, one part after the other, are the rows `at`."""
    pointers = np.concatenate([[0], lengths.cumsum()])
    indices = _spread(pointers, at, np.concatenate([part.indices for part in parts]))
    weights = [part.weights for part in parts if part.weights is not None]
    return Topology(pointers, indices, _spread(pointers, at, np.concatenate(weights)) if weights else None)


@numba.njit(cache=True, nogil=True)
def _spread(pointers, at, values):  # type: ignore[no-untyped-def]
    """Return the values, which are those of the rows `at`, in the order of the rows."""
    out, read = np.empty_like(values), 0
    for row in at:
        for place in range(pointers[row], pointers[row + 1]):
            out[place] = values[read]
            read += 1
    return out


MiniBatchOptionsT = TypeVar("MiniBatchOptionsT", bound=MiniBatchOptions)


@dataclass(frozen=True, eq=False)
class Drawn:
    """A batch with its blocks."""

    batch: Batch
    sample: Sample
    blocks: list[Block]


@dataclass(frozen=True, eq=False)
class Loaded:
    """A batch with all that a step needs: `inputs` [num_src of the first block, F]."""

    drawn: Drawn
    inputs: Tensor
    loss: Loss
    stats: dict[str, float]


class MiniBatchMethod(Method[MiniBatchOptionsT]):
    """A method that says what is drawn for a batch (`make_sampler`); the rest is here.

    An epoch is one pass over all ranks' training nodes in equally many steps (see `node_batches`; a method
    may define other `batches`). A step draws, fetches the input features, trains. What is drawn depends on
    (seed, rank, epoch, batch) alone, neither on `prefetch` nor on `pool` nor on threads.

    Bytes of a fetch: 4 for each remote node and 8 a peer (control), a row of features for each remote node
    (feature); cached rows and their ids are not sent. With a `feature_rate` below 1 of F dimensions max(1, round(F
    feature_rate)) travel: a fresh random subset each step, the same for all ranks, so that no rank need name its
    own. `feature_loss` moves no byte less: it zeroes values of what was read, without rescaling (DGS section II-D,
    Figure 2). Neither concerns evaluations. Where the loss reads rows of other ranks: the same for their labels, a
    value or a row of classes each, as control. With `storage: host` features cost a row for every input node that
    is not cached (swap) instead; with `storage: disk` a row of the file for each of the `disk_nodes` (disk), too,
    and nothing of a rank's own part is in its memory but what is cached. With `topology: owner` a draw asks in
    every layer but the last: 24 bytes a peer, 4 for each remote destination and 4 for each neighbour that comes, 8
    with edge weights (control); see `OwnedTopology`.
    """

    family = "mini-batch"
    on_device: ClassVar[bool] = False  # whether its sampler draws on a GPU, from a copy of the graph
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric.of_method("input_nodes", "nodes whose features are read", heading="Input nodes"),
        Metric.of_method("remote_nodes", "those of them that are other ranks'", heading="Remote input nodes"),
        Metric.of_method(
            "cached_nodes", "those of the latter (with `storage: host` of the former) that were found in the cache"
        ),
        Metric.of_method("disk_nodes", "with `storage: disk`, rows read from the disk, for this rank and its peers"),
        Metric.of_method("drawn_edges", "edges drawn", heading="Drawn edges"),
        Metric.of_method(
            "nodes_layer*", "of each layer, distinct nodes: 0 those that the first layer reads, 1 those that "
            "it writes and the next one reads, and so on",
        ),
        Metric.of_method("asked_nodes", "with `topology: owner`, nodes whose neighbours other ranks were asked for"),
        Metric.of_method("asked_neighbours", "neighbours that came for them"),
        Metric.of_method(
            "asked_s", "time from such questions to their answers, with what was answered to others meanwhile; part "
            "of `sample` and `comm`, or in the background", "s",
        ),
    )  # fmt: skip
    Options: ClassVar[type[MethodOptions]] = MiniBatchOptions

    def __init__(self, worker: Worker, options: MiniBatchOptionsT) -> None:
        super().__init__(worker, options)
        self.source = self._source(worker.view)
        self.sampler = self.make_sampler(self.source)
        _ = self.store  # read here, not in an epoch
        if self.draws_on_device and isinstance(self.store, RowStore):
            _ = self.store.placed  # here, not in a step, nor on another stream
        self.loader = Loader(
            worker.comm, self._draw, self.fetch, depth=options.prefetch, threads=worker.job.threads,
            pool=options.pool, together=options.asks_owners,
        )  # fmt: skip
        if options.cache != "none":
            with worker.spans("cache"):
                self._fill_cache(options.cache, options.capacity)

    def _fill_cache(self, policy: BatchCache, capacity: float) -> None:
        """Fill the cache once, for the whole training; every rank must call.

        `degree` takes the highest out-degrees (PaGraph, Lin et al., SoCC 2020), `presampled` the nodes that most
        batches of one epoch, drawn for nothing else, read (GNNLab, Yang et al., EuroSys 2022), `vip` those of the
        highest `chances` (SALIENT++, Kaler et al., MLSys 2023). Of a `HostStore`, and of features on a disk, own nodes
        may be cached, too.
        Traffic (set-up): the features' own.
        """
        worker, source = self.worker, self.source
        nodes = source.topology.num_nodes
        whole = isinstance(self.store, HostStore) or self.store.disk is not None
        cacheable = np.arange(nodes) if whole else np.flatnonzero(~source.local)
        score = np.zeros(nodes)
        if policy == "presampled":
            for batch in self.batches(PRESAMPLED):
                score[on_host(self.sampler.sample(batch.targets, batch.seed).layers[0].sources)] += 1
        elif policy == "degree":
            score = np.diff(source.topology.indptr).astype(np.float64)  # every edge is there in both directions
        elif policy == "vip":
            score = self.chances()
        rng = np.random.default_rng(batch_seed(worker.job.config.seed, worker.rank, PRESAMPLED, 0))
        chosen = choose(policy, round(capacity * nodes), score[cacheable], rng)
        with worker.traffic.during("setup"):
            if isinstance(self.store, FeatureStore) and self.store.disk is not None:
                self.store.hold(cacheable[chosen])
            self.store.fill(cacheable[chosen])

    def chances(self) -> NDArray[np.float64]:
        """Return the chance of each node to be read by one of this rank's batches, float64 [N]; for the cache `vip`."""
        raise NotImplementedError

    @cached_property
    def store(self) -> FeatureStore | HostStore:
        """What batches of the training view read their rows from."""
        return self.make_store(self.worker.view)

    @property
    def draws_on_device(self) -> bool:
        """Whether batches are drawn where the model is, on a GPU."""
        return self.worker.device.type != "cpu" and self.device_draws(self.options)

    @classmethod
    def device_draws(cls, options: MiniBatchOptionsT) -> bool:
        """Whether a GPU draws by these options itself; by default unless owners are asked for rows."""
        return cls.on_device and not options.asks_owners

    @classmethod
    def option_warnings(cls, options: MiniBatchOptionsT, case: MemoryCase) -> list[str]:
        """See `Method`: whether the host draws for a GPU."""
        if not case.cuda or cls.device_draws(options):
            return []
        return ["the host draws the batches, with these options: blocks are copied to the GPU"]

    def memory_components(self) -> Components:
        """See `Method`; the graph says what its rows have, where the rank reads it."""
        case = case_of(self.worker)
        if not self.options.asks_owners:
            case = replace(case, most_edges=self.source.topology.most_edges)
        return self.memory(self.options, case)

    @abstractmethod
    def make_sampler(self, source: Source) -> Sampler:
        """Return the sampler for a view: the training view, or that of evaluations."""

    def batches(self, epoch: int) -> list[Batch]:
        """Return this rank's batches of an epoch; every rank must return equally many."""
        assert isinstance(self.options, NodeBatchOptions)
        return node_batches(self.worker, epoch, self.options.batch_size)

    def steps(self, epoch: int) -> Iterator[Step]:
        """Yield one step for each batch."""
        # Nothing here holds a batch that was trained on, or it would be in memory while the next one is drawn.
        yield from map(self.step, self.loader.load(map(self.hand_out, self.batches(epoch))))

    def hand_out(self, batch: Batch) -> Batch:
        """Return a batch as it is to be drawn, when its turn comes: `prefetch` steps before its training.

        With a `pool` when that is filled.
        """
        return batch

    def _draw(self, batch: Batch, comm: Communicator) -> Drawn:
        topology = self.source.topology
        if not isinstance(topology, OwnedTopology):
            return self.draw(batch)
        with topology.over(comm) as asked:
            drawn = self.draw(batch)
        drawn.sample.stats.update(asked.metrics)
        return drawn

    def draw(self, batch: Batch) -> Drawn:
        """Draw a batch; threads may call it at the same time, unless owners are asked for neighbours."""
        sample = self.sampler_for(batch).sample(batch.targets, batch.seed)
        return Drawn(batch, sample, self.blocks(sample, self.source))

    def sampler_for(self, batch: Batch) -> Sampler:
        """Return what draws a batch; a method whose draws change as it trains says so here."""
        return self.sampler

    def blocks(self, sample: Sample, source: Source) -> list[Block]:
        """Return the blocks of a sample, on the device; layers that are one and the same share theirs."""
        worker = self.worker
        engine = worker.job.config.train.spmm
        made = {
            key: layer.block(source.topology, device=worker.device, dtype=worker.dtype, engine=engine)
            for key, layer in {id(layer): layer for layer in sample.layers}.items()
        }
        return [made[id(layer)] for layer in sample.layers]

    def fetch(self, drawn: Drawn, comm: Communicator) -> Loaded:
        """Fetch what a step reads; every rank must call."""
        sample = drawn.sample
        nodes = sample.held(0)
        inputs, metrics = self.store.read(nodes, self.columns(drawn), comm)
        if self.options.feature_loss:
            with comm.clock.phase("fetch"):
                inputs = drop_values(inputs, self.options.feature_loss, drawn.batch.seed)
        return Loaded(drawn, inputs, self._loss(drawn, comm), self.stats_of(sample, metrics))

    def stats_of(self, sample: Sample, metrics: dict[str, int]) -> dict[str, float]:
        """Return `Step.stats`: what a sample has, its sampler's own metrics, and `metrics` of what was read."""
        return {
            **metrics,
            "drawn_edges": sum(layer.edges for layer in sample.layers),
            **{f"nodes_layer{i}": len(sample.held(i)) for i in range(len(sample.layers))},
            f"nodes_layer{len(sample.layers)}": sample.layers[-1].num_dst,
            **sample.stats,
        }

    def columns(self, drawn: Drawn) -> Tensor | None:
        """Return the columns of remote rows that a batch reads, int64 ascending on the host; None: all.

        The default are `kept_columns` random ones, the same on all ranks.
        """
        if self.options.feature_rate == 1:
            return None
        rng = np.random.default_rng(drawn.batch.common)
        chosen = rng.choice(self.store.width, self.kept_columns, replace=False)
        return torch.from_numpy(np.sort(chosen))

    @property
    def kept_columns(self) -> int:
        """How many columns of F are the share `feature_rate` of them, at least 1."""
        return max(1, round(self.store.width * self.options.feature_rate))

    def step(self, loaded: Loaded) -> Step:
        """Return the step of a batch."""
        drawn, sample = loaded.drawn, loaded.drawn.sample
        return Step(
            drawn.blocks, loaded.loss, loaded.inputs, self._exchange(sample), stats=loaded.stats, nodes=sample.held(0),
            outputs=sample.layers[-1].destinations,
        )  # fmt: skip

    def _exchange(self, sample: Sample) -> Exchange | None:
        """Return what brings the rows of a sample's halos, if it has any."""
        exchanges = [SyncExchange(self.worker.comm, halo) for halo in sample.halos]
        return (lambda rows, layer: exchanges[layer](rows, layer)) if exchanges else None

    def _loss(self, drawn: Drawn, comm: Communicator) -> Loss:
        with comm.clock.phase("fetch"):
            sample, total, view = drawn.sample, drawn.batch.total, self.worker.view
            outputs = sample.layers[-1].destinations
            if sample.targets is not None:
                index = torch.arange(sample.targets, device=view.labels.device)
                # What is drawn on a device is for the batch's targets, in their order.
                nodes = outputs[: sample.targets] if isinstance(outputs, np.ndarray) else drawn.batch.targets
                own = upload(view.local_row[nodes].astype(np.int64), view.labels.device)
                labels = view.labels[own]
            else:
                found = self._training_labels.gather(outputs, comm=comm)
                known = found != HIDDEN if found.dim() == 1 else ~found[:, 0].isnan()
                index = known.nonzero().squeeze(1)
                labels = found[index]
            if sample.weights is None:
                return Loss(index, labels, total)
            weights = upload(sample.weights, labels.device, self.worker.dtype)
            return Loss(index, labels, total, weights[index])

    @cached_property
    def _training_labels(self) -> RowStore:
        worker, view = self.worker, self.worker.view
        counted: dict[str, Any] = {"purpose": "control", "layer": -1, "direction": "none"}
        own = view.labels, view.owner, view.local_row
        store = RowStore(worker.comm, *own, **counted, tables=self.source.tables)
        if self.draws_on_device and isinstance(self.store, RowStore):
            store.placed = *self.store.placed[:2], None
        return store

    def _source(self, view: View) -> Source:
        model, tables = self.worker.model, Tables(view.topology.num_nodes)
        topology = self.make_topology(view, tables)
        how: dict[str, Any] = {"propagation": model.propagation, "reads_own": model.reads_own, "depth": model.depth}
        device = self.worker.device if self.draws_on_device else None
        return Source(view, topology, tables=tables, device=device, **how)

    def make_topology(self, view: View, tables: Tables) -> Topology:
        """Return the graph that batches of a view are drawn from; every rank must call."""
        return OwnedTopology.of(view, self.worker.comm, tables) if self.options.asks_owners else view.topology

    def make_store(self, view: View) -> FeatureStore | HostStore:
        """Return the store of the rows that a batch of the view reads as its input."""
        worker = self.worker
        if self.options.storage == "host":
            return HostStore(worker.comm, worker.stored_features, view.nodes, dtype=worker.dtype)
        if view.disk is not None:
            like = torch.empty((0, view.disk.width), dtype=worker.dtype, device=worker.device)
            store = FeatureStore(worker.comm, like, view.owner, view.local_row, disk=view.disk)
        elif view is worker.view:
            store = worker.features
        else:
            store = FeatureStore(worker.comm, view.features(), view.owner, view.local_row)
        return RankRows.of(store) if self.options.stays_in_part else store

    @cached_property
    def evaluated(self) -> tuple[Source, Sampler, FeatureStore | HostStore]:
        """The view of evaluations, its sampler and features; those of the training view if it is the same."""
        worker, view = self.worker, self.worker.eval_view
        if view is worker.view:
            return self.source, self.sampler, self.store
        source = self._source(view)
        return source, self.make_sampler(source), self.make_store(view)

    @property
    def samples_targets(self) -> bool:
        """Whether `Sampler.sample` draws for the targets that it is given, so that it can score them."""
        return True

    def sampled_scores(self) -> dict[str, float | None]:
        """Score validation and test nodes on blocks drawn for them; see `Method`.

        The nodes of a split are dealt like training nodes and drawn with the same seeds every time. Traffic is
        counted under the scope `eval`.
        """
        if not self.samples_targets:
            return {}
        worker, splits = self.worker, ("val", "test")
        with inference(worker.model, worker.comm):
            labels = worker.eval_view.scored_labels()
            counts = [self._score_counts(split, labels[split], SCORED + i) for i, split in enumerate(splits)]
            return scores_of_all(splits, counts, worker.comm)

    def _score_counts(self, split: str, labels: Tensor, epoch: int) -> Tensor:
        """Return this rank's numerator and denominator of the score of a split of these labels."""
        worker, view = self.worker, self.worker.eval_view
        nodes = view.split_nodes(split)
        source, sampler, store = self.evaluated
        options: Any = self.options  # a method that draws for targets has a batch size
        size = options.batch_size or max(nodes.size, 1)
        own = torch.tensor([-(-nodes.size // size)], device=worker.device)
        steps = max(int(n) for n in worker.comm.all_gather(own))
        counts = torch.zeros(2, dtype=torch.float64, device=worker.device)
        for step in range(steps):
            now = slice(step * size, (step + 1) * size)
            sample = sampler.sample(nodes[now], batch_seed(worker.job.config.seed, worker.rank, epoch, step))
            inputs = store.gather(sample.held(0))
            logits = worker.model(self.blocks(sample, source), inputs, self._exchange(sample))
            counts += score_counts(logits[: nodes[now].size], labels[now])
        return counts

    @classmethod
    def bytes_per_epoch(cls, options: MiniBatchOptionsT, case: BytesCase) -> Bytes | None:
        """See `BytesCase.mini_batch`; a method whose loss reads rows of other ranks says so there."""
        return case.mini_batch(options)

    def synchronize(self) -> None:
        """See `Method`."""
        self.loader.synchronize()

    def close(self) -> None:
        """See `Method`."""
        self.loader.close()
