"""This machine runs trials: it compiles what they call first, starts their ranks, and measures how fast it is."""

from __future__ import annotations

import hashlib
import json
import traceback
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from harness.data.prepared import locked
from harness.data.registry import dataset_info
from harness.errors import DataUnavailable, UserError, of_system
from harness.files import SMALL, read_object
from harness.graph.kernels import PACKAGES, Versions, stream
from harness.launch.fork_server import NoWarmStart, fork_server, preload
from harness.launch.group import GroupResult, OnProgress, run_group
from harness.launch.hardware import blocks, cores_of, near_cores, threads_of, usable_cores
from harness.launch.inputs import InputCache, NotPrepared, Report, TrialInputs, is_inductive
from harness.launch.network import network, why_not
from harness.launch.process import WORKER, Placement, placements_of, rank_environment, scratch
from harness.launch.rates import known_rates
from harness.launch.slots import WHOLE, Slot
from harness.models.layer import MODELS
from harness.results.environment import Measurement, machine, measurements, note
from harness.results.record import Status
from harness.runtime.method import METHODS
from harness.runtime.run_config import Rates, TrainSpec
from harness.spec import DatasetSpec, PartitionSpec
from harness.suite.expand import expand
from harness.suite.schema import Suite, Timeouts, TrialConfig

if TYPE_CHECKING:
    from harness.runtime.checkpoint import CheckpointPlace
    from harness.runtime.job import RanksRendezvous

WORKLOAD = "harness.runtime.speed_reference"
LIMIT_S = 60.0  # of the reference workload
EVERY = timedelta(seconds=20)  # several in a suite of a minute, at 2 % of its time: one alone has no error bar
NODES, EPOCHS = 300, 3  # of a trial that has kernels compiled
WIDTH = 20  # of the bar


@dataclass(frozen=True)
class TrialJob:
    """A trial on its way from the runner to its ranks, which write to the empty directory `out`."""

    trial: TrialConfig
    inputs: TrialInputs
    out: Path
    report: Report = lambda text: None  # of what happens before ranks start
    on_progress: OnProgress = lambda event: None
    checkpoints: CheckpointPlace | None = None  # where they go on from, and keep what they can go on from
    rendezvous: RanksRendezvous | None = None  # where they find those on other machines
    failed_elsewhere: Callable[[], bool] = lambda: False  # whether a rank on another machine has failed; asked often
    kernels: bool = False  # ranks write which compiled kernels they have called

    def write(self, collective_s: float, *, threads: int, cores: int, audit: bool = False) -> Path:
        """Write the file that every rank reads (`harness.runtime.job.Job`) and return its path."""
        views = {key: str(getattr(self.inputs, key)) for key in ("graph", "train_view", "full_view")}
        if self.inputs.rows is not None:
            views["rows"] = str(self.inputs.rows)
        more = {"rendezvous": self.rendezvous, "checkpoints": self.checkpoints, "rates": self._rates()}
        job = {
            "config": self.trial.model_dump(mode="json"),
            **views,
            "inductive": self.inputs.inductive,
            "store": str(self.out / "rendezvous"),
            "out": str(self.out),
            "threads": threads,
            "cores": cores,
            "attempt": uuid.uuid4().hex,  # integrity checks draw from it what no method can predict
            "collective_timeout_s": collective_s,
            "audit": audit,
            "kernels": self.kernels,
            **{key: value.model_dump(mode="json") for key, value in more.items() if value is not None},
        }
        path = self.out / "job.json"
        path.write_text(json.dumps(job, indent=1))
        return path

    def _rates(self) -> Rates | None:
        """Return this machine's rates, if they are known and the trial's device and values are those measured."""
        rates, network = known_rates(), self.trial.network
        if rates is None or self.trial.device != "cpu" or self.trial.train.stored != "float32":
            return None
        measured = dict(rates.measured)
        if self.rendezvous is not None:  # the network between the machines was not measured
            measured.pop("exchange", None)
        elif network is not None and network.ranks_per_host == 1 and "exchange" in measured:
            measured["exchange"] = min(measured["exchange"], network.bits_s / 8)
        return rates.model_copy(update={"measured": measured})


