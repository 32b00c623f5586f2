"""Two ranks of one thread each: an exchange of all boundary rows, and an epoch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks import pair
from benchmarks.growth import WARMUP, measure, rounds

from harness.check.graphs import OnDisk
from harness.check.training import Case
from harness.models.layer import ModelSpec
from harness.runtime.run_config import TrainSpec

TRAIN = TrainSpec(epochs=1, threads=1)
MODEL = ModelSpec(name="sage", layers=2, hidden=64, norm="layer", dropout=0.5)


def run(benchmark: Any, make: pair.Make, case: Case, series: str, edges: int, store: Path) -> None:
    with pair.two_ranks(make, case, rounds(edges) + WARMUP, store) as work:
        measure(benchmark, work, series, edges)


def test_exchange(benchmark: Any, planted: Callable[[int], OnDisk], edges: int, tmp_path: Path) -> None:
    case = Case(planted(edges), "full", {}, MODEL, TRAIN)
    run(benchmark, pair.exchange, case, "exchange there and back, 2 ranks", edges, tmp_path / "store")


@pytest.mark.parametrize("options", [None, {"rate": 0.1}], ids=["full", "bns-gcn"])
def test_epoch(
    benchmark: Any, planted: Callable[[int], OnDisk], options: dict[str, Any] | None, edges: int, tmp_path: Path
) -> None:
    method = "full" if options is None else "bns-gcn"
    case = Case(planted(edges), method, options or {}, MODEL, TRAIN)
    series = f"epoch of {method}{'' if options is None else ' p=0.1'}, 2 ranks"
    run(benchmark, pair.epoch, case, series, edges, tmp_path / "store")
