"""The record of one trial, and how the figures of its ranks become the trial's."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import UserError
from harness.results.stats import default_warmup, median_interval

SCHEMA_VERSION = 1
Status = Literal["ok", "oom", "timeout", "diverged", "invalid", "error", "skipped"]
Json = dict[str, Any]


class Record(BaseModel):
    """One trial: how it ended, what was run, where, and its figures.

    `config`, `environment`, `dataset`, `partition`, `result` and `ranks` stay plain JSON, so that a record
    outlives the code that wrote it. Figures that could not be had are None, never 0.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    schema_version: int = Field(SCHEMA_VERSION, description="of this layout")
    trial: str = Field(description="the trial's id")
    suite: str
    label: str = ""
    status: Status
    reason: str | None = Field(None, description="why the status is not ok, in one line")
    started: str = Field(description="ISO 8601, UTC")
    wall_s: float | None = Field(None, description="from the start of the ranks to the end of the last")
    config: Json = Field(description="the TrialConfig")
    environment: Json = Field(default_factory=dict)
    dataset: Json = Field(default_factory=dict, description="name, origin, note, nodes, edges, ...")
    partition: list[Json] = Field(default_factory=list, description="a row a part, see partition_table")
    result: Json = Field(default_factory=dict, description="what `reduce` returns")
    ranks: list[Json] = Field(default_factory=list, description="what each rank wrote, without its epochs")

    def to_json(self) -> str:
        """Return the record as strict JSON: what is not finite becomes null."""
        return json.dumps(finite(self.model_dump(mode="python")), indent=1, allow_nan=False) + "\n"


def read_record(path: Path) -> Record:
    """Read a `record.json`; UserError if it is damaged or of a newer harness."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError("damaged record: not JSON", file=path, fix=_REMOVE) from error
    version = content.get("schema_version") if isinstance(content, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise UserError(
            f"record of schema {version}, this harness reads up to {SCHEMA_VERSION}",
            file=path,
            fix="upgrade harness",
        )
    try:
        return Record.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{part}: " for part in first["loc"])
        raise UserError(f"damaged record: {where}{first['msg']}", file=path, fix=_REMOVE) from error


_REMOVE = "remove the trial's directory; the next run repeats it"


def finite(value: Any) -> Any:
    """Return JSON-like `value` with every NaN and infinity replaced by None, numpy scalars by Python's."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def without_epochs(ranks: Sequence[Json]) -> list[Json]:
    """Return the ranks' reports as a record keeps them; the epochs go to `epochs.parquet`."""
    return [{key: value for key, value in rank.items() if key != "epochs"} for rank in ranks]


def epoch_rows(ranks: Sequence[Json]) -> list[Json]:
    """Return the epochs of all ranks, one row an epoch and rank."""
    return [row for rank in ranks for row in rank.get("epochs") or []]


def reduce(ranks: Sequence[Json]) -> Json:
    """Return a trial's figures from what its ranks reported; a figure nobody reported is None.

    Epoch time in seconds: median over the epochs after warm-up of the slowest rank's time of that epoch.
    Phases in seconds: means over those epochs of *one* rank, the slowest, so that they add up to its mean
    epoch. Bytes an epoch: mean over all epochs of the sum over ranks. Memory in bytes: largest of the ranks.
    """
    summary: Json = next((r["summary"] for r in ranks if r.get("summary")), {})
    result: Json = {key: summary.get(key) for key in _FROM_SUMMARY}
    result |= _timing(ranks, summary)
    result |= _traffic(ranks)
    largest = max((r for r in ranks if r.get("peak_memory_bytes")), key=_memory, default={})
    result["peak_memory_bytes"] = largest.get("peak_memory_bytes")
    result["peak_memory_source"] = largest.get("peak_memory_source")
    result["inner_nodes"] = _over_ranks(sum, ranks, "inner")
    result["boundary_nodes"] = _over_ranks(sum, ranks, "boundary")
    result["setup_s"] = _over_ranks(max, ranks, "setup_s")
    result["eval_s"] = _over_ranks(max, ranks, "eval_s")
    return result


_FROM_SUMMARY = (
    "epochs",
    "best_val",
    "test_at_best_val",
    "best_epoch",
    "final_val",
    "final_test",
    "final_loss",
    "time_to_target_s",
    "spmm",
    "parameters",
    "checksum",
    "stopped",
)


def _memory(rank: Json) -> int:
    return int(rank["peak_memory_bytes"])


def _over_ranks(how: Callable[[list[Any]], Any], ranks: Sequence[Json], key: str) -> Any:
    """Reduce one figure over the ranks; None unless every rank has it."""
    values = [rank.get(key) for rank in ranks]
    return how(values) if values and None not in values else None


def _timing(ranks: Sequence[Json], summary: Json) -> Json:
    """Epoch time, its interval, phases and imbalance, over the epochs that every rank finished."""
    by_rank = [{row["epoch"]: row for row in rank.get("epochs") or []} for rank in ranks]
    common = sorted(set.intersection(*(set(rows) for rows in by_rank))) if by_rank else []
    warmup = summary.get("warmup_epochs")
    warmup = default_warmup(len(common)) if warmup is None else warmup
    timed = common[warmup:]
    result: Json = {
        "warmup_epochs": min(warmup, len(common)) if common else None,
        "epoch_time_s": None,
        "epoch_time_low_s": None,
        "epoch_time_high_s": None,
        "noisy": None,
        "throughput_epochs_s": None,
        "imbalance": None,
        "rank_epoch_time_s": None,
    }
    if not timed:
        return result
    times = np.array([[rows[epoch]["epoch_time_s"] for epoch in timed] for rows in by_rank], dtype=float)
    medians = np.median(times, axis=1)
    slowest = by_rank[int(np.argmax(medians))]
    interval = median_interval(times.max(axis=0))
    assert interval is not None  # `timed` is not empty
    result["epoch_time_s"] = interval.median
    result["epoch_time_low_s"], result["epoch_time_high_s"] = interval.low, interval.high
    result["noisy"] = interval.noisy
    result["throughput_epochs_s"] = 1 / interval.median if interval.median > 0 else None
    result["imbalance"] = float(medians.max() / medians.mean()) if medians.mean() > 0 else None
    result["rank_epoch_time_s"] = medians.tolist()
    phases = dict.fromkeys(key for epoch in timed for key in slowest[epoch] if key.startswith("time_"))
    return result | {
        phase: float(np.mean([slowest[epoch].get(phase) or 0.0 for epoch in timed])) for phase in phases
    }


def _traffic(ranks: Sequence[Json]) -> Json:
    """Bytes sent by all ranks in a mean epoch, by purpose."""
    epochs: set[int] = set()
    totals: defaultdict[str, int] = defaultdict(int)
    for row in epoch_rows(ranks):
        epochs.add(row["epoch"])
        for key, value in row.items():
            if key.startswith("bytes_") and value is not None:
                totals[key] += value
    return {key: total / len(epochs) for key, total in totals.items()}
