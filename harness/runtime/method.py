"""Method: what a training method has to say, and the options it takes."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, get_args

from pydantic_core import to_jsonable_python

from harness.deferred import torch
from harness.errors import UserError
from harness.graph.block import Block
from harness.graph.csr import Places
from harness.graph.partition import Halo
from harness.metrics import PURPOSES, Metric, as_declared
from harness.registry import Registered, Registry
from harness.runtime.batches import Background
from harness.runtime.codec import Codec
from harness.runtime.cost_models import Bytes, BytesCase, Components, MemoryCase, PartSize, learns_few, uses_torch
from harness.runtime.optimizers import optimizer_of
from harness.runtime.run_config import FullGraphOptions, MethodOptions
from harness.runtime.step import OverlappedExchange, Step, SyncExchange
from harness.spec import PartitionSpec

if TYPE_CHECKING:
    from torch import Tensor

    from harness.models.gnn import Exchange
    from harness.models.layer import ModelSpec
    from harness.runtime.worker import Worker


Family = Literal["full-graph", "mini-batch", "external"]
REHEARSED = 3  # steps: the products of the second are others than the first's, see `models.functional.Linear`


OptionsT = TypeVar("OptionsT", bound=MethodOptions)
FullGraphOptionsT = TypeVar("FullGraphOptionsT", bound=FullGraphOptions)


class Method(Registered, ABC, Generic[OptionsT]):
    """A training method: a generator of steps.

    A subclass sets `name`, `family` and `Options`, and says in `steps` which blocks each layer runs on, where
    rows come from and which rows the loss reads. One object lives as long as a trial, on each rank.

    What it claims besides, `harness check` holds it to:

    Attributes:
        exact: options at which it equals full-graph training, losses and gradients; {} if the defaults do.
            None: no claim.
        unbiased: options at which the expectation of what a layer aggregates is the full aggregation, and
            which sample on a graph of 60 nodes. None: no claim.
        baseline: options at which reports compare the methods of its family with it; {} at any. None: never.
        recurring: whether all its steps have the same blocks, inputs and loss, so that they may be captured.
        plain: options at which it leaves out what is its own, so that its other variants are compared with
            it; None as an option's value: whatever that is. {}: there are none such.
        within_nodes: options that count nodes, or groups of them, of which a graph cannot have more.
        colour: `#rrggbb` of its first variant in all reports; "": one that is free.
        metrics: metrics of its steps and its set-up, besides those of its base classes; they become columns,
            axes and claims.
        space: values of its options that `harness tune` tries, as a suite writes them: {"rate": [0.1, 0.5]} or
            {"rate": {"log": [0.01, 1]}}. What trains what it is, not what makes another method of it.
    """

    kind = "method"
    group = "harness.methods"
    name: ClassVar[str]
    family: ClassVar[Family]
    Options: ClassVar[type[MethodOptions]] = MethodOptions
    exact: ClassVar[dict[str, Any] | None] = None
    unbiased: ClassVar[dict[str, Any] | None] = None
    baseline: ClassVar[dict[str, Any] | None] = None
    recurring: ClassVar[bool] = False
    plain: ClassVar[dict[str, Any]] = {}
    within_nodes: ClassVar[tuple[str, ...]] = ()
    colour: ClassVar[str] = ""
    metrics: ClassVar[tuple[Metric, ...]] = ()
    space: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, worker: Worker, options: OptionsT) -> None:
        self.worker, self.options = worker, options

    @abstractmethod
    def steps(self, epoch: int) -> Iterator[Step]:
        """Yield the steps of `epoch` (0-based); every rank must yield equally many."""

    def rehearsal(self) -> Iterator[Step]:
        """Yield some steps in which all is called that a training calls; every rank must yield equally many.

        They are taken in set-up, with another object of this class and another model, both thrown away then, so
        that nothing is called or compiled for the first time in an epoch. The default are the first `REHEARSED`. A
        method in which something begins later says so here.
        """
        yield from islice(chain.from_iterable(map(self.steps, range(REHEARSED))), REHEARSED)

    @property
    def warnings(self) -> list[str]:
        """Lines that a reader of this trial's metrics must know, read at its end; in the record and in a report."""
        return []

    @classmethod
    def option_warnings(cls, options: Any, case: MemoryCase) -> list[str]:
        """Return warnings of `options` (an `Options`): effects on a rank of this `case` that a user may not have meant.

        A line each, in plans and in the record of a trial that ran. The default is nothing.
        """
        return []

    @property
    def draws_rows(self) -> bool:
        """Whether the training nodes of an epoch's losses are drawn; if not, each is in one of them at least."""
        return False

    @property
    def features_at(self) -> Literal["device", "host", "disk"]:
        """Where a rank's input features are: all on its device, or in the host's memory or files of a disk, to wait."""
        storage: Literal["sharded", "host", "disk"] = getattr(self.options, "storage", "sharded")
        return "device" if storage == "sharded" else storage

    def setup_metrics(self) -> dict[str, float | None]:
        """Return metrics of the method's set-up by name, for the record; None where this trial has none."""
        return {}

    def sampled_scores(self) -> dict[str, float | None]:
        """Score validation and test nodes by the method's own sampler; every rank must call.

        Returns the scores by split ("val", "test"); {} of a method that does not sample for given nodes.
        """
        return {}

    def on_step_end(self, loss: Tensor) -> None:
        """Called with each step's loss, a scalar summed over ranks, before the optimizer step."""

    def synchronize(self) -> None:
        """Wait for what goes on in the background; nothing of it may be lost."""

    def state(self) -> dict[str, Any]:
        """Return what it carries from epoch to epoch, for a checkpoint: None, numbers, texts, tensors, arrays, and
        lists, tuples and dicts (keys are texts or integers) of them.

        Called between two epochs, behind `synchronize`. What follows from options, seed and epoch alone need not be
        in it, nor `worker.rng`, torch's generators and the weights, which the trainer keeps. The default, {}, is for
        methods that carry nothing.
        """
        return {}

    def restore(self, state: dict[str, Any], done: int) -> None:
        """Go on after `done` epochs from the `state` of another object of this class, in another process.

        Called once, in set-up, on a new object; every rank calls. What it sends and draws is forgotten behind it, but
        for generators of its own.
        """

    def close(self) -> None:
        """End what goes on in the background; no more steps will be asked for."""

    @classmethod
    def model_of(cls, options: Any, model: ModelSpec) -> ModelSpec | None:
        """Return the model that it trains under `options` (an `Options`) where a suite has `model`; None: that one.

        Plans, ranks, checks and records have it in place of the suite's, and reports say so.
        """
        return None

    @classmethod
    def clustering(cls, options: Any) -> PartitionSpec | None:
        """Return how its first rank divides the whole training graph in set-up under `options`; None: it does not.

        A run refuses, and a plan names, what does not fit into the machine's memory.
        """
        return None

    @classmethod
    def memory(cls, options: Any, case: MemoryCase) -> Components:
        """Return the bytes that a rank of this `case` needs under `options` (an `Options`), by component.

        The default is that of the family: a full-graph method on all boundary nodes, or mini-batches of which
        nothing is known. A method that keeps more, or less, says so here.
        """
        return case.full_graph() if cls.family == "full-graph" else case.mini_batch()

    def memory_components(self) -> Components:
        """Return `memory` of this rank, from its real sizes and without evaluations."""
        return self.memory(self.options, case_of(self.worker))

    @classmethod
    def bytes_per_epoch(cls, options: Any, case: BytesCase) -> Bytes | None:
        """Return the bytes that all ranks send in an epoch under `options` (an `Options`), by purpose.

        The purpose "model", the sum of the gradients over the ranks, is the trainer's and left out. The
        default is None: no claim, for these options.
        """
        return None

    @classmethod
    def expected_stats(cls, options: Any, case: BytesCase) -> dict[str, float]:
        """Return what `Step.stats` that its bytes depend on are in the mean, before anything was drawn."""
        return {}

    @classmethod
    def metrics_by_column(cls) -> dict[str, Metric]:
        """Return its metrics and those of its base classes, by the column of `load_results`."""
        of_bases = [vars(base).get("metrics", ()) for base in reversed(cls.__mro__)]
        return {metric.name: metric for metrics in of_bases for metric in metrics}

    @classmethod
    def declared(cls) -> dict[str, Any]:
        """Return what a record keeps of it, so that results are read without its code."""
        return {
            "family": cls.family,
            "baseline": cls.baseline,
            "plain": cls.plain,
            "colour": cls.colour,
            "defaults": to_jsonable_python(cls.Options.option_defaults()),
            "presets": to_jsonable_python(cls.Options.presets),
            "numbers": cls.Options.option_numbers(),
            "metrics": as_declared(cls.metrics_by_column().values()),
        }

    @classmethod
    def check_class(cls, where: str) -> None:
        """See `Registered`: a method has `steps`, a family and options."""
        super().check_class(where)
        if getattr(cls, "family", None) not in get_args(Family):
            fix = " or ".join(f"`family = '{family}'`" for family in get_args(Family))
            raise UserError(f"'{where}' has no family", fix=f"write {fix}")
        if not (isinstance(cls.Options, type) and issubclass(cls.Options, MethodOptions)):
            raise UserError(f"'{where}' has wrong Options", fix="make them a subclass of harness.MethodOptions")


