"""Ranks that misbehave: see `planted`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.faults.case import FAILURE, Case, Kind, TooLate
from tests.faults.oracle import WRONG, Finding
from tests.faults.planted import DEEDS

CGROUPS = Path("/sys/fs/cgroup")
LIMIT_BYTES = 2 << 30  # a run takes about 1 GB
FAILED = 1  # exit code
BY_CGROUP = "meets a cgroup's memory limit"


def kinds() -> Iterator[Kind]:
    """Yield a kind for each deed of `planted`."""
    for what in DEEDS:
        may = ("oom",) if "meets" in what else FAILURE
        why_not = no_cgroup if what == BY_CGROUP else lambda: None
        yield Kind(f"a rank {what}", partial(strike, what=what), may, chained=True, why_not=why_not)


def strike(case: Case, what: str) -> None:
    """Have a random rank do `what` in a random epoch."""
    plan = {"what": what, "rank": case.rng.randrange(2), "epoch": case.rng.randrange(1, 50)}
    case.say(f"rank {plan['rank']} in epoch {plan['epoch']}")
    case.place.plan.write_text(json.dumps(plan))
    prefix = _limited(case) if what == BY_CGROUP else ()
    code = case.end(case.place.start(prefix=prefix))
    if case.place.plan.exists():
        raise TooLate
    if code != FAILED:
        case.findings.append(Finding(WRONG, f"a failed trial is told by the exit code, not {code}"))


def memory_cgroups() -> tuple[Path, str] | None:
    """Return where a memory cgroup can be made, and the file of its limit; None where there is no such place."""
    for home, name in ((CGROUPS / "memory", "memory.limit_in_bytes"), (CGROUPS, "memory.max")):
        with suppress(OSError):
            probe = home / f"harness-faults-{os.getpid()}"
            probe.mkdir()
            there = (probe / name).exists()
            probe.rmdir()
            if there:
                return home, name
    return None


def no_cgroup() -> str | None:
    """Return why no memory cgroup can be made."""
    return None if memory_cgroups() is not None else "no memory cgroup can be made here (root)"


def _limited(case: Case) -> tuple[str, ...]:
    found = memory_cgroups()
    assert found is not None
    home, name = found
    group = home / f"harness-faults-{os.getpid()}"
    group.mkdir()
    case.held.callback(_remove, group)
    (group / name).write_text(str(LIMIT_BYTES))
    return "sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"


def _remove(group: Path) -> None:
    with suppress(OSError):
        group.rmdir()
