"""Step: what a method says of one optimizer step; and how inner rows become source rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, ClassVar

from harness.deferred import Function, torch
from harness.errors import UserError
from harness.graph.block import Arriving, Block
from harness.graph.csr import Places
from harness.graph.devices import fresh, kind_of, upload
from harness.graph.partition import Halo, Partition
from harness.graph.spmm import unrounded
from harness.runtime.comm import Communicator

if TYPE_CHECKING:
    from torch import Tensor
    from torch.autograd.function import FunctionCtx

    from harness.models.gnn import Exchange, FirstLayer, Rows
    from harness.runtime.batches import Background, Pending


def send_boundary(start: Callable[..., Any], h: Tensor, halo: Halo, layer: int, **others: Any) -> Any:
    """Return what `start`, of the arguments of `Communicator.exchange_rows`, does with the rows of `h` that peers read.

    `h` [n_in, width]: a layer's inner rows; of bfloat16 they are sent as float32, unless a codec rounds them.
    """
    rows = fresh(h, halo.send_index.numel(), h.shape[1])
    rows, purpose = unrounded(torch.index_select(h, 0, halo.send_index, out=rows)), "embedding" if layer else "feature"
    counts = halo.send_counts, halo.recv_counts
    return start(rows, *counts, purpose=purpose, layer=layer, direction="forward", **others)


class SyncExchange:
    """Every boundary row of this very layer, waited for (vanilla partition parallelism)."""

    takes_rounded: ClassVar[bool] = True  # rows may be in bfloat16, and are then returned so

    def __init__(self, comm: Communicator, halo: Halo) -> None:
        self.comm, self.halo = comm, halo

    def __call__(self, h: Tensor, layer: int) -> Tensor:
        """Return the source rows [num_src, width] of a layer's inner rows `h` [n_in, width]; see `Step`."""
        if self.comm.world == 1:
            return h
        result: Tensor = _SyncExchange.apply(h, self, layer)
        return result

    def move(self, rows: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int], **what: Any) -> Tensor:
        """Send rows [n, width], values forward and gradients backward; return those that arrive (in `out`, if given).

        A subclass that changes what travels overrides it; `what` is the keywords of `Communicator.exchange_rows`.
        """
        return self.comm.exchange_rows(rows, send_counts, recv_counts, **what)


class _SyncExchange(Function):
    @staticmethod
    def forward(ctx: FunctionCtx, h: Tensor, exchange: SyncExchange, layer: int) -> Tensor:
        halo, inner = exchange.halo, h.shape[0]
        source = fresh(h, inner + sum(halo.recv_counts), h.shape[1])
        source[:inner] = h
        if h.dtype == torch.bfloat16:
            source[inner:] = send_boundary(exchange.move, h, halo, layer)
        else:
            send_boundary(exchange.move, h, halo, layer, out=source[inner:])
        ctx.exchange, ctx.layer, ctx.inner = exchange, layer, inner  # type: ignore[attr-defined]
        return source

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, None, None]:
        exchange, layer, inner = ctx.exchange, ctx.layer, ctx.inner  # type: ignore[attr-defined]
        halo: Halo = exchange.halo
        (grad,) = grads
        counts, boundary = (halo.recv_counts, halo.send_counts), unrounded(grad[inner:])
        incoming = exchange.move(boundary, *counts, purpose="gradient", layer=layer, direction="backward")
        result = fresh(grad, inner, grad.shape[1]).copy_(grad[:inner])
        return result.index_add_(0, halo.send_index, incoming.to(grad.dtype)), None, None


class OverlappedExchange:
    """Moves what `SyncExchange` moves while the rank goes on with its inner rows, for a `HalvedBlock` of the same halo.

    Forward, what inner rows give is summed meanwhile; backward, the boundary's gradients come first, and are under
    way during the rest of the layer.
    """

    takes_rounded: ClassVar[bool] = True

    def __init__(self, aside: Background, halo: Halo) -> None:
        self.aside, self.halo = aside, halo
        self.rows: dict[int, Pending[Tensor]] = {}
        self.gradients: dict[int, Pending[Tensor]] = {}

    def __call__(self, h: Tensor, layer: int) -> Arriving:
        """Send the boundary rows of a layer's inner rows `h` [n_in, width]; return both, see `Step`."""
        own, ticket = _Depart.apply(h, self, layer)
        return Arriving(own, lambda: _Arrive.apply(ticket, self, layer))


