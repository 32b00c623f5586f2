"""Pipelined methods: boundary rows and gradients of some iterations ago, moved during the training."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from pydantic import Field

from harness.deferred import Function, torch
from harness.graph.block import Block
from harness.graph.devices import fresh
from harness.graph.partition import Halo
from harness.metrics import Metric
from harness.models.functional import dropout
from harness.runtime.batches import Background, Pending
from harness.runtime.comm import Communicator, Direction
from harness.runtime.cost_models import Bytes, BytesCase, Components, MemoryCase
from harness.runtime.method import FullGraphMethod
from harness.runtime.run_config import FullGraphOptions
from harness.runtime.step import Step, send_boundary

if TYPE_CHECKING:
    from torch import Tensor
    from torch.autograd.function import FunctionCtx

    from harness.runtime.worker import Worker


@dataclass(frozen=True, eq=False)
class BoundaryInputs:
    """Input features of a graph's boundary nodes: some are sent by their owners, some are cached."""

    halo: Halo  # the exchange of those that are sent
    # sent, cached: int64, which of the boundary nodes are sent and which are cached
    sent: Tensor
    cached: Tensor
    rows: Tensor  # [len(cached), F], features of the cached ones

    def assemble(self, received: Tensor) -> Tensor:
        """Return the features [nodes, F] in the order of the boundary; `received` are those of `halo`."""
        if not self.cached.numel():
            return received
        features = fresh(received, self.sent.numel() + self.cached.numel(), received.shape[1])
        features[self.sent] = received
        features[self.cached] = self.rows
        return features


Warmup = Literal["absent", "sync"]


@dataclass(frozen=True, eq=False)
class TrainGraph:
    """A graph to train on: its block, the exchange of its boundary rows, and where input features come from.

    `inputs` is None where they come like other rows.
    """

    block: Block
    halo: Halo
    inputs: BoundaryInputs | None = None

    def source(self, layer: int) -> Halo:
        """Return the exchange of the boundary rows that a layer reads."""
        return self.inputs.halo if layer == 0 and self.inputs is not None else self.halo

    def assembled(self, layer: int, received: Tensor) -> Tensor:
        """Return all boundary rows that a layer reads; `received` are those of `source`."""
        return self.inputs.assemble(received) if layer == 0 and self.inputs is not None else received