@dataclass
class OneMachine:
    """Trials run on this machine alone; `timeouts` are the suite's, `slot` is what a trial has of it.

    A class that runs trials on more machines, `nodes` of them, inherits from this one.
    """

    timeouts: Timeouts
    worker: str = WORKER
    warm: bool = False
    nodes: int = 1
    slot: Slot = WHOLE
    audit: bool = False

    def at(self, slot: Slot) -> Self:
        """Return this machine for a trial that has `slot` of it."""
        return replace(self, slot=slot)

    def threads(self, trial: TrialConfig) -> int:
        """Return the threads that the suite asks for, or else the ranks of a node share the slot's cores."""
        return threads_of(trial, self.nodes, len(self.slot.cores or ()))

    def why_not(self, trial: TrialConfig) -> str | None:
        """Return why the trial cannot run here and is skipped, for want of its network; None if it can."""
        return None if trial.network is None else why_not(trial.network)

    def expect(self, trial: TrialConfig) -> None:
        """Start the process that forks the ranks of `trial`, which is about to run: it imports while data are made."""
        if self.warm:
            with suppress(NoWarmStart):  # reported when the ranks start
                parts = trial.partition.parts
                first = placements_of(blocks(parts, self.nodes)[0], parts)[0]
                fork_server(self.worker, rank_environment(first, self.threads(trial)))

    def warm_up(self, trials: Sequence[TrialConfig], report: Report) -> tuple[int, int]:
        """Compile what `trials` call; see `warm_up`. What goes wrong is reported and no error."""
        if self.worker != WORKER:
            return 0, 0
        try:
            return warm_up(trials, OneMachine(self.timeouts, WORKER, self.warm, self.nodes).run, report)
        except Exception as error:  # trials then compile as they go
            report(f"kernels are not compiled ahead: {explain(error)[1]}")
            return 0, len(trials)

    def measure(self, trial: TrialConfig) -> Measurement | None:
        """Return how fast this machine is, by the reference workload on the cores that trials get; None if it fails."""
        if self.worker != WORKER:
            return None
        # It has the threads of the trial, so that the process that forks that one's ranks can fork it.
        cores, ranks, own = usable_cores(), placements_of(range(1), 1), self.threads(trial)
        with scratch() as folder:
            job = folder / "job.json"
            job.write_text(json.dumps({"cores": cores}))
            group = run_group(job, ranks, threads=own, timeout_s=LIMIT_S, worker=WORKLOAD, warm=self.warm)
        if group.status != "ok":
            return None
        seconds = group.ranks[0]["summary"]["reference_s"]
        return Measurement(machine=machine(), when=datetime.now(UTC), seconds=seconds, cores=len(cores))

    def run(self, job: TrialJob) -> GroupResult:
        """Run all ranks of a trial to their end."""
        with network(job.trial.network, job.trial.partition.parts) as placements:
            return self.start(job, placements)

    def start(self, job: TrialJob, placements: Sequence[Placement]) -> GroupResult:
        """Run the ranks of `placements` here; the others of the trial, if any, come to the same rendezvous."""
        trial, threads = job.trial, self.threads(job.trial)
        own = cores_of(trial, self.nodes, len(self.slot.cores or ()))
        near = near_cores(self.slot.gpus) if trial.device == "cuda" else []
        return run_group(
            job.write(self.timeouts.collective_s, threads=threads, cores=own, audit=self.audit),
            [self.slot.placed(each, own, near) for each in placements],
            threads=threads,
            timeout_s=self.timeouts.trial_s,
            progress_s=self.timeouts.progress_s,
            on_progress=job.on_progress,
            worker=self.worker,
            warm=self.warm,
            failed_elsewhere=job.failed_elsewhere,
        )


