"""PSC-GCN: pipelined training with variance-reduced edge sampling and an inclusion-aware cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from harness import Bytes, BytesCase, Metric, Step, Worker, torch
from harness import numpy as np
from harness.plugin import (
    Background,
    Block,
    BoundaryInputs,
    CachePolicy,
    Communicator,
    MemoryCase,
    Partition,
    Pending,
    PipelinedMethod,
    PipelinedOptions,
    TrainGraph,
    Wanted,
    ask,
    choose,
    kind_of,
    pointers,
    stale_memory,
    upload,
)

from .edges import edges_of

if TYPE_CHECKING:
    from torch import Tensor


class PSCOptions(PipelinedOptions):
    """Options of PSC-GCN."""

    rate: float = Field(
        0.5,
        gt=0,
        le=1,
        description="epsilon: expected share of a node's edges in a graph; the paper has 0.1 on graphs of many",
    )
    sampler: Literal["variance", "random"] = Field(
        "variance", description="probabilities of least variance (Theorem 2), or epsilon for every edge"
    )
    inner_factor: float = Field(1.1, gt=0, description="a_j of inner neighbours; that of boundary ones is 1")
    uniform: float = Field(
        0.0, ge=0, lt=1, description="share of uniform sampling in the probabilities of least variance"
    )
    refresh: int = Field(10, ge=1, description="iterations between refreshes of probabilities and cache")
    cache: CachePolicy = Field("inclusion", description="which boundary nodes' input features are kept")
    capacity: float = Field(0.3, ge=0, le=1, description="cached share of the boundary nodes")

    @model_validator(mode="after")
    def _feeds_back_to_the_same_rows(self) -> Self:
        if self.feedback and (self.rate < 1 or self.cache != "none"):
            raise ValueError("feedback: what is drawn or cached changes the rows that are sent: leave it out")
        return self


class PSCGCN(PipelinedMethod[PSCOptions]):
    """Pipelined training on sampled edges, with a feature cache (PSC-GCN, Wang et al.).

    Iteration t trains on the graph drawn tau iterations before, with the boundary rows that were sent
    then and fresh inner rows (Algorithm 1); see `Pipeline` and `EdgeSampler`. Of the input features the
    cached rows are not sent; with `precompute`, or where `transform_before_exchange` sends H W of the
    first layer, there is nothing to cache. Open in the paper, chosen here: a self loop is no edge and is
    never sampled; gradients are those of the graph trained on, and are sent from the first iteration on;
    zero rows stand for what is absent. Exact with staleness 0 and rate 1.

    Bytes of an iteration: forward those of `full` with the boundary nodes of the new graph g_t for |B_i|
    (at layer 0 without the cached ones), backward with those of g_{t-tau}; control: 4 for each node of g_t
    and 8 a peer (none at rate 1). At a refresh, counted two iterations later: a value for each boundary node
    (control, its norm); with a cache 4 for each cached node and 8 a peer (control), and the features of those
    that were not cached before (feature). All but the first synchronous transfers are overlapped.
    """

    name = "psc-gcn"
    colour = "#009e73"
    Options = PSCOptions
    space: ClassVar[dict[str, Any]] = {"rate": [0.1, 0.3, 0.5], "staleness": [1, 2]}
    exact: ClassVar[dict[str, Any]] = {"staleness": 0, "rate": 1.0, "cache": "none"}
    unbiased: ClassVar[dict[str, Any]] = {"staleness": 0, "rate": 0.3}
    metrics = (
        Metric.of_method("drawn_edges", "edges drawn", heading="Drawn edges"),
        Metric.of_method("expected_boundary", "boundary nodes that are expected by the probabilities"),
        Metric.of_method("cached_boundary", "boundary nodes of the graph whose features are cached"),
    )

    def __init__(self, worker: Worker, options: PSCOptions) -> None:
        super().__init__(worker, options)
        self.sampler = EdgeSampler(worker, options, options.cache if self.sends_features else "none")
        self.waiting = deque(self.sampler.next()[0] for _ in range(options.staleness))

    def steps(self, epoch: int) -> Iterator[Step]:
        """Yield one step on the graph drawn tau iterations ago."""
        drawn, stats = self.sampler.next()
        self.waiting.append(drawn)
        refreshes = epoch % self.options.refresh == 0 and self.sampler.learns
        observe = self.sampler.observe if refreshes else None
        yield self.step(sent=drawn, read=self.waiting.popleft(), stats=stats, observe=observe)
        if refreshes:
            self.sampler.refresh()

    def synchronize(self) -> None:
        """See `Method`."""
        super().synchronize()
        self.sampler.synchronize()

    def state(self) -> dict[str, Any]:
        """See `Method`."""
        return super().state() | {"sampler": self.sampler.state()}

    def restore(self, state: dict[str, Any], done: int) -> None:
        """See `Method`; the graphs that wait are drawn again."""
        super().restore(state, done)
        if state["sampler"] is not None:
            self.waiting = deque(self.sampler.restore(state["sampler"]))

    def close(self) -> None:
        """See `Method`."""
        super().close()
        self.sampler.close()

    @classmethod
    def bytes_per_epoch(cls, options: PSCOptions, case: BytesCase) -> Bytes | None:
        """Return the bytes of `full` at rate 1; else an epoch's metrics do not determine them."""
        whole = options.rate == 1 and options.cache == "none"
        return super().bytes_per_epoch(options, case) if whole else None

    @classmethod
    def memory(cls, options: PSCOptions, case: MemoryCase) -> dict[str, int]:
        """See `stale_memory`; at a refresh a GPU has half a dozen numbers of each edge besides."""
        components = stale_memory(case, options, rate=options.rate, cached=options.capacity)
        draws = case.cuda and options.rate < 1
        return components | ({"sampling": 48 * case.train.edges} if draws else {})


