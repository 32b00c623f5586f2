"""A search of a method's settings: an Optuna study whose points follow from its seed and the trials before."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
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

from harness.suite.sections import Range, TuningSpec
from harness.tune.choice import Curve
from harness.tune.space import Subject

ETA = 3  # asha: of the trials that came to a rung one in so many goes on
RUNGS = 3

Rungs = tuple[tuple[float, float], ...]


def storage_at(path: Path) -> BaseStorage:
    """Return the storage of all studies of a suite: a journal that several processes may write, also on NFS."""
    optuna.logging.set_verbosity(logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    path.parent.mkdir(parents=True, exist_ok=True)
    return JournalStorage(JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path))))


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
        told = json.dumps([self.spec.seed, self.name])
        seed = int.from_bytes(hashlib.sha256(told.encode()).digest()[:4], "big")
        if self.spec.sampler == "tpe":
            # Beside the journal, where a trial without parameters would be seen by others.
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
        """Trials whose results are not told yet."""
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

    def tell(self, trial: FrozenTrial, value: float | None) -> None:
        """Say what a trial came to; None: it failed."""
        state = TrialState.FAIL if value is None else TrialState.COMPLETE
        with suppress(optuna.exceptions.UpdateFinishedTrialError):  # another process was faster
            self._study.tell(trial.number, value, state=state, skip_if_finished=True)

    def point(self, trial: FrozenTrial) -> dict[str, Any]:
        """Return the values of a trial; none of the one that has the suite's own settings."""
        ranges = self.subject.space
        return {
            key: json.loads(value) if ranges[key].choice is not None else value for key, value in trial.params.items()
        }

    @staticmethod
    def rungs(trial: FrozenTrial) -> Rungs:
        """Return where a trial was to be stopped."""
        return tuple((float(at), float(score)) for at, score in trial.user_attrs.get("rungs", ()))


def asha_rungs(seconds: float, curves: Sequence[Curve]) -> Rungs:
    """Return where the next trial stops: asynchronous successive halving (Li et al., MLSys 2020, Algorithm 2).

    A trial goes on past a rung (a third of the seconds, a ninth, ...) if its score is among the best third of those
    that came to the rung before it. A rung that fewer than three came to stops nobody.
    """
    found = []
    for k in range(RUNGS, 0, -1):
        at = seconds / ETA**k
        there = sorted((curve.best(at) for curve in curves if curve.trained_s >= at), reverse=True)
        if len(there) >= ETA and (least := there[math.ceil(len(there) / ETA) - 1]) > 0:
            found.append((at, least))
    return tuple(found)


def studies_at(path: Path, spec: TuningSpec, subjects: Sequence[Subject]) -> list[list[Study]]:
    """Return the independent searches of each subject, kept in the journal at `path`."""
    storage = storage_at(path)
    return [[Study(path, storage, spec, subject, index) for index in range(spec.studies)] for subject in subjects]


def spent_s(curves: Mapping[int, Curve]) -> float:
    """Return the training seconds of a study's trials."""
    return sum(curve.trained_s for curve in curves.values())
