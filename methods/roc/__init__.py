"""ROC: partitions in host memory, swapped to the device under a budget."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, model_validator

from harness import Bytes, BytesCase, FullGraphMethod, FullGraphOptions, Metric, Step, SyncExchange, Worker, torch
from harness.plugin import MemoryCase, TrialError, loss_sum

from .offloading import CHANGED, Offloader, Tracer
from .plan import MOST_STATES, Plan, Policy, Trace, make_plan

if TYPE_CHECKING:
    from torch import Tensor

    from harness.plugin import GNN

MIB = 1 << 20
TRACED = 2  # steps: the products of the second are others than the first's, and need other memory

EMULATED = (
    "on a CPU the device's memory is emulated: a second buffer of the same memory, copied to and from as a "
    "device's would be. Bytes and swaps are those of a device, the phase swap is the time of such copies."
)


class ROCOptions(FullGraphOptions):
    """Options of ROC."""

    budget_mib: float | None = Field(
        None, gt=0, description="device memory (MiB a rank) for matrices of rows; without any budget nothing leaves it"
    )
    budget_share: float | None = Field(
        None, ge=0, le=1, description="the same by what swapping can save: 0 is the least that a step can run in, 1 "
        "what it has there at once if nothing leaves, both on the rank where they are most"
    )  # fmt: skip
    policy: Policy = Field(
        "dp", description="what leaves: dp, what makes the fewest bytes move (dynamic programming), or lru, "
        "what was used longest ago"
    )  # fmt: skip

    @model_validator(mode="after")
    def _one_budget(self) -> Self:
        if self.budget_mib is not None and self.budget_share is not None:
            raise ValueError("budget_share: a budget is one of budget_mib and budget_share; leave one out")
        return self

    def budget(self, least: int, most: int) -> int | None:
        """Return the budget in bytes of a step that needs at least so many, at most so many; None if there is none."""
        if self.budget_mib is not None:
            return int(self.budget_mib * MIB)
        return None if self.budget_share is None else least + int(self.budget_share * (most - least))


class ROC(FullGraphMethod[ROCOptions]):
    """Full-graph training with partitions in host memory, swapped to the device (Jia et al., MLSys 2020).

    Exact: `full`, bit for bit, whatever the budget. Of ROC its memory management, for which it is a baseline
    in section 4 of BNS-GCN; partitions and exchanges are those of `full`. The input features (with
    `precompute` their aggregation too) live in host memory and come to the device in every epoch. What the
    layers make there (source rows with the received boundary, activations, gradients) is held within a
    budget, `budget_mib` or `budget_share`: of what autograd has saved and nothing else holds, some leaves for
    host memory, and comes back for the backward pass.

    What leaves is planned once, in set-up, where two steps of a copy of the model are traced: by `policy: dp`
    ROC's dynamic programming, which moves the fewest bytes, by `lru` the least recently used. Epochs
    follow the plan; no operation is looked at. Weights, optimizer, labels and the graph's structure stay on the
    device, outside the budget; so are evaluations. If one layer needs more at once than the
    budget, the trial ends as `oom`.

    Bytes: those of `full`, and `swap`, both ways: the input features once an epoch where nothing leaves; else
    what leaves, once each, and what comes back.
    """

    name = "roc"
    colour = "#ee6677"
    Options = ROCOptions
    exact: ClassVar[dict[str, Any]] = {}
    metrics = (
        Metric.of_method("swap_in_bytes", "moved to the device", "B", better="less", heading="Swapped in"),
        Metric.of_method("swap_out_bytes", "moved from the device", "B", better="less", heading="Swapped out"),
        Metric.of_method(
            "arena_peak_bytes", "most that is on the device at once, by the plan", "B", heading="Most on the device"
        ),
        Metric.of_method(
            "bookkeeping_s", "in the phases forward and backward: the host's time between autograd and what it "
            "saves, moves left out; 0 where nothing leaves", "s", better="less", machine=True, heading="Bookkeeping",
        ),
        Metric.of_setup("planning_s", "tracing steps and planning swaps", "s", better="less", machine=True),
        Metric.of_setup("arena_least_bytes", "the smallest budget", "B", heading="Smallest budget"),
        Metric.of_setup(
            "arena_most_bytes", "the smallest budget under which nothing leaves", "B", heading="Budget of no swaps"
        ),
    )  # fmt: skip

    def __init__(self, worker: Worker, options: ROCOptions) -> None:
        super().__init__(worker, options)
        self.offloader = Offloader(worker.device, worker.clock, worker.traffic)
        self._emulated = worker.device.type == "cpu"
        # On a CPU what is there already is the host's.
        self._features = self._home(worker.features.inner)
        worker.features.inner = self._features
        if self.aggregated is not None:
            self.aggregated = self._home(self.aggregated)
        # What is derived from the graph is built once, here, so that no step's budget pays for it.
        block = worker.partition.full_block
        rows = torch.zeros((block.num_src, 1), dtype=worker.dtype, device=worker.device, requires_grad=True)
        block.aggregate(rows, worker.model.propagation).sum().backward()
        self._sync = SyncExchange(worker.comm, worker.partition.full_halo)
        start = perf_counter()
        self.trace = self._traced()
        limits = worker.comm.all_gather(torch.tensor([self.trace.least, self.trace.most], device=worker.device))
        self.budget = options.budget(*torch.stack(limits).amax(0).tolist())
        self.plan = Plan({}) if self._short else make_plan(self.trace, self.budget, options.policy)
        self.offloader.follow(self.trace, self.plan.away)
        self._peak = self.trace.peak(self.plan.away)
        self._planning_s = perf_counter() - start

    def steps(self, epoch: int) -> Iterator[Step]:
        """Yield the step of `full`, its matrices in the offloader."""
        if self._short:
            assert self.budget is not None
            needs = self.trace.needs
            at = self.trace.moments[needs.index(max(needs))]
            raise TrialError(
                "oom",
                f"layer {at.layer}, {at.direction} pass: what is in use at once needs {max(needs) / MIB:.4g} MiB "
                f"({max(needs)} bytes) on the device, the budget is {self.budget / MIB:.4g} MiB",
            )
        stats: dict[str, Any] = {"arena_peak_bytes": self._peak}
        yield self.step_on(
            self.worker.partition.full_block,
            self._sync,
            inputs=partial(self.offloader.load, self._features),
            aggregated=None if self.aggregated is None else partial(self.offloader.load, self.aggregated),
            stats=stats,
            around=partial(self.offloader.step, stats),
        )

    @property
    def warnings(self) -> list[str]:
        """See `Method.warnings`."""
        least, most = self.trace.least / MIB, self.trace.most / MIB
        found = [EMULATED] if self._emulated else []
        if self.budget is None:
            found.append(
                f"No budget is set (budget_mib, budget_share), so that nothing leaves the device but what is loaded in "
                f"every epoch: {most:.4g} MiB are there at once. {least:.4g} MiB would do."
            )
        elif not self.plan.away and not self._short:
            found.append(f"Nothing leaves the device: {most:.4g} MiB are there at once, which the budget has room for.")
        if self.options.policy == "dp" and not self.plan.best and not self._short:
            found.append(f"The plan need not move the fewest bytes: it took more than {MOST_STATES} states to prove.")
        return found

    def setup_metrics(self) -> dict[str, float | None]:
        """See `Method.setup_metrics`."""
        trace = self.trace
        return {"planning_s": self._planning_s, "arena_least_bytes": trace.least, "arena_most_bytes": trace.most}

    @classmethod
    def memory(cls, options: ROCOptions, case: MemoryCase) -> dict[str, int]:
        """Return the components: rows up to the budget on the device, on a CPU the host's copies too.

        What a step needs at least is known by a trace alone: of `budget_share` all rows are counted.
        """
        full = case.full_graph(**options.for_memory)
        layers = full.pop("layers (Eq. 3)") + full.pop("layers, beside Eq. 3")
        homes = full.pop("input features") + full.pop("aggregated features", 0)
        limit = options.budget(homes + layers, homes + layers)
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
            needed = case.evaluation_values * case.itemsize
            full["evaluation"] += max(0, needed - device) - max(0, needed - layers)
        return {"rows on the device": device, **full}

    @classmethod
    def bytes_per_epoch(cls, options: ROCOptions, case: BytesCase) -> Bytes | None:
        """Return the bytes of `full` and of the inputs' swap; under a budget there is no closed form."""
        if options.budget_mib is not None or options.budget_share not in (None, 1):
            return None
        inputs = case.nodes * case.model.widths[0][0] * case.itemsize * (1 + options.precompute)
        return case.boundary_rows(case.boundary, **options.for_costs) | {"swap": inputs}

    @property
    def _short(self) -> bool:
        return self.budget is not None and self.budget < self.trace.least

    def _home(self, tensor: Tensor) -> Tensor:
        return tensor if self._emulated else self.offloader.to_host(tensor)

    def _traced(self) -> Trace:
        """Trace steps of a copy of the model, which draw none of the training's numbers; every rank must call."""
        tracer = Tracer(self.worker.device)
        # Another copy's first step compiles kernels, and a compiler holds longer what it was given.
        self._trace(self._copy(tracer), tracer)
        model = self._copy(tracer)
        first, *others = [self._trace(model, tracer) for _ in range(TRACED)]
        for other in others:
            if (other.moments, other.gaps) != (first.moments, first.gaps):
                raise TrialError("error", CHANGED)
        return replace(first, needs=tuple(map(max, zip(first.needs, *(other.needs for other in others), strict=True))))

    def _copy(self, tracer: Tracer) -> GNN:
        """Return a copy of the model, with gradients to add to, whose layers the tracer knows."""
        model = deepcopy(self.worker.model).train()
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        layers = dict(enumerate(model.linear_layers, start=model.depth))
        layers |= {i * model.hops: layer for i, layer in enumerate(model.graph_layers)}
        for index, layer in layers.items():
            layer.register_forward_pre_hook(lambda *_, index=index: tracer.enter(index))
        return model

    def _trace(self, model: GNN, tracer: Tracer) -> Trace:
        worker, layers = self.worker, self.layers_on(self.worker.partition.full_block)

        def exchange(h: Tensor, layer: int) -> Tensor:
            tracer.enter(layer)  # in mixhop each hop is one
            return self._sync(h, layer)

        with worker.apart(), tracer.step():
            logits = model(
                layers["blocks"],
                partial(tracer.load, self._features),
                exchange,
                transform_first=self.options.transform_before_exchange,
                aggregated=None if self.aggregated is None else partial(tracer.load, self.aggregated),
            )
            loss_sum(logits, layers["loss"], worker.job.config.train.pos_weight).backward()
        return tracer.trace
