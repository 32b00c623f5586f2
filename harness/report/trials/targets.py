"""When a method first reaches a score: its time, epochs and bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from harness.report.numbers import Stat, over_seeds
from harness.report.trials.aggregate import figures_of
from harness.report.trials.curves import trial_course
from harness.report.trials.sections import Section
from harness.report.trials.variants import Variant
from harness.results.stats import time_to_score

SHARES = (0.9, 0.95, 0.99)  # of the best score of a section
Courses = dict[tuple[Variant, int], list[pd.DataFrame]]


@dataclass(frozen=True)
class Reached:
    """What the `hits` of `seeds` trials needed to reach a score first: s and epochs; None if none did."""

    time_s: Stat | None
    epochs: Stat | None
    hits: int
    seeds: int

    @property
    def always(self) -> bool:
        """Whether every seed reached it, so that the means are comparable."""
        return self.hits == self.seeds


def targets(section: Section) -> tuple[float, ...]:
    """Return the validation scores to be reached, ascending: those the suite names and `SHARES` of the best.

    A share of the best (`best_score`) is rounded down to 0.1 %.
    """
    top = best_score(section)
    if top is None:
        return ()
    own = section.ok["target"].dropna().unique() if "target" in section.ok else ()
    return tuple(sorted({math.floor(1000 * share * top) / 1000 for share in SHARES} | set(map(float, own))))


def best_score(section: Section) -> float | None:
    """Return the highest mean over seeds of a best validation score; None if nothing was scored."""
    return max((stat.mean for stat in figures_of(section, "best_val").values()), default=None)


def courses(section: Section) -> Courses:
    """Return the scored trials of a section as `trial_course` has them, by variant and number of parts."""
    by_trial = dict(iter(section.epochs.groupby("trial", sort=True)))
    cells = dict(iter(section.ok.groupby(["variant", "parts"])["trial"]))
    found: Courses = {}
    for place in ((variant, parts) for variant in section.variants for parts in section.parts):
        own = [by_trial[trial] for trial in cells.get((place[0].key, place[1]), ()) if trial in by_trial]
        if scored := [course for rows in own if (course := trial_course(rows))["score"].notna().any()]:
            found[place] = scored
    return found


def reached(own: Sequence[pd.DataFrame], target: float) -> Reached:
    """Return when the trials of one variant and number of parts first reached a score."""
    times = [time_to_score(list(c["time_s"]), list(c["score"]), target) for c in own]
    epochs = [time_to_score([1.0] * len(c), list(c["score"]), target) for c in own]
    hits = sum(time is not None for time in times)
    seconds, counts = (over_seeds(pd.Series(values, dtype=float)) for values in (times, epochs))
    return Reached(seconds, counts, hits, len(own))
