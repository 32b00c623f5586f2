"""What a run would do, without doing any of it: states of trials, the memory they need, and how long they take."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from harness.data.catalog import DatasetInfo, boundary_of
from harness.data.partition import lacks_room
from harness.data.partition.cached import partition_table
from harness.data.registry import dataset_info
from harness.files import size_text
from harness.gpus import why_unusable
from harness.launch.hardware import Capacity, blocks, capacity, cores, threads_of, unlike_gpus
from harness.launch.inputs import InputCache, is_inductive, lacks_clusters
from harness.launch.network import why_not
from harness.launch.slots import RunOptions, is_done
from harness.metrics import WITHIN
from harness.models.architecture import Architecture
from harness.models.layer import BlockSize, ModelSpec
from harness.results.record import Record
from harness.results.record_store import ResultStore, read_at, records_under
from harness.results.stats import trials as trials_text
from harness.runtime.cost_models import BytesCase, Components, MemoryCase, PartSize, uses_torch
from harness.runtime.method import METHODS
from harness.runtime.optimizers import optimizer_of
from harness.runtime.run_config import Rates
from harness.suite.document import gather
from harness.suite.schema import Suite, TrialConfig

State = Literal["run", "done", "skip"]
Table = Sequence[Mapping[str, Any]]
"""Rows of `partition_table`."""
PROCESS_BYTES = 3 << 20
"""What a Python process alone has of its own (3.5 MB were measured): a rank has more."""

# By 557 records of 20 suites on one machine: full-graph methods took 0.5 to 2 times as long as this says where an epoch
# is more than 10 ms, mini-batch methods 0.3 to 5 times.
FLOPS_A_CORE = 15e9
UNEVEN = 2  # times its share of the training nodes that a part has at most, where they are not known
STEP_S = 0.02  # of a mini-batch at least
STEPS = 5  # an epoch, of methods whose batches are subgraphs
_AS_WORK = {"aggregated": "precompute", "transform_first": "transform_before_exchange"}
EPOCHS = 1000  # behind which no method is still at its beginning
SETUP_S = 3.0  # of a trial whose like was never run: processes, graph, first batches


@dataclass(frozen=True)
class Shortage:
    """Says how many bytes ranks that share a memory need there at most, and how many it has."""

    needed: int
    available: int
    where: str
    by_evaluation: bool = False  # all else would fit


@dataclass(frozen=True)
class PlannedTrial:
    """Says what a run would do with a trial."""

    trial: TrialConfig
    state: State
    reason: str | None  # why it is skipped or runs again
    command: str | None  # how to get its data
    done_status: str | None  # of its record, if it has one
    memory: tuple[Components, ...]  # bytes of each rank by component, at most, without interpreter and libraries
    graph: DatasetInfo
    shortage: Shortage | None = None  # where the memory is too much for the machines
    warnings: tuple[str, ...] = ()  # what the method says of its options on graphs of these sizes
    partition: Table | None = None  # of the graph that is trained on, if it is known
    sent: int | None = None  # bytes of an epoch, of all ranks; None: there is no closed form, or no boundary is known
    published: str = ""  # whose boundary that is, where the partition is not known
    boundary: int | None = None  # nodes of all parts, of the partition or as published

    @property
    def largest(self) -> Components:
        """Return the components of the rank that needs most."""
        return max(self.memory, key=total)


def plan(
    trials: Sequence[TrialConfig],
    store: ResultStore,
    options: RunOptions,
    machines: Capacity | None = None,
    records: Iterable[Record] | None = None,
) -> list[PlannedTrial]:
    """Return what `run_suite` would do with each of `trials`, in their order; nothing is written or built.

    `machines` would run them; None: this one. `records` are the store's; None: they are read.
    Raises UserError for an unknown data set, a wrong option of one, or a damaged record.
    """
    found = map(read_at, records_under(store.directory)) if records is None else records
    planner = _Planner(options, {record.trial: record for record in found}, machines or capacity())
    return [planner.plan(trial) for trial in trials]


def changed_code(trial: TrialConfig, record: Record) -> list[Path]:
    """Return the plugins' files that would run other code now than a trial's record is of."""
    kept = {"method": record.config.get("plugin"), **(record.config.get("plugins") or {})}
    was = {kind: (source or {}).get("sha256") for kind, source in kept.items()}
    return sorted({now.file for kind, now in trial.sources.items() if was.get(kind) not in (None, now.sha256)})


def outdated(trials: Sequence[TrialConfig], store: ResultStore, options: RunOptions) -> list[str]:
    """Return a line for each plugin of which trials that a run would leave as they are ran other code."""
    of_plugins = {trial.id: trial for trial in trials if trial.sources}
    counts: Counter[Path] = Counter()
    for record in map(read_at, records_under(store.directory) if of_plugins else []):
        trial = of_plugins.get(record.trial)
        if trial and is_done(record.status, options):
            counts.update(changed_code(trial, record))
    return [
        f"{count} finished trial{'s' * (count > 1)} ran other code of {file}; --fresh runs them again"
        for file, count in sorted(counts.items())
    ]


def warnings(planned: Sequence[PlannedTrial], machine: Capacity | None) -> list[str]:
    """Return a line for each thing that is likely not meant, on this `machine`; None: others run the trials."""
    blind = dict.fromkeys(each.trial.dataset.name for each in planned if not each.graph.validates)
    lines = [f"{name} has no validation nodes: no score chooses an epoch, or settings" for name in blind]
    if machine is None:
        return lines
    gpus, here = len(machine.gpus), cores()

    def crowded(trial: TrialConfig) -> str | None:
        ranks = trial.partition.parts
        if trial.device == "cuda" and not gpus:
            why, fix = why_unusable() or ("it shows none", "see `harness doctor`")
            return f"device cuda, and torch can use no GPU here: {why} ({fix})"
        if (unlike := unlike_gpus(trial, machine.names)) is not None:
            return f"{unlike}; a run refuses them"
        if trial.device == "cuda" and ranks > gpus:
            return f"{ranks} ranks on {gpus} GPUs: they share them, and times say little"
        if trial.device == "cpu" and ranks * (trial.train.threads or 1) > here:
            return f"{ranks} ranks on {here} cores: times are of ranks that wait for one another"
        return None

    found = Counter(filter(None, (crowded(each.trial) for each in planned)))
    return [*lines, *(f"{trials_text(count)}: {what}" for what, count in found.items())]


@dataclass
class _Planner:
    options: RunOptions
    records: dict[str, Record]
    capacity: Capacity
    _tables: dict[str, tuple[Table | None, Table | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._inputs = InputCache(self.options.data_dir)
        for record in self.records.values():
            if record.partition:
                trial = TrialConfig.model_validate(record.config)
                # A record has the table of the training graph; an inductive trial is evaluated on another.
                self._tables[_split_key(trial)] = record.partition, None

    def plan(self, trial: TrialConfig) -> PlannedTrial:
        once, data = self._inputs.known.once, trial.dataset.model_dump_json()
        record, source, products = self.records.get(trial.id), trial.plugins.get("model"), trial.train.products
        status = record.status if record else None
        info = once(("info", data), lambda: dataset_info(trial.dataset, self.options.data_dir))
        directory = once(("found", data), lambda: self._inputs.found_graph(trial.dataset))
        train, full = self._partition_tables(trial, directory)
        sizes = info.features, info.classes
        model = once(
            (trial.model.model_dump_json(), source, products, *sizes),
            lambda: Architecture(trial.model, *sizes, products=products, source=source),
        )
        known = None
        if train is None and trial.partition.method in ("metis", "kaminpar", "coarsened"):
            known = boundary_of(info.like or info.name, trial.partition.parts)
        memory, said = estimate(trial, info, model, train=train, full=full, published=known)
        known = None if info.like else known  # a twin's is near enough for its memory alone
        state, reason, command = self._state(trial, status)
        if record and state == "done" and (changed := changed_code(trial, record)):
            files = ", ".join(file.name for file in changed)
            reason = f"ran other code of {files}; --fresh runs it again"
        if state == "run" and (train or not is_inductive(trial)):
            size, plugin = (info.nodes, info.edges), trial.plugins.get("partitioner")
            whole = train or [{"part": 0, "inner": info.nodes, "edges": info.edges}]
            problem = lacks_clusters(trial, whole, self.capacity)
            if train is None:
                problem = lacks_room(trial.partition, *size, self.capacity.machine, plugin) or problem
            reason = "; ".join(problem) if problem else reason
        lacking = self._lacking(trial, memory)
        boundary = sum(part.boundary for part in _parts(info, trial.partition.parts, train)) if train else None
        if known is not None:
            boundary = round(known[0] * info.nodes)
        return PlannedTrial(
            trial, state, reason, command, status, memory, info, lacking, said, train,
            sent(trial, info, model, boundary), known[2] if known else "", boundary,
        )  # fmt: skip

    def _lacking(self, trial: TrialConfig, memory: Sequence[Components]) -> Shortage | None:
        found = shortage(memory, trial.device, self.capacity)
        rest = [{name: size for name, size in rank.items() if name != "evaluation"} for rank in memory]
        return found and replace(found, by_evaluation=shortage(rest, trial.device, self.capacity) is None)

    def _state(self, trial: TrialConfig, status: str | None) -> tuple[State, str | None, str | None]:
        if is_done(status, self.options):
            return "done", None, None
        once, network = self._inputs.known.once, trial.network
        if (missing := self._inputs.missing(trial.dataset)) is not None:
            return "skip", missing.reason, missing.command
        if network is not None and (reason := once(network, lambda: why_not(network))) is not None:
            return "skip", reason, None
        return "run", None if status is None else f"again, was {status}", None

    def _partition_tables(self, trial: TrialConfig, graph: Path | None) -> tuple[Table | None, Table | None]:
        """Return the tables of the partitions that are trained and evaluated on, as far as they are known."""
        key = _split_key(trial)
        known = self._tables.get(key, (None, None))
        if key not in self._tables or (is_inductive(trial) and known[1] is None):
            paths = None if graph is None else self._inputs.found_partition(trial, graph)
            if paths is not None:
                known = partition_table(paths.train), partition_table(paths.full)
        self._tables[key] = known
        return known


def _split_key(trial: TrialConfig) -> str:
    return trial.dataset.model_dump_json() + trial.partition.model_dump_json() + str(trial.train.inductive)


def total(components: Components) -> int:
    """Return the bytes of all components."""
    return sum(components.values())


def sent(trial: TrialConfig, graph: DatasetInfo, model: Architecture, boundary: int | None) -> int | None:
    """Return the bytes that all ranks send in an epoch, in the mean; None where nothing says so before it is drawn."""
    method, spec = METHODS.load(trial.method.name, trial.plugin), trial.train
    if method.family != "full-graph" or boundary is None or trial.partition.parts == 1:
        return None
    options = method.Options(**trial.method.options)
    # Behind the epochs that only begin something.
    case = BytesCase(
        spec.epochs + EPOCHS, trial.partition.parts, boundary, graph.nodes, model, itemsize=spec.itemsize,
        weighted=False,
    )  # fmt: skip
    case = replace(case, stats=method.expected_stats(options, case))
    own = method.bytes_per_epoch(options, case)
    if own is None:
        return None
    return sum(size for purpose, size in own.items() if purpose not in WITHIN) + case.reduced(model.num_weights)


def estimate(
    trial: TrialConfig,
    graph: DatasetInfo,
    model: Architecture,
    *,
    train: Table | None,
    full: Table | None,
    published: tuple[float, float | None, str] | None = None,
) -> tuple[tuple[Components, ...], tuple[str, ...]]:
    """Return what each rank needs at most, by the known tables of partitions, and the method's words on its options."""
    method, spec, parts = METHODS.load(trial.method.name, trial.plugin), trial.train, trial.partition.parts
    inductive = is_inductive(trial)
    trained, evaluated = (_parts(graph, parts, table, published) for table in (train, full if inductive else train))
    totals = sum(part.inner for part in trained), sum(part.edges for part in trained)
    nodes, edges = totals if train else (graph.nodes, graph.edges)
    learnt = math.ceil(trained[0].inner * (1.0 if inductive else min(1.0, UNEVEN * graph.trained)))
    cases = [
        MemoryCase(
            train=trained[rank],
            evaluated=evaluated[rank] if spec.scored else None,
            train_nodes=train[rank]["train_nodes"] if train else learnt,
            nodes=nodes,
            edges=edges,
            model=model,
            parts=parts,
            itemsize=spec.itemsize,
            rounded=spec.precision == "bf16",
            moments=optimizer_of(spec, trial.plugins.get("optimizer")).moments,
            inductive=inductive,
            multilabel=graph.multilabel,
            cuda=trial.device == "cuda",
            torch_engine=uses_torch(spec.spmm, trial.device),
            threads=threads_of(trial),
            evaluation_mib=spec.evaluation_mib,
            eval_memory=spec.eval_memory,
        )
        for rank in range(parts)
    ]
    options = method.Options(**trial.method.options)
    said = dict.fromkeys(line for case in cases for line in method.option_warnings(options, case))
    return tuple(method.memory(options, case) for case in cases), tuple(said)


