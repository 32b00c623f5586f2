"""What a trial of a tuning came to, and which is chosen: by validation alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import UserError
from harness.results.record_store import read_epochs
from harness.suite.sections import Goal


@dataclass(frozen=True)
class Curve:
    """Validation scores of a trial and the seconds that the slowest rank had trained by then, in order."""

    seconds: tuple[float, ...]
    scores: tuple[float, ...]
    trained_s: float

    def best(self, by: float | None = None) -> float:
        """Return the best score by so many seconds (None: of all); 0 before the first."""
        by = np.inf if by is None else by
        return max((score for at, score in zip(self.seconds, self.scores, strict=True) if at <= by), default=0.0)

    def time_to(self, target: float, by: float | None = None) -> float | None:
        """Return the seconds to the first score of at least `target`, None if there is none (by so many seconds)."""
        by = np.inf if by is None else by
        pairs = zip(self.seconds, self.scores, strict=True)
        return next((at for at, score in pairs if score >= target and at <= by), None)


def curve_of(place: Path) -> Curve:
    """Return the curve of the trial whose record is at `place`.

    Raises:
        UserError: the trial has scores of test nodes, which a choice must not see, or its epochs are damaged.
    """
    epochs = read_epochs(place / "epochs.parquet")
    leaks = [name for name in ("test_score", "sampled_test_score") if name in epochs and epochs[name].notna().any()]
    if leaks:
        what = f"a trial of the tuning has {leaks[0]}: settings are chosen by validation alone"
        raise UserError(what, file=place, fix="remove the trial's directory; the next `harness tune` repeats it")
    if epochs.empty:
        return Curve((), (), 0.0)
    timed = epochs["epoch_time_s"].astype(float).fillna(0.0)  # `timing: off`
    seconds = timed.groupby(epochs["epoch"]).max().sort_index().cumsum()
    scores = epochs[epochs["rank"] == epochs["rank"].min()].set_index("epoch")["val_score"].astype(float).dropna()
    at = [float(seconds.loc[epoch]) for epoch in scores.index]
    return Curve(tuple(at), tuple(map(float, scores)), float(seconds.iloc[-1]))


def success(curve: Curve, goal: Goal, target: float | None, seconds: float | None = None) -> float:
    """Return how good a trial is: more is better.

    By `best_val` its best validation score. By `time_to_target` a number above 1 that falls with the seconds, or where
    the target is not reached the best score, which is at most 1: those that reach it are ahead of all others.

    `seconds`: what came later does not count.
    """
    if goal == "time_to_target" and target is not None:
        took = curve.time_to(target, seconds)
        if took is not None:
            return 1 + 1 / (1 + took)
    return curve.best(seconds)


@dataclass(frozen=True)
class Tried:
    """A finished trial of a study: its number, id, values of the space, and what it came to (None: it failed)."""

    number: int
    trial: str
    point: dict[str, Any]
    curve: Curve | None


@dataclass(frozen=True)
class Chosen:
    """The settings of a method on a data set: those of `tried`, of the study of median success."""

    study: int
    tried: Tried
    success: float


def best_of(
    tried: Sequence[Tried], goal: Goal, target: float | None, seconds: float | None
) -> tuple[Tried, float] | None:
    """Return the best trial of a study and its success, the earliest of equals; None if all failed."""
    found = [(each, success(each.curve, goal, target, seconds)) for each in tried if each.curve is not None]
    return max(found, key=lambda pair: (pair[1], -pair[0].number), default=None)


def choose(
    studies: Sequence[Sequence[Tried]], goal: Goal, target: float | None, seconds: float | None
) -> Chosen | None:
    """Return the best trial of the study of median success: what a search of this budget comes to, not the luckiest.

    Of an even number of studies the lower of the two in the middle. A study whose trials all failed is the least
    successful; None if the chosen study is one.
    """
    best = [best_of(tried, goal, target, seconds) for tried in studies]
    order = sorted(range(len(best)), key=lambda i: (best[i][1] if best[i] else -1.0, -i))  # type: ignore[index]
    middle = order[(len(order) - 1) // 2]
    found = best[middle]
    return Chosen(middle, *found) if found else None
