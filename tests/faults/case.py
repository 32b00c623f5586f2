"""One case: a fault strikes a run, the same command goes on with what is left, and the place is judged."""

from __future__ import annotations

import fcntl
import hashlib
import json
import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults import oracle
from tests.faults.oracle import HANGS, LOST, Finding, Trial
from tests.faults.place import LIMIT_S, Command, Place, wait_until

FAILURE = ("error", "timeout")
ATTEMPTS = 5  # to strike before the run is over
PLANTED = Path(__file__).with_name("planted.py")
SUITE = f"""\
name: faults
datasets: [{{sbm: {{nodes: 500}}}}]
model: {{name: sage, layers: 2, hidden: 16}}
train: {{epochs: 60, eval_every: 10, threads: 1, checkpoint: 7 epochs}}
partition: {{parts: 2, method: metis}}
methods: [struck, graphsage]
plugins: [{PLANTED}]
device: cpu
timing: 'off'
timeouts: {{trial_s: 90, collective_s: 20}}
"""


class TooLate(Exception):  # noqa: N818 - the case begins again
    """The run was over before the fault could strike."""


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        name: as in the table.
        strike: starts the command or commands, lets the fault happen, waits for their end, and mends what must be.
        may: statuses that trials may have after it, beside ok.
        suite: text of the suite.
        empty: nothing is prepared in the cache.
        chained: others like it may strike before it and after it at one place.
        why_not: says why this machine cannot have it; None if it can.
    """

    name: str
    strike: Callable[[Case], None]
    may: Collection[str] = ()
    suite: str = SUITE
    empty: bool = False
    chained: bool = False
    why_not: Callable[[], str | None] = lambda: None


@dataclass
class Case:
    """Faults at a place, drawn from `rng`; `home` is the reference run's place."""

    place: Place
    rng: random.Random
    home: Place
    held: ExitStack = field(default_factory=ExitStack)
    findings: list[Finding] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    again: Counter[str] = field(default_factory=Counter)  # trials whose records the case itself took away

    def say(self, words: str) -> None:
        """Note what was drawn, for those who look for the cause of a finding."""
        self.words.append(words)

    def end(self, command: Command, limit_s: float = LIMIT_S) -> int:
        """Wait for a command's end, and judge it; returns its exit code."""
        try:
            code = command.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.findings.append(Finding(HANGS, f"a command ran longer than {limit_s:g} s"))
            self.place.clear()
            code = command.process.wait()
        self.findings += oracle.judge_output(command.said())
        return code

    def wait(self, command: Command, true: Callable[[], bool]) -> None:
        """Wait until something is true. Raises TooLate if the command ends first."""
        if not wait_until(true, command):
            raise TooLate

    def wait_for_moment(self, command: Command) -> None:
        """Wait for a random moment: of the start, of a training, of a commit. Raises TooLate."""
        trials = self.rng.randrange(2)
        phase = self.rng.choices(("start", "stage", "train", "commit"), (2, 1, 6, 2))[0]
        delay = self.rng.uniform(0, {"start": 3.0, "stage": 1.0, "train": 0.6, "commit": 0.05}[phase])
        self.say(f"{delay:.2f} s after: {phase}" + ("" if phase == "start" else f" of trial {trials + 1}"))
        seen = {"stage": self.place.staged, "train": self.place.training, "commit": self.place.committing}
        if phase != "start":
            self.wait(command, lambda: self.place.records() >= trials and seen[phase]())
        time.sleep(delay)
        if not command.runs:
            raise TooLate


@dataclass(frozen=True)
class Result:
    """What a case came to. `skipped`: why it was not tried."""

    kind: str
    number: int
    words: str
    seconds: float
    findings: list[Finding]
    skipped: str | None = None

    def to_json(self) -> str:
        """Return it as a line of JSON."""
        return json.dumps(vars(self)) + "\n"

    @classmethod
    def from_json(cls, line: str) -> Result:
        """Read what `to_json` returned."""
        values = json.loads(line)
        return cls(**values | {"findings": [Finding(*each) for each in values["findings"]]})


