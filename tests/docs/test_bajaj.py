"""docs/bajaj.md: bytes and seconds are those of closed forms, and what is derived follows from what was published."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.data.catalog import boundary_of, published
from harness.launch.planner import sent
from harness.models.architecture import Architecture
from harness.suite.expand import expand
from harness.suite.suite_file import load_suite, shipped

PAGE = Path(__file__).parents[2] / "docs" / "bajaj.md"
NVLINK, GIGABIT = 450e9, 1e9 / 8  # bytes a second


def sent_by(suite: str) -> dict[tuple[str, str], int]:
    """Return the bytes of an epoch by graph and method."""
    found = {}
    for trial in expand(load_suite(shipped()[f"papers/{suite}"])):
        info = published()[trial.dataset.name].info
        model = Architecture(trial.model, info.features, info.classes)
        boundary = boundary_of(info.name, trial.partition.parts)
        assert boundary is not None
        size = sent(trial, info, model, round(boundary[0] * info.nodes))
        if size is not None:
            found[info.name, trial.method.name] = size
    return found


def rows(first: str) -> list[list[str]]:
    """Return the cells of the table whose heading begins with `first`."""
    table = PAGE.read_text().split(f"| {first}", 1)[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_what_nvlink_would_change() -> None:
    found = sent_by("bajaj-table3")
    for graph, full, pipegcn, size, exchange, most, sooner in rows("graph"):
        bytes_ = found[graph, "full"]
        assert found[graph, "pipegcn"] == bytes_
        assert float(size) == pytest.approx(bytes_ / 2**30, rel=0.02)
        assert float(exchange) == pytest.approx(bytes_ / 4 / NVLINK, abs=5e-5)
        assert float(most) == pytest.approx(float(pipegcn) + bytes_ / 4 / NVLINK, abs=6e-4)
        assert float(sooner.split()[0]) == pytest.approx(float(full) / (float(pipegcn) + bytes_ / 4 / NVLINK), abs=0.06)


def test_three_hosts_at_a_gigabit() -> None:
    found, units = sent_by("bajaj-table22"), {"MiB": 2**20, "GiB": 2**30}
    names = {"full": "full", "PipeGCN": "pipegcn", "BNS-GCN, rate 0.1": "bns-gcn"}
    for name, _, size, least in rows("ogbn-papers100M, 3 hosts"):
        amount, unit = size.split()
        bytes_ = found["ogbn-papers100m", names[name]]
        assert float(amount) * units[unit] == pytest.approx(bytes_, rel=0.005)
        assert float(least) == pytest.approx(bytes_ / 3 / GIGABIT, rel=0.04)
    assert re.search(r"at least 9 s where the input features are sent\s+once", PAGE.read_text())
    assert 2 / 3 * found["ogbn-papers100m", "pipegcn"] / 3 / GIGABIT > 9