@dataclass(frozen=True, eq=False)
class BoundaryCache:
    """What this rank caches of its boundary, and what its peers cache of its inner rows. Never changed."""

    slot: Tensor  # int64 [num_boundary], row of each boundary node in `rows`, -1 where it is not cached
    rows: Tensor  # [cached nodes, F], their input features
    at_peers: Tensor  # bool [len(Partition.send_index)], which of the rows to send their receivers cache

    @classmethod
    def of_nothing(cls, partition: Partition, features: Tensor) -> BoundaryCache:
        """Return the cache of no nodes; `features` are the inner ones, [n_in, F]."""
        slot = torch.full((partition.num_boundary,), -1, device=features.device)
        at_peers = torch.zeros(partition.send_index.size, dtype=torch.bool, device=features.device)
        return cls(slot, features[:0], at_peers)

    def refilled(self, comm: Communicator, partition: Partition, features: Tensor, nodes: Tensor) -> BoundaryCache:
        """Return the cache of the boundary nodes `nodes` (int64, ascending positions); every rank must call.

        Traffic: 8 bytes a peer and 4 for each node (control), F values for each that was not cached before
        (feature, layer 0).
        """
        wanted = ask(comm, partition, nodes)
        inputs = self.inputs(partition, nodes, wanted)
        halo = inputs.halo
        fetched = comm.exchange_rows(
            features.index_select(0, halo.send_index), halo.send_counts, halo.recv_counts,
            purpose="feature", layer=0, direction="forward", exact=True,
        )  # fmt: skip
        at_peers = torch.zeros_like(self.at_peers).index_fill(0, wanted.entries, True)
        slot = torch.full_like(self.slot, -1)
        slot[nodes] = torch.arange(nodes.numel(), device=slot.device)
        return BoundaryCache(slot, inputs.assemble(fetched), at_peers)

    def inputs(self, partition: Partition, kept: Tensor, wanted: Wanted) -> BoundaryInputs:
        """Return how the input features of the boundary nodes `kept` come together.

        `wanted` is what `ask` returned for them; sent are those rows of it that their receivers do not cache. The host
        waits for the numbers of both.
        """
        hit, sent = self.slot[kept] >= 0, ~self.at_peers[wanted.entries]
        # How many are sent is a difference of running sums: up to each rank's last.
        ends = np.cumsum([[0, *wanted.send_counts], [0, *wanted.recv_counts]], 1)
        to, by = upload(ends, kept.device)
        counts: list[list[int]] = torch.stack([pointers(sent)[to].diff(), pointers(~hit)[by].diff()]).tolist()
        cached = hit.nonzero().squeeze(1)
        return BoundaryInputs(
            partition.halo(wanted.entries[sent.nonzero().squeeze(1)], *counts),
            (~hit).nonzero().squeeze(1),
            cached,
            self.rows[self.slot[kept[cached]]],
        )


def highest(values: Tensor, count: int) -> Tensor:
    """Return where the `count` highest of `values` are, the first among equals: int64, ascending."""
    return values.sort(descending=True, stable=True).indices[:count].sort().values


Drawn = tuple[TrainGraph, dict[str, float]]
"""A graph, and metrics of it: drawn edges, and of its boundary how many nodes, expected, and cached."""


