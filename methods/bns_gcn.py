"""BNS-GCN: random boundary-node sampling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from harness import Bytes, BytesCase, FullGraphMethod, FullGraphOptions, Metric, Step
from harness import numpy as np
from harness.plugin import BoundarySampler, MemoryCase, Places, announce, sample_boundary, upload

if TYPE_CHECKING:
    from torch import Tensor


class BNSOptions(FullGraphOptions):
    """Options of BNS-GCN."""

    rate: float = Field(0.1, ge=0, le=1, description="share p of boundary nodes kept in an epoch")
    sampler: BoundarySampler = Field(
        "bernoulli", description="each boundary node with probability p, or exactly round(p n) of each owner's n"
    )


class BNSGCN(FullGraphMethod[BNSOptions]):
    """Random boundary-node sampling each epoch (BNS-GCN, Wan et al., MLSys 2022).

    Every epoch a rank keeps a sample of its boundary nodes, for all layers, forward and backward (Algorithm
    1); a kept node's edges count 1/p, in gat before the softmax is normalised. Rate 1 is `full`, rate 0
    trains isolated partitions. With `fixed`, k of an owner's n boundary nodes are kept, k = round(p n) but at
    least one, and count n/k, so that linear aggregations stay unbiased where p n is no whole number. With
    `precompute` the first layer is exact, as in the public code.
    Bytes: those of `full` with the kept nodes for |B_i|, plus control: 4 for each kept node, 8 a peer.
    """

    name = "bns-gcn"
    overlaps = True
    colour = "#0072b2"
    Options = BNSOptions
    space: ClassVar[dict[str, Any]] = {"rate": [0.01, 0.1, 0.3, 0.5]}
    exact: ClassVar[dict[str, Any]] = {"rate": 1.0}
    unbiased: ClassVar[dict[str, Any]] = {"rate": 0.3}
    metrics = (Metric.of_method("kept_boundary", "boundary nodes kept", heading="Kept boundary nodes"),)

    def steps(self, epoch: int) -> Iterator[Step]:
        """Yield one step on the inner nodes and this epoch's sample of the boundary."""
        comm, partition, rate = self.worker.comm, self.worker.partition, self.options.rate
        kept, scale = self.sample()
        halo = None if rate == 0 else partition.full_halo if rate == 1 else announce(comm, partition, kept)
        yield self.synchronous(kept, scale, halo, stats={"kept_boundary": len(kept)})

    @classmethod
    def memory(cls, options: BNSOptions, case: MemoryCase) -> dict[str, int]:
        """Return the components: boundary nodes count `rate` times, the sample's block comes on top."""
        return case.full_graph(kept=options.rate, **options.for_memory)

    @classmethod
    def expected_stats(cls, options: BNSOptions, case: BytesCase) -> dict[str, float]:
        """See `Method`."""
        return {"kept_boundary": options.rate * case.boundary}

    @classmethod
    def bytes_per_epoch(cls, options: BNSOptions, case: BytesCase) -> Bytes:
        """Return the bytes of the kept nodes' rows and, where there was a choice, of its announcement."""
        kept = case.count("kept_boundary")
        announced = 4 * kept + 8 * case.pairs if 0 < options.rate < 1 else 0
        return case.boundary_rows(kept, **options.for_costs) | {"control": announced}

    def sample(self) -> tuple[Places, Tensor | None]:
        """Return the kept positions in the boundary, ascending, and what each counts [kept]."""
        worker, rate = self.worker, self.options.rate
        if rate in (0, 1):
            return np.arange(worker.partition.num_boundary if rate else 0), None
        pointers, device = worker.partition.boundary_ptr, worker.device
        kept, factors = sample_boundary(pointers, rate, self.options.sampler, worker.rng, device)
        return kept, upload(factors, worker.device, worker.dtype)
