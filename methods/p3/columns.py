"""A first layer by columns of its input: the parts of the layer that a rank computes, and their sums."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness import GraphLayer, SyncExchange, UserError, torch
from harness import numpy as np
from harness.plugin import CSR, Block, Communicator, Halo, ModelSpec, upload

if TYPE_CHECKING:
    from torch import Tensor


class PartialSums(SyncExchange):
    """Sums of what each rank has for a rank's rows; `rows`: of each rank. Gradients go to all that added to it."""

    def __init__(self, comm: Communicator, rows: Sequence[int]) -> None:
        send, receive = list(rows), [rows[comm.rank]] * comm.world
        send[comm.rank] = receive[comm.rank] = 0
        start = sum(rows[: comm.rank])
        self._own = slice(start, start + rows[comm.rank])
        others = np.r_[:start, self._own.stop : sum(rows)]
        super().__init__(comm, Halo(upload(others, comm.device), send, receive))

    def __call__(self, h: Tensor, layer: int = 0) -> Tensor:
        """Return this rank's sums [rows, width]; `h` [rows of all, width] is what it adds to each rank's."""
        found = super().__call__(h, layer)
        total = found[self._own]
        for part in found[len(h) :].view(self.comm.world - 1, *total.shape):
            total = total + part
        return total

    def move(self, rows: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int], **what: Any) -> Tensor:
        """See `SyncExchange`: forward these are no features."""
        if what["direction"] == "forward":
            what["purpose"] = "embedding"
        return super().move(rows, send_counts, recv_counts, **what)


class FirstByColumns:
    """A first layer for some columns of its input (see `FirstLayer`); UserError if it is not the sum of such layers.

    Of one that attends H W is that sum. Weights are by columns in those dimensions that grow with the input's width.
    """

    _blocks: list[list[Block]]
    _comm: Communicator

    def __init__(self, spec: ModelSpec, layer: GraphLayer, columns: slice) -> None:
        self._spec, self.columns, self._residual = spec, columns, spec.residual and layer.inputs == layer.outputs
        wider = dict(self._build(layer, layer.inputs + 1).named_parameters())
        self._along = {
            name: [dim for dim, size in enumerate(weights.shape) if size != wider[name].shape[dim]]
            for name, weights in layer.named_parameters()
        }
        if not self._is_sum(layer):
            what = f"the first layer of {spec.name} is no sum over the columns of its input"
            raise UserError(what, key="model.name", fix="use sage, gcn, gat or mixhop")
        if self._residual and layer.attends:
            what = f"{spec.name} adds whole rows of the features, which no rank has"
            raise UserError(what, key="model.residual", fix="leave it out, or take another hidden width")

    def on(self, blocks: list[list[Block]], comm: Communicator) -> FirstByColumns:
        """Return the layer on the blocks of each rank's batch, whose inputs come one after the other."""
        other = copy.copy(self)
        other._blocks, other._comm = blocks, comm
        return other

    def __call__(self, layer: GraphLayer, blocks: Sequence[Block], x: Tensor) -> Tensor:
        """See `FirstLayer`; every rank must call."""
        found: list[Tensor] = []
        own, other = (self._part(layer, self.columns, whole=whole) for whole in (True, False))
        rows = x.split([each[0].num_src for each in self._blocks])
        for rank, (each, given) in enumerate(zip(self._blocks, rows, strict=True)):
            out = partial_sum(own if rank == self._comm.rank else other, each, given)
            if self._residual:
                sides = self.columns.start, layer.outputs - self.columns.stop
                out = out + torch.nn.functional.pad(given[: len(out)], sides)
            found.append(out)
        sums = PartialSums(self._comm, [len(each) for each in found])
        return behind_sum(own, blocks, rows[self._comm.rank], sums(torch.cat(found)))

    def _part(self, layer: GraphLayer, columns: slice, *, whole: bool) -> GraphLayer:
        """Return `layer` for these columns; its other weights are 0 unless `whole`: one part alone adds the bias."""
        width = columns.stop - columns.start
        part = self._build(layer, width)
        part.linear = layer.linear  # a checkpoint has its state
        for name, value in layer.named_parameters():
            own: Tensor = value if whole or self._along[name] else torch.zeros_like(value)
            for dim in self._along[name]:
                own = own.narrow(dim, columns.start, width)
            module, _, leaf = name.rpartition(".")
            delattr(part.get_submodule(module), leaf)
            setattr(part.get_submodule(module), leaf, own)
        return part

    def _build(self, layer: GraphLayer, inputs: int) -> GraphLayer:
        last = self._spec.layers == 1 and self._spec.linear_layers == 0
        return layer.build(self._spec, inputs, layer.outputs, last=last, products=layer.products)

    def _is_sum(self, layer: GraphLayer) -> bool:
        """Return whether two parts give what the layer does, of random weights and rows, on a ring of five nodes."""
        whole, generator = self._build(layer, 3).double(), torch.Generator().manual_seed(0)
        for weights in whole.parameters():
            weights.data.normal_(generator=generator)
        x = torch.randn((5, 3), generator=generator, dtype=torch.float64)
        ring = CSR(torch.arange(0, 12, 2), torch.tensor([1, 2, 2, 3, 3, 4, 4, 0, 0, 1], dtype=torch.int32), 5)
        blocks, halves = [Block(ring, x.new_full((5,), 2))] * layer.hops, (slice(0, 1), slice(1, 3))
        try:
            parts = [(self._part(whole, half, whole=half.start == 0), x[:, half].contiguous()) for half in halves]
            one, other = (partial_sum(part, blocks, rows) for part, rows in parts)
            found = behind_sum(parts[0][0], blocks, parts[0][1], one + other)
        except (RuntimeError, ValueError):  # shapes that do not fit one another
            return False
        return torch.allclose(found, whole.run(blocks, x, _as_they_are, False, None))


def partial_sum(part: GraphLayer, blocks: Sequence[Block], rows: Tensor) -> Tensor:
    """Return what a layer for some columns adds: to its output, or if it attends to H W of its sources."""
    return part.linear(rows, part.weight) if part.attends else part.run(blocks, rows, _as_they_are, False, None)


def behind_sum(part: GraphLayer, blocks: Sequence[Block], rows: Tensor, total: Tensor) -> Tensor:
    """Return the layer's output, given the sum."""
    return part.run(blocks, rows, lambda _, hop: total, True, None) if part.attends else total


def _as_they_are(rows: Tensor, hop: int) -> Tensor:
    return rows
