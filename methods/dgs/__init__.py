"""DGS: neighbour sampling guided by explanations of the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from harness import Bytes, BytesCase, Metric, MiniBatchMethod, Sampler, Source, Step, Worker, torch
from harness.plugin import (
    Batch,
    Communicator,
    DrawCounts,
    Drawn,
    FanoutSampler,
    FeatureStore,
    HostStore,
    Loaded,
    MemoryCase,
    NeighbourOptions,
    Plan,
    View,
    batch_seed,
    fresh,
    per_layer,
    take,
    upload,
)

from .explainer import COUNTED, Explainer, Guidance, explanation_memory
from .explanations import ExplanationGraph, MaskOptions
from .guided_sampling import GuidedSampler, GuidedSamplerOnDevice

if TYPE_CHECKING:
    from torch import Tensor

# The upper half of a number of rows says which columns: those announced before, all, or _NEW + n: n new ones.
_KNOWN, _ALL, _NEW = 0, 1, 2

_HALF = 32

_EXPLAINED = 2**32 - 1  # the epoch that no training comes to, and nothing else of this method is drawn by


class ColumnStore(FeatureStore):
    """A `FeatureStore` whose `columns` may differ between ranks, in number too, and from call to call.

    The owners keep each rank's columns; the first call that has others than the one before sends them to
    the owners; calls for all columns, which may come in between, announce nothing. Calls must come one at a time and
    in the same order on all ranks, from whichever thread. `columns` are distinct, on the host.

    Traffic: as for `RowStore.gather`, with the rank's own columns; and, where they are new, 4 bytes a column
    to each peer (control).
    """

    @cached_property
    def _announced(self) -> list[Tensor | None]:
        """The columns that each rank has announced, this one too."""
        return [None] * self.comm.world

    _own: Tensor | None = None
    """Those of this rank, on the host: no step waits to see whether others are new."""

    def announced(self) -> dict[str, Any]:
        """Return the columns that this rank has announced, and those that it received."""
        return {"own": self._own, "columns": self._announced}

    def remember(self, announced: dict[str, Any]) -> None:
        """Go on from what another process had `announced`."""
        self._own = announced["own"]
        self._announced = [
            None if columns is None else columns.to(self.comm.device) for columns in announced["columns"]
        ]

    def _fetch(self, plan: Plan, columns: Tensor | None, comm: Communicator, out: Tensor | None) -> Tensor:
        news = self._news(columns) << _HALF
        received = comm.exchange_counts([count | news for count in plan.counts])
        wanted, said = [n & (1 << _HALF) - 1 for n in received], [n >> _HALF for n in received]
        if max(said) >= _NEW:  # what a rank says it says to all: they all are here, or none
            self._announce(columns, said, comm)
        chosen = [None if s == _ALL else known for s, known in zip(said, self._announced, strict=True)]
        widths = [self.width if c is None else c.numel() for c in chosen]
        asked = comm.exchange_rows(upload(plan.asked, comm.device), plan.counts, wanted, purpose="control")
        if out is None:
            out = fresh(self.inner, sum(plan.counts), widths[comm.rank])
        # Rows of different ranks are not equally wide: they are sent value by value.
        sizes = [count * width for count, width in zip(wanted, widths, strict=True)]
        sent = fresh(self.inner, sum(sizes))
        source, places = self._held(asked, comm)
        parts = zip(places.split(wanted), chosen, widths, sent.split(sizes), strict=True)
        for rows, theirs, width, part in parts:
            take(source, rows, theirs, out=part.view(rows.numel(), width))
        self._move(sent, sizes, [count * out.shape[1] for count in plan.counts], comm, out.view(-1))
        return out

    def _news(self, columns: Tensor | None) -> int:
        if columns is None:
            return _ALL
        return _KNOWN if self._own is not None and torch.equal(self._own, columns) else _NEW + columns.numel()

    def _announce(self, columns: Tensor | None, said: list[int], comm: Communicator) -> None:
        """Exchange the columns of the ranks that say they have new ones."""
        sizes = [max(s - _NEW, 0) for s in said]
        size = sizes[comm.rank]
        own = torch.empty(0) if columns is None else columns[:size]
        if size:
            self._own = own
        sent = upload(own.int().repeat(comm.world), comm.device)
        received = comm.exchange_rows(sent, [size] * comm.world, sizes, purpose="control")
        for rank, new in enumerate(received.split(sizes)):
            if said[rank] >= _NEW:
                self._announced[rank] = new.long()


class DGSOptions(MaskOptions, NeighbourOptions):
    """Options of explanation-guided sampling; defaults are the paper's (section V)."""

    variant: Literal["both", "ns-only", "fs-only"] = Field(
        "both", description="sample nodes and features by explanations, or only one of them"
    )
    fanouts: DrawCounts = Field(
        64, description="neighbours drawn for a node, input layer first, or one number for all; -1: all of them"
    )
    feature_rate: float = Field(
        0.85, gt=0, le=1,
        description="N_f: share of the feature dimensions of remote nodes that travels, the most important",
    )  # fmt: skip
    deviation: float = Field(
        0.1, ge=0, le=1, description="eps: share of the fan-out moved from local to remote neighbours"
    )
    estimator: Literal["mean", "unbiased"] = Field(
        "mean", description="drawn neighbours are averaged, as in the paper, or count 1/p"
    )
    period: int = Field(30, ge=1, description="T_ex: steps between explanations")
    explain: Literal["background", "inline"] = Field(
        "background", description="at the same time as the training, or in line: slower, the same bits each time"
    )
    hops: int | None = Field(
        None, ge=1, description="remote nodes so many edges away are explained; default: the graph layers"
    )

    @model_validator(mode="after")
    def _something_travels(self) -> Self:
        if self.storage == "host":
            raise ValueError("storage: with 'host' no row is remote, and nothing to explain; use 'sharded'")
        return self