def case_of(worker: Worker) -> MemoryCase:
    """Return the case of a rank that runs, from its real sizes, evaluations left out."""
    partition, train = worker.partition, worker.job.config.train
    # The table is there already; the structure would have to be read to count.
    row = partition.meta["table"][worker.rank]
    return MemoryCase(
        train=PartSize(row["inner"], row["boundary"], row["edges"], row["edges_cut"]),
        evaluated=None,
        train_nodes=int(worker.train_rows.numel()),
        nodes=partition.meta["nodes"],
        edges=partition.meta["edges"],
        model=worker.model,
        parts=worker.world,
        itemsize=worker.dtype.itemsize,
        rounded=worker.model.rounded,
        moments=optimizer_of(train, worker.job.config.plugins.get("optimizer")).moments,
        multilabel=worker.multilabel,
        weighted=partition.meta["weighted"],
        cuda=worker.device.type == "cuda",
        torch_engine=uses_torch(train.spmm, worker.device.type),
        threads=worker.job.threads,
    )


def bytes_case_of(worker: Worker, *, epoch: int, steps: int, stats: Mapping[str, float]) -> BytesCase:
    """Return what the bytes of an epoch of a trial depend on."""
    meta, itemsize = worker.partition.meta, worker.dtype.itemsize
    return BytesCase(
        epoch=epoch, parts=worker.world, boundary=sum(row["boundary"] for row in meta["table"][: worker.world]),
        nodes=meta["nodes"], itemsize=itemsize, model=worker.model,
        label_bytes=worker.model.outputs * itemsize if worker.multilabel else 8, weighted=meta["weighted"],
        steps=steps, stats=stats,
    )  # fmt: skip


