"""Convergence curves: validation score against epochs, training time and bytes."""

from __future__ import annotations

import pandas as pd

from harness.report.trials.sections import Section
from harness.report.trials.variants import Variant

CURVE_COLUMNS = ("epoch", "time_s", "sent_bytes", "score", "low", "high")

# Rows found in the cache and rows asked for, of full-graph methods and of mini-batches.
CACHED = (("stat_cached_boundary", "stat_sampled_boundary"), ("stat_cached_nodes", "stat_remote_nodes"))


def trial_curve(epochs: pd.DataFrame) -> pd.DataFrame:
    """Return one trial's evaluated epochs: epoch (from 1), time_s, sent_bytes, score.

    `epochs`: its rows of `load_epochs`, one an epoch and rank. Sums over the epochs so far, warm-up
    included, evaluation not: `time_s` of the slowest rank's epoch time in seconds, `sent_bytes` of the
    payload between ranks.
    """
    each = trial_course(epochs)
    curve = each.cumsum(skipna=False).assign(score=each["score"]).dropna(subset=["score"]).reset_index()
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


def mean_curve(section: Section, variant: Variant, parts: int) -> pd.DataFrame:
    """Return the curve of a variant: means over seeds of time, bytes and score, lowest and highest score.

    It ends where the first seed ended, because a mean over those left would be biased. Columns as
    `CURVE_COLUMNS`; no rows if no trial was evaluated.
    """
    trials = section.select(variant, parts)
    epochs = section.epochs[section.epochs["trial"].isin(trials["trial"])]
    curves = [trial_curve(rows) for _, rows in epochs.groupby("trial", sort=True)]
    curves = [curve for curve in curves if len(curve)]
    if not curves:
        return pd.DataFrame(columns=list(CURVE_COLUMNS))
    by_epoch = pd.concat(curves).groupby("epoch", sort=True)
    mean = by_epoch.agg(
        time_s=("time_s", "mean"),
        sent_bytes=("sent_bytes", "mean"),
        score=("score", "mean"),
        low=("score", "min"),
        high=("score", "max"),
        seeds=("score", "size"),
    ).reset_index()
    return mean.loc[mean["seeds"] == len(curves), list(CURVE_COLUMNS)]


def hit_curve(section: Section, variant: Variant, parts: int) -> pd.Series[float]:
    """Return the hit rate of the feature cache by epoch (from 1), mean over seeds, as far as all of them ran.

    Of an epoch: rows found, summed over ranks, / rows asked for; epochs that ask for none have no rate.
    """
    there = [list(pair) for pair in CACHED if set(pair) <= set(section.epochs)]
    epochs = section.epochs[section.epochs["trial"].isin(section.select(variant, parts)["trial"])]
    for columns in there:
        sums = epochs.groupby(["epoch", "trial"])[columns].sum(min_count=1)
        rates = (sums[columns[0]] / sums[columns[1]]).unstack("trial").dropna().mean(axis=1)
        if len(rates):
            return rates.set_axis(rates.index + 1)
    return pd.Series(dtype=float)