class Pipeline:
    """Keeps what is under way between iterations (PSC-GCN, Algorithm 1; PipeGCN is staleness 1).

    In iteration t the rows of the boundary of graph g_t are sent, and those of g_{t-tau} read, which were
    sent tau iterations ago; the gradients of the latter are sent to the owners, who add them in iteration
    t + tau. Only the trainer starts transfers, in an order that is the same on all ranks, so that ranks of
    any speed match; a rank waits for nothing but what its peers started tau iterations ago.

    Args:
        comm: the ranks' communicator.
        aside: what carries transfers across iterations; None where `staleness` is 0.
        staleness: tau; with 0 exchanges are waited for where they start.
        warmup: what iterations t < tau, for which nothing was sent yet, read: nothing ("absent": zero rows,
            and no gradients are added; attention gives a zero row its share), or rows and gradients of
            their own, waited for ("sync").
        decay: None, or the share of the past in exponential averages that replace what is received
            (smoothing, PipeGCN, section 3.4); the first values stand for the past before them.
    """

    def __init__(
        self, comm: Communicator, aside: Background | None, staleness: int, warmup: Warmup, decay: float | None
    ) -> None:
        self.comm, self.staleness, self.warmup, self.decay = comm, staleness, warmup, decay
        self._aside = aside
        self._rows: dict[int, deque[Tensor | Pending[Tensor]]] = defaultdict(deque)
        self._gradients: dict[int, deque[tuple[Tensor, Tensor | Pending[Tensor]]]] = defaultdict(deque)
        self._averages: dict[tuple[Direction, int], Tensor] = {}

    def state(self) -> dict[str, Any]:
        """Return what is under way, as it arrived, and the averages."""
        return {
            "rows": {layer: list(map(_result, queue)) for layer, queue in self._rows.items()},
            "gradients": {
                layer: [(index, _result(transfer)) for index, transfer in queue]
                for layer, queue in self._gradients.items()
            },
            "averages": [(*of, average) for of, average in self._averages.items()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from the `state` of another process."""
        device = self.comm.device
        self._rows.clear()
        self._gradients.clear()
        for layer, queue in state["rows"].items():
            self._rows[layer].extend(rows.to(device) for rows in queue)
        for layer, queue in state["gradients"].items():
            self._gradients[layer].extend((index.to(device), rows.to(device)) for index, rows in queue)
        self._averages = {(direction, layer): rows.to(device) for direction, layer, rows in state["averages"]}

    def rows(self, h: Tensor, layer: int, sent: TrainGraph, read: TrainGraph) -> Tensor:
        """Send the boundary rows of `sent`, g_t; return those of `read`, g_{t-tau}, sent tau iterations ago.

        `h` [n_in, width] are the rows of this rank.
        """
        queue = self._rows[layer]
        queue.append(self._send_rows(h, layer, sent, aside=self.staleness > 0))
        if len(queue) > self.staleness:
            return self._received(read.assembled(layer, _result(queue.popleft())), "forward", layer)
        if self.warmup == "sync":
            return read.assembled(layer, _result(self._send_rows(h, layer, read, aside=False)))
        return h.new_zeros((read.block.num_src - read.block.num_dst, h.shape[1]))

    def gradients(self, gradient: Tensor, layer: int, read: TrainGraph) -> tuple[Tensor, Tensor] | None:
        """Send the gradients of the boundary rows of `read`; return inner rows and what is added to theirs.

        That is of tau iterations ago; None if nothing was sent then.
        """
        halo, queue = read.halo, self._gradients[layer]
        at_once = self.staleness == 0 or (self.warmup == "sync" and len(queue) < self.staleness)
        start = self.comm.exchange_rows if at_once or self._aside is None else self._aside.start
        transfer = start(
            gradient, halo.recv_counts, halo.send_counts, purpose="gradient", layer=layer, direction="backward"
        )
        queue.append((halo.send_index, transfer))
        if len(queue) <= self.staleness:
            return (halo.send_index, _result(transfer)) if at_once else None
        index, transfer = queue.popleft()
        return index, self._received(_result(transfer), "backward", layer)

    def _send_rows(self, h: Tensor, layer: int, graph: TrainGraph, *, aside: bool) -> Tensor | Pending[Tensor]:
        halo = graph.source(layer)
        start = self._aside.start if aside and self._aside is not None else self.comm.exchange_rows
        return send_boundary(start, h, halo, layer)  # type: ignore[no-any-return]

    def _received(self, rows: Tensor, direction: Direction, layer: int) -> Tensor:
        if self.decay is None:
            return rows
        past = self._averages.get((direction, layer), rows)
        self._averages[direction, layer] = average = past.lerp(rows, 1 - self.decay)
        return average


class StaleExchange:
    """The exchange of one iteration: fresh inner rows, boundary rows and gradients of `Pipeline`.

    Args:
        pipeline: what is under way.
        sent, read: the graphs g_t and g_{t-tau}.
        features: [n_in, F], the input features: layer 0 sends these, not its dropped-out input, and the
            reader drops out what it received, so that a cached row is as good as a sent one. None where
            layer 0 sends what it is given (`transform_first`).
        rate: of the dropout.
        observe: called with the inner rows of each layer and its number, before they are sent.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        sent: TrainGraph,
        read: TrainGraph,
        *,
        features: Tensor | None,
        rate: float,
        observe: Callable[[Tensor, int], None] | None = None,
    ) -> None:
        self.pipeline, self.sent, self.read = pipeline, sent, read
        self._features, self._rate, self._observe = features, rate, observe

    def __call__(self, h: Tensor, layer: int) -> Tensor:
        """See `Exchange`."""
        if self._observe is not None:
            self._observe(h.detach(), layer)
        if self.pipeline.comm.world == 1:
            return h
        if layer == 0 and self._features is not None:
            rows = self.pipeline.rows(self._features, layer, self.sent, self.read)
            return torch.cat([h, dropout(rows, self._rate)])
        result: Tensor = _Stale.apply(h, self, layer)
        return result


class _Stale(Function):
    @staticmethod
    def forward(ctx: FunctionCtx, h: Tensor, exchange: StaleExchange, layer: int) -> Tensor:
        ctx.exchange, ctx.layer, ctx.inner = exchange, layer, h.shape[0]  # type: ignore[attr-defined]
        return torch.cat([h, exchange.pipeline.rows(h, layer, exchange.sent, exchange.read)])

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, None, None]:
        exchange, layer, inner = ctx.exchange, ctx.layer, ctx.inner  # type: ignore[attr-defined]
        (grad,) = grads
        arrived = exchange.pipeline.gradients(grad[inner:], layer, exchange.read)
        own = grad[:inner]
        return own if arrived is None else own.index_add(0, *arrived), None, None


