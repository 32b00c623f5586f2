"""What a user asks of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

WORKER = "harness.runtime.rank"


@dataclass(frozen=True)
class RunOptions:
    """Says what a user asks of a run.

    `retry`: statuses whose trials run again; `fresh`: all selected trials run again; `data_dir` and `cache`:
    where data is looked up and kept (None: the environment's); `warm`: ranks are forked by a process that has
    imported what they need, where that is possible; `worker`: the module every rank runs; `jobs`, `together`: see
    `Seats`; `request`: the name of one that this runner works on with others (None: its own); `wait`: for trials
    that others run, too; `audit`: see `Job`.
    """

    retry: frozenset[str] = frozenset()
    fresh: bool = False
    data_dir: Path | None = None
    cache: Path | None = None
    warm: bool = True
    worker: str = WORKER
    jobs: int = 1
    together: bool = False
    request: str | None = None
    wait: bool = True
    audit: bool = False


def is_done(status: str | None, options: RunOptions) -> bool:
    """Return whether a trial with this status (None: no record) is left as it is; a skipped one never is."""
    return status not in (None, "skipped") and status not in options.retry and not options.fresh