_Asked = tuple[dict[str, Any], "Tensor | None"]
"""How a sampler stood before a draw or a refresh, and the norms of the refresh, None of a draw."""


def _draws(asked: Iterable[_Asked]) -> int:
    return sum(norms is None for _, norms in asked)


class EdgeSampler:
    """Draws one graph an iteration, the next one while the trainer computes (PSC-GCN, Algorithms 1 and 2).

    Every edge is drawn independently with its probability p_ij and counts 1/p_ij. The probabilities are
    epsilon until the first refresh, then those of Theorem 2 for the norms that `observe` saw. Draws and
    refreshes happen in the order in which they were asked for, so a refresh concerns the second `next` after
    it. With epsilon = 1 the graph is the whole one, and nothing is announced. On a GPU edges are drawn there, with
    other random numbers than on a CPU.

    Args:
        worker: the rank.
        options: the method's; epsilon is the `rate`.
        cache: which boundary nodes' input features are kept; filled before the first draw, and `inclusion`
            again at every refresh.
    """

    def __init__(self, worker: Worker, options: PSCOptions, cache: CachePolicy) -> None:
        self._worker, self._partition, self._options, self._policy = worker, worker.partition, options, cache
        partition = worker.partition
        # Its own, because it draws in another thread; another for the cache, which changes no draw.
        rng, self._cache_rng = worker.rng.spawn(2)
        self._norms: Tensor | None = None
        self._rng, self._edges = rng, edges_of(worker, options.rate, rng)
        self._follow(None)
        self._cached = torch.empty(0, dtype=torch.int64, device=worker.device)
        self._cache = BoundaryCache.of_nothing(partition, worker.features.inner)
        if cache != "none":
            self._fill(worker.comm)
        # What was asked of the thread, the last thing last: how it all stood before, and of a refresh the norms.
        self._asked: deque[_Asked] = deque()
        self._aside = Background(worker.comm, "sampler") if options.rate < 1 else None
        self._halo, self._right = partition.full_halo, None
        if self.learns:  # made here, not by the thread: on a GPU what its stream makes is for it alone
            _, self._right, _ = partition.full_block.scales(worker.model.propagation)
        self._started: deque[Pending[Drawn | None]] = deque()
        self._start()

    @property
    def learns(self) -> bool:
        """Whether `refresh` changes anything."""
        return self._aside is not None and self._options.sampler == "variance"

    def next(self) -> Drawn:
        """Return the next graph, and start to draw the one after it."""
        if self._aside is None:
            return self._whole
        drawn = None
        while drawn is None:
            drawn = self._started.popleft().wait("sample")
        self._start()
        return drawn

    def observe(self, h: Tensor, layer: int) -> None:
        """Add ||h W||^2 of each row of a block's input `h` [n_in, inputs] to the norms of this iteration.

        In mixhop hop k's are t_(k-1) [W_k ... W_K]: all powers that they reach.
        """
        model = self._worker.model
        module, hop = model.layer_of(layer)
        with self._worker.clock.phase("sample"), torch.no_grad():
            transformed = self._options.transform_before_exchange and model.transforms_first(layer)
            product = h if transformed else module.linear(h, module.reached(hop))
            norms = product.square().sum(1)
            self._norms = norms if self._norms is None else self._norms + norms

    def refresh(self) -> None:
        """Start to renew probabilities and cache from what was observed since the last refresh."""
        if self._aside is None or self._norms is None:
            return
        norms, self._norms = self._norms, None
        self._started.append(refreshing := self._begin(norms))
        refreshing.admit()  # before it is waited for: it takes long between its exchanges

    def synchronize(self) -> None:
        """Wait for what was started."""
        if self._aside is not None:
            self._aside.synchronize()

    def state(self) -> dict[str, Any] | None:
        """Return from where, and by which draws and refreshes, the graphs come that are not trained on yet.

        They themselves would be as large as the graph. None: they are always the whole one.
        """
        if self._aside is None:
            return None
        started = len(self._started)
        taken, asked = list(self._asked)[:-started], list(self._asked)[-started:]
        while taken and (_draws(taken) > self._options.staleness or taken[0][1] is not None):
            del taken[0]
        asked = taken + asked
        return {"before": asked[0][0], "asked": [norms for _, norms in asked], "started": started}

    def restore(self, state: dict[str, Any]) -> list[TrainGraph]:
        """Draw again what waits to be trained on, and return it; start what was under way. Every rank must call."""
        aside = self._aside
        assert aside is not None
        aside.synchronize()
        aside.forget()
        self._started.clear()
        self._asked.clear()
        before = state["before"]
        self._rng.bit_generator.state = before["rng"]
        worker = self._worker
        self._follow(None if before["score"] is None else before["score"].to(worker.device))
        if self._policy != "none":
            self._cached = before["cached"].to(worker.device)
            self._cache = BoundaryCache.of_nothing(self._partition, worker.features.inner)
            self._refill(worker.comm)
        asked = [None if norms is None else norms.to(worker.device) for norms in state["asked"]]
        behind = len(asked) - state["started"]
        again = [self._begin(norms).wait("sample") for norms in asked[:behind]]
        self._started.extend(self._begin(norms) for norms in asked[behind:])
        return [drawn[0] for drawn in again if drawn is not None]

    def close(self) -> None:
        """Wait for what was started; no more can be."""
        if self._aside is not None:
            self._aside.close()

    def _start(self) -> None:
        if self._aside is not None:
            self._started.append(self._begin(None))

    def _begin(self, norms: Tensor | None) -> Pending[Drawn | None]:
        """Start to draw a graph, or to refresh by `norms`."""
        assert self._aside is not None

        def do(comm: Communicator) -> Drawn | None:
            stand = {"rng": self._rng.bit_generator.state, "score": self._score, "cached": self._cached}
            self._asked.append((stand, norms))
            if _draws(self._asked) > self._options.staleness + 2:
                self._asked.popleft()
            if norms is None:
                return self._draw(comm)
            self._refresh(comm, norms)
            return None

        return self._aside.run(do)

    def _draw(self, comm: Communicator) -> Drawn:
        partition, sample = self._partition, self._edges.draw()
        kept = upload(sample.kept, self._worker.device)
        block = partition.sampled_block(sample.adjacency, sample.transposed, kept)
        return self._drawn(block, kept, ask(comm, partition, kept))

    @cached_property
    def _whole(self) -> Drawn:
        partition, halo, device = self._partition, self._partition.full_halo, self._worker.device
        everything = Wanted(halo.recv_counts, halo.send_counts, torch.arange(partition.send_index.size, device=device))
        return self._drawn(partition.full_block, torch.arange(partition.num_boundary, device=device), everything)

    def _drawn(self, block: Block, kept: Tensor, wanted: Wanted) -> Drawn:
        halo = self._partition.halo(wanted.entries, wanted.send_counts, wanted.recv_counts)
        # Without a cache the host has nothing to wait for.
        inputs = None if self._policy == "none" else self._cache.inputs(self._partition, kept, wanted)
        return TrainGraph(block, halo, inputs), {
            "drawn_edges": block.adjacency.nnz,
            "sampled_boundary": len(kept),
            "expected_boundary": self._expected,
            "cached_boundary": 0 if inputs is None else inputs.cached.numel(),
        }

    def _refresh(self, comm: Communicator, norms: Tensor) -> None:
        options, halo = self._options, self._halo
        boundary = comm.exchange_rows(
            norms.index_select(0, halo.send_index), halo.send_counts, halo.recv_counts, purpose="control"
        )
        score = torch.cat([options.inner_factor * norms, boundary]).double()
        if self._right is not None:
            score *= self._right.squeeze(1).double().square()
        self._follow(score)
        if self._policy == "inclusion":
            self._fill(comm)

    def _follow(self, score: Tensor | None) -> None:
        """Take the probabilities of least variance for a score [sources]; None: epsilon for every edge."""
        self._score = score
        self._edges.learn(score, self._options.uniform)
        self._inclusion = self._edges.included()
        self._expected = float(self._inclusion.sum())

    def _fill(self, comm: Communicator) -> None:
        """Choose the boundary nodes to cache, and fetch their features; every rank must call."""
        capacity = round(self._options.capacity * self._partition.num_boundary)
        if self._policy == "inclusion":
            self._cached = highest(self._inclusion, capacity)
        else:
            score = np.zeros(self._partition.num_boundary, np.int64)
            if self._policy == "degree":
                topology = self._worker.view.topology
                score = np.bincount(topology.indices, minlength=topology.num_nodes)[self._partition.boundary]
            nodes = choose(self._policy, capacity, score, self._cache_rng)
            self._cached = upload(nodes, self._worker.device)
        for before in vars(self._cache).values():  # perhaps the trainer's stream made it, and this one still reads it
            kind_of(before.device).hold(before)
        self._refill(comm)

    def _refill(self, comm: Communicator) -> None:
        self._cache = self._cache.refilled(comm, self._partition, self._worker.features.inner, self._cached)
