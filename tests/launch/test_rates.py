"""Rates of a machine: measured by ranks of its own, kept, and what plans make of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.data.catalog import published
from harness.launch import rates as module
from harness.launch.planner import epoch_work
from harness.launch.rates import Rates, Work, known_rates, measure_rates
from harness.models.architecture import Architecture
from harness.models.layer import ModelSpec
from harness.results.environment import machine

MEASURED = {"product float32": 1e9, "gather 16": 1e8, "gather 64": 4e8, "gather 1024": 4e8, "cached 16": 1e9}
MEASURED |= {"cached 1024": 1e9}


def rates(**changed: object) -> Rates:
    return Rates(**({"machine": machine(), "when": datetime.now(UTC), "ranks": 2, "measured": MEASURED} | changed))


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path))
    return tmp_path


def test_seconds_are_of_products_and_of_rows_by_width() -> None:
    work = Work(2e9, {16: 1e8, 64: 8e8})
    assert rates().seconds(work, 1, "gather") == pytest.approx(2 + 1 + 2)
    assert rates().seconds(work, 5, "cached") == pytest.approx((2 + 0.9) / 5)


def test_between_widths_the_rate_is_a_line_in_logarithms() -> None:
    assert rates().gather(32, "gather") == pytest.approx(2e8)
    assert [rates().gather(width, "gather") for width in (1, 16, 64, 4096)] == [1e8, 1e8, 4e8, 4e8]


def test_work_is_that_of_a_step_written_out() -> None:
    """Two layers of GraphSAGE, with a matrix for a node's own row and one for its neighbours', product by product."""
    nodes, edges = 50, 400
    info = replace(published()["cora"].info, nodes=nodes, edges=edges, features=20, classes=4)
    products = [
        (nodes, 20, 8),
        (20, nodes, 8),
        (nodes, 8, 4),
        (8, nodes, 4),
        (nodes, 4, 8),
    ]  # X W, X' G; H W, H' G, G W'
    flops = 2 * sum(2 * rows * inner * columns for rows, inner, columns in products)
    work = epoch_work(Architecture(ModelSpec(name="sage", layers=2, hidden=8), 20, 4), info)
    assert (work.flops, dict(work.gathered)) == (flops, {4: 2 * edges * 4 * 4})  # A H W, A' G


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


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_ranks_measure(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: [0, 1])
    found = measure_rates()
    assert known_rates() == found
    assert {"copy", "gather 16", "cached 1024", "product bfloat16", "exchange", "latency_s"} <= set(found.measured)
    assert all(value > 0 for value in found.measured.values())
    assert found.gather(256, "cached") > found.gather(256, "gather")  # by ten times
