"""A trial that a command trains: a user's script next to the methods, with its own model, sampler and epochs.

Each rank runs the command once, as torchrun would, and reads what it prints.
"""

from __future__ import annotations

import json
import math
import os
import re
import resource
import shlex
import socket
import subprocess
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import psutil
from pydantic import Field, field_validator

from harness.runtime.job import Job
from harness.runtime.report import RankReport, TrialError
from harness.runtime.run_config import MethodOptions
from harness.runtime.trainer import SCORES, EarlyStopping

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

EXAMPLE = '{"epoch": 1, "time_s": 0.8, "loss": 0.5, "val": 0.91, "test": 0.9}'
KEYS = ("epoch", "time_s", "loss", "train", "val", "test")
FROM_LINE_TO_LINE = "its epochs last from line to line, evaluations included: its lines have no time_s"


class CommandOptions(MethodOptions):
    """Options of a command that trains."""

    command: str = Field(min_length=1, description="what each rank runs, in the directory that the suite is run in")
    name: str = Field("", description="what tables call it; default: the command")
    pattern: str = Field(
        "", description="regular expression whose groups epoch, time_s, loss, train, val and test are read, too"
    )

    @field_validator("command")
    @classmethod
    def _words(cls, command: str) -> str:
        shlex.split(command)  # an open quote is a ValueError
        return command

    @field_validator("pattern")
    @classmethod
    def _groups(cls, pattern: str) -> str:
        try:
            groups = re.compile(pattern).groupindex
        except re.error as error:
            raise ValueError(f"no regular expression: {error}") from error
        if pattern and not set(groups) & set(KEYS):
            raise ValueError(f"has none of the groups {', '.join(KEYS)}, as in (?P<val>[0-9.]+)")
        return pattern


class _Epochs:
    """The rows of the epochs that a command prints; one that is named again gets further values."""

    def __init__(self, job: Job, rank: int, report: RankReport, pattern: str) -> None:
        self.progress = EarlyStopping(job.config.train)
        self._rank, self._report, self._planned = rank, report, job.config.train.epochs
        self._pattern = re.compile(pattern) if pattern else None
        self.timed = set[int]()  # epochs whose seconds the command has said
        self._named: float | None = None  # the last epoch, as the command calls it
        self._since = time.perf_counter()

    def read(self, line: str) -> None:
        """Take what a line says of an epoch; TrialError if that cannot be."""
        found = self._found(line)
        values = {key: _number(key, found[key], line) for key in KEYS if found.get(key) is not None}
        epochs = self._report.epochs
        if "epoch" in values and values["epoch"] != self._named:
            self._named, now = values["epoch"], time.perf_counter()
            row: dict[str, Any] = {"epoch": len(epochs), "rank": self._rank, "timing": "wall", "loss": None}
            epochs.append(row | {"epoch_time_s": now - self._since, "eval_s": 0.0} | dict.fromkeys(SCORES))
            self._since = now
        if not epochs or not values:
            return
        row = epochs[-1]
        row |= {key: values[name] for name, key in (("time_s", "epoch_time_s"), ("loss", "loss")) if name in values}
        row |= {f"{split}_score": values[split] for split in ("train", "val", "test") if split in values}
        if "time_s" in values:
            self.timed.add(row["epoch"])
        if "val" in values:
            self.progress.evaluated(row)
        self._report.keep_epochs()
        self._report.progress(
            event="epoch", epoch=row["epoch"], epochs=self._planned, loss=row["loss"], val=self.progress.last_val,
            s_per_epoch=row["epoch_time_s"],
        )  # fmt: skip

    def _found(self, line: str) -> Mapping[str, Any]:
        if line.lstrip().startswith("{"):
            try:
                found = json.loads(line)
            except ValueError:
                return {}
            return found if isinstance(found, dict) else {}
        match = self._pattern.search(line) if self._pattern else None
        return match.groupdict() if match else {}


def _number(key: str, value: Any, line: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    least, most, expected = {
        "loss": (-math.inf, math.inf, "a number"), "epoch": (-1.0, math.inf, "a number from 0 on"),
        "time_s": (0.0, math.inf, "seconds above 0"),
    }.get(key, (-1e-12, 1.0 + 1e-12, "a share, from 0 to 1"))  # fmt: skip
    if not least < number < most:
        said = line.strip()[:100]
        raise TrialError("invalid", f"the command printed {key} {value!r}: expected {expected} (in {said!r})")
    return number


def run_command(options: CommandOptions, job: Job, rank: int, store: Store | None, report: RankReport) -> None:
    """Run the command of a rank to its end, and report the epochs that it prints.

    Raises TrialError where it fails, prints no epoch, or what cannot be.
    """
    start, words = time.perf_counter(), shlex.split(options.command)
    epochs = _Epochs(job, rank, report, options.pattern)
    try:
        process = subprocess.Popen(
            words, env=_environment(job, rank, store), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
    except OSError as error:
        raise TrialError("error", f"cannot run {words[0]!r}: {error.strerror or error}") from error
    last = ""
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)  # the rank's log
            last = line.strip() or last
            epochs.read(line)
    if process.returncode:
        raise TrialError("error", f"the command ended with {process.returncode}: {last[:200] or 'it printed nothing'}")
    if not report.epochs:
        raise TrialError("error", f"the command printed no epoch; a line is {EXAMPLE}")
    if len(epochs.timed) < len(report.epochs):
        report.flag("external", FROM_LINE_TO_LINE)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    report.finish(
        epochs.progress.summary(report.epochs), 0.0, setup_s=0.0, peak_memory_bytes=peak,
        peak_memory_source="largest process of the command", command_s=time.perf_counter() - start,
    )  # fmt: skip
    report.progress(event="done")


def _environment(job: Job, rank: int, store: Store | None) -> dict[str, str]:
    """Return what the command finds in its environment: torchrun's names are there already, but for the master's."""
    config = job.config.model_dump(mode="json", include={"model", "train", "seed", "device"})
    address, port = "127.0.0.1", "0"
    if store is not None:
        if rank == 0:
            own = psutil.net_if_addrs().get(os.environ.get("GLOO_SOCKET_IFNAME", ""), [])
            address = next((each.address for each in own if each.family == socket.AF_INET), address)
            with socket.create_server((address, 0)) as free:
                store.set("external", f"{address} {free.getsockname()[1]}")
        address, port = store.get("external").decode().split()
    return os.environ | {
        "MASTER_ADDR": address, "MASTER_PORT": port, "HARNESS_GRAPH": str(job.graph),
        "HARNESS_PARTS": str(job.full_view / "parts.npy"), "HARNESS_CONFIG": json.dumps(config),
    }  # fmt: skip