def _parts(
    graph: DatasetInfo, parts: int, table: Table | None, published: tuple[float, float | None, str] | None = None
) -> list[PartSize]:
    """Return the parts' sizes; where they are not known, of balanced parts.

    Their boundary is as large as the largest that is published, see `boundary_of`, or as it can be.
    """
    if table:
        rows = [row for row in table if row["part"] != "total"]
        return [PartSize(row["inner"], row["boundary"], row["edges"], row["edges_cut"]) for row in rows]
    inner, edges = -(-graph.nodes // parts), -(-graph.edges // parts)
    boundary = min(graph.nodes - inner, edges)
    if published is not None and published[1] is not None:
        boundary = min(boundary, math.ceil(published[0] * published[1] * graph.nodes / parts))
    # A sample keeps most edges if every boundary node has one.
    return [PartSize(inner, boundary, edges, boundary)] * parts


def shortage(memory: Sequence[Components], device: str, has: Capacity) -> Shortage | None:
    """Return where the ranks of a trial may not fit; None if they do, or GPUs are not known."""
    # On a CPU all ranks of a node share its memory; on GPUs the node's rank r has GPU r modulo their number.
    for block in blocks(len(memory), has.nodes):
        if device == "cpu":
            places = [(has.where, has.machine, slice(block.start, block.stop))]
        else:
            gpus = enumerate(has.gpus, block.start)
            places = [(f"GPU {i - block.start}", size, slice(i, block.stop, len(has.gpus))) for i, size in gpus]
        for where, available, sharing in places:
            needed = sum(map(total, memory[sharing]))
            if needed > available:
                return Shortage(needed, available, where)
    return None


def require_means(trials: Sequence[TrialConfig], suite: Suite, machines: Capacity) -> None:
    """Refuse more ranks, or larger weights, than such machines can begin with; UserError with a line for each."""
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
    alike = {(t.model.model_dump_json(), t.dataset.model_dump_json(), t.train.model_dump_json()): t for t in trials}
    for trial in alike.values():
        graph, plugins = dataset_info(trial.dataset), trial.plugins
        model = Architecture(trial.model, graph.features, graph.classes, source=plugins.get("model"))
        moments = optimizer_of(trial.train, plugins.get("optimizer")).moments
        needed = model.num_weights * trial.train.itemsize * (2 + moments)
        there = max(machines.gpus, default=0) if trial.device == "cuda" else machines.machine
        if there and needed > there:
            what = f"weights, gradients and moments of a rank take {size_text(needed)}, {machines.where} has"
            hidden = f"bad value {trial.model.hidden}: {what} {size_text(there)}"
            errors.append(suite.source.error(("model", "hidden"), hidden, "make it smaller"))
    if errors:
        raise gather(errors)


class Forecast(NamedTuple):
    """Says how long a trial may take, in seconds of wall time, and how that is known.

    `same`: the trial itself ran here, perhaps with another seed; `like`: its method did, on the same data and model,
    with other settings; `model`: neither did, and its arithmetic is all there is to go by.
    """

    seconds: float
    by: Literal["same", "like", "model"]


@dataclass
class Forecaster:
    """Forecasts trials from records: by what trials like them took on `machine`, else by their arithmetic."""

    machine: str
    _same: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    _like: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def learn(self, records: Iterable[Record]) -> None:
        """Take over what trials took that ended well on this machine."""
        for record in records:
            epoch, ran = record.result.get("epoch_time_s"), record.result.get("epochs")
            if record.environment.get("machine") != self.machine or record.status != "ok" or record.wall_s is None:
                continue
            with suppress(ValueError):  # of another version
                trial = TrialConfig.model_validate(record.config)
                self._same[trial.seedless].append(record.wall_s)
                if isinstance(epoch, float) and isinstance(ran, int):
                    self._like[_kind(trial)].append((epoch, max(0.0, record.wall_s - epoch * ran)))

    def of(self, trial: TrialConfig, info: DatasetInfo) -> Forecast:
        """Return how long a trial may take."""
        if took := self._same.get(trial.seedless):
            return Forecast(statistics.median(took), "same")
        if seen := self._like.get(_kind(trial)):
            epoch, around = (statistics.median(values) for values in zip(*seen, strict=True))
            return Forecast(around + _training_s(trial, epoch), "like")
        busy = min(trial.partition.parts * threads_of(trial), cores())
        epoch = epoch_flops(trial.model, info, trial.train.eval_every) / (FLOPS_A_CORE * busy)
        if METHODS.load(trial.method.name, trial.plugin).family == "mini-batch":
            size = trial.method.options.get("batch_size")
            batches = info.nodes / trial.partition.parts / size if isinstance(size, int) and size else STEPS
            epoch = max(epoch, STEP_S * math.ceil(batches))
        return Forecast(SETUP_S + _training_s(trial, epoch), "model")


def _training_s(trial: TrialConfig, epoch_s: float) -> float:
    """Return how many seconds a trial trains at most whose epochs take so long."""
    return min(epoch_s * trial.train.epochs, trial.train.seconds or math.inf)


def epoch_flops(model: ModelSpec, info: DatasetInfo, eval_every: int = 0) -> float:
    """Return the floating-point operations of an epoch of full-graph training, with its share of the evaluations."""
    widths = [info.features, *[model.hidden] * (model.layers - 1), info.classes]
    passes = 3 + (1 / eval_every if eval_every else 0)
    return passes * sum(2 * (a * b * info.nodes + min(a, b) * info.edges) for a, b in pairwise(widths))


def compute_s(trial: TrialConfig, info: DatasetInfo, rates: Rates | None) -> tuple[float, float] | None:
    """Return what an epoch of full-graph training computes here, with all rows in a core's cache, and with none.

    It is of the whole graph, also where training sees a part. None where rates were not measured, or are not of the
    device. It is blind to imbalance, to boundary rows, to what is done value by value (activations, dropout,
    normalisation, the optimizer), to what a call costs, and to how much of a graph a cache holds.
    """
    if rates is None or trial.device != "cpu":
        return None
    model = Architecture(trial.model, info.features, info.classes, source=trial.plugins.get("model"))
    given = {key: bool(trial.method.options.get(name)) for key, name in _AS_WORK.items()}
    works = model.work([BlockSize(info.nodes, info.nodes, info.edges)] * model.depth, **given)
    busy = min(trial.partition.parts * threads_of(trial), cores())
    rounded = trial.train.precision == "bf16"
    low, high = (sum(rates.seconds(w, cached=c, rounded=rounded) for w in works) / busy for c in (True, False))
    return low, high


def _kind(trial: TrialConfig) -> str:
    options = trial.method.options
    sizes = {key: options[key] for key in ("batch_size", "fanouts", "size") if key in options}
    return f"{trial.dataset} {trial.model} {trial.method.name} {sizes} {trial.partition.parts} {trial.device}"
