"""Methods with planted faults, which the checks must catch, and with a planted guidance.

Where a fault has nothing to do with it, no exact setting is claimed: fewer runs then show the fault.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from harness_methods.bns_gcn import BNSGCN
from harness_methods.dgs import DGS, GuidedBatch
from harness_methods.dgs.guided_sampling import GuidedSampler
from harness_methods.full import Full
from harness_methods.graphsage import GraphSAGE
from harness_methods.ladies import LADIES
from harness_methods.psc_gcn import PSCGCN, PSCOptions
from numpy.typing import NDArray
from torch import Tensor

from harness import MethodOptions, Sampler, Source, Step, Worker
from harness.runtime.batches import Batch
from harness.runtime.pipelined import Pipeline, TrainGraph
from harness.sampling.sample import per_layer

SMALL: dict[str, dict[str, Any]] = {  # where the defaults would draw all of 60 nodes
    "graphsage": {"fanouts": 2, "batch_size": 5},
    "vrgcn": {"batch_size": 5},
    "cooperative": {"fanouts": 2, "batch_size": 5},
    "fastgcn": {"sizes": 20, "batch_size": 5},
    "ladies": {"sizes": 10, "batch_size": 5},
    "skewed": {"sizes": 10, "batch_size": 5},
    "graphsaint": {"size": 20, "frontier": 5, "coverage": 5},
    "clustergcn": {"clusters": 6, "per_batch": 2},
    "gas": {"clusters": 6, "per_batch": 2},
    "dgs": {"fanouts": 2, "batch_size": 5, "period": 2, "explain": "inline", "explain_steps": 10},
}


class UnscaledBNS(BNSGCN):
    """BNS-GCN that forgets 1/p."""

    exact = None

    def sample(self) -> tuple[NDArray[np.int64], Tensor | None]:
        kept, _ = super().sample()
        return kept, None


class UnscaledPSC(PSCGCN):
    """PSC-GCN that forgets 1/p, on a graph without weights."""

    exact = None

    def steps(self, epoch: int) -> Iterator[Step]:
        for step in super().steps(epoch):
            values = step.blocks[0].adjacency.values
            assert values is not None
            values.fill_(1)
            yield step


class UnscaledLADIES(LADIES):
    """LADIES that forgets 1/p, on a graph without weights."""

    exact = None

    def steps(self, epoch: int) -> Iterator[Step]:
        for step in super().steps(epoch):
            values = step.blocks[0].adjacency.values
            if values is not None:  # not all candidates were drawn
                values.fill_(1)
            yield step


class Guided(GraphSAGE):
    """Neighbour sampling by an importance of remote nodes that no explanation has to find first."""

    estimator_unbiased = True
    exact = None

    def make_sampler(self, source: Source) -> Sampler:
        """See `MiniBatchMethod`."""
        importance = np.random.default_rng(5).uniform(0.1, 1, source.topology.num_nodes).astype(np.float32)
        fanouts = per_layer(self.options.fanouts, source.depth, "fanouts")
        return GuidedSampler(source, fanouts, importance, deviation=0.1, unbiased=self.estimator_unbiased)


class AveragedGuided(Guided):
    """Guided sampling that averages the drawn neighbours."""

    estimator_unbiased = False


class Drifting(Full):
    """Full-graph training in which one bit of rank 1's first weight flips in epoch 2."""

    exact = None

    def steps(self, epoch: int) -> Iterator[Step]:
        if epoch == 2 and self.worker.rank == 1:
            weight = next(self.worker.model.parameters())
            bits = weight.data.view(-1)[:1].view(torch.int32 if weight.dtype == torch.float32 else torch.int64)
            bits ^= 1
        yield from super().steps(epoch)


class Exploding(Full):
    """Full-graph training whose weights become NaN in epoch 2."""

    exact = None

    def steps(self, epoch: int) -> Iterator[Step]:
        if epoch == 2:
            next(self.worker.model.parameters()).data.fill_(float("nan"))
        yield from super().steps(epoch)


class Forgetful(Full):
    """Full-graph training that weighs its loss by the epochs it has seen, and keeps their number in no checkpoint."""

    exact = None
    seen = 0

    def steps(self, epoch: int) -> Iterator[Step]:
        self.seen += 1
        for step in super().steps(epoch):
            weights = torch.full((step.loss.rows.numel(),), float(self.seen), dtype=self.worker.dtype)
            yield dataclasses.replace(step, loss=dataclasses.replace(step.loss, weights=weights))


class PromptDGS(DGS):
    """DGS that waits for an explanation before it hands out the next batch but one, so that draws repeat themselves."""

    exact = unbiased = None

    def hand_out(self, batch: Batch) -> GuidedBatch:
        """See `MiniBatchMethod`."""
        if (running := self.explainer._running) is not None:
            running.future.result()
        return super().hand_out(batch)


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
        self.pipeline = _Doubling(worker.comm, self._aside, options.staleness, options.warmup, None)


class Dropped(PSCGCN):
    """PSC-GCN that forgets to add received gradients."""

    def __init__(self, worker: Worker, options: PSCOptions) -> None:
        super().__init__(worker, options)
        self.pipeline = _Dropping(worker.comm, self._aside, options.staleness, options.warmup, None)


class Slow(PSCGCN):
    """PSC-GCN whose rank 1 takes at least ten times as long as the others, before and behind each step."""

    def steps(self, epoch: int) -> Iterator[Step]:
        pause = 0.02 * (self.worker.rank == 1)
        for step in super().steps(epoch):
            time.sleep(pause)
            yield step
            time.sleep(pause)


class Wasteful(Full):
    """Full-graph training that sends every boundary row twice, and says it sends it once."""

    exact = None

    def steps(self, epoch: int) -> Iterator[Step]:
        for step in super().steps(epoch):
            exchange = step.exchange
            assert exchange is not None

            def twice(h: Tensor, layer: int, exchange: Any = exchange) -> Tensor:
                exchange(h.detach(), layer)
                found: Tensor = exchange(h, layer)
                return found

            yield dataclasses.replace(step, exchange=twice)


class Unseeded(BNSGCN):
    """BNS-GCN whose draws no seed decides."""

    exact = None

    def sample(self) -> tuple[NDArray[np.int64], Tensor | None]:
        self.worker.rng = np.random.default_rng(int.from_bytes(os.urandom(8), "big"))
        return super().sample()


class Waiting(BNSGCN):
    """BNS-GCN in which a rank without a boundary has nothing to announce."""

    exact = None
    unbiased = None

    def steps(self, epoch: int) -> Iterator[Step]:
        worker = self.worker
        if worker.partition.num_boundary:
            yield from super().steps(epoch)
            return
        yield Step(
            blocks=[worker.partition.full_block] * worker.model.depth,
            inputs=worker.features.inner,
            loss=worker.train_loss,
        )


class Uneven(Full):
    """Full-graph training whose ranks divide their losses by their own training nodes, not by all."""

    def steps(self, epoch: int) -> Iterator[Step]:
        for step in super().steps(epoch):
            own = max(1, step.loss.rows.numel())
            yield dataclasses.replace(step, loss=dataclasses.replace(step.loss, total=own))


class Inattentive(Full):
    """Full-graph training that cannot train gat."""

    exact = None

    def steps(self, epoch: int) -> Iterator[Step]:
        if self.worker.model.attends:
            raise RuntimeError("no attention here")
        yield from super().steps(epoch)


class SecretOptions(MethodOptions):
    """Options of which one is not described, and none by default."""

    rate: float


class Secretive(Full):
    Options = SecretOptions
