"""Results as pandas frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from harness.errors import UserError
from harness.results.epochs import EPOCH_COLUMNS, read_epochs
from harness.results.record import Record
from harness.results.reduce import SUMS
from harness.results.store import read_at, records_under
from harness.results.twins import network_label
from harness.runtime.spec import PHASES, PURPOSES

COLUMNS = (
    *("suite", "trial", "label", "dataset", "dataset_note", "origin", "model", "method", "options", "parts"),
    *("partitioner", "network", "seed", "device", "status", "reason"),
    *("epoch_time_s", "epochs", "throughput_epochs_s", "best_val", "test_at_best_val", "time_to_target_s"),
    *(f"time_{phase}_s" for phase in PHASES),
    *(f"bytes_{purpose}" for purpose in PURPOSES),
    *("peak_memory_bytes", "peak_memory_source", "boundary_nodes", "inner_nodes", "imbalance"),
    *("wall_s", "setup_s", "started"),
    *("epoch_time_low_s", "epoch_time_high_s", "noisy", "final_val", "final_test"),
    *("timing", "timed_epochs", "too_short", "residue", "barrier_cost", "comm_busy_s", "comm_exposed_s"),
    *(f"sum_{name}_s" for name in SUMS),
    *("cpu_utilisation", "gpu_utilisation", "gpu_power_w", "energy_gpu_j", "energy_cpu_j"),
    *("peak_rss_bytes", "peak_pss_bytes", "nvml_peak_bytes", "allocator_peak_bytes", "memory_model_bytes"),
    *("wire_estimate_bytes", "wire_bytes", "wire_ratio", "eval_s", "edges", "sampled_test_at_best_val"),
    *("train_nodes_per_s", "steps", "step_time_s", "presampled", "presample_s", "presample_threads"),
)
TEXT = frozenset(
    (
        *("suite", "trial", "label", "dataset", "dataset_note", "origin", "model", "method", "options"),
        *("partitioner", "network", "device", "status", "reason", "peak_memory_source", "started", "noisy"),
        *("timing", "too_short"),
    )
)


def load_results(path: Path | str) -> pd.DataFrame:
    """Return one row a trial, as they started, of a results directory, a suite's directory or one trial's.

    Times in seconds, `bytes_<purpose>` in bytes an epoch over all ranks, `peak_memory_bytes` of the largest
    rank, scores as fractions, `stat_<name>`: a method's own figures of an epoch, see `results.reduce` (no
    such columns from records that are older than them). A figure that a trial lacks is NaN (None for text).
    No records: no rows, all columns. UserError if the directory does not exist or a record is damaged.
    """
    records = [read_at(place) for place in record_places(Path(path))]
    rows = [row_of(record) for record in sorted(records, key=lambda r: (r.suite, r.started, r.trial))]
    extra = dict.fromkeys(key for row in rows for key in row if key not in COLUMNS)
    frame = pd.DataFrame(rows, columns=[*COLUMNS, *extra])
    for column in frame.columns:
        if column not in TEXT:
            frame[column] = pd.to_numeric(frame[column])
    return frame


def load_epochs(path: Path | str) -> pd.DataFrame:
    """Return one row an epoch and rank of every trial under `path` (as for `load_results`).

    Columns `suite`, `trial`, `epoch` (from 0), `rank`, `epoch_time_s`, `time_<phase>_s`, `bytes_<purpose>`
    (sent by this rank in this epoch), `loss`, `lr`, scores (NaN where not evaluated), and the method's own
    figures as `stat_<name>`.
    """
    frames = []
    for place in record_places(Path(path)):
        record = read_at(place)
        frame = read_epochs(place / "epochs.parquet")
        frame.insert(0, "suite", record.suite)
        frame.insert(1, "trial", record.trial)
        if len(frame):
            frames.append(frame)
    if not frames:
        return pd.DataFrame(columns=list(EPOCH_COLUMNS))
    return pd.concat(frames, ignore_index=True)


def record_places(path: Path) -> list[Path]:
    """Return the directories of the records under a results directory, a suite's or a trial's.

    UserError if it does not exist.
    """
    if not path.is_dir():
        raise UserError("no such directory of results", file=path)
    if (path / "record.json").is_file():
        return [path]
    if records := records_under(path):
        return records
    suites = sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))
    return [place for suite in suites for place in records_under(suite)]


def row_of(record: Record) -> dict[str, Any]:
    """Return a record as a row of `load_results`."""
    config = record.config
    row = {
        "suite": record.suite,
        "trial": record.trial,
        "label": record.label,
        "dataset": _get(config, "dataset", "name"),
        "dataset_note": record.dataset.get("note"),
        "origin": record.dataset.get("origin"),
        "model": _get(config, "model", "name"),
        "method": _get(config, "method", "name"),
        "options": _get(config, "method", "options") or {},
        "parts": _get(config, "partition", "parts"),
        "partitioner": _get(config, "partition", "method"),
        "network": network_label(record),
        "seed": config.get("seed"),
        "device": config.get("device"),
        "timing": config.get("timing", "plain"),
        "status": record.status,
        "reason": record.reason,
        "wall_s": record.wall_s,
        "started": record.started,
    }
    figures = {
        key: value
        for key, value in record.result.items()
        if key in COLUMNS or key.startswith(("time_", "bytes_"))
    }
    stats = record.result.get("stats") or {}
    return row | figures | {f"stat_{name}": value for name, value in stats.items()}


def _get(config: dict[str, Any], section: str, key: str) -> Any:
    """Return `config[section][key]`, None where it is not there."""
    inner = config.get(section)
    return inner.get(key) if isinstance(inner, dict) else None
