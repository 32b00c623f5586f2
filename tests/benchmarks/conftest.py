"""Fixtures of the benchmarks, and the table of growth at the end of their run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.growth import SIZE_NAMES, SIZES, table

from harness.check.graphs import OnDisk
from harness.data.partition.cached import ensure_partitioned
from harness.data.registry import prepare
from harness.spec import DatasetSpec, PartitionSpec

DEGREE = 20


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give `edges` its sizes."""
    if "edges" in metafunc.fixturenames:
        metafunc.parametrize("edges", SIZES, ids=SIZE_NAMES, scope="session")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how the times grow."""
    session = getattr(terminalreporter.config, "_benchmarksession", None)
    if lines := table(session.benchmarks if session else []):
        terminalreporter.section("growth: least ms, and slope of log time to log edges (1 = linear)")
        terminalreporter.write_line(f"{'':<36}{''.join(f'{name:>12}' for name in SIZE_NAMES)}{'slope':>10}")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], OnDisk]:
    """Returns a function from edges to an `sbm` graph of mean degree 20, cut at random into two parts."""
    cache = tmp_path_factory.getbasetemp() / "cache"

    def make(edges: int) -> OnDisk:
        options = {"nodes": edges // DEGREE, "degree": float(DEGREE), "features": 64}
        graph = prepare(DatasetSpec(name="sbm", options=options), cache=cache)
        spec = PartitionSpec(parts=2, method="random")
        return OnDisk(graph, ensure_partitioned(graph, spec, inductive=False, cache=cache), False)

    return make


def edges_of(view: Path) -> int:
    """Return the directed edges of a partitioned graph."""
    count: int = json.loads((view / "meta.json").read_text())["edges"]
    return count


def random_rows(edges: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, int]:
    """Return `indptr`, `indices` and the number of rows of a square matrix with 20 entries a row."""
    rows = edges // DEGREE
    columns = np.random.default_rng(seed).integers(0, rows, edges, dtype=np.int32)
    return np.arange(0, edges + 1, DEGREE), columns, rows
