"""A search of a method's settings: an Optuna study, the learning curves of its trials, and the choice among them."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import TPESampler
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState
from scipy.stats.qmc import Sobol

from harness.errors import UserError
from harness.results.frames import trained_s
from harness.results.record_store import read_epochs
from harness.suite.sections import Goal, Range, TuningSpec
from harness.tune.space import Subject


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


def curve_of(directory: Path) -> Curve:
    """Return the learning curve of a trial by the directory of its record.

    Raises:
        UserError: the trial has scores of test nodes, which a choice must not see, or its epochs are damaged.
    """
    epochs = read_epochs(directory / "epochs.parquet")
    leaks = [name for name in ("test_score", "sampled_test_score") if name in epochs and epochs[name].notna().any()]
    if leaks:
        what = f"a trial of the tuning has {leaks[0]}: settings are chosen by validation alone"
        raise UserError(what, file=directory, fix="remove the trial's directory; the next `harness tune` repeats it")
    if epochs.empty:
        return Curve((), (), 0.0)
    timed = epochs.assign(epoch_time_s=epochs["epoch_time_s"].astype(float).fillna(0.0))  # `timing: off`
    seconds = trained_s(timed).cumsum()
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


def choose(
    studies: Sequence[Sequence[Tried]], goal: Goal, target: float | None, seconds: float | None
) -> Chosen | None:
    """Return the best trial of the study of median success: what a search of this budget comes to, not the luckiest.

    The earliest of equal trials, and of an even number of studies the lower of the two in the middle. A study whose
    trials all failed is the least successful; None if the chosen study is one.
    """
    found = ([(t, success(t.curve, goal, target, seconds)) for t in tried if t.curve is not None] for tried in studies)
    best = [max(known, key=lambda pair: (pair[1], -pair[0].number), default=None) for known in found]
    order = sorted(range(len(best)), key=lambda i: (best[i][1] if best[i] else -1.0, -i))  # type: ignore[index]
    middle = order[(len(order) - 1) // 2]
    return Chosen(middle, *chosen) if (chosen := best[middle]) else None


ETA = 3  # asha: of the trials that came to a rung one in so many goes on
RUNGS = 3

Rungs = tuple[tuple[float, float], ...]


def distribution(values: Range) -> BaseDistribution:
    """Return what Optuna draws a setting from."""
    if values.choice is not None:
        return CategoricalDistribution([json.dumps(value) for value in values.choice])  # lists, too
    if values.integer is not None:
        return IntDistribution(*values.integer)
    assert values.bounds is not None
    return FloatDistribution(*values.bounds, log=values.log is not None)


def at(values: Range, share: float) -> Any:
    """Return the value of a range that a share (0 to 1) of its values is below."""
    if values.choice is not None:
        return values.choice[min(int(share * len(values.choice)), len(values.choice) - 1)]
    if values.integer is not None:
        first, last = values.integer
        return min(first + int(share * (last - first + 1)), last)
    assert values.bounds is not None
    low, high = values.bounds
    return low * (high / low) ** share if values.log is not None else low + share * (high - low)


class Study:
    """One of the independent searches of a subject."""

    def __init__(self, path: Path, storage: BaseStorage, spec: TuningSpec, subject: Subject, index: int) -> None:
        self.spec, self.subject, self.index = spec, subject, index
        self._lock = JournalFileOpenLock(f"{path}.ask")
        self.distributions = {key: distribution(values) for key, values in subject.space.items()}
        what = {
            "space": {key: values.model_dump(mode="json") for key, values in subject.space.items()},
            "dataset": subject.dataset.model_dump(mode="json"),
            "method": subject.method.model_dump(mode="json"),
            "search": spec.model_dump(mode="json", include={"sampler", "pruner", "default_first", "seed"}),
            "seconds": spec.budget.seconds,
        }
        text = json.dumps(what, sort_keys=True, default=str)
        self.name = (
            f"{subject.dataset.name} {subject.method.name} {index} {hashlib.sha256(text.encode()).hexdigest()[:12]}"
        )
        self._study = optuna.create_study(
            storage=storage, study_name=self.name, direction="maximize", load_if_exists=True
        )

    def _draw(self, number: int, trials: Sequence[FrozenTrial]) -> dict[str, Any]:
        """Return the parameters of the trial of a number: they follow from the seed and the trials before alone.

        None of the one that has the suite's own settings.
        """
        if self.spec.default_first:
            if number == 0:
                return {}
            number -= 1
        seeds = json.dumps([self.spec.seed, self.name])
        seed = int.from_bytes(hashlib.sha256(seeds.encode()).digest()[:4], "big")
        if self.spec.sampler == "tpe":
            # In memory: in the journal other processes would see a trial without parameters.
            copy = optuna.create_study(direction="maximize", sampler=TPESampler(seed=(seed + number) % 2**32))
            copy.add_trials([trial for trial in trials if trial.state == TrialState.COMPLETE])
            return dict(copy.ask(self.distributions).params)
        ranges = self.subject.space
        if self.spec.sampler == "qmc":
            sequence = Sobol(len(ranges), rng=np.random.default_rng(seed))
            shares = (sequence.fast_forward(number) if number else sequence).random(1)[0]
        else:
            shares = np.random.default_rng([seed, number]).random(len(ranges))
        values = {key: at(values, float(share)) for (key, values), share in zip(ranges.items(), shares, strict=True)}
        return {key: json.dumps(v) if ranges[key].choice is not None else v for key, v in values.items()}

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials that were asked for, by number; of two processes' not more than the budget has."""
        return self._study.get_trials(deepcopy=False)[: self.spec.budget.trials]

    @property
    def waiting(self) -> list[FrozenTrial]:
        """Trials without a result yet."""
        return [trial for trial in self.trials if trial.state == TrialState.RUNNING]

    def ask(self, rungs: Rungs = (), *, alone: bool = False) -> bool:
        """Begin one more trial, unless the budget is spent, or (`alone`) one waits; returns whether it has begun."""
        self._lock.acquire()
        try:
            trials = self._study.get_trials(deepcopy=False)
            waits = any(trial.state == TrialState.RUNNING for trial in trials)
            if len(trials) >= self.spec.budget.trials or (alone and waits):
                return False
            drawn = self._draw(len(trials), trials)
            trial = optuna.create_trial(
                state=TrialState.RUNNING,
                params=drawn,
                distributions={key: self.distributions[key] for key in drawn},
                user_attrs={"rungs": rungs} if rungs else {},
            )
            self._study.add_trial(trial)
            return True
        finally:
            self._lock.release()

    def finish(self, trial: FrozenTrial, value: float | None) -> None:
        """Keep the success of a trial; None: it failed."""
        state = TrialState.FAIL if value is None else TrialState.COMPLETE
        with suppress(optuna.exceptions.UpdateFinishedTrialError):  # another process was faster
            self._study.tell(trial.number, value, state=state, skip_if_finished=True)

    def point(self, trial: FrozenTrial) -> dict[str, Any]:
        """Return the values of a trial; empty for the one that has the suite's own settings."""
        ranges = self.subject.space
        return {
            key: json.loads(value) if ranges[key].choice is not None else value for key, value in trial.params.items()
        }

    @staticmethod
    def rungs(trial: FrozenTrial) -> Rungs:
        """Return where a trial was to be stopped."""
        return tuple((float(at), float(score)) for at, score in trial.user_attrs.get("rungs", ()))