@dataclass
class SpeedReference:
    """The measurements of one run of a suite, kept in `directory`, from where those of earlier runs are read."""

    directory: Path

    def __post_init__(self) -> None:
        here = machine(), len(usable_cores())
        own = [each for each in measurements(self.directory) if (each.machine, each.cores) == here]
        self._last = own[-1] if own else None
        self._tried = own[-1].when if own else None  # when it was measured last, or that failed
        self._run: Callable[[], Measurement | None] | None = None  # of the trials since

    def before(self, run: Callable[[], Measurement | None]) -> Measurement | None:
        """Return what a trial's record has, measured now by `run` if the last time is too long ago."""
        if self._tried is None or not timedelta() <= datetime.now(UTC) - self._tried < EVERY:
            self._measure(run)
        self._run = run
        return self._last

    def after(self, quiet: AbstractContextManager[bool]) -> None:
        """Measure once more, when the run is over, if trials have run since and the machine is quiet."""
        if self._run is not None:
            with quiet as is_quiet:
                if is_quiet:
                    self._measure(self._run)

    def _measure(self, run: Callable[[], Measurement | None]) -> None:
        self._last, self._run = None, None
        with suppress(OSError):  # a full disk: the trial goes on
            self._last = run()
            if self._last is not None:
                note(self.directory, [self._last])
        self._tried = datetime.now(UTC)


def explain(error: Exception) -> tuple[Status, str, str]:
    """Return status, reason and log of a trial that `error` ended in the runner."""
    log = "".join(traceback.format_exception(error))
    if isinstance(error, OSError) and (known := of_system(error)) is not None:
        return "error", str(known), log
    if isinstance(error, DataUnavailable | UserError):
        return "skipped" if isinstance(error, DataUnavailable) else "error", str(error), ""
    if isinstance(error, NotPrepared):
        return error.status, str(error), error.log
    if isinstance(error, MemoryError):
        return "oom", f"out of memory in the runner: {error}", log
    return "error", f"{type(error).__name__} in the runner: {' '.join(str(error).split())}", log


