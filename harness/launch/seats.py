"""Trials on one machine: those that are timed have it to themselves, others may run side by side on cores of their own.

Runners of one user agree through locks of files (of this machine's, never of the results' file system), which the
kernel drops with the process. See docs/design/leases.md.
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
from typing import Any

from harness.caches import private_directory
from harness.data.prepared import flock, locked
from harness.launch.inputs import usable_cores
from harness.launch.process import Placement
from harness.suite.schema import TrialConfig

ENVIRONMENT = "HARNESS_LOCKS"
_TURN, _SEAT, _BOOK = "turn", "seat-", "book"


@dataclass(frozen=True)
class Seat:
    """What a trial has of the machine: numbers of cores that its ranks are pinned to, names of GPUs; None: all."""

    cores: tuple[int, ...] | None = None
    gpus: tuple[str, ...] | None = None

    def placed(self, placement: Placement, each: int, near: Sequence[frozenset[int]] = ()) -> Placement:
        """Give a rank of the trial its GPUs and `each` cores of the seat; ranks share few cores in turn.

        It has the runner's cores where it is not known which of them a quota leaves to it. `near`: the cores near each
        GPU, which its ranks are given before others.
        """
        pool = self.cores or tuple(_known_cores())
        own = _divided(pool, each, placement.local_rank, near) if pool else None
        return replace(placement, cores=own, gpus=self.gpus)


def _divided(pool: Sequence[int], each: int, rank: int, near: Sequence[frozenset[int]]) -> tuple[int, ...]:
    """Return a rank's `each` cores: ranks before it have chosen theirs; all are free again when none is left."""
    free, own = list(pool), list[int]()
    for chooser in range(rank + 1):
        liked, own = near[chooser % len(near)] if near else frozenset(), []
        while len(own) < min(each, len(pool)):
            free = free or list(pool)
            left = [core for core in free if core not in own]
            own.append(next((core for core in left if core in liked), left[0]))
            free.remove(own[-1])
    return tuple(sorted(own))


WHOLE = Seat()


@dataclass(frozen=True)
class Neighbour:
    """A trial that ran on the machine at the same time."""

    trial: str
    label: str


@dataclass
class Taken:
    """A seat that is taken until the context that gave it is left; `alone`: nobody else's trial runs meanwhile."""

    seat: Seat
    alone: bool
    _home: Path
    _held: ExitStack
    _found: list[Neighbour] = field(default_factory=list)
    _own: Path | None = None

    def sit(self, who: Neighbour) -> None:
        """Show that a trial runs here, to those who run and who will.

        Whoever comes adds itself to what the others show: one of two always sees the other.
        """
        line = json.dumps([who.trial, who.label]) + "\n"
        with locked(self._home / _BOOK):
            for path in sorted(self._home.glob(f"{_SEAT}*")):
                with ExitStack() as stale:
                    if _lock(stale, path, fcntl.LOCK_SH):
                        path.unlink()
                        continue
                with path.open("a") as file:
                    file.write(line)
                self._found += _read(path)[:1]
            own = self._own = self._home / f"{_SEAT}{uuid.uuid4().hex}"
            _lock(self._held, own, fcntl.LOCK_EX)
            own.write_text(line)
            self._held.callback(self.stand)

    def stand(self) -> None:
        """Show the trial no longer: who comes from now on has not run beside it."""
        with locked(self._home / _BOOK):
            if self._own is not None:
                self._found, own, self._own = self.beside(), self._own, None
                own.unlink(missing_ok=True)

    def described(self) -> dict[str, Any]:
        """Return what a record says of the seat: cores that were its own, and the trials beside it."""
        beside = [{"trial": each.trial, "label": each.label} for each in self.beside()]
        return {"pinned_cores": self.seat.cores and list(self.seat.cores), "beside": beside}

    def beside(self) -> list[Neighbour]:
        """Return the trials that have run on the machine since this one sat down, until it stood up."""
        later = _read(self._own)[1:] if self._own else []
        return list(dict.fromkeys([*self._found, *later]))


