"""What a trial did by epoch, all ranks together."""

from __future__ import annotations

import pandas as pd


def trial_curve(epochs: pd.DataFrame) -> pd.DataFrame:
    """Return one trial's evaluated epochs: epoch (from 1), time_s, sent_bytes, score.

    `epochs`: its rows of `load_epochs`, one an epoch and rank. Sums over the epochs so far, warm-up included,
    evaluation not: `time_s` of the slowest rank's epoch time in seconds, `sent_bytes` of the payload between ranks.
    """
    return curve_of(trial_course(epochs))


def curve_of(course: pd.DataFrame) -> pd.DataFrame:
    """Return the curve of a trial's course; see `trial_curve` and `trial_course`."""
    curve = course.cumsum(skipna=False).assign(score=course["score"]).dropna(subset=["score"]).reset_index()
    curve["epoch"] += 1
    return curve[["epoch", "time_s", "sent_bytes", "score"]]


def trial_course(epochs: pd.DataFrame) -> pd.DataFrame:
    """Return a row an epoch of a trial: time_s and sent_bytes of that epoch, score after it.

    Arguments and units as for `trial_curve`; NaN where nothing was counted or scored.
    """
    sizes = [name for name in map(str, epochs.columns) if name.startswith("bytes_") and name != "bytes_swap"]
    sent = epochs[sizes].sum(axis=1, min_count=1)
    by_epoch = epochs.assign(sent_bytes=sent).groupby("epoch", sort=True)
    return pd.DataFrame(
        {
            "time_s": by_epoch["epoch_time_s"].max(),
            "sent_bytes": by_epoch["sent_bytes"].sum(min_count=1),
            "score": by_epoch["val_score"].first(),
        }
    )
