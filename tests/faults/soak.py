"""Run many short trials in one suite and see that nothing grows: `python -m tests.faults.soak --trials 1000`.

What the runner and the process that forks its ranks hold (memory, descriptors, threads), the processes of the run,
shared memory, network namespaces and temporary files are measured as records come. Of each the slope over trials is
told with its 95 % interval; a run that was stopped goes on in another process: slopes are those within processes.
"""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from scipy import stats

from tests.faults.oracle import judge_output
from tests.faults.place import LIMIT_S, SHARED, Command, Place, enter_private, is_private, private_prefix

SUITE = """\
name: faults
datasets: [{sbm: {nodes: 200}}]
model: {name: sage, layers: 1, hidden: 4}
train: {epochs: 1, eval_every: 0, threads: 1}
methods: [full]
seeds: SEEDS
device: cpu
timing: 'off'
"""
SAMPLES = "samples.jsonl"
EVERY = 5  # trials between two samples
LOOKS, LOOK_S = 8, 0.1  # of a sample, the least of which counts: what a trial has for a while is no growth
WARM_UP = 10  # trials of each process that are left out: imports, first uses
LEFT = 3  # exit code: the same command goes on
TOLERATED = {
    "runner MB": 10.0, "runner descriptors": 1.0, "runner threads": 1.0, "forker MB": 10.0, "forker descriptors": 1.0,
    "processes": 1.0, "shared memory": 1.0, "shared MB": 1.0, "namespaces": 1.0, "temporary files": 1.0,
}  # fmt: skip
"""What is measured, and how much more of it after all trials is none."""


class Slope(NamedTuple):
    """How much more there is after a trial, and the 95 % interval of that."""

    value: float
    low: float
    high: float

    def verdict(self, tolerated: float, trials: int) -> str:
        """Say whether it grows by more than is tolerated of so many trials; few do not always tell."""
        if self.low * trials > tolerated:
            return "GROWS"
        return "flat" if self.high * trials < tolerated else "cannot tell"


@dataclass(frozen=True)
class Sample:
    """What there was in a process (its number) after so many trials of it."""

    process: int
    trials: int
    seconds: float
    values: dict[str, float]


def slope(samples: Sequence[Sample], name: str) -> Slope:
    """Return the slope of a value over trials within processes, by least squares."""
    xs: list[float] = []
    ys: list[float] = []
    processes = {sample.process for sample in samples}
    for process in processes:
        own = [sample for sample in samples if sample.process == process]
        x_mean = statistics.fmean(sample.trials for sample in own)
        y_mean = statistics.fmean(sample.values[name] for sample in own)
        xs += [sample.trials - x_mean for sample in own]
        ys += [sample.values[name] - y_mean for sample in own]
    spread, free = sum(x * x for x in xs), len(xs) - len(processes) - 1
    if not spread or free < 1:
        return Slope(math.nan, -math.inf, math.inf)
    found = sum(x * y for x, y in zip(xs, ys, strict=True)) / spread
    error = math.sqrt(sum((y - found * x) ** 2 for x, y in zip(xs, ys, strict=True)) / free / spread)
    half = float(stats.t.ppf(0.975, free)) * error
    return Slope(found, found - half, found + half)


def measure(place: Place, runner: int) -> dict[str, float]:
    """Return the least of what there is for about the time of a trial. Raises OSError if the runner has ended."""
    looks = []
    for _ in range(LOOKS):
        looks.append(_look(place, runner))
        time.sleep(LOOK_S)
    return {name: min(look[name] for look in looks) for name in TOLERATED}


def _look(place: Place, runner: int) -> dict[str, float]:
    everyone = place.processes()
    forkers = [process.pid for process in everyone if process.role == "forker"]
    shared = [path for home in SHARED[:1] for path in home.rglob("*")] if is_private() else []
    return {
        "runner MB": _resident(runner),
        "runner descriptors": len(os.listdir(f"/proc/{runner}/fd")),
        "runner threads": len(os.listdir(f"/proc/{runner}/task")),
        "forker MB": _resident(*forkers),
        "forker descriptors": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in forkers),
        "processes": sum(process.role != "rank" for process in everyone),
        "shared memory": len(shared),
        "shared MB": sum(path.stat().st_size for path in shared) / 1e6,
        "namespaces": len(list(SHARED[1].iterdir())) if is_private() else 0,
        "temporary files": sum(1 for _ in place.temporary.rglob("*")),
    }


