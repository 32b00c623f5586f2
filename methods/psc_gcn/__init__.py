"""PSC-GCN: pipelined training with variance-reduced edge sampling and an inclusion-aware cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from harness import Bytes, BytesCase, MemoryCase, Metric, Step, Worker
from harness.runtime import CachePolicy, PipelinedMethod, PipelinedOptions, stale_memory

from .edge_sampler import EdgeSampler


class PSCOptions(PipelinedOptions):
    """Options of PSC-GCN."""

    rate: float = Field(0.1, gt=0, le=1, description="epsilon: expected share of a node's edges in a graph")
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
    exact: ClassVar[dict[str, Any]] = {"staleness": 0, "rate": 1.0, "cache": "none"}
    unbiased: ClassVar[dict[str, Any]] = {"staleness": 0, "rate": 0.3}
    metrics = (
        Metric.of_method("drawn_edges", "edges drawn", heading="Drawn edges"),
        Metric.of_method("expected_boundary", "boundary nodes that are expected by the probabilities"),
        Metric.of_method("cached_boundary", "boundary nodes of the graph whose features are cached"),
    )

    def __init__(self, worker: Worker, options: PSCOptions) -> None:
        super().__init__(worker, options)
        self.sampler = EdgeSampler(
            worker,
            rate=options.rate,
            inner_factor=options.inner_factor if options.sampler == "variance" else None,
            uniform=options.uniform,
            transform_first=options.transform_before_exchange,
            cache=options.cache if self.sends_features else "none",
            capacity=options.capacity,
        )
        self.waiting = deque(self.sampler.next() for _ in range(options.staleness))

    def steps(self, epoch: int) -> Iterator[Step]:
        """Yield one step on the graph drawn tau iterations ago."""
        drawn = self.sampler.next()
        self.waiting.append(drawn)
        refreshes = epoch % self.options.refresh == 0 and self.sampler.learns
        yield self.step(
            sent=drawn.graph,
            read=self.waiting.popleft().graph,
            stats=drawn.stats,
            observe=self.sampler.observe if refreshes else None,
        )
        if refreshes:
            self.sampler.refresh()

    def synchronize(self) -> None:
        """See `Method`."""
        super().synchronize()
        self.sampler.synchronize()

    def close(self) -> None:
        """See `Method`."""
        super().close()
        self.sampler.close()

    @classmethod
    def bytes_per_epoch(cls, options: PSCOptions, case: BytesCase) -> Bytes | None:
        """Return the bytes of `full` at rate 1; else an epoch's own metrics do not tell them."""
        whole = options.rate == 1 and options.cache == "none"
        return super().bytes_per_epoch(options, case) if whole else None

    @classmethod
    def memory(cls, options: PSCOptions, case: MemoryCase) -> dict[str, int]:
        """See `stale_memory`."""
        return stale_memory(case, options, rate=options.rate, cached=options.capacity)