def bytes_apart(
    method: type[Method[Any]], options: Any, case: BytesCase, seen: Mapping[str, int], parameters: int
) -> str:
    """Return where the bytes of an epoch, by purpose, are not the method's closed form; "" if it is, or there is none.

    The trainer's own, of so many `parameters`, are added to it.
    """
    try:
        want = method.bytes_per_epoch(options, case)
    except Exception as error:  # the method's code may raise anything
        return f"bytes_per_epoch raised {type(error).__name__}: {error}"
    if want is None:
        return ""
    wanted = dict.fromkeys(PURPOSES, 0) | want | {"model": case.reduced(parameters)}
    return "; ".join(f"{key} {value}, seen {seen.get(key)}" for key, value in wanted.items() if value != seen.get(key))


METHODS: Registry[type[Method[Any]]] = Registry(Method)


class FullGraphMethod(Method[FullGraphOptionsT]):
    """A method whose layers run on the inner nodes of a partition and some or all of its boundary.

    The last layer has the training nodes alone where they are few (`FEW_LEARNT`, docs/design/numerics.md).

    Attributes:
        aggregated: with `precompute` the exact first-layer aggregation of the input features, which the
            ranks exchange here, before the first epoch; None without.
    """

    family = "full-graph"
    Options = FullGraphOptions
    overlaps: ClassVar[bool] = False  # its steps are those of `synchronous`

    def __init__(self, worker: Worker, options: FullGraphOptionsT) -> None:
        super().__init__(worker, options)
        _ = worker.features  # read in set-up, as by methods of other families
        self.aggregated = worker.aggregate_features() if options.precompute else None
        worker.comm.codec = None if options.codec == "none" else Codec(options.codec, feedback=options.feedback)
        self._few: dict[str, Any] = {}  # loss and outputs of a last layer that has the training nodes alone
        if learns_few(worker.model, worker.train_total, worker.partition.meta["nodes"]):
            rows = torch.arange(worker.train_rows.numel(), device=worker.train_rows.device)
            self._few["loss"] = replace(worker.train_loss, rows=rows)
            self._few["outputs"] = worker.view.split_nodes("train")
        self._last: tuple[weakref.ref[Block], Block] | None = None  # of what block the last layer's rows are
        self._fed_back: Block | None = None
        self._aside: Background | None = None
        if options.overlap:
            if not (self.overlaps and worker.model.takes_arriving):
                name = worker.model.spec.name if self.overlaps else self.name
                raise UserError(f"{name} does not sum over inner rows apart", key="overlap", fix="leave it out")
            self._aside = Background(worker.comm) if worker.world > 1 else None

    def synchronous(self, kept: Places, scale: Tensor | None, halo: Halo | None, **others: Any) -> Step:
        """Return the step on the inner nodes and the boundary nodes `kept`, of which rows are exchanged; see `Step`.

        `kept`, `scale`: as of `Partition.block`; `halo`: their exchange, None where nothing is exchanged.
        """
        partition = self.worker.partition
        if halo is None or self._aside is None:
            exchange = None if halo is None else SyncExchange(self.worker.comm, halo)
            return self.step_on(partition.block(kept, scale), exchange, **others)
        return self.step_on(partition.halves(kept, scale), OverlappedExchange(self._aside, halo), **others)

    def synchronize(self) -> None:
        """See `Method`."""
        if self._aside is not None:
            self._aside.synchronize()

    def close(self) -> None:
        """See `Method`."""
        if self._aside is not None:
            self._aside.close()

    def step_on(self, block: Block, exchange: Exchange | None, **others: Any) -> Step:
        """Return the step of which all layers run on `block`, from the inner nodes on, with `others` of its fields."""
        worker = self.worker
        if self.options.feedback:
            if self._fed_back not in (None, block):
                what = "the method exchanges other rows in each step, which have lost nothing"
                raise UserError(what, key="feedback", fix="leave it out")
            self._fed_back = block
        usual: dict[str, Any] = {"inputs": worker.features.inner, "aggregated": self.aggregated}
        return Step(
            **self.layers_on(block), exchange=exchange, transform_first=self.options.transform_before_exchange,
            **usual | others,
        )  # fmt: skip

    def layers_on(self, block: Block) -> dict[str, Any]:
        """Return the `blocks`, `loss` and `outputs` of a `Step` of which all layers run on `block`."""
        worker, blocks = self.worker, [block] * self.worker.model.depth
        if not self._few:
            return {"blocks": blocks, "loss": worker.train_loss}
        if self._last is None or self._last[0]() is not block:
            self._last = weakref.ref(block), block.into(worker.train_rows)
        return {"blocks": [*blocks[:-1], self._last[1]], **self._few}

    @classmethod
    def memory(cls, options: Any, case: MemoryCase) -> Components:
        """See `Method.memory`."""
        return case.full_graph(**options.for_memory)
