"""Estimate what memory a trial needs before anything of it exists, and whether that is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.data.catalog import DatasetInfo
from harness.data.registry import dataset_info
from harness.files import size_text
from harness.gpus import usable_gpus
from harness.launch.inputs import threads_of
from harness.launch.process import blocks, memory_limit
from harness.models.architecture import Architecture
from harness.runtime.cost_models import Components, MemoryCase, PartSize, uses_torch
from harness.runtime.method import METHODS
from harness.runtime.optimizers import optimizer_of
from harness.suite.document import gather
from harness.suite.schema import Suite, TrialConfig

# What the model says was 0.5 to 1.4 times the growth that was measured: a rank may get by with this share.
CERTAIN_SHARE = 0.7

PROCESS_BYTES = 3 << 20
"""What a Python process alone has of its own (3.5 MB were measured): a rank has more."""

Table = Sequence[Mapping[str, Any]]
"""Rows of `partition_table`."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Has each rank's components, in any case (`low`) and at most (`high`), without interpreter and libraries.

    `foreseen` is what the method says of its options on graphs of the sizes of `high`.
    """

    low: tuple[Components, ...]
    high: tuple[Components, ...]
    foreseen: tuple[str, ...] = ()

    @property
    def least(self) -> Components:
        """Return the components of the rank that needs most, in any case."""
        return max(self.low, key=total)

    @property
    def most(self) -> Components:
        """Return the components of the rank that needs most, at most."""
        return max(self.high, key=total)


@dataclass(frozen=True)
class Capacity:
    """Has the bytes of a machine's memory (or of what this process may use of it), and of each GPU it has.

    `where` names the machine; `nodes` such machines share the ranks of a trial. `names` are the GPUs', if known.
    """

    machine: int
    gpus: tuple[int, ...] = ()
    where: str = "this machine"
    nodes: int = 1
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shortage:
    """Says how many bytes ranks that share a memory need there, and how many it has.

    `certain`: they are needed in any case, even where the model says too much.
    """

    certain: bool
    needed: int
    available: int
    where: str


def total(components: Components) -> int:
    """Return the bytes of all components."""
    return sum(components.values())


def estimate(
    trial: TrialConfig,
    graph: DatasetInfo,
    model: Architecture,
    *,
    inductive: bool,
    train: Table | None = None,
    full: Table | None = None,
) -> MemoryEstimate:
    """Return the range for each rank of `trial`.

    Args:
        trial: what would run.
        graph: the data set's sizes.
        model: the trial's model, for its sizes.
        inductive: whether training sees the training subgraph only.
        train: table of the partition that is trained on, if it is known.
        full: table of the partition that is evaluated on, if it is known.

    Where a table is missing, parts are balanced and `low` has no boundary, `high` one as large as it can be:
    min(N - n_in, E / P). Of an unknown training subgraph `low` has nothing, `high` the whole graph.
    """
    method, sizes = METHODS.load(trial.method.name, trial.plugin), _Sizes(trial, graph, model, inductive)
    parts = trial.partition.parts
    options = method.Options(**trial.method.options)
    known = train is not None and not (inductive and full is None)
    # Sizes that are known leave nothing to bound but a batch.
    bounded = not known or method.family == "mini-batch"
    least, most = (
        [sizes.case(rank, train, full if inductive else train, at_least) for rank in range(parts)]
        for at_least in (bounded, False)
    )
    low, high = (tuple(method.memory(options, case) for case in cases) for cases in (least, most))
    foreseen = dict.fromkeys(line for case in most for line in method.foreseen(options, case))
    return MemoryEstimate(low, high, tuple(foreseen))


@dataclass(frozen=True)
class _Sizes:
    trial: TrialConfig
    graph: DatasetInfo
    model: Architecture
    inductive: bool

    def case(self, rank: int, train: Table | None, full: Table | None, least: bool) -> MemoryCase:
        spec = self.trial.train
        part = self._part(rank, train, least)
        evaluated = self._part(rank, full, least) if spec.scored else None
        if train is None:
            nodes, edges = (0, 0) if self.inductive and least else (self.graph.nodes, self.graph.edges)
            train_nodes = 0 if least else part.inner
            part = PartSize(0, 0, 0, 0) if self.inductive and least else part
        else:
            nodes, edges = (sum(row[key] for row in _ranks(train)) for key in ("inner", "edges"))
            train_nodes = _ranks(train)[rank]["train_nodes"]
        return MemoryCase(
            train=part,
            evaluated=evaluated,
            train_nodes=train_nodes,
            nodes=nodes,
            edges=edges,
            model=self.model,
            parts=self.trial.partition.parts,
            itemsize=spec.itemsize,
            rounded=spec.precision == "bf16",
            moments=optimizer_of(spec, self.trial.plugins.get("optimizer")).moments,
            inductive=self.inductive,
            multilabel=self.graph.multilabel,
            cuda=self.trial.device == "cuda",
            torch_engine=uses_torch(spec.spmm, self.trial.device),
            threads=threads_of(self.trial),
            evaluation_mib=spec.evaluation_mib,
            least=least,
        )

    def _part(self, rank: int, table: Table | None, least: bool) -> PartSize:
        if table is not None:
            row = _ranks(table)[rank]
            return PartSize(row["inner"], row["boundary"], row["edges"], row["edges_cut"])
        parts = self.trial.partition.parts
        inner, edges = -(-self.graph.nodes // parts), -(-self.graph.edges // parts)
        boundary = 0 if least else min(self.graph.nodes - inner, edges)
        # A sample keeps fewest edges if all of them are cut, most if every boundary node has one.
        return PartSize(inner, boundary, edges, edges if least else boundary)


def _ranks(table: Table) -> list[Mapping[str, Any]]:
    return [row for row in table if row["part"] != "total"]


def shortage(estimate: MemoryEstimate, device: str, capacity: Capacity) -> Shortage | None:
    """Return where the ranks of a trial do not fit, or may not; None if they do, or GPUs are not known.

    On a CPU all ranks of a node share its memory; on GPUs the node's rank r has GPU r modulo their number.
    """
    places = []
    for block in blocks(len(estimate.low), capacity.nodes):
        if device == "cpu":
            places.append((capacity.where, capacity.machine, slice(block.start, block.stop)))
        else:
            gpus = enumerate(capacity.gpus, block.start)
            places += [(f"GPU {i - block.start}", size, slice(i, block.stop, len(capacity.gpus))) for i, size in gpus]
    for certain, share, ranks in ((True, CERTAIN_SHARE, estimate.low), (False, 1, estimate.high)):
        for where, available, sharing in places:
            needed = round(share * sum(map(total, ranks[sharing])))
            if needed > available:
                return Shortage(certain, needed, available, where)
    return None


def require_means(trials: Sequence[TrialConfig], suite: Suite, machines: Capacity) -> None:
    """Refuse what no such machines could begin: more ranks than they have memory for, weights that do not fit.

    UserError with a line for each.
    """
    each = machines.machine // PROCESS_BYTES
    errors = [
        suite.source.error(
            ("partition", "parts"),
            f"bad value {parts}: {machines.where} has memory for {each:,} processes",
            "fewer parts, or more machines",
        )
        for parts in sorted({trial.partition.parts for trial in trials})
        if parts > machines.nodes * each
    ]
    for trial in {_weights_key(trial): trial for trial in trials}.values():
        needed = _weights_bytes(trial)
        there = max(machines.gpus, default=0) if trial.device == "cuda" else machines.machine
        if there and needed > there:
            what = f"weights, gradients and moments of a rank take {size_text(needed)}, {machines.where} has"
            hidden = f"bad value {trial.model.hidden}: {what} {size_text(there)}"
            errors.append(suite.source.error(("model", "hidden"), hidden, "make it smaller"))
    if errors:
        raise gather(errors)


def _weights_key(trial: TrialConfig) -> str:
    return " ".join((trial.model.model_dump_json(), trial.dataset.model_dump_json(), trial.train.model_dump_json()))


def _weights_bytes(trial: TrialConfig) -> int:
    graph, plugins = dataset_info(trial.dataset), trial.plugins
    model = Architecture(trial.model, graph.features, graph.classes, source=plugins.get("model"))
    moments = optimizer_of(trial.train, plugins.get("optimizer")).moments
    return model.num_weights * trial.train.itemsize * (2 + moments)


def capacity() -> Capacity:
    """Return this machine's capacity: its memory or the limit of this process's cgroup, and each GPU's."""
    import psutil

    memory, gpus = psutil.virtual_memory().total, usable_gpus()
    return Capacity(
        min(memory, memory_limit() or memory), tuple(gpu.memory for gpu in gpus), names=tuple(gpu.name for gpu in gpus)
    )