@dataclass
class Cases:
    """Runs cases below a directory; `keep` the places of those with findings."""

    directory: Path
    seed: int
    keep: bool = True
    _references: dict[str, tuple[Place, dict[str, Trial]]] = field(default_factory=dict)

    def run(self, kinds: Sequence[Kind], number: int) -> list[Result]:
        """Have `kinds` strike, of which the first is the `number`-th of all, as many at one place as its run lasts."""
        results: list[Result] = []
        while left := kinds[len(results) :]:
            results += self._run(left, number + len(results))
        return results

    def _run(self, kinds: Sequence[Kind], number: int) -> list[Result]:
        """Have some of `kinds` strike at one place, one at least: begins again where that came too late."""
        begun = time.monotonic()
        if (reason := kinds[0].why_not()) is not None:
            return [Result(kinds[0].name, number, "", 0.0, [], reason)]
        home, reference = self.reference(kinds[0].suite)
        for attempt in range(ATTEMPTS):
            prepared = None if kinds[0].empty else home.cache
            place = Place.make(self.directory / f"case{number}", kinds[0].suite, prepared)
            case = Case(place, random.Random(f"{self.seed} {number} {attempt}"), home)
            try:
                told = _run(case, kinds, reference)
            except TooLate:
                told = []
            finally:
                case.held.close()
                place.clear()
            if not (self.keep and (case.findings or any(found for _, found in told))):
                shutil.rmtree(place.home, ignore_errors=True)
            if told:
                break
        else:
            return [Result(kinds[0].name, number, "", time.monotonic() - begun, [], f"too late {ATTEMPTS} times")]
        seconds = (time.monotonic() - begun) / len(told)
        return [
            Result(kind.name, number + nth, words, seconds, [*found, *case.findings])
            for nth, (kind, (words, found)) in enumerate(zip(kinds, told, strict=False))
        ]

    def reference(self, suite: str) -> tuple[Place, dict[str, Trial]]:
        """Return the place and the trials of an undisturbed run of a suite, which is made when it is asked for first.

        Raises RuntimeError if that run is not well itself.
        """
        if suite not in self._references:
            place = Place(self.directory / f"reference-{hashlib.sha256(suite.encode()).hexdigest()[:8]}")
            whole = place.home / "whole"
            with locked(place.home):  # several matrices may share a directory
                if not whole.exists():
                    place = _undisturbed(place.home, suite)
                    if len(list(place.cache.glob("datasets/[!.]*"))) > 1:  # it compiled, on data of its own
                        place = _undisturbed(place.home, suite)
                    whole.touch()
            trials, findings = oracle.read_trials(place.trials)
            if findings or not trials or {trial.status for trial in trials.values()} != {"ok"}:
                raise RuntimeError(f"the undisturbed run is not well: {findings} in {place.home}")
            self._references[suite] = place, trials
        return self._references[suite]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a path: a file beside it."""
    with path.with_name(path.name + ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _undisturbed(home: Path, suite: str) -> Place:
    shutil.rmtree(home, ignore_errors=True)
    place = Place.make(home, suite)
    command = place.start()
    if command.process.wait(LIMIT_S) != 0:
        raise RuntimeError(f"the undisturbed run failed:\n{command.said()}")
    return place


def _run(case: Case, kinds: Sequence[Kind], reference: dict[str, Trial]) -> list[tuple[str, list[Finding]]]:
    """Strike, and run to the end; return words and findings of each fault. Raises TooLate if none could strike.

    The findings of the end, which any of them may have caused, are left in the case.
    """
    place, told, failures = case.place, list[tuple[str, list[Finding]]](), set[tuple[str, int]]()
    for kind in kinds:
        try:
            kind.strike(case)
        except TooLate:
            place.clear()
            if not told:
                raise
            break
        place.plan.unlink(missing_ok=True)
        case.findings += oracle.judge_processes(place)
        place.clear()
        new = oracle.failures(place) - failures
        failures |= new
        case.findings += oracle.judge_between(place, reference, {id_: kind.may for id_, _ in new})
        told.append(("; ".join(case.words), case.findings))
        case.words, case.findings = [], []
    last = place.start()
    if (code := case.end(last)) != 0:
        what = last.said().strip().splitlines()[-1:]
        case.findings.append(Finding(LOST, f"the same command ended with {code}: {what}"))
    case.findings += oracle.judge_processes(place)
    case.findings += oracle.judge(place, reference, Counter(id_ for id_, _ in failures) + case.again)
    return told