def _result(transfer: Tensor | Pending[Tensor]) -> Tensor:
    return transfer if isinstance(transfer, torch.Tensor) else transfer.wait()


def stale_memory(
    case: MemoryCase, options: PipelinedOptions, *, rate: float = 1, cached: float = 0, averages: bool = False
) -> Components:
    """Return the components of a pipelined method, `MemoryCase.full_graph` and:

    - "late rows": received rows and gradients of `staleness` iterations, and those that are being sent;
    - "edge sampling": probabilities, and the matrices of the graphs that are drawn but not yet trained on, where
      `rate`, the expected share of edges in a graph, is below 1;
    - "cached features": of the share `cached` of the boundary nodes whose input features are cached;
    - "moving averages": of what is received, if `averages` take its place.

    Where edges are sampled, a boundary node is taken to be in a graph with the chance that one of its cut /
    boundary edges is drawn uniformly. As many inner rows are taken to be sent as boundary rows are received.
    """
    whole = case.train
    chance = 1 - (1 - rate) ** (whole.cut / whole.boundary) if whole.boundary else 0
    boundary = round(chance * whole.boundary)
    part = replace(whole, boundary=boundary, edges=round(rate * whole.edges), cut=round(rate * whole.cut))
    found = replace(case, train=part).full_graph(**options.for_memory)
    if rate < 1:
        drawn = replace(case, weighted=True).matrices(part.block)
        found["adjacency"] = case.matrices(whole.block)
        found["edge sampling"] = drawn * (options.staleness + 2) + 9 * whole.edges
    if case.parts == 1:
        return found
    forward = [
        min(widths) if options.transform_before_exchange and case.model.transforms_first(i) else widths[0]
        for i, widths in enumerate(case.model.widths)
    ]
    if options.precompute:
        forward[0] = 0
    late = case.itemsize * boundary * (sum(forward) + sum(forward[case.model.hops :]))
    found["late rows"] = late * (options.staleness + 1) if options.staleness else 0
    if cached:
        found["cached features"] = round(cached * whole.boundary) * forward[0] * case.itemsize
    if averages:
        found["moving averages"] = late
    return found


class PipelinedOptions(FullGraphOptions):
    """Options of every pipelined method."""

    staleness: int = Field(1, ge=0, description="tau: iterations that boundary values are late")
    warmup: Warmup = Field(
        "absent", description="what the first iterations read of the boundary: nothing, or values waited for"
    )


PipelinedOptionsT = TypeVar("PipelinedOptionsT", bound=PipelinedOptions)


class PipelinedMethod(FullGraphMethod[PipelinedOptionsT]):
    """A full-graph method whose boundary values are `staleness` iterations late.

    Attributes:
        pipeline: the transfers under way.
        sends_features: whether the first layer exchanges the input features themselves.
    """

    Options = PipelinedOptions
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric.of_method("sampled_boundary", "boundary nodes of the graph", heading="Boundary nodes read"),
    )

    def __init__(self, worker: Worker, options: PipelinedOptionsT, decay: float | None = None) -> None:
        super().__init__(worker, options)
        self._aside = Background(worker.comm) if options.staleness else None
        self.pipeline = Pipeline(worker.comm, self._aside, options.staleness, options.warmup, decay)
        self.sends_features = not options.precompute and not (
            options.transform_before_exchange and worker.model.transforms_first(0)
        )

    def step(
        self,
        *,
        sent: TrainGraph,
        read: TrainGraph,
        stats: dict[str, Any] | None = None,
        observe: Callable[[Tensor, int], None] | None = None,
    ) -> Step:
        """Return the step that trains on `read` and sends what `sent` will read; see `StaleExchange`."""
        worker = self.worker
        features = worker.features.inner if self.sends_features else None
        exchange = StaleExchange(
            self.pipeline, sent, read, features=features, rate=worker.model.spec.dropout, observe=observe
        )
        return self.step_on(read.block, exchange, stats=stats or {})

    @classmethod
    def bytes_per_epoch(cls, options: PipelinedOptionsT, case: BytesCase) -> Bytes | None:
        """Return the bytes of `full`; synchronous first iterations send their rows twice."""
        sent = case.boundary_rows(case.boundary, **options.for_costs)
        if options.warmup == "sync" and case.epoch < options.staleness:
            return sent | {purpose: 2 * sent[purpose] for purpose in ("feature", "embedding")}
        return sent

    def state(self) -> dict[str, Any]:
        """See `Method`."""
        return {"pipeline": self.pipeline.state()}

    def restore(self, state: dict[str, Any], done: int) -> None:
        """See `Method`."""
        self.pipeline.restore(state["pipeline"])
