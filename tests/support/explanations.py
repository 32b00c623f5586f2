"""What ranks of the tests of explanation-guided sampling do, and faults planted into explanations."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
from harness_methods.dgs import DGS, explainer
from harness_methods.dgs.explanations import ExplanationGraph, MaskOptions, Masks, explain
from numpy.typing import NDArray
from support.training import run_to_the_end

from harness.check.training import Case
from harness.models.gnn import GNN

Explain = Callable[[GNN, ExplanationGraph, MaskOptions, int, Callable[[], bool]], Masks | None]


def run_with_faults(rank: int, world: int, cases: list[tuple[Case, str]]) -> list[dict[str, Any]]:
    """Run trials, each with explanations that have a fault of `FAULTS`; returns the rank's reports."""
    reports = []
    for case, fault in cases:
        with mock.patch.object(explainer, "explain", FAULTS[fault]()):
            reports.append(run_to_the_end(rank, world, case))
    return reports


def learnt_guidance(rank: int, world: int, cases: list[Case]) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Train cases of `dgs`; returns a rank's last importance of nodes [N] and of features [F] of each."""
    learnt = []
    for case in cases:
        trainer = case.trainer(rank, world)
        trainer.run()
        assert isinstance(trainer.method, DGS)
        guidance = trainer.method.explainer.guidance
        assert guidance is not None
        learnt.append((guidance.importance, guidance.features.numpy()))
    return learnt


def _failing_from_the_second() -> Explain:
    calls = []

    def faulty(*arguments: Any) -> Masks | None:
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("the explanation broke\nas planned")
        return explain(*arguments)

    return faulty


def _not_finite() -> Explain:
    def faulty(model: GNN, *others: Any) -> Masks | None:
        next(model.parameters()).data.fill_(float("nan"))
        return explain(model, *others)

    return faulty


def _endless() -> Explain:
    def faulty(model: GNN, *others: Any) -> Masks | None:
        [*_, stop] = others
        while not stop():
            time.sleep(0.001)
        return None

    return faulty


FAULTS: dict[str, Callable[[], Explain]] = {
    "none": lambda: explain,
    "failing from the second": _failing_from_the_second,
    "not finite": _not_finite,
    "endless": _endless,
}