def _resident(*pids: int) -> float:
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
    if not all(pages):
        raise ProcessLookupError("a process has just ended")
    return sum(pages) * os.sysconf("SC_PAGESIZE") / 1e6


def main(
    trials: Annotated[int, typer.Option(help="How many trials.", min=20)] = 1000,
    out: Annotated[Path | None, typer.Option(help="Where all is kept; the same command goes on with it.")] = None,
    minutes: Annotated[float, typer.Option(help="Stop after so many.", min=0.0)] = float("inf"),
) -> None:
    """Run trials, or go on, and print what grew. Exit code: 0 nothing, 1 something, 3 some trials are left."""
    home = (out or Path(tempfile.mkdtemp(prefix="soak-"))).absolute() / "run"
    place = Place(home)
    if not home.exists():
        place = Place.make(home, SUITE.replace("SEEDS", str([*range(trials)])))
    kept = home / SAMPLES
    numbers = [json.loads(line)["process"] for line in kept.read_text().splitlines()] if kept.exists() else []
    if place.records() < trials:
        _run(place, kept, max(numbers, default=0) + 1, time.monotonic() + 60 * minutes)
    samples = [Sample(**json.loads(line)) for line in kept.read_text().splitlines()]
    raise typer.Exit(_tell(samples, place.records(), trials))


def _run(place: Place, kept: Path, process: int, end: float) -> None:
    before, begun = place.records(), time.monotonic()
    command, at = place.start(), before
    with kept.open("a", buffering=1) as stream:
        while command.runs and time.monotonic() < end:
            time.sleep(0.02)
            if (done := place.records()) >= at + EVERY:
                at = done
                with suppress(OSError, ValueError):  # a process has just ended
                    taken = Sample(process, done - before, time.monotonic() - begun, measure(place, command.pid))
                    stream.write(json.dumps(vars(taken)) + "\n")
    _stop(place, command)


def _stop(place: Place, command: Command) -> None:
    if command.runs:
        command.process.send_signal(signal.SIGINT)
    command.process.wait(LIMIT_S)
    place.clear()
    assert not judge_output(command.said()), command.said()


def _tell(samples: Sequence[Sample], records: int, trials: int) -> int:
    """Print the table; return the exit code."""
    late = [sample for sample in samples if sample.trials > WARM_UP]
    typer.echo(f"{records} of {trials} trials, {len({sample.process for sample in samples})} processes")
    typer.echo(f"{'':<20}{'first':>9}{'last':>9}{'a 1,000 trials':>16}  {'95 % interval':<20}")
    grown = False
    for name, tolerated in TOLERATED.items():
        found = slope(late, name)
        verdict = found.verdict(tolerated, trials)
        grown |= verdict == "GROWS"
        ends = f"{late[0].values[name]:>9.1f}{late[-1].values[name]:>9.1f}"
        per, low, high = (1000 * each for each in found)
        typer.echo(f"{name:<20}{ends}{per:>16.2f}  [{low:.2f}, {high:.2f}]  {verdict}")
    for number in sorted({sample.process for sample in late}):
        own = [sample for sample in late if sample.process == number]
        halves = own[: len(own) // 2 + 1], own[len(own) // 2 :]
        paces = [(half[-1].seconds - half[0].seconds) / max(1, half[-1].trials - half[0].trials) for half in halves]
        typer.echo(
            f"process {number}: {own[-1].trials} trials, {paces[0]:.2f} s each at first, {paces[1]:.2f} s at last"
        )
    return 1 if grown else LEFT if records < trials else 0


if __name__ == "__main__":
    if not is_private() and (prefix := private_prefix()):
        os.execvp(prefix[0], [*prefix, sys.executable, "-m", "tests.faults.soak", *sys.argv[1:]])
    enter_private()
    typer.run(main)
