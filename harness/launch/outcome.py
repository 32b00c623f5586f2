"""What became of a group of ranks: one status and one reason from all of theirs."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.launch.files import log_tail, read_rank
from harness.launch.process import RankProcess
from harness.results.record import Status

# The worst first: the status that explains the others is the one a table should show.
SEVERITY: tuple[Status, ...] = ("oom", "invalid", "diverged", "timeout", "error")
# What a rank says when another one went away; never the cause.
_CONNECTION = re.compile(r"connection|gloo|nccl|socket|broken pipe|\bpeers?\b", re.IGNORECASE)


@dataclass(frozen=True)
class Failure:
    """One rank's failure, or one of a whole node (`rank` None); `node` is None on one machine."""

    rank: int | None
    status: Status
    reason: str
    order: int = 0  # its place among the ends of the group
    told: bool = False  # it failed after the launcher asked it to end
    node: int | None = None

    @property
    def text(self) -> str:
        """Return who failed, and why."""
        node = "" if self.node is None else f"node {self.node}"
        who = node if self.rank is None else f"rank {self.rank}" + (f" ({node})" if node else "")
        return f"{who} {self.reason}"

    def sort_key(self) -> tuple[bool, bool, int, int]:
        """Return the sort key: the likeliest cause of a group's end first."""
        lost = self.status == "error" and _CONNECTION.search(self.reason) is not None
        known = SEVERITY.index(self.status) if self.status in SEVERITY else len(SEVERITY)
        return (self.told, lost, known, self.order)


def failed(process: RankProcess, out: Path) -> bool:
    """Return whether an ended rank did anything but write a whole result and exit with 0."""
    written = read_rank(out, process.rank)
    return process.code != 0 or written is None or written["status"] != "ok"


def failures(processes: list[RankProcess], out: Path, *, oom: bool) -> list[Failure]:
    """Return the failures of ended ranks. `oom`: the kernel killed something meanwhile."""
    found = (_failure(process, out, oom=oom) for process in processes)
    return [failure for failure in found if failure is not None]


def verdict(found: Sequence[Failure]) -> tuple[Status, str | None]:
    """Return status and reason of a group that ended by itself with the failures `found`."""
    if not found:
        return "ok", None
    first = min(found, key=Failure.sort_key)
    return first.status, first.text


def _failure(process: RankProcess, out: Path, *, oom: bool) -> Failure | None:
    if not failed(process, out):
        return None
    written, log = read_rank(out, process.rank), log_tail(out, process.rank)
    status, reason = _explain(process.code, written, log, oom=oom and not process.told)
    return Failure(process.rank, status, reason, process.order or 0, process.told)


def _explain(code: int | None, written: dict[str, Any] | None, log: str, *, oom: bool) -> tuple[Status, str]:
    if written is not None and written["status"] != "ok":
        status: Status = next((known for known in SEVERITY if known == written["status"]), "error")
        return status, f"said: {_one_line(str(written.get('reason') or written['status']))}"
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else "unknown"
        killed = f"was killed by signal {-code} ({name})"
        if oom and code == -signal.SIGKILL:
            return "oom", f"{killed}: the machine or its memory limit ran out of memory"
        return "error", killed
    if code == 0:
        return "error", "ended without a result"
    last = next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "")
    said = f": {_one_line(last)}" if last else ""
    return "error", f"exited with code {code}{said}"


def _one_line(text: str, limit: int = 300) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
