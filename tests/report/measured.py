"""Finds a table's figures, and the records that they come from."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report.fake import Method

from harness.report.sections import Section, make_sections
from harness.report.table import Row, Table
from harness.report.views import VIEWS
from harness.results.frames import load_epochs, load_inputs
from harness.results.record import Record

FULL: Method = ("full", {})
PIPELINED: Method = ("pipelined", {})
SKEWED: Method = ("skewed", {})
LEAKY: Method = ("leaky", {})


def psc(**options: Any) -> Method:
    """A variant of psc-gcn."""
    return "psc-gcn", {"rate": 0.1, "staleness": 1, "cache": "inclusion", "capacity": 0.25} | options


EPOCHS, WARMUP = 22, 2
Write = Callable[..., Section]


def row(table: Table, label: str, parts: int) -> Row:
    """The row of a method under the heading of a number of parts."""
    start = [r.label for r in table.rows].index(f"P = {parts}")
    return next(r for r in table.rows[start:] if r.label == label)


def texts(table: Table, label: str, parts: int) -> dict[str, str]:
    return dict(zip(table.columns, (c.text for c in row(table, label, parts).cells), strict=True))


def shown(table: Table, label: str) -> dict[str, str]:
    """The texts of a row by column, of a table that is not by parts."""
    row = next(row for row in table.rows if row.label == label)
    return dict(zip(table.columns, (cell.text for cell in row.cells), strict=True))


def listed(table: Table) -> list[str]:
    return [r.label for r in table.rows]


def one_section(root: Path) -> Section:
    (section,) = make_sections(load_inputs(root))
    return section


def records(root: Path, method: str, parts: int) -> list[dict[str, Any]]:
    """The records as JSON, read without the project's code."""
    found = [json.loads(path.read_text()) for path in root.rglob("record.json")]
    return [r for r in found if (r["config"]["method"]["name"], r["config"]["partition"]["parts"]) == (method, parts)]


def rows_of(root: Path, record: dict[str, Any]) -> list[dict[str, Any]]:
    """A trial's rows of epochs after warm-up."""
    frame = load_epochs(root / record["suite"] / record["trial"])
    rows: list[Any] = frame[frame["epoch"] >= WARMUP].to_dict("records")
    return rows


def slowest(rows: list[dict[str, Any]]) -> int:
    plain = [r for r in rows if r["timing"] == "plain"]
    ranks = sorted({r["rank"] for r in plain})
    return max(ranks, key=lambda k: statistics.median(r["epoch_time_s"] for r in plain if r["rank"] == k))


def phase(root: Path, method: str, name: str) -> float:
    """Mean over seeds of a phase in the epochs with barriers of the slowest rank, P = 2."""
    means = []
    for record in records(root, method, 2):
        rows = rows_of(root, record)
        own = [r for r in rows if r["rank"] == slowest(rows) and r["timing"] == "breakdown"]
        means.append(statistics.mean(r[f"time_{name}_s"] for r in own))
    return statistics.mean(means)


def change(root: Path, how: Callable[[dict[str, Any]], object]) -> None:
    """Change the records as a newer or older harness might have written them."""
    for path in root.rglob("record.json"):
        record = json.loads(path.read_text())
        how(record)
        del record["digest"]
        path.write_text(Record.model_validate(record).to_json())


def section_tables(section: Section) -> dict[str, Table]:
    """The tables of a section, by the names of their views and of their details."""
    found: dict[str, Table | None] = {}
    for view in map(VIEWS.load, VIEWS.names()):
        if view.of == "section":
            made = view(section)
            found |= {view.name: made.table(), **made.details()}
    return {name: table for name, table in found.items() if table}
