"""Which trial a runner runs next, and which slot of the machine it has for it.

A trial that is timed has the machine to itself, others may run at the same time on cores of their own. Runners of one
user agree on slots through locks of files (of this machine's, never of the results' file system), which the kernel
drops with the process, and on trials through leases in the results. See docs/design/clusters.md.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from harness.caches import private_directory
from harness.data.prepared import flock, locked
from harness.errors import UserError
from harness.files import RECORD, read_bytes, write_whole
from harness.launch.hardware import usable_cores, visible_gpus
from harness.launch.process import WORKER, Placement
from harness.results.leases import Lease, Leases, named
from harness.results.record_store import ResultStore
from harness.suite.schema import TrialConfig

REQUESTS = ".requests"
ENVIRONMENT = "HARNESS_LOCKS"
T = TypeVar("T")
_MACHINE, _SLOT, _BOOK = "machine", "slot-", "book"


@dataclass(frozen=True)
class RunOptions:
    """Says what a user asks of a run; `jobs`, `together`: see `Slots`, `audit`: see `harness.runtime.job.Job`."""

    retry: frozenset[str] = frozenset()  # statuses whose trials run again
    fresh: bool = False  # all selected trials run again
    data_dir: Path | None = None  # where data is looked up; None: the environment's
    warm: bool = True  # ranks are forked by a process that has imported what they need, where that is possible
    worker: str = WORKER  # the module every rank runs
    jobs: int = 1
    together: bool = False
    request: str | None = None  # the name of one that this runner works on with others; None: its own
    wait: bool = True  # for trials that others run, too
    audit: bool = False


def is_done(status: str | None, options: RunOptions) -> bool:
    """Return whether a trial with this status (None: no record) is left as it is; a skipped one never is."""
    return status not in (None, "skipped") and status not in options.retry and not options.fresh


class Request(BaseModel, frozen=True):
    """What was asked of one run or more, fixed when it was asked: which trials, whatever their records say since.

    `trials`: by id the number of the latest lease then; `recorded`: those that had a record.
    """

    trials: dict[str, int]
    recorded: frozenset[str] = frozenset()

    def write(self, directory: Path) -> str:
        """Keep the request with a suite's results for runners to come; returns its name."""
        name, home = uuid.uuid4().hex[:10], directory / REQUESTS
        home.mkdir(parents=True, exist_ok=True)
        write_whole(home / f"{name}.json", self.model_dump_json())
        return name

    @classmethod
    def read(cls, directory: Path, name: str) -> Request:
        """Read a request; UserError if it is not there."""
        path = directory / REQUESTS / f"{name}.json"
        try:
            return cls.model_validate_json(read_bytes(path, RECORD))
        except OSError as error:
            raise UserError(f"cannot be read: {error.strerror}", file=path, key="--request") from error


@dataclass(frozen=True)
class Slot:
    """What a trial has of the machine: numbers of cores that its ranks are pinned to, names of GPUs; None: all."""

    cores: tuple[int, ...] | None = None
    gpus: tuple[str, ...] | None = None

    def placed(self, placement: Placement, each: int, near: Sequence[frozenset[int]] = ()) -> Placement:
        """Give a rank of the trial its GPUs and `each` cores of the slot, first of those `near` its GPU."""
        pool = self.cores
        if pool is None:  # a quota lets others have any of the cores, and some systems pin no process
            usable = usable_cores()
            known = hasattr(os, "sched_getaffinity") and len(usable) == len(os.sched_getaffinity(0))
            pool = tuple(usable) if known else ()
        free, own = list(pool), list[int]()
        # Every rank computes its own share alone, so that it replays the choices of the ranks before it.
        for chooser in range(placement.local_rank + 1):
            liked, own = near[chooser % len(near)] if near else frozenset(), []
            while len(own) < min(each, len(pool)):
                free = free or list(pool)
                left = [core for core in free if core not in own]
                own.append(next((core for core in left if core in liked), left[0]))
                free.remove(own[-1])
        return replace(placement, cores=tuple(sorted(own)) or None, gpus=self.gpus)


