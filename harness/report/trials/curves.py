"""Convergence curves: validation score against epochs and against training time."""

from __future__ import annotations

import pandas as pd

from harness.report.trials.sections import Section
from harness.report.trials.variants import Variant

CURVE_COLUMNS = ("epoch", "time_s", "score", "low", "high")


def trial_curve(epochs: pd.DataFrame) -> pd.DataFrame:
    """Return one trial's evaluated epochs: epoch (from 1), time_s, score.

    `epochs`: its rows of `load_epochs`, one an epoch and rank. `time_s`: sum over the epochs so far, warm-up
    included, of the slowest rank's epoch time in seconds; evaluation is not part of it.
    """
    by_epoch = epochs.groupby("epoch", sort=True)
    curve = pd.DataFrame({"time_s": by_epoch["epoch_time_s"].max(), "score": by_epoch["val_score"].first()})
    curve["time_s"] = curve["time_s"].cumsum(skipna=False)
    curve = curve.dropna(subset=["score"]).reset_index()
    curve["epoch"] += 1
    return curve[["epoch", "time_s", "score"]]


def mean_curve(section: Section, variant: Variant, parts: int) -> pd.DataFrame:
    """Return the curve of a variant: mean of time and score over seeds, lowest and highest score.

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
    columns = ["stat_cached_boundary", "stat_sampled_boundary"]
    epochs = section.epochs[section.epochs["trial"].isin(section.select(variant, parts)["trial"])]
    if not set(columns) <= set(epochs):
        return pd.Series(dtype=float)
    sums = epochs.groupby(["epoch", "trial"])[columns].sum(min_count=1)
    rates = (sums[columns[0]] / sums[columns[1]]).unstack("trial").dropna().mean(axis=1)
    return rates.set_axis(rates.index + 1)
