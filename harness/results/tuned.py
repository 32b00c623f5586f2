"""What a tuning tried, what it chose and what it cost: `tuning.json`, with its trials and with the results."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from scipy.stats import binom

from harness.files import write_whole
from harness.results.record import read_kept, suite_files
from harness.suite.sections import Goal, Sampler

TUNING_FILE = "tuning.json"


class TuningTrial(BaseModel):
    """A finished trial of a search."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    study: int
    number: int = Field(description="in its study")
    trial: str = Field(description="the trial's id")
    point: dict[str, Any] = Field(description="values of what is searched; none: the suite's own settings")
    best_val: float | None = Field(description="best validation score within the budget, None of a failed trial")
    target_s: float | None = Field(description="training seconds to the target, None where it was not reached")
    trained_s: float = Field(description="training seconds")
    wall_s: float = Field(description="from the start of the ranks to the end of the last")

    @property
    def drawn(self) -> bool:
        """Whether its settings were drawn; else they are the suite's own."""
        return bool(self.point)


class ChangedTrial(TuningTrial):
    """A trial of what was chosen but for a change; it is no trial of the search, and cannot be chosen."""

    change: str = Field(description='"settings of METHOD", "layers 3", "hidden 64"')


class TunedMethod(BaseModel):
    """A method on a data set: every trial of its search, and the one whose settings were chosen."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    dataset: str
    method: str
    target: float | None = Field(description="validation score to reach")
    tried: tuple[TuningTrial, ...]
    chosen: str | None = Field(description="id of the trial whose settings were chosen; None: all failed")
    study: int | None = Field(description="its study: that of median success")
    changed: tuple[ChangedTrial, ...] = Field((), description="trials of what was chosen but for a change")

    @property
    def best(self) -> TuningTrial | None:
        """The trial whose settings were chosen."""
        return next((each for each in self.tried if each.trial == self.chosen and each.study == self.study), None)

    @property
    def trained_s(self) -> float:
        """Training seconds of the whole search."""
        return sum(each.trained_s for each in self.tried)

    @property
    def wall_s(self) -> float:
        """Seconds of the whole search's trials, start and evaluation included."""
        return sum(each.wall_s for each in self.tried)

    @property
    def own_val(self) -> float | None:
        """The validation score of the suite's own settings, mean over studies, a failed trial's 0; None: not tried."""
        found = [each.best_val or 0.0 for each in self.tried if not each.drawn]
        return statistics.fmean(found) if found else None

    @property
    def drawn_vals(self) -> list[float]:
        """Validation scores of what was drawn, of all studies, ascending; a failed trial's is 0."""
        return sorted(each.best_val or 0.0 for each in self.tried if each.drawn)

    @property
    def reaching(self) -> tuple[int, int]:
        """How many of the drawn settings reach the target, and of how many."""
        drawn = [each for each in self.tried if each.drawn]
        return sum(each.target_s is not None for each in drawn), len(drawn)

    def luck(self, goal: Goal) -> float | None:
        """Return how much the time to the target would differ from one such search to the next.

        The standard deviation of the logarithm of the time of what is chosen, if the drawn settings were drawn again
        from those that were (a bootstrap, in closed form: of each study the best, the median of studies), next to the
        suite's own. A time beyond the budget counts as the longest. None where fewer than two settings were drawn, or
        nobody reaches the target.
        """
        drawn = [each for each in self.tried if each.drawn]
        times = [each.target_s for each in self.tried if each.target_s is not None]
        if len(drawn) < 2 or not times:
            return None
        longest = max([*times, *(each.trained_s for each in self.tried)])

        def rank(each: TuningTrial) -> tuple[float, float]:
            time = math.inf if goal == "best_val" or each.target_s is None else each.target_s
            return time, -(each.best_val or 0.0)

        order = sorted(self.tried, key=lambda each: (rank(each), each.drawn))
        own = next((i for i, each in enumerate(order) if not each.drawn), len(order))
        before = np.cumsum([each.drawn for each in order]) / len(drawn)
        one = 1 - (1 - before) ** self.drawn_in_a_study  # the best of a study is this one or a better
        one[own:] = 1.0
        studies = len({each.study for each in self.tried})
        chosen = np.diff(binom.sf(studies // 2, studies, one), prepend=0.0)
        logs = np.log([longest if each.target_s is None else each.target_s for each in order])
        centre = float(chosen @ logs)
        return math.sqrt(float(chosen @ (logs - centre) ** 2))

    def course(self, sampler: Sampler) -> list[float]:
        """Return the best validation score that 1, 2, ... drawn settings are expected to come to.

        Of settings that are drawn without regard to others' scores from all studies' together, see `expected_best`;
        of a sampler that learns the mean of the best so far over studies, as long as all of them go on.
        """
        if sampler != "tpe":
            return expected_best(self.drawn_vals, self.drawn_in_a_study)
        studies = sorted({each.study for each in self.tried})
        drawn = [[each.best_val or 0.0 for each in self.tried if each.drawn and each.study == own] for own in studies]
        return [
            statistics.fmean(best) for best in zip(*(itertools.accumulate(own, max) for own in drawn), strict=False)
        ]

    @property
    def drawn_in_a_study(self) -> int:
        """How many settings the longest study drew."""
        studies = [each.study for each in self.tried if each.drawn]
        return max(map(studies.count, studies), default=0)


class Tuning(BaseModel):
    """A tuning of a suite: of each method on each data set what was tried and chosen."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    schema_version: int = Field(1, description="of this layout")
    search: str = Field(description="name of the results of the search")
    suite: str = Field(description="name of the results of the chosen settings")
    goal: Goal
    sampler: Sampler
    methods: tuple[TunedMethod, ...]

    def write(self, directory: Path) -> Path:
        """Write `tuning.json` into a directory (made if absent); returns its path."""
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(directory / TUNING_FILE, self.model_dump_json(indent=1) + "\n")
        return directory / TUNING_FILE


def expected_best(scores: Sequence[float], trials: int) -> list[float]:
    """Return the expected best of 1, 2, ... `trials` settings that are drawn as those that came to `scores` were.

    The best of k draws from the scores, with replacement (Dodge et al., EMNLP 2019, Eq. 3 and 4).
    """
    values, count = sorted(scores), len(scores)
    return [
        sum(value * ((i + 1) ** k - i**k) / count**k for i, value in enumerate(values)) if values else 0.0
        for k in range(1, trials + 1)
    ]


def read_tuning(path: Path) -> Tuning:
    """Read a `tuning.json`; UserError if it is damaged or of a newer harness."""
    return read_kept(path, Tuning, "tuning", "remove it; the same `harness tune` writes it again")


def kept_tunings(directories: Sequence[Path]) -> dict[str, Tuning]:
    """Return the tunings kept with results, by the name of the suite of chosen settings; see `suite_files`."""
    return {tuning.suite: tuning for tuning in map(read_tuning, suite_files(directories, TUNING_FILE))}