WHOLE = Slot()


@dataclass
class AcquiredSlot:
    """A slot that is acquired until its context is left; `alone`: no other trial of this user runs meanwhile."""

    slot: Slot
    alone: bool
    _home: Path
    _held: ExitStack
    _neighbours: list[dict[str, str]] = field(default_factory=list)
    _own: Path | None = None

    def announce(self, trial: TrialConfig) -> None:
        """Show that a trial runs here, to trials that run and to those that will."""
        line = json.dumps({"trial": trial.id, "label": trial.label}) + "\n"
        # A trial that comes adds itself to what the others show: one of two always sees the other.
        with locked(self._home / _BOOK):
            for path in sorted(self._home.glob(f"{_SLOT}*")):
                with ExitStack() as stale:  # a file that can be locked is a dead runner's
                    if _lock(stale, path, fcntl.LOCK_SH):
                        path.unlink()
                        continue
                with path.open("a") as file:
                    file.write(line)
                self._neighbours += _read(path)[:1]
            own = self._own = self._home / f"{_SLOT}{uuid.uuid4().hex}"
            _lock(self._held, own, fcntl.LOCK_EX)
            own.write_text(line)
            self._held.callback(self.withdraw)

    def withdraw(self) -> None:
        """Show the trial no longer: trials that come from now on have not run at the same time."""
        with locked(self._home / _BOOK):
            if self._own is not None:
                self._neighbours, own, self._own = self.neighbours(), self._own, None
                own.unlink(missing_ok=True)

    def neighbours(self) -> list[dict[str, str]]:
        """Return id and label of the trials that have run on the machine between `announce` and `withdraw`."""
        found = [*self._neighbours, *(_read(self._own)[1:] if self._own else ())]
        return [each for number, each in enumerate(found) if each not in found[:number]]

    def described(self) -> dict[str, Any]:
        """Return what a record says of the slot: cores that were its own, and the trials that ran meanwhile."""
        return {"pinned_cores": self.slot.cores and list(self.slot.cores), "beside": self.neighbours()}


def needs_quiet(trial: TrialConfig) -> bool:
    """Return whether what else runs on the machine would be in a trial's results: its times, bytes, network."""
    return trial.timing != "off" or trial.traffic == "verify" or trial.network is not None


