"""Kernels are compiled before anything is timed, once on a machine: by a trial of the same shape on a tiny graph."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.data.registry import dataset_info
from harness.data.store import locked
from harness.errors import UserError
from harness.files import SMALL, read_text
from harness.graph.kernels import PACKAGES, Versions, stream
from harness.launch.fork_server import preload
from harness.launch.inputs import InputCache, is_inductive
from harness.launch.local import GroupResult
from harness.launch.scratch import scratch
from harness.models.layer import MODELS
from harness.runtime.method import METHODS
from harness.runtime.run_config import TrainSpec
from harness.spec import DatasetSpec, PartitionSpec
from harness.suite.expand import expand
from harness.suite.schema import Suite, TrialConfig

NODES, EPOCHS = 300, 3
WIDTH = 20  # of the bar

Run = Callable[[TrialConfig, Path, InputCache], GroupResult]
"""Runs a trial whose ranks write to an empty directory."""


def compile_ahead(trials: Sequence[TrialConfig], run: Run, tell: Callable[[str], None]) -> tuple[int, int]:
    """Have the kernels of `trials` compiled that this machine has not compiled yet.

    Which kernels a trial calls nobody lists: that is found out by running it, on a graph of NODES nodes, EPOCHS epochs.
    numba keeps them on disk, and there it is noted which ones each shape of trial called; a shape that does not run is
    told, and tried again the next time. A plugin's code is run when it is asked for and at no other time: its trials
    are left out. Processes that ranks are forked from load what `trials` call, or all where that is not known of each.

    Returns:
        How many shapes were run, and how many of them failed.
    """
    if (kept := stream.stats.cache_path) is None:  # nowhere: every rank compiles for itself
        return 0, 0
    noted = Path(kept) / "harness-ahead"
    with locked(noted):  # another runner may be at the same shapes
        return _compile_ahead(trials, run, tell, noted)


def _compile_ahead(
    trials: Sequence[TrialConfig], run: Run, tell: Callable[[str], None], noted: Path
) -> tuple[int, int]:
    own = [trial for trial in trials if not trial.sources]
    shapes = {shape(trial): trial for trial in own}
    notes = {key: _read(noted / key) for key in shapes}
    missing = {key: trial for key, trial in shapes.items() if notes[key] is None}
    if missing:
        preload({})  # or a rank would have more than it calls
    inputs, failed = InputCache(), 0
    for number, (key, trial) in enumerate(missing.items()):
        full = number * WIDTH // len(missing)
        bar = "█" * full + "░" * (WIDTH - full)
        tell(f"compiling kernels, once on this machine {bar} {number}/{len(missing)} {trial.method.name}")
        why, called = _called(tiny(trial), run, inputs)
        if why is not None and (usual := with_usual_numbers(trial)) != trial:  # too large for a tiny graph, perhaps
            why, called = _called(tiny(usual), run, inputs)
        if why is None:
            notes[key] = called
            noted.mkdir(parents=True, exist_ok=True)
            (noted / key).write_text(json.dumps(called))
        else:
            failed += 1
            tell(f"{trial.method.name} is not compiled ahead: {why}")
    if missing:
        done = len(missing) - failed
        tell(f"kernels are compiled for {done} of {len(missing)} shapes of trials")
    known = [note for note in notes.values() if note is not None]
    preload(_union(known) if len(known) == len(notes) and len(own) == len(trials) else None)
    return len(missing), failed


def _called(trial: TrialConfig, run: Run, inputs: InputCache) -> tuple[str | None, Versions]:
    """Run a trial; return why it failed, or None, and the kernels that it called."""
    try:
        with scratch() as folder:
            why = run(trial, folder, inputs).reason
            return why, _union([_read(path) or {} for path in folder.glob("kernels*.json")])
    except Exception as error:  # the trial may run all the same
        return str(error), {}


def with_usual_numbers(trial: TrialConfig) -> TrialConfig:
    """Return the trial with the method's defaults for its numbers, which is of the same `shape`."""
    defaults = METHODS.load(trial.method.name).Options.option_defaults()
    own = trial.method.options
    usual = {
        key: defaults[key]
        for key, value in own.items()
        if _is_number(value) and _is_number(defaults.get(key)) and type(value) is type(defaults[key])
    }
    return trial.model_copy(update={"method": trial.method.model_copy(update={"options": own | usual})})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _read(path: Path) -> Versions | None:
    """Return the kernels that are noted there; None if that is not to be read."""
    try:
        noted: Versions = json.loads(read_text(path, SMALL))
    except (OSError, UserError, ValueError, RecursionError):
        return None
    return noted


def _union(notes: Sequence[Versions]) -> Versions:
    names = sorted({name for note in notes for name in note})
    return {name: sorted({version for note in notes for version in note.get(name, [])}) for name in names}


def everything() -> list[TrialConfig]:
    """Return trials of every installed method, and of every model with one that trains on the full graph."""
    methods, models = METHODS.names(), MODELS.names()
    suites = [(methods, models[:1]), (["full"], models)]
    kinds = {"datasets": [{"sbm": {"multilabel": often}} for often in (False, True)], "partition": {"parts": [1, 2]}}
    return [
        trial
        for chosen, names in suites
        for trial in expand(
            Suite.model_validate(
                {"name": "everything", **kinds, "methods": chosen, "model": {"name": names, "hidden": 96}}
            )
        )
    ]


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
    """Return what decides which kernels a trial calls with which types, and on what they depend, as a digest.

    Numbers among the options of a method or a model do not.
    """
    small = tiny(trial)
    config = small.model_dump(mode="json", include={"method", "model", "device"})
    config["method"], config["model"] = map(_without_numbers, (config["method"], config["model"]))
    train = small.train.model_dump(include={"precision", "spmm", "products", "inductive", "sampled_eval"})
    config |= {"train": train, "dataset": small.dataset.options, "parts": small.partition.parts}
    text = json.dumps([config, _code()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_numbers(inner) for inner in value]
    return type(value).__name__ if _is_number(value) else value


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
