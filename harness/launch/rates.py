"""Rates of this machine: measured once by `harness doctor --bench`, kept in the cache, read by plans and trials."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from harness.caches import cache_root
from harness.errors import UserError
from harness.files import SMALL, read_bytes, write_whole
from harness.launch.group import run_group
from harness.launch.hardware import capacity, usable_cores
from harness.launch.process import placements_of, scratch
from harness.results.environment import machine
from harness.runtime.run_config import Rates

WORKLOAD = "harness.runtime.machine_rates"
LIMIT_S = 300.0
MEMORY = 1 << 30  # bytes of a rank that measures
NEEDED = {"copy", "product float32", "gather 16", "gather 1024", "cached 16", "cached 1024"}  # by `Rates`


def _file() -> Path:
    return cache_root() / "rates.json"


def known_rates() -> Rates | None:
    """Return what was measured on this machine; None if nothing was, or not all that is needed."""
    with suppress(OSError, UserError, ValidationError):
        found = Rates.model_validate_json(read_bytes(_file(), SMALL))
        return found if found.machine == machine() and found.measured.keys() >= NEEDED else None
    return None


def measure_rates() -> Rates:
    """Measure, with a rank a core as far as memory goes, and keep what was found; UserError if the ranks fail."""
    ranks = max(1, min(len(usable_cores()), capacity().machine // MEMORY))
    with scratch() as folder:
        job = folder / "job.json"
        job.write_text(json.dumps({"store": str(folder / "rendezvous")}))
        group = run_group(job, placements_of(range(ranks), ranks), threads=1, timeout_s=LIMIT_S, worker=WORKLOAD)
    if group.status != "ok":
        raise UserError(f"the ranks that measure ended as {group.status}: {group.reason}", key="doctor --bench")
    summaries = [report["summary"] for report in group.ranks]
    mean = {key: sum(each[key] for each in summaries) / ranks for key in summaries[0]}
    found = Rates(machine=machine(), when=datetime.now(UTC), ranks=ranks, measured=mean)
    _file().parent.mkdir(parents=True, exist_ok=True)
    write_whole(_file(), found.model_dump_json(indent=1))
    return found
