"""The trials that are left to run, shared with other runners: each is given out once, when the machine has room."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from harness.errors import UserError
from harness.files import RECORD, read_bytes
from harness.launch.seats import Neighbour, Seats, Taken, needs_quiet
from harness.results.leases import Lease, Leases, named
from harness.results.record_store import ResultStore
from harness.suite.schema import TrialConfig

REQUESTS = ".requests"


class Request(BaseModel):
    """What was asked of one run or more, fixed when it was asked: which trials, whatever their records say since.

    `trials`: by id the number of the latest lease then; `recorded`: those that had a record.
    """

    model_config = ConfigDict(frozen=True)

    trials: dict[str, int]
    recorded: frozenset[str] = frozenset()

    def write(self, directory: Path) -> str:
        """Keep the request beside a suite's results for runners to come; returns its name."""
        name = uuid.uuid4().hex[:10]
        home = directory / REQUESTS
        home.mkdir(parents=True, exist_ok=True)
        temporary = home / f".{name}"
        temporary.write_text(self.model_dump_json(), encoding="utf-8")
        temporary.rename(home / f"{name}.json")
        return name

    @classmethod
    def read(cls, directory: Path, name: str) -> Request:
        """Read a request; UserError if it is not there."""
        path = directory / REQUESTS / f"{name}.json"
        try:
            return cls.model_validate_json(read_bytes(path, RECORD))
        except OSError as error:
            raise UserError(f"cannot be read: {error.strerror}", file=path, key="--request") from error


@dataclass
class Turn:
    """A trial is this runner's to run, on what was `taken` of the machine; `done` once its record is written."""

    trial: TrialConfig
    taken: Taken
    lease: Lease
    done: bool = False


@dataclass(frozen=True)
class Waits:
    """How many trials wait for room on this machine, and where others run theirs."""

    free: int
    held: Sequence[str]

    def __str__(self) -> str:
        if self.free:
            return f"waiting for room on this machine ({self.free} to run): a trial that is timed has it to itself"
        return f"waiting for {len(self.held)} that others run: {'; '.join(sorted(set(self.held)))}"


@dataclass
class TrialQueue:
    """Gives out the trials of a request that have not been run since."""

    store: ResultStore
    leases: Leases
    seats: Seats
    request: Request
    trials: Sequence[TrialConfig]
    nodes: int = 1
    left: dict[str, TrialConfig] = field(init=False)

    def __post_init__(self) -> None:
        asked = [trial for trial in self.trials if trial.id in self.request.trials]
        # What may run side by side comes first: it need not wait for those that may not.
        asked.sort(key=lambda trial: self.seats.jobs > 1 and needs_quiet(trial))
        self.left = {trial.id: trial for trial in asked}

    @contextmanager
    def turn(self) -> Iterator[Turn | None]:
        """Give the next trial that is free and that the machine has room for; None if there is none now."""
        latest = self.leases.latest()
        for trial in self._left(latest):
            known = latest.get(trial.id)
            if self.leases.holder(known) is not None:
                continue
            with self.seats.take(trial, self.nodes) as taken:
                lease = None if taken is None else self.leases.take(trial.id, known)
                if taken is None or lease is None:
                    continue
                if self._recorded(trial.id):  # its last runner died between its record and its last word
                    self.leases.end(lease, done=True)
                    continue
                taken.sit(Neighbour(trial.id, trial.label))
                turn = Turn(trial, taken, lease)
                try:
                    yield turn
                finally:
                    self.leases.end(lease, done=turn.done)
                return
        yield None

    def waits(self) -> Waits:
        """Return what the trials that are left wait for."""
        latest = self.leases.latest()
        holders = [self.leases.holder(latest.get(id_)) for id_ in self.left]
        return Waits(holders.count(None), [named(holder) for holder in holders if holder is not None])

    def _left(self, latest: Mapping[str, Lease]) -> list[TrialConfig]:
        """Return the trials that are left; those that others have run meanwhile are not."""
        for id_ in list(self.left):
            word = latest.get(id_)
            ran = word is not None and word.done and word.number > self.request.trials[id_]
            if ran or self._recorded(id_):
                del self.left[id_]
        return list(self.left.values())

    def _recorded(self, id_: str) -> bool:
        return id_ not in self.request.recorded and (self.store.directory / id_ / "record.json").is_file()
