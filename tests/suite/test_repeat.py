"""Repeats: their order, their ids, and what they leave as it is."""

from __future__ import annotations

from typing import Any

import pytest

from harness.errors import UserError
from harness.suite.expand import expand
from harness.suite.schema import Suite, TrialConfig
from harness.suite.select import matches, pairs_of
from harness.suite.suite_file import load_suite

pytestmark = pytest.mark.usefixtures("world")
METHODS = ["full", {"bns-gcn": {"rate": [0.5, 0.1]}}]


def trials(**sections: Any) -> list[TrialConfig]:
    return expand(Suite.model_validate({"name": "s", "datasets": ["digits"], "methods": METHODS} | sections))


def named(found: list[TrialConfig]) -> str:
    names = {(None, 0): "A", (0.5, 0): "B", (0.1, 0): "C", (None, 1): "a", (0.5, 1): "b", (0.1, 1): "c"}
    return " ".join(f"{names[t.method.options.get('rate'), t.seed]}{t.repeat}" for t in found)


def test_methods_run_in_turns_and_rounds_turn_back() -> None:
    assert named(trials(repeat=3)) == "A0 B0 C0 C1 B1 A1 A2 B2 C2"
    assert named(trials(seeds=[1, 0])) == "a0 b0 c0 C0 B0 A0"
    assert named(trials(repeat=2, seeds=[0, 1])) == "A0 B0 C0 c0 b0 a0 A1 B1 C1 c1 b1 a1"


def test_trials_can_be_run_to_the_end_one_by_one() -> None:
    assert named(trials(repeat=2, interleave=False)) == "A0 A1 B0 B1 C0 C1"
    assert named(trials(repeat=2, interleave=False, seeds=[0, 1])) == "A0 A1 a0 a1 B0 B1 b0 b1 C0 C1 c0 c1"


@pytest.mark.parametrize("repeat", [2, 4, 6])
def test_an_even_drift_favours_nobody_after_an_even_number_of_rounds(repeat: int) -> None:
    found = trials(repeat=repeat)
    places: dict[float | None, list[int]] = {}
    for place, trial in enumerate(found):
        places.setdefault(trial.method.options.get("rate"), []).append(place)
    assert len({sum(own) for own in places.values()}) == 1


def test_the_first_repeat_is_the_trial_that_was_and_others_are_others() -> None:
    once, often = trials(), trials(repeat=3, interleave=False)
    assert [trial.id for trial in often if not trial.repeat] == [trial.id for trial in once]
    assert len({trial.id for trial in often}) == 9
    assert [trial.label for trial in often[:2]] == [once[0].label, once[0].label.replace(" seed=", " repeat=1 seed=")]
    assert [trial.repeat for trial in often if matches(trial, "repeat=2")] == [2, 2, 2]


def test_a_claim_compares_trials_and_not_their_repeats() -> None:
    claim = {"name": "c", "source": "s", "metric": "final_test", "expect": {"at_least": 0}}
    claim |= {"of": {"method": "bns-gcn", "rate": 0.5}, "over": {"method": "full"}, "by": "difference"}
    suite = Suite.model_validate({"name": "s", "datasets": ["digits"], "methods": METHODS, "repeat": 2})
    suite = suite.model_copy(update={"claims": Suite.model_validate(suite.model_dump() | {"claims": [claim]}).claims})
    [(_, row)] = pairs_of(suite.claims[0], expand(suite))
    assert [len(cell) for cell in row] == [1, 1]


@pytest.mark.parametrize("wrong", [0, -1, "often"])
def test_a_number_of_repeats_that_cannot_be(wrong: object, tmp_path) -> None:
    (tmp_path / "s.yaml").write_text(f"name: s\ndatasets: [digits]\nmethods: [full]\nrepeat: {wrong}\n")
    with pytest.raises(UserError, match=r"s.yaml:4: repeat: .*") as error:
        load_suite(tmp_path / "s.yaml")
    assert "\n" not in str(error.value)
