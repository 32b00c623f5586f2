"""Trials that are not trained: their validation scores are a formula of their settings."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.results.record import Record
from harness.results.record_store import ResultStore
from harness.runtime.method import METHODS
from harness.suite.expand import expand
from harness.suite.schema import Suite, TrialConfig
from harness.tune import Tuner, tuned_suite
from harness.tune.space import Searched

EPOCHS = 20
SCORES = {"full": 0.9, "bns-gcn": 0.8}  # what each reaches at its best rate
RATES = {"full": 0.01, "bns-gcn": 0.05}  # that rate


def suite(methods: Sequence[str] = ("full", "bns-gcn"), **tuning: Any) -> Suite:
    """A suite of two methods, or others, with a tuning."""
    return Suite.model_validate(
        {
            "name": "made-up",
            "datasets": ["digits"],
            "methods": list(methods),
            "seeds": [0, 1, 2, 3, 4],
            "train": {"epochs": EPOCHS},
            "device": "cpu",
            "tuning": {"budget": {"trials": 6}} | tuning,
        }
    )


def curve(trial: TrialConfig) -> tuple[list[float], list[float]]:
    """Seconds of each epoch and its validation score: the nearer its rate is to the best, the higher and the sooner."""
    best = SCORES[trial.method.name]
    off = abs(math.log10(trial.train.lr / RATES[trial.method.name]))
    top = best * math.exp(-off)
    return [0.1] * EPOCHS, [top * (1 - math.exp(-(epoch + 1) / (2 + 2 * off))) for epoch in range(EPOCHS)]


ONE_AT_A_TIME = threading.Lock()  # a runner's leases see to that


class Killed(BaseException):
    """The search's process was killed."""


@dataclass
class Machine:
    """Runs made-up trials one after the other; `dies` after so many of them, `fails` those that it says."""

    dies: Iterator[int] = field(default_factory=lambda: iter(()))
    fails: Callable[[TrialConfig], bool] = lambda trial: False
    test_scores: bool = False
    ran: list[TrialConfig] = field(default_factory=list)

    def __call__(self, of: Suite, trials: Sequence[TrialConfig], store: ResultStore) -> int:
        left = next(self.dies, math.inf)
        with store.runner():
            for trial in trials:
                with ONE_AT_A_TIME:
                    if trial.id in store.finished():
                        continue
                    if left <= 0:
                        raise Killed
                    left -= 1
                    self.ran.append(trial)
                    self._commit(trial, of, store)
        return 0

    def _commit(self, trial: TrialConfig, of: Suite, store: ResultStore) -> None:
        seconds, scores = curve(trial)
        failed = self.fails(trial)
        record = Record(
            trial=trial.id, suite=of.name, label=trial.label, status="diverged" if failed else "ok",
            started="2026-01-01T00:00:00+00:00", config=trial.model_dump(mode="json"),
            declared=METHODS.load(trial.method.name).declared() if trial.method.name in METHODS.names() else {},
        )  # fmt: skip
        rows = [
            {"epoch": e, "rank": rank, "epoch_time_s": s * (1 if rank else 0.5), "val_score": v,
             "test_score": v if self.test_scores else math.nan}
            for e, (s, v) in enumerate(zip(seconds, scores, strict=True)) for rank in (0, 1)
        ]  # fmt: skip
        store.stage(trial.id)
        store.commit(trial.id, record, [] if failed else rows, "")


def tuner(of: Suite, results: Path, machine: Machine) -> Tuner:
    return Tuner(Searched(of, device="cpu"), results, machine)


def to_the_end(of: Suite, results: Path, machine: Machine) -> tuple[Tuner, list[Any]]:
    """Search, again after each time that the machine died."""
    while True:
        own = tuner(of, results, machine)
        try:
            return own, own.search()[0]
        except Killed:
            continue


def tuned_results(root: Path, machine: Machine, sampler: str = "random", target: float | None = None) -> Path:
    """Search, train what was chosen, and return the directory of its results."""
    goal = "best_val" if target is None else "time_to_target"
    of = suite(studies=2, sampler=sampler, budget={"trials": 5}, goal=goal, target=target)
    own, found = to_the_end(of, root, machine)
    final = tuned_suite(of, found)
    store = ResultStore(root, final.name)
    own.outcome(found).write(store.directory)
    Machine()(final, expand(final, device="cpu"), store)
    return store.directory


def deaths(rng: np.random.Generator) -> Iterator[int]:
    """After how many trials it dies, each time."""
    yield from rng.integers(0, 4, size=6).tolist()
