"""A metric over versions: changes that are there are found, steady code is left in peace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.errors import UserError
from harness.metrics import find_metric
from harness.results.comparison import Version, history, versions

TIME, BYTES = find_metric("epoch_time_s"), find_metric("bytes_feature")


@pytest.fixture
def version(make_record):
    def make(name: str, day: int, seconds: dict[int, float], rng: np.random.Generator, **more) -> Version:
        trials = []
        for cell, mean in seconds.items():
            for seed in range(3):
                result = {"epoch_time_s": mean * float(np.exp(rng.normal(0, 0.02)))} | more.get("result", {})
                record = make_record(
                    f"{cell:06d}{seed:06d}",
                    label=f"cell {cell} seed={seed}",
                    config={"seed": seed, "method": {"name": "full", "options": {"cell": cell}}, "device": "cpu"},
                    started=f"2026-01-{day:02d}T00:{cell:02d}:{seed:02d}+00:00",
                    environment={"reference_s": 1.0, "reference_cores": 2} | more.get("environment", {}),
                    result=result,
                )
                trials.append(record)
        return Version(name, tuple(trials))

    return make


def changes(found: list[Version]) -> list[str]:
    return [point.version.name for point in history(found, TIME) if point.changed]


def test_a_step_is_found_where_it_is_and_named(version) -> None:
    rng = np.random.default_rng(0)
    times = [{0: 1.0, 1: 2.0, 2: 3.0}] * 3 + [{0: 1.0, 1: 2.0, 2: 4.5}] * 3
    found = [version(f"v{day}", day, own, rng) for day, own in enumerate(times, 1)]
    points = history(found, TIME)
    assert [point.version.name for point in points if point.changed] == ["v4"]
    (row,) = points[3].changed
    assert (row.label, row.verdict, row.worse) == ("cell 2", "slower", True)
    assert [point.since.name for point in points[1:]] == ["v1", "v1", "v1", "v4", "v4"]


def test_many_small_steps_are_one_change(version) -> None:
    """Of 5 % each none is found beside the one before; beside the last change they add up."""
    rng = np.random.default_rng(1)
    found = [version(f"v{day}", day, dict.fromkeys(range(4), 1.05**day), rng) for day in range(1, 9)]
    named = changes(found)
    assert named
    assert "v2" not in named


def test_steady_code_has_no_change_in_nineteen_of_twenty_histories(version) -> None:
    alarms = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        alarms += bool(changes([version(f"v{day}", day, {0: 1.0, 1: 2.0}, rng) for day in range(1, 8)]))
    assert alarms <= 4  # 2 are expected at most; more than 4 of 40 at 5 % is one case in 20


def test_exact_numbers_change_by_a_byte(version) -> None:
    rng = np.random.default_rng(2)
    sent = [1000, 1000, 1001]
    found = [version(f"v{i}", i + 1, {0: 1.0}, rng, result={"bytes_feature": b}) for i, b in enumerate(sent)]
    points = history(found, BYTES)
    assert [bool(point.changed) for point in points] == [False, False, True]
    assert points[1].whole.verdict == "same"


def test_another_machine_begins_anew(version) -> None:
    rng = np.random.default_rng(3)
    where = [{"cpu": "one"}, {"cpu": "two"}, {"cpu": "two"}]
    found = [version(f"v{i}", i + 1, {0: 1.0 + 9 * (i > 0)}, rng, environment=e) for i, e in enumerate(where)]
    points = history(found, TIME)
    assert points[1].why.startswith("another machine (cpu: one -> two")
    assert (points[2].since.name, points[2].changed) == ("v1", ())
    assert history([], TIME) == []


def test_versions_are_commits_in_the_order_that_they_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from report.fake import ENVIRONMENT, write_results

    few = {"methods": [("full", {})], "parts": [2], "seeds": [0]}
    for name, commit in {"b": "b" * 40, "a": "a" * 40, "none": None}.items():
        write_results(tmp_path / name, environment=ENVIRONMENT | {"commit": commit, "dirty": name == "a"}, **few)
    found = versions([tmp_path / "a", tmp_path / "b", tmp_path / "none"])
    assert sorted(version.name for version in found) == ["aaaaaaaa+", "bbbbbbbb", "none"]
    assert [version.started for version in found] == sorted(version.started for version in found)
    assert [len(version.trials) for version in found] == [1, 1, 1]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no finished trial"):
        versions([tmp_path / "empty"])
