"""ROC: partitions in host memory, swapped to the device under a budget."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from harness import Bytes, BytesCase, FullGraphMethod, FullGraphOptions, MemoryCase, Metric, Step, SyncExchange, Worker
from harness.models import evaluation_values

from .offloading import Offloader

MIB = 1 << 20

EMULATED = (
    "on a CPU the device's memory is emulated: a second buffer of the same memory, copied to and from as a "
    "device's would be. Bytes and swaps are those of a device, the phase swap is the time of such copies."
)


class ROCOptions(FullGraphOptions):
    """Options of ROC."""

    budget_mib: float | None = Field(
        None, gt=0, description="device memory (MiB a rank) for matrices of rows; none: unlimited"
    )


class ROC(FullGraphMethod[ROCOptions]):
    """Full-graph training with partitions in host memory, swapped to the device (Jia et al., MLSys 2020).

    Exact: `full`, bit for bit, whatever the budget. Of ROC its memory management, for which it is a baseline
    in section 4 of BNS-GCN; partitions and exchanges are those of `full`. The input features (with
    `precompute` their aggregation too) live in host memory and come to the device in every epoch. What the
    layers make there (source rows with the received boundary, activations, gradients) is held within
    `budget_mib`: of what autograd has saved and nothing else holds, the least recently used leaves for host
    memory, and comes back for the backward pass. Weights, optimizer, labels and the graph's structure
    stay on the device, beside the budget; evaluations are not under it. If one layer needs more at once than
    the budget, the trial ends as `oom`.

    Bytes: those of `full`, and `swap`, both ways: the input features once an epoch with no limit; else what
    leaves, once each, and what comes back.
    """

    name = "roc"
    colour = "#ee6677"
    Options = ROCOptions
    exact: ClassVar[dict[str, Any]] = {}
    metrics = (
        Metric.of_method("swap_in_bytes", "moved to the device", "B", better="less", heading="Swapped in"),
        Metric.of_method("swap_out_bytes", "moved from the device", "B", better="less", heading="Swapped out"),
        Metric.of_method("arena_peak_bytes", "most that was on the device", "B", heading="Most on the device"),
    )

    def __init__(self, worker: Worker, options: ROCOptions) -> None:
        super().__init__(worker, options)
        budget = None if options.budget_mib is None else int(options.budget_mib * MIB)
        self.offloader = Offloader(budget, worker.device, worker.clock, worker.traffic)
        self._emulated = worker.device.type == "cpu"
        # On a CPU what is there already is the host's.
        self._features = self._home(worker.features.inner)
        worker.features.inner = self._features
        if self.aggregated is not None:
            self.aggregated = self._home(self.aggregated)
        self._build_structure()
        model = worker.model
        layers = dict(enumerate(model.linear_layers, start=model.depth))
        layers |= {i * model.hops: layer for i, layer in enumerate(model.graph_layers)}
        for index, layer in layers.items():
            layer.register_forward_pre_hook(lambda *_, index=index: self.offloader.enter(index))
        self._sync = SyncExchange(worker.comm, worker.partition.full_halo)

    def steps(self, epoch: int) -> Iterator[Step]:
        """Yield the step of `full`, its matrices in the offloader."""
        worker, stats = self.worker, dict[str, Any]()
        yield Step(
            blocks=[worker.partition.full_block] * worker.model.depth,
            inputs=partial(self.offloader.load, self._features),
            exchange=self._exchange,
            loss=worker.train_loss,
            narrow=self.options.narrow,
            aggregated=None if self.aggregated is None else partial(self.offloader.load, self.aggregated),
            stats=stats,
            around=partial(self.offloader.step, stats),
        )

    def _exchange(self, h: Tensor, layer: int) -> Tensor:
        self.offloader.enter(layer)  # in mixhop each hop is one
        return self._sync(h, layer)

    @property
    def remarks(self) -> list[str]:
        """See `Method.remarks`."""
        return [EMULATED] if self._emulated else []

    @classmethod
    def memory(cls, options: ROCOptions, case: MemoryCase) -> dict[str, int]:
        """Return the components: rows up to the budget on the device, on a CPU the host's copies too."""
        full = case.full_graph(precompute=options.precompute, narrow=options.narrow)
        layers = full.pop("layers (Eq. 3)") + full.pop("layers, beside Eq. 3")
        homes = full.pop("input features") + full.pop("aggregated features", 0)
        limit = None if options.budget_mib is None else int(options.budget_mib * MIB)
        device = homes + layers if limit is None else min(limit, homes + layers)
        if not case.cuda:
            # A rank has both memories: what is not on the device is in the other.
            return {
                "rows on the device": device,
                "input features in host memory": homes,
                "activations in host memory": min(layers, homes + layers - device),
                **full,
            }
        if case.evaluated is not None:
            # An evaluation interrupts no more than what the budget let training have.
            values = evaluation_values(case.model, case.evaluated.block, exchanged=case.parts > 1, least=case.least)
            needed = values * case.itemsize
            full["evaluation"] += max(0, needed - device) - max(0, needed - layers)
        return {"rows on the device": device, **full}

    @classmethod
    def bytes_per_epoch(cls, options: ROCOptions, case: BytesCase) -> Bytes | None:
        """Return the bytes of `full` and of the inputs' swap; under a budget there is no closed form."""
        if options.budget_mib is not None:
            return None
        inputs = case.nodes * case.model.widths[0][0] * case.itemsize * (1 + options.precompute)
        sent = case.boundary_rows(case.boundary, precompute=options.precompute, narrow=options.narrow)
        return sent | {"swap": inputs}

    def _home(self, tensor: Tensor) -> Tensor:
        return tensor if self._emulated else self.offloader.to_host(tensor)

    def _build_structure(self) -> None:
        """Build what is derived from the graph once, so that no step's budget pays for it."""
        block = self.worker.partition.full_block
        rows = torch.zeros((block.num_src, 1), dtype=self.worker.dtype, device=self.worker.device, requires_grad=True)
        block.aggregate(rows, self.worker.model.propagation).sum().backward()
