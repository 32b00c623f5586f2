"""Pipelined exchange: boundary rows and gradients of some iterations ago, moved beside the training."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from harness.graph.block import Block
from harness.graph.partition import Halo
from harness.models.functional import dropout
from harness.runtime.background import Background, Pending
from harness.runtime.boundary_cache import Inputs
from harness.runtime.comm import Communicator
from harness.runtime.spec import Purpose
from harness.runtime.traffic import Direction

Warmup = Literal["absent", "sync"]


@dataclass(frozen=True, eq=False)
class TrainGraph:
    """A graph to train on: its block, the exchange of its boundary rows, and where input features come from.

    `inputs` is None where they come like other rows.
    """

    block: Block
    halo: Halo
    inputs: Inputs | None = None

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
        staleness: tau; with 0 exchanges are waited for where they start.
        warmup: what iterations t < tau, for which nothing was sent yet, read: nothing ("absent": zero rows,
            and no gradients are added; attention gives a zero row its share), or rows and gradients of
            their own, waited for ("sync").
        decay: None, or the share of the past in exponential averages that replace what is received
            (smoothing, PipeGCN, section 3.4); the first values stand for the past before them.
    """

    def __init__(
        self, comm: Communicator, staleness: int, warmup: Warmup = "absent", decay: float | None = None
    ) -> None:
        self.comm, self.staleness, self.warmup, self.decay = comm, staleness, warmup, decay
        self._aside = Background(comm) if staleness else None
        self._rows: dict[int, deque[Tensor | Pending[Tensor]]] = defaultdict(deque)
        self._gradients: dict[int, deque[tuple[Tensor, Tensor | Pending[Tensor]]]] = defaultdict(deque)
        self._averages: dict[tuple[Direction, int], Tensor] = {}

    def settle(self) -> None:
        """Wait for the transfers under way."""
        if self._aside is not None:
            self._aside.settle()

    def close(self) -> None:
        """Wait for the transfers under way; no more can be started."""
        if self._aside is not None:
            self._aside.close()

    def rows(self, h: Tensor, layer: int, sent: TrainGraph, read: TrainGraph) -> Tensor:
        """Send the boundary rows of `sent`; return those of `read`, sent tau iterations ago.

        Args:
            h: [n_in, width], the rows of this rank.
            layer: graph layer.
            sent: the graph g_t.
            read: the graph g_{t-tau}, which is trained on.
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
        transfer = self._start(
            gradient, halo.recv_counts, halo.send_counts, "gradient", layer, "backward", aside=not at_once
        )
        queue.append((halo.send_index, transfer))
        if len(queue) <= self.staleness:
            return (halo.send_index, _result(transfer)) if at_once else None
        index, transfer = queue.popleft()
        return index, self._received(_result(transfer), "backward", layer)

    def _send_rows(
        self, h: Tensor, layer: int, graph: TrainGraph, *, aside: bool
    ) -> Tensor | Pending[Tensor]:
        halo = graph.source(layer)
        purpose: Purpose = "feature" if layer == 0 else "embedding"
        rows = h.index_select(0, halo.send_index)
        return self._start(rows, halo.send_counts, halo.recv_counts, purpose, layer, "forward", aside=aside)

    def _start(
        self,
        rows: Tensor,
        send_counts: list[int],
        recv_counts: list[int],
        purpose: Purpose,
        layer: int,
        direction: Direction,
        *,
        aside: bool,
    ) -> Tensor | Pending[Tensor]:
        start = self._aside.start if aside and self._aside is not None else self.comm.exchange_rows
        return start(rows, send_counts, recv_counts, purpose=purpose, layer=layer, direction=direction)

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
            layer 0 sends what it is given (`narrow`).
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
        result: Tensor = _Stale.apply(h, self, layer)  # type: ignore[no-untyped-call]
        return result


class _Stale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, h: Tensor, exchange: StaleExchange, layer: int) -> Tensor:
        ctx.exchange, ctx.layer, ctx.inner = exchange, layer, h.shape[0]  # type: ignore[attr-defined]
        return torch.cat([h, exchange.pipeline.rows(h, layer, exchange.sent, exchange.read)])

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, None, None]:
        exchange, layer, inner = ctx.exchange, ctx.layer, ctx.inner  # type: ignore[attr-defined]
        (grad,) = grads
        arrived = exchange.pipeline.gradients(grad[inner:], layer, exchange.read)
        fresh = grad[:inner]
        return fresh if arrived is None else fresh.index_add(0, *arrived), None, None


def _result(transfer: Tensor | Pending[Tensor]) -> Tensor:
    return transfer if isinstance(transfer, Tensor) else transfer.wait()
