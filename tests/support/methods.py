"""Methods with planted faults, which the checks must catch, and with a planted guidance."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness import GuidedSampler, Sampler, Source, Step, Worker, per_layer
from harness.runtime.stale import Pipeline, TrainGraph
from methods.bns_gcn import BNSGCN
from methods.full import Full
from methods.graphsage import GraphSAGE
from methods.ladies import LADIES
from methods.psc_gcn import PSCGCN, PSCOptions


class UnscaledBNS(BNSGCN):
    """BNS-GCN that forgets 1/p."""

    def sample(self) -> tuple[NDArray[np.int64], Tensor | None]:
        kept, _ = super().sample()
        return kept, None


class UnscaledPSC(PSCGCN):
    """PSC-GCN that forgets 1/p, on a graph without weights."""

    def steps(self, epoch: int) -> Iterator[Step]:
        for step in super().steps(epoch):
            values = step.blocks[0].adjacency.values
            assert values is not None
            values.fill_(1)
            yield step


class UnscaledLADIES(LADIES):
    """LADIES that forgets 1/p, on a graph without weights."""

    def steps(self, epoch: int) -> Iterator[Step]:
        for step in super().steps(epoch):
            values = step.blocks[0].adjacency.values
            if values is not None:  # not all candidates were drawn
                values.fill_(1)
            yield step


class Guided(GraphSAGE):
    """Neighbour sampling by an importance of remote nodes that no explanation has to find first."""

    unbiased = True

    def make_sampler(self, source: Source) -> Sampler:
        """See `MiniBatchMethod`."""
        importance = np.random.default_rng(5).uniform(0.1, 1, source.topology.num_nodes).astype(np.float32)
        fanouts = per_layer(self.options.fanouts, source.depth, "fanouts")
        return GuidedSampler(source, fanouts, importance, deviation=0.1, unbiased=self.unbiased)


class AveragedGuided(Guided):
    """Guided sampling that averages the drawn neighbours."""

    unbiased = False


class Drifting(Full):
    """Full-graph training in which one bit of rank 1's first weight flips in epoch 2."""

    def steps(self, epoch: int) -> Iterator[Step]:
        if epoch == 2 and self.worker.rank == 1:
            weight = next(self.worker.model.parameters())
            bits = weight.data.view(-1)[:1].view(
                torch.int32 if weight.dtype == torch.float32 else torch.int64
            )
            bits ^= 1
        yield from super().steps(epoch)


class Exploding(Full):
    """Full-graph training whose weights become NaN in epoch 2."""

    def steps(self, epoch: int) -> Iterator[Step]:
        if epoch == 2:
            next(self.worker.model.parameters()).data.fill_(float("nan"))
        yield from super().steps(epoch)


class Older(PSCGCN):
    """PSC-GCN whose boundary values are an iteration older than they should be."""

    def __init__(self, worker: Worker, options: PSCOptions) -> None:
        super().__init__(worker, options)
        self.pipeline.staleness += 1


class _Doubling(Pipeline):
    def gradients(self, gradient: Tensor, layer: int, read: TrainGraph) -> tuple[Tensor, Tensor] | None:
        found = super().gradients(gradient, layer, read)
        return None if found is None else (found[0], 2 * found[1])


class _Dropping(Pipeline):
    def gradients(self, gradient: Tensor, layer: int, read: TrainGraph) -> tuple[Tensor, Tensor] | None:
        super().gradients(gradient, layer, read)
        return None


class Doubled(PSCGCN):
    """PSC-GCN that adds received gradients twice."""

    def __init__(self, worker: Worker, options: PSCOptions) -> None:
        super().__init__(worker, options)
        self.pipeline = _Doubling(worker.comm, options.staleness)


class Dropped(PSCGCN):
    """PSC-GCN that forgets to add received gradients."""

    def __init__(self, worker: Worker, options: PSCOptions) -> None:
        super().__init__(worker, options)
        self.pipeline = _Dropping(worker.comm, options.staleness)


class Slow(PSCGCN):
    """PSC-GCN whose rank 1 takes at least ten times as long as the others, before and behind each step."""

    def steps(self, epoch: int) -> Iterator[Step]:
        pause = 0.02 * (self.worker.rank == 1)
        for step in super().steps(epoch):
            time.sleep(pause)
            yield step
            time.sleep(pause)