def warm_up(trials: Sequence[TrialConfig], run: Callable[[TrialJob], GroupResult], report: Report) -> tuple[int, int]:
    """Have the kernels of `trials` compiled that this machine has not compiled yet.

    No list says which kernels a trial calls: that is found out by running it, on a graph of NODES nodes, EPOCHS epochs.
    numba keeps them on disk, and there it is noted which ones each shape of trial called; a shape that does not run is
    reported, and tried again the next time. A plugin's code is run when it is asked for and at no other time: its
    trials are left out. Processes that ranks are forked from load what `trials` call, or all where that is not known of
    each. Returns how many shapes were run, and how many of them failed.
    """
    if (kept := stream.stats.cache_path) is None:  # nowhere: every rank compiles for itself
        return 0, 0
    noted = Path(kept) / "harness-ahead"
    with locked(noted):  # another runner may be at the same shapes
        own = [trial for trial in trials if not trial.sources]
        shapes = {shape(trial): trial for trial in own}
        notes = {key: read_object(noted / key, SMALL) for key in shapes}
        missing = {key: trial for key, trial in shapes.items() if notes[key] is None}
        if missing:
            preload({})  # or a rank would have more than it calls
        inputs, failed = InputCache(), 0
        for number, (key, trial) in enumerate(missing.items()):
            bar = ("█" * (number * WIDTH // len(missing))).ljust(WIDTH, "░")
            report(f"compiling kernels, once on this machine {bar} {number}/{len(missing)} {trial.method.name}")
            why, called = _called(tiny(trial), run, inputs)
            if why is not None and (usual := with_usual_numbers(trial)) != trial:  # too large for a tiny graph, perhaps
                why, called = _called(tiny(usual), run, inputs)
            if why is None:
                notes[key] = called
                noted.mkdir(parents=True, exist_ok=True)
                (noted / key).write_text(json.dumps(called))
            else:
                failed += 1
                report(f"{trial.method.name} is not compiled ahead: {why}")
        if missing:
            report(f"kernels are compiled for {len(missing) - failed} of {len(missing)} shapes of trials")
        known = [note for note in notes.values() if note is not None]
        preload(_union(known) if len(known) == len(notes) and len(own) == len(trials) else None)
        return len(missing), failed


def _called(
    trial: TrialConfig, run: Callable[[TrialJob], GroupResult], inputs: InputCache
) -> tuple[str | None, Versions]:
    """Run a trial; return why it failed, or None, and the kernels that it called."""
    try:
        with scratch() as folder:
            why = run(TrialJob(trial, inputs.get(trial, lambda text: None), folder, kernels=True)).reason
            return why, _union([read_object(path, SMALL) or {} for path in folder.glob("kernels*.json")])
    except Exception as error:  # the trial may run all the same
        return str(error), {}


def _union(notes: Sequence[Versions]) -> Versions:
    names = sorted({name for note in notes for name in note})
    return {name: sorted({version for note in notes for version in note.get(name, [])}) for name in names}


def with_usual_numbers(trial: TrialConfig) -> TrialConfig:
    """Return the trial with the method's defaults for its numbers, which is of the same `shape`."""
    own = trial.method.options
    known = METHODS.load(trial.method.name).Options.option_defaults().items()
    usual = {key: value for key, value in known if type(value) in (int, float) and type(value) is type(own.get(key))}
    return trial.model_copy(update={"method": trial.method.model_copy(update={"options": own | usual})})


def everything() -> list[TrialConfig]:
    """Return trials of every installed method, and of every model with one that trains on the full graph."""
    data, models = [{"sbm": {"multilabel": often}} for often in (False, True)], MODELS.names()
    base = {"name": "everything", "datasets": data, "partition": {"parts": [1, 2]}}
    found: list[TrialConfig] = []
    for methods, names in ((METHODS.names(), models[:1]), (["full"], models)):
        found += expand(Suite.model_validate(base | {"methods": methods, "model": {"name": names, "hidden": 96}}))
    return found


def tiny(trial: TrialConfig) -> TrialConfig:
    """Return a trial that calls the same kernels, with arguments of the same types, on a graph of NODES nodes."""
    multilabel = dataset_info(trial.dataset).multilabel
    train = {"epochs": EPOCHS, "eval_every": 1, "inductive": is_inductive(trial), "threads": 1}
    kept = TrainSpec.model_fields.keys() - {"warmup", "patience", "target", "stop_at_target"}
    return trial.model_copy(
        update={
            "dataset": DatasetSpec(name="sbm", options={"nodes": NODES, "multilabel": multilabel}),
            "partition": PartitionSpec(parts=min(trial.partition.parts, 2), method="random"),
            "train": TrainSpec(**{**trial.train.model_dump(include=kept), **train}),
            "network": None,
            "timing": "wall",
            "traffic": "count",
        }
    )


def shape(trial: TrialConfig) -> str:
    """Return what decides which kernels a trial calls with which types, and on what they depend, as a digest."""
    small = tiny(trial)
    config = small.model_dump(mode="json", include={"method", "model", "device"})
    # Numbers among the options of a method or a model decide nothing.
    alike: Any = {"parse_int": lambda number: "int", "parse_float": lambda number: "float"}
    config |= json.loads(json.dumps({key: config[key] for key in ("method", "model")}), **alike)
    train = small.train.model_dump(include={"precision", "spmm", "products", "inductive", "sampled_eval"})
    config |= {"train": train, "dataset": small.dataset.options, "parts": small.partition.parts}
    text = json.dumps([config, _code()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def _code() -> list[Any]:
    """Return what numba's cache goes by: the files of the code, versions and the processor."""
    import llvmlite.binding
    import numba

    specs = [find_spec(package) for package in PACKAGES]
    folders = [Path(place) for spec in specs if spec for place in spec.submodule_search_locations or ()]
    files = [(str(file), file.stat()) for folder in folders for file in sorted(folder.rglob("*.py"))]
    stamps = [(file, stat.st_mtime_ns, stat.st_size) for file, stat in files]
    return [stamps, numba.__version__, llvmlite.binding.get_host_cpu_name()]