@dataclass(frozen=True)
class Slots:
    """The slots of this machine, for one of `jobs` runners.

    A trial that needs no quiet machine gets the share of the cores that `jobs` leaves, or one for each rank if that is
    more. `together`: trials that are timed run at the same time too.
    """

    jobs: int = 1
    together: bool = False

    @contextmanager
    def acquire(self, trial: TrialConfig, nodes: int = 1) -> Iterator[AcquiredSlot | None]:
        """Give a slot for `trial`, run on `nodes` machines; None where there is no room now."""
        with ExitStack() as held:
            home = _home()
            alone = needs_quiet(trial) and not self.together
            slot = None
            if _lock(held, home / _MACHINE, fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
                ranks = math.ceil(trial.partition.parts / nodes)
                slot = WHOLE if alone else self._share(held, home, ranks, gpu=trial.device == "cuda")
            if slot is None:
                held.close()
            yield None if slot is None else AcquiredSlot(slot, alone, home, held)

    @contextmanager
    def quiet(self) -> Iterator[bool]:
        """Keep all trials off this machine; False where one runs."""
        with ExitStack() as held:
            yield _lock(held, _home() / _MACHINE, fcntl.LOCK_EX)

    def _share(self, held: ExitStack, home: Path, ranks: int, *, gpu: bool) -> Slot | None:
        pool, devices = usable_cores(), visible_gpus() if gpu else []
        wanted = min(len(pool), max(ranks, len(pool) // self.jobs))
        cores = _lock_some(held, home, "core-", pool, wanted)
        gpus = None if cores is None else _lock_some(held, home, "gpu-", devices, min(ranks, len(devices)))
        if cores is None or gpus is None:
            return None
        return Slot(cores if len(cores) < len(pool) else None, gpus if gpu else None)


def _home() -> Path:
    """Return the directory of the locks: HARNESS_LOCKS, or one in memory which no other user may write to."""
    if named_ := os.environ.get(ENVIRONMENT):
        home = Path(named_)
        home.mkdir(parents=True, exist_ok=True)
        return home
    shared = Path("/dev/shm")
    base = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    return private_directory(base, "harness")


def _lock(held: ExitStack, path: Path, how: int) -> bool:
    """Lock a file for as long as `held` is open; False if another process has it."""
    with ExitStack() as mine:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        mine.callback(os.close, fd)
        try:
            flock(fd, path, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        held.push(mine.pop_all())
    return True


def _lock_some(held: ExitStack, home: Path, kind: str, names: Sequence[T], wanted: int) -> tuple[T, ...] | None:
    """Lock the files of `wanted` of the cores or GPUs; None if fewer are free."""
    own: list[T] = []
    for name in names:
        if len(own) < wanted and _lock(held, home / f"{kind}{name}", fcntl.LOCK_EX):
            own.append(name)
    return tuple(own) if len(own) == wanted else None


def _read(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@dataclass
class Turn:
    """A trial is this runner's to run, on an acquired slot of the machine; `done` once its record is written."""

    trial: TrialConfig
    acquired: AcquiredSlot
    lease: Lease
    done: bool = False


class TrialQueue:
    """Gives out the trials of a request that have not been run since, each once, when the machine has room."""

    def __init__(
        self,
        store: ResultStore,
        leases: Leases,
        slots: Slots,
        request: Request,
        trials: Sequence[TrialConfig],
        nodes: int = 1,
    ) -> None:
        self.store, self.leases, self.slots, self.request, self.nodes = store, leases, slots, request, nodes
        asked = [trial for trial in trials if trial.id in request.trials]
        # Trials that may run at the same time come first: they need not wait for those that may not.
        asked.sort(key=lambda trial: slots.jobs > 1 and needs_quiet(trial))
        self.left = {trial.id: trial for trial in asked}

    @contextmanager
    def turn(self) -> Iterator[Turn | None]:
        """Give the next trial that is free and that the machine has room for; None if there is none now."""
        latest = self.leases.latest()
        for id_ in list(self.left):
            lease = latest.get(id_)
            ran = lease is not None and lease.done and lease.number > self.request.trials[id_]
            if ran or self._recorded(id_):  # others have run it meanwhile
                del self.left[id_]
        for trial in list(self.left.values()):
            known = latest.get(trial.id)
            if self.leases.holder(known) is not None:
                continue
            # The slot comes before the lease, so that a waiting runner never holds a trial.
            with self.slots.acquire(trial, self.nodes) as acquired:
                lease = None if acquired is None else self.leases.take(trial.id, known)
                if acquired is None or lease is None:
                    continue
                if self._recorded(trial.id):  # its last runner died between its record and the end of its lease
                    self.leases.end(lease, done=True)
                    continue
                acquired.announce(trial)
                turn = Turn(trial, acquired, lease)
                try:
                    yield turn
                finally:
                    self.leases.end(lease, done=turn.done)
                return
        yield None

    def waits(self) -> tuple[int, str]:
        """Return how many trials are free, and what those that are left wait for, in words."""
        latest = self.leases.latest()
        holders = [self.leases.holder(latest.get(id_)) for id_ in self.left]
        if free := holders.count(None):
            return free, f"waiting for room on this machine ({free} to run): a trial that is timed has it to itself"
        held = [named(holder) for holder in holders if holder is not None]
        return 0, f"waiting for {len(held)} that others run: {'; '.join(sorted(set(held)))}"

    def _recorded(self, id_: str) -> bool:
        return id_ not in self.request.recorded and (self.store.directory / id_ / "record.json").is_file()