def asha_rungs(seconds: float, curves: Sequence[Curve], target: float | None = None) -> Rungs:
    """Return where the next trial stops: asynchronous successive halving (Li et al., MLSys 2020, Algorithm 2).

    A trial goes on past a rung (a third of the seconds, a ninth, ...) if its score is among the best third of those
    that came to the rung before it, or ended at the `target` sooner. A rung that fewer than three came to stops none.
    """
    found, end = [], math.inf if target is None else target
    for k in range(RUNGS, 0, -1):
        at = seconds / ETA**k
        came = (curve for curve in curves if curve.trained_s >= at or curve.best() >= end)
        there = sorted((curve.best(at) for curve in came), reverse=True)
        if len(there) >= ETA and (least := there[math.ceil(len(there) / ETA) - 1]) > 0:
            found.append((at, least))
    return tuple(found)


def studies_at(path: Path, spec: TuningSpec, subjects: Sequence[Subject]) -> list[list[Study]]:
    """Return the independent searches of each subject, kept in a journal that several processes may write, on NFS too.

    `path`: the journal; its directory is made.
    """
    optuna.logging.set_verbosity(logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    path.parent.mkdir(parents=True, exist_ok=True)
    storage = JournalStorage(JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path))))
    return [[Study(path, storage, spec, subject, index) for index in range(spec.studies)] for subject in subjects]
