"""A made-up family of methods with known best settings: searched, trained again, and ranked."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.results.tuned import TunedMethod, TuningTrial
from tools.made_up import Searches, share_of


def test_a_family_is_ranked_right() -> None:
    """Five methods, each 1.8 times as slow as the one before: medians in order, and no verdict against it."""
    family = Searches(5, lead=math.log(1.8), each=True)
    assert share_of(family, 100, Searches.ranked) >= 0.95


@pytest.mark.parametrize("keys", [1, 3])
def test_equal_methods_are_told_apart_in_5_of_100_at_most(keys: int) -> None:
    assert share_of(Searches(5, keys=keys), 100, Searches.told_apart) <= 0.05


def method(rng: np.random.Generator, studies: int, own: bool, goal_val: bool) -> TunedMethod:
    """A search with ten draws a study; without the target every third."""
    tried = [
        TuningTrial(
            study=study, number=i, trial=f"{study}-{i}", point={"x": i} if not own or i > 0 else {},
            best_val=float(rng.random()) if goal_val else 0.5,
            target_s=None if rng.random() < 0.3 else float(rng.uniform(1, 9)), trained_s=10.0, wall_s=12.0,
        )
        for study in range(studies) for i in range(10 + own)
    ]  # fmt: skip
    return TunedMethod(dataset="d", method="m", target=0.9, tried=tuple(tried), chosen=None, study=None)


@pytest.mark.parametrize("goal", ["time_to_target", "best_val"])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("studies", [1, 2, 3])
def test_the_luck_of_a_search_is_what_drawing_again_shows(studies: int, own: bool, goal: str) -> None:
    rng = np.random.default_rng(studies)
    each = method(rng, studies, own, goal_val=True)
    drawn = [t for t in each.tried if t.drawn]
    usual = [t for t in each.tried if not t.drawn]

    def success(trial: TuningTrial) -> tuple[float, float]:
        time = -trial.target_s if trial.target_s is not None and goal == "time_to_target" else -math.inf
        return time, trial.best_val or 0.0

    logs = []
    for _ in range(4000):
        bests = []
        for _ in range(studies):
            again = [drawn[i] for i in rng.integers(0, len(drawn), 10)]
            bests.append(max([*again, *sorted(usual, key=success)[-1:]], key=success))
        chosen = sorted(bests, key=success)[(studies - 1) // 2]
        logs.append(math.log(10.0 if chosen.target_s is None else chosen.target_s))
    assert each.luck(goal) == pytest.approx(float(np.std(logs)), abs=0.03)  # type: ignore[arg-type]


def test_nothing_is_known_of_the_luck_where_nobody_arrives() -> None:
    each = method(np.random.default_rng(0), 1, own=False, goal_val=True)
    nobody = each.model_copy(update={"tried": tuple(t.model_copy(update={"target_s": None}) for t in each.tried)})
    assert nobody.luck("time_to_target") is None
    assert each.model_copy(update={"tried": each.tried[:1]}).luck("best_val") is None
