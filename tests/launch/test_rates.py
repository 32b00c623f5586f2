"""Rates of a machine: measured by ranks of its own, kept, and what plans make of them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.launch import rates as module
from harness.launch.machines import TrialJob
from harness.launch.rates import known_rates, measure_rates
from harness.models.layer import Work
from harness.results.environment import machine
from harness.runtime.job import RanksRendezvous
from harness.runtime.run_config import Rates
from harness.suite.sections import NetworkSpec

MEASURED = {"copy": 1e9, "product float32": 1e9}
MEASURED |= {"gather 16": 1e8, "gather 64": 4e8, "gather 1024": 4e8, "cached 16": 1e9}
MEASURED |= {"cached 1024": 1e9}


def rates(**changed: object) -> Rates:
    return Rates(**({"machine": machine(), "when": datetime.now(UTC), "ranks": 2, "measured": MEASURED} | changed))


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path))
    return tmp_path


def test_seconds_are_of_products_and_of_rows_by_width() -> None:
    work = Work(2e9)
    work.read(16, 1_000_000, 500_000)
    work.read(64, 2_000_000, 3_000_000)  # fewer entries than rows: each row once
    assert rates().seconds(work, cached=False) == pytest.approx(2 + 64e6 / 1e8 + 512e6 / 4e8)
    # The first matrix fits into a cache; the second, of 512 MB, is read from memory once.
    assert rates().seconds(work) == pytest.approx(2 + 64e6 / 1e9 + 512e6 / 4e8)
    own = rates(measured=MEASURED | {"product bfloat16": 4e9})
    assert own.seconds(work, rounded=True) == pytest.approx(0.5 + 64e6 / 1e9 + 512e6 / 4e8)
    halved = Work()
    halved.read(32, 1_000_000, 500_000, rounds=True)
    assert own.seconds(halved, rounded=True, cached=False) == pytest.approx(64e6 / 1e8)
    assert own.seconds(halved, cached=False) == pytest.approx(128e6 / 2e8)


def test_between_widths_the_rate_is_a_line_in_logarithms() -> None:
    assert rates().gather(32, "gather") == pytest.approx(2e8)
    assert [rates().gather(width, "gather") for width in (1, 16, 64, 4096)] == [1e8, 1e8, 4e8, 4e8]


def test_rates_of_another_machine_or_a_damaged_file_are_not_known(cache: Path) -> None:
    assert known_rates() is None
    file = cache / "rates.json"
    file.write_text(rates().model_dump_json())
    assert known_rates() == rates(when=known_rates().when)  # type: ignore[union-attr]
    file.write_text(rates(machine="another").model_dump_json())
    assert known_rates() is None
    for damaged in ("{", rates(measured={}).model_dump_json(), "x" * (2 << 20)):
        file.write_text(damaged)
        assert known_rates() is None


def test_a_trial_is_given_the_rates_that_bound_it(cache: Path) -> None:
    measured = MEASURED | {"exchange": 1e9, "latency_s": 1e-4}
    (cache / "rates.json").write_text(rates(measured=measured).model_dump_json())

    def given(network: NetworkSpec | None = None, device: str = "cpu", stored: str = "float32", **job: Any) -> Any:
        trial = SimpleNamespace(network=network, device=device, train=SimpleNamespace(stored=stored))
        found = TrialJob(trial, None, cache, **job)._rates()  # type: ignore[arg-type]
        return found and found.measured

    assert given() == measured
    assert given(NetworkSpec(rate="1gbit")) == measured | {"exchange": 1e9 / 8}
    assert given(NetworkSpec(rate="100gbit")) == given(NetworkSpec(latency="1ms")) == measured
    assert given(NetworkSpec(rate="1gbit", ranks_per_host=2)) == measured  # some of the bytes pass no link
    elsewhere = RanksRendezvous(host="h", port=1, prefix="", backend="gloo")
    assert given(rendezvous=elsewhere) == {key: rate for key, rate in measured.items() if key != "exchange"}
    assert given(device="cuda") is given(stored="float64") is None
    (cache / "rates.json").unlink()
    assert given() is None


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_ranks_measure(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: [0, 1])
    found = measure_rates()
    assert known_rates() == found
    assert {"copy", "gather 16", "cached 1024", "product bfloat16", "exchange", "latency_s"} <= set(found.measured)
    assert all(value > 0 for value in found.measured.values())
    assert found.gather(256, "cached") > found.gather(256, "gather")  # by ten times