class _Depart(Function):
    """Sends rows. The second output only has the place in autograd's graph of those that are on their way here.

    Autograd goes back in the reverse order of these calls: to `_Arrive`, to what was summed meanwhile, and to this.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, h: Tensor, exchange: OverlappedExchange, layer: int) -> tuple[Tensor, Tensor]:
        halo = exchange.halo
        exchange.rows[layer] = send_boundary(exchange.aside.start, h, halo, layer)
        ctx.exchange, ctx.layer = exchange, layer  # type: ignore[attr-defined]
        return h.view_as(h), h.new_empty(1).expand(sum(halo.recv_counts), h.shape[1])

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, None, None]:
        exchange, layer = ctx.exchange, ctx.layer  # type: ignore[attr-defined]
        incoming = exchange.gradients.pop(layer).wait().to(grads[0].dtype)
        return grads[0].index_add(0, exchange.halo.send_index, incoming), None, None


class _Arrive(Function):
    @staticmethod
    def forward(ctx: FunctionCtx, ticket: Tensor, exchange: OverlappedExchange, layer: int) -> Tensor:
        ctx.exchange, ctx.layer = exchange, layer  # type: ignore[attr-defined]
        return exchange.rows.pop(layer).wait()

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, None, None]:
        exchange, layer = ctx.exchange, ctx.layer  # type: ignore[attr-defined]
        halo: Halo = exchange.halo
        exchange.gradients[layer] = exchange.aside.start(
            grads[0], halo.recv_counts, halo.send_counts, purpose="gradient", layer=layer, direction="backward"
        )
        return grads[0], None, None


@dataclass(frozen=True)
class Wanted:
    """What a rank asked of its peers' inner rows, and what they asked of its own."""

    recv_counts: list[int]  # rows asked of each rank
    send_counts: list[int]  # rows that each rank asks for
    entries: Tensor  # int64 [sum(send_counts)], those rows as positions in `Partition.send_index`, by asker


def ask(comm: Communicator, partition: Partition, kept: Tensor) -> Wanted:
    """Exchange which boundary nodes this rank wants, and which of its inner rows the peers want.

    Every rank must call, with the ascending positions in `partition.boundary` that are `kept`, where the partition is.
    Nothing comes to the host but how many rows are moved, for which it waits. Traffic (control): 8 bytes a peer and 4
    bytes for each kept node.
    """
    starts, ends, _ = partition.routes
    own = torch.searchsorted(kept, starts).diff()
    theirs = comm.exchange_rows(own, [1] * comm.world, [1] * comm.world, purpose="control")
    counts, wanted = torch.stack([own, theirs]).tolist()
    positions = kept - starts[:-1].repeat_interleave(own, output_size=len(kept))
    asked = comm.exchange_rows(positions.int(), counts, wanted, purpose="control")
    return Wanted(counts, wanted, asked + ends[:-1].repeat_interleave(theirs, output_size=len(asked)))


def announce(comm: Communicator, partition: Partition, kept: Places) -> Halo:
    """Return the halo of the kept boundary nodes, positions as for `ask`, on the host or the device.

    Traffic and waits are those of `ask`.
    """
    wanted = ask(comm, partition, upload(kept, comm.device))
    return partition.halo(wanted.entries, wanted.send_counts, wanted.recv_counts)


@dataclass(frozen=True)
class Loss:
    """Which destination rows the loss reads."""

    rows: Tensor  # int64, rows of the model's output
    labels: Tensor  # their labels, int64 [len(rows)] or float [len(rows), C]
    total: int  # rows of all ranks in this step: the loss is the sum over the rows divided by it
    weights: Tensor | None = None  # None, or [len(rows)]: factors of the rows' losses