def needs_quiet(trial: TrialConfig) -> bool:
    """Return whether what else runs on the machine would be in a trial's results: its times, bytes, network."""
    return trial.timing != "off" or trial.traffic == "verify" or trial.network is not None


@dataclass(frozen=True)
class Seats:
    """The seats of this machine, for one of `jobs` runners.

    Attributes:
        jobs: a trial that needs no quiet machine gets this share of the cores, or one for each rank if that is more.
        together: trials that are timed run side by side too.
    """

    jobs: int = 1
    together: bool = False

    @contextmanager
    def take(self, trial: TrialConfig, nodes: int = 1) -> Iterator[Taken | None]:
        """Give a seat for `trial`, run on `nodes` machines; None where there is no room now."""
        with ExitStack() as held:
            home = _home()
            alone = needs_quiet(trial) and not self.together
            if not _lock(held, home / _TURN, fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
                yield None
                return
            ranks = math.ceil(trial.partition.parts / nodes)
            seat = WHOLE if alone else self._seat(held, home, ranks, gpu=trial.device == "cuda")
            if seat is None:
                held.close()
            yield None if seat is None else Taken(seat, alone, home, held)

    @contextmanager
    def quiet(self) -> Iterator[bool]:
        """Keep all trials off this machine; False where one runs."""
        with ExitStack() as held:
            yield _lock(held, _home() / _TURN, fcntl.LOCK_EX)

    def _seat(self, held: ExitStack, home: Path, ranks: int, *, gpu: bool) -> Seat | None:
        pool = usable_cores()
        wanted = min(len(pool), max(ranks, len(pool) // self.jobs))
        own = _lock_some(held, home, [f"core-{core}" for core in pool], wanted)
        if own is None:
            return None
        numbers = tuple(int(name.removeprefix("core-")) for name in own)
        pinned = numbers if len(numbers) < len(pool) else None
        if not gpu:
            return Seat(pinned)
        devices = visible_gpus()
        gpus = _lock_some(held, home, [f"gpu-{name}" for name in devices], min(ranks, len(devices)))
        return None if gpus is None else Seat(pinned, tuple(name.removeprefix("gpu-") for name in gpus))


def _known_cores() -> list[int]:
    """Return `usable_cores`, or none: the system pins no process, or a quota lets others have any of them."""
    usable = usable_cores()
    known = hasattr(os, "sched_getaffinity") and len(usable) == len(os.sched_getaffinity(0))
    return usable if known else []


def visible_gpus() -> list[str]:
    """Return the names of the GPUs this process may use, as CUDA_VISIBLE_DEVICES would have them."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    return [str(index) for index in range(torch.cuda.device_count())]


def _home() -> Path:
    """Return the directory of the locks: HARNESS_LOCKS, or one in memory which nobody else may write to."""
    if named := os.environ.get(ENVIRONMENT):
        home = Path(named)
        home.mkdir(parents=True, exist_ok=True)
        return home
    shared = Path("/dev/shm")
    base = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    return private_directory(base, "harness")


def _lock(held: ExitStack, path: Path, how: int) -> bool:
    """Lock a file for as long as `held` is open; False if somebody else has it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        flock(fd, path, how | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return False
    except OSError:
        os.close(fd)
        raise
    held.callback(os.close, fd)
    return True


def _lock_some(held: ExitStack, home: Path, names: Sequence[str], wanted: int) -> list[str] | None:
    """Lock `wanted` of the files; None if fewer are free."""
    with ExitStack() as mine:
        own: list[str] = []
        for name in names:
            if len(own) < wanted and _lock(mine, home / name, fcntl.LOCK_EX):
                own.append(name)
        if len(own) < wanted:
            return None
        held.push(mine.pop_all())
    return own


def _read(path: Path) -> list[Neighbour]:
    return [Neighbour(*json.loads(line)) for line in path.read_text().splitlines()]