@dataclass(frozen=True, eq=False)
class GuidedBatch(Batch):
    """A batch, and what guides its draws: the latest when it was handed out.

    `importance` is that of the guidance, on the device where that draws.
    """

    guidance: Guidance | None
    importance: Tensor | None


class DGS(MiniBatchMethod[DGSOptions]):
    """Sampling of nodes and features guided by explanations (DGS, Wan, Chen and Zhang, ICNP 2022).

    Each rank explains its model to itself (Algorithm 1). Its explanation graph is one node v_G, all local
    nodes shrunk to the mean of their features and predictions, linked to itself and to every remote node
    within K hops (section III-B). After every `period` steps the model of the lowest loss so far is taken,
    and two masks are trained with GNNExplainer's objective: SN over the remote nodes, SF over the feature
    dimensions. DGS gives none of its constants: `explainer` names two sets of them. The training does not wait;
    batches that are handed out after that follow them, earlier ones are drawn uniformly (`graphsage`). Masks that never
    moved, because the threshold ended them at their first step, guide nothing. With `prefetch` k a batch is handed out
    k steps before its training.

    Guided, a target's neighbours are drawn by weight, local ones 1, remote ones SN_j; `deviation` of the
    fan-out is moved from the local to the remote quota. Of the remote rows the `feature_rate` dimensions with
    the highest SF travel, the others read 0. Drawn neighbours are averaged, which is biased towards local
    nodes; `estimator: unbiased` lets them count 1/p. Inference by samples is drawn uniformly. On a GPU what needs no
    other rank is drawn there, from a copy of the graph: the same as on a CPU, but for rounding.

    Exact with all neighbours, all features and all training nodes in one batch. Bytes: see `MiniBatchMethod`,
    with max(1, round(`feature_rate` F)) columns for F once a rank is guided; as control 4 bytes a column to
    each peer when its columns change; with `topology: owner` guided draws ask for whole rows, others for what their
    owners draw. Set-up: the features of all explained remote nodes, once.
    """

    name = "dgs"
    colour = "#d55e00"
    on_device = True
    Options = DGSOptions
    space: ClassVar[dict[str, Any]] = {"batch_size": [256, 512, 1024], "fanouts": [5, 10, 25]}
    exact: ClassVar[dict[str, Any]] = {"fanouts": -1, "feature_rate": 1.0, "batch_size": 0}
    unbiased: ClassVar[dict[str, Any]] = {"fanouts": 3, "batch_size": 8, "estimator": "unbiased"}
    metrics = (
        *COUNTED,
        Metric.of_method("guided_steps", "training steps drawn by masks"),
        Metric.of_method(
            "mask_age", "over guided steps the sum of the steps since the explained model: / "
            "`stat_guided_steps` is the mean age",
        ),
    )  # fmt: skip

    def __init__(self, worker: Worker, options: DGSOptions) -> None:
        super().__init__(worker, options)
        assert isinstance(self.store, ColumnStore)
        # What a device needs to draw by guidance: which nodes are local, and the importance of the latest.
        self._local = torch.from_numpy(self.source.local).to(worker.device) if self.draws_on_device else None
        self._guidance: Guidance | None = None
        self._importance: Tensor | None = None
        view, depth = worker.view, worker.model.depth
        graph = ExplanationGraph.build(
            view, self.source.topology, self.store, hops=options.hops or depth, depth=depth, dtype=worker.dtype
        )
        self.explainer = Explainer(
            graph, options, worker.model, worker.clock, view.topology.num_nodes, period=options.period,
            where=options.explain, seed=partial(batch_seed, worker.job.config.seed, worker.rank, _EXPLAINED),
        )  # fmt: skip

    def make_sampler(self, source: Source) -> Sampler:
        """See `MiniBatchMethod`; the conventional sampler, of batches without guidance."""
        return FanoutSampler(source, self._fanouts(source))

    def _fanouts(self, source: Source) -> list[int]:
        return per_layer(self.options.fanouts, source.depth, "fanouts")

    def make_store(self, view: View) -> FeatureStore | HostStore:
        """See `MiniBatchMethod`; every rank is sent columns of its own choice."""
        store = super().make_store(view)
        if view is not self.worker.view:
            return store
        assert isinstance(store, FeatureStore)
        return ColumnStore(store.comm, store.inner, store.owner, store.row, tables=store.tables, disk=store.disk)

    def hand_out(self, batch: Batch) -> GuidedBatch:
        """See `MiniBatchMethod`; explanations begin and end here, between two steps."""
        guidance = self.explainer.advance()
        if self._local is not None and guidance is not None and guidance is not self._guidance:
            self._guidance, self._importance = guidance, upload(guidance.importance, self.worker.device)
        return GuidedBatch(**vars(batch), guidance=guidance, importance=self._importance)

    def rehearsal(self) -> Iterator[Step]:
        """See `Method`; the last step is guided, by an explanation that is cut short."""
        yield from super().rehearsal()
        self.explainer.rehearse()
        for loaded in self.loader.load(map(self.hand_out, self.batches(0)[:1])):
            yield self.step(loaded)

    def on_step_end(self, loss: Tensor) -> None:
        """See `Method`."""
        with self.worker.clock.phase("explain"):
            self.explainer.observe(self.worker.model, loss)

    def sampler_for(self, batch: Batch) -> Sampler:
        """See `MiniBatchMethod`."""
        assert isinstance(batch, GuidedBatch)
        if batch.guidance is None or self.options.variant == "fs-only":
            return self.sampler
        fanouts, unbiased = self._fanouts(self.source), self.options.estimator == "unbiased"
        if self._local is not None:
            assert isinstance(self.sampler, FanoutSampler)
            assert self.sampler.graph is not None
            assert batch.importance is not None
            how = self._local, fanouts, batch.importance, self.options.deviation, unbiased
            return GuidedSamplerOnDevice(self.sampler.graph, *how)
        return GuidedSampler(self.source, fanouts, batch.guidance.importance, self.options.deviation, unbiased)

    def columns(self, drawn: Drawn) -> Tensor | None:
        """See `MiniBatchMethod`; the most important of those that explained them, equal ones at random, ascending."""
        assert isinstance(drawn.batch, GuidedBatch)
        guidance, options = drawn.batch.guidance, self.options
        if guidance is None or options.variant == "ns-only" or options.feature_rate == 1:
            return None
        order = torch.randperm(len(guidance.features), generator=torch.Generator().manual_seed(guidance.step))
        order = order[guidance.features[order].argsort(descending=True, stable=True)]
        return order[: self.kept_columns].sort().values

    def step(self, loaded: Loaded) -> Step:
        """See `MiniBatchMethod`."""
        batch, step = loaded.drawn.batch, super().step(loaded)
        assert isinstance(batch, GuidedBatch)
        guidance = batch.guidance
        age = 0 if guidance is None else self.explainer.steps - guidance.step
        step.stats.update(self.explainer.news(), guided_steps=int(guidance is not None), mask_age=age)
        return step

    def state(self) -> dict[str, Any]:
        """See `Method`."""
        assert isinstance(self.store, ColumnStore)
        return {"columns": self.store.announced(), "explainer": self.explainer.state()}

    def restore(self, state: dict[str, Any], done: int) -> None:
        """See `Method`."""
        assert isinstance(self.store, ColumnStore)
        self.store.remember(state["columns"])
        self.explainer.restore(state["explainer"])

    @property
    def warnings(self) -> list[str]:
        """See `Method`."""
        return self.explainer.warnings

    def close(self) -> None:
        """See `Method`."""
        self.explainer.close()
        super().close()

    @classmethod
    def option_warnings(cls, options: DGSOptions, case: MemoryCase) -> list[str]:
        """See `MiniBatchMethod`; explanations are of a copy of the model on the host."""
        warnings = ["the host trains the masks of explanations while the GPU trains"] if case.cuda else []
        return warnings + super().option_warnings(options, case)

    @classmethod
    def bytes_per_epoch(cls, options: DGSOptions, case: BytesCase) -> Bytes | None:
        """See `BytesCase.mini_batch`, all columns; no metric says how many travel once a rank is guided."""
        if case.count("guided_steps"):
            return None
        return case.mini_batch(options.model_copy(update={"feature_rate": 1.0}))

    @classmethod
    def memory(cls, options: DGSOptions, case: MemoryCase) -> dict[str, int]:
        """See `MemoryCase.drawn` and `explanation_memory`; a GPU has the graph, too, and reads whole rows."""
        drawn = case.drawn(options, options.fanouts, "fanouts", each=True)
        drawn |= explanation_memory(case, options.hops, drawn if options.explain == "inline" else None)
        if not cls.device_draws(options):
            return drawn
        return drawn | case.drawn_on_device(case.edges, options, entry=120)