@dataclass(frozen=True)
class Step:
    """One forward pass, backward pass and update. Every rank yields equally many in an epoch.

    Attributes:
        blocks: one for each graph layer (in mixhop for each of its hops), input layer first.
        loss: what is learnt from.
        inputs: the features that the first layer reads (of a full-graph method those of the inner rows), or
            what gives them when read.
        exchange: turns the inner rows [n_in, width] of a layer, whose number follows, into its source rows [num_src,
            width], inner rows first; gradients flow back to the owners. None where the blocks need no other rows.
        transform_first: exchange H W instead of H where that is fewer bytes.
        aggregated: the first layer's aggregated input features, if known already ([num_dst, F]).
        first: what computes the first layer, of `inputs` that are some columns of the features; None: the model does.
        stats: metrics of the method's own, recorded with the epoch (summed over its steps); read behind the step.
        around: what forward and backward pass happen in.
        nodes, outputs: of a mini-batch, the nodes (int64) that `inputs` and the logits are of.
    """

    blocks: list[Block]
    loss: Loss
    inputs: Rows
    exchange: Exchange | None = None
    transform_first: bool = False
    aggregated: Rows | None = None
    first: FirstLayer | None = None
    stats: dict[str, Any] = field(default_factory=dict)
    around: Callable[[], AbstractContextManager[None]] = nullcontext
    nodes: Places | None = None
    outputs: Places | None = None


WARM = 2  # steps before a capture: what is allocated or chosen at first use must not be captured


class CapturedSteps:
    """Runs the passes of a step as they are a few times, then captures and replays them (`train.cuda_graphs`).

    A replay reads and writes the same memory: steps must have the blocks, inputs, loss rows and gradients of the one
    that was captured.
    """

    def __init__(self, device: torch.device) -> None:
        self._kind = kind_of(device)
        self._stream = self._kind.new_stream()
        self._graph: Any = None
        self._of: list[Any] = []
        self._loss: Tensor | None = None
        self._taken = 0

    def run(self, step: Step, passes: Callable[[], Tensor]) -> Tensor:
        """Return the loss of `passes`, which calls the forward and backward pass of `step`; see `UserError`.

        Raises:
            UserError: the step is not the one that was captured.
        """
        read = [*step.blocks, step.inputs, step.aggregated, step.loss]
        if self._taken and not all(a is b for a, b in zip_longest(read, self._of)):
            raise UserError(
                "the method's steps differ from one another",
                key="train.cuda_graphs",
                fix="leave it out, or take `full`",
            )
        self._of, self._taken = read, self._taken + 1
        if self._graph is None and self._taken <= WARM:
            return self._aside(passes)
        if self._graph is None:
            self._graph = self._kind.graph()
            with self._kind.capture(self._graph):
                self._loss = passes()
        self._graph.replay()
        assert self._loss is not None
        return self._loss

    def _aside(self, passes: Callable[[], Tensor]) -> Tensor:
        """Run on another stream than the current one, as a capture does: autograd keeps to the first one it saw."""
        current = self._kind.current_stream()
        self._stream.wait_stream(current)
        with self._kind.on(self._stream):
            loss = passes()
        current.wait_stream(self._stream)
        self._kind.hold(loss)
        return loss


def why_not_captured(*, device: str, timing: str, parts: int, method: str, recurring: bool) -> tuple[str, str] | None:
    """Return why a trial's steps cannot be captured, and what to do; None if they can."""
    if device != "cuda":
        return f"device {device} has no CUDA graphs", "leave it out, or --device cuda"
    if not recurring:
        return f"the steps of {method} differ from one another", "leave it out, or take a method like `full`"
    if parts > 1:
        return f"{parts} ranks exchange rows inside a step", "partition.parts: 1"
    if timing in ("plain", "breakdown"):
        return f"timing {timing} looks into steps, and a replay cannot be looked into", "timing: wall"
    return None
