"""The file of a trial's epochs: one row an epoch and rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from harness.errors import UserError

EPOCH_COLUMNS = (
    *("suite", "trial", "epoch", "rank", "epoch_time_s", "steps", "loss", "lr"),
    *("train_score", "val_score", "test_score", "sampled_val_score", "sampled_test_score", "eval_s"),
)


def write_epochs(epochs: Sequence[dict[str, Any]], path: Path) -> None:
    """Write rows of epochs as parquet, their `stats` as columns `stat_<name>`."""
    rows = []
    for epoch in epochs:
        stats = epoch.get("stats") or {}
        row = {key: value for key, value in epoch.items() if key != "stats"}
        rows.append(row | {f"stat_{key}": value for key, value in stats.items()})
    frame = pd.DataFrame(rows) if rows else pd.DataFrame(columns=list(EPOCH_COLUMNS[2:]))
    for column in frame.columns:
        if frame[column].dtype == object:  # a score that was never taken is a number all the same
            frame[column] = _numbers(frame[column])
    frame.to_parquet(path, index=False)


def read_epochs(path: Path) -> pd.DataFrame:
    """Read an `epochs.parquet`; UserError if it is missing or damaged."""
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise UserError(f"damaged epochs: {str(error).splitlines()[0]}", file=path) from error


def timed_epochs(epochs: pd.DataFrame, count: int) -> pd.DataFrame:
    """Return the epochs that a trial's epoch time is the median of, in order.

    Args:
        epochs: rows of one trial as `load_epochs` has them, one an epoch and rank.
        count: how many they are, the trial's `timed_epochs`: the last without barriers that all ranks ended.

    Returns:
        Indexed by epoch: `epoch_time_s` of the slowest rank, and its `steps` (NaN if not recorded).
    """
    plain = epochs if "timing" not in epochs else epochs[epochs["timing"] != "breakdown"]
    by_epoch = plain.reindex(columns=["epoch", "epoch_time_s", "steps"]).groupby("epoch")
    whole = by_epoch.size() == epochs["rank"].nunique()
    return by_epoch.max()[whole].tail(count)


def _numbers(column: pd.Series[Any]) -> pd.Series[Any]:
    """Return a column as numbers if it holds nothing else (None is NaN), as text otherwise."""
    try:
        return pd.to_numeric(column)
    except (ValueError, TypeError):
        return column.map(lambda value: value if value is None else str(value))
