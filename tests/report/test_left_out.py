"""What says nothing is left out of a report, and named once at its end; the raw numbers stay."""

from __future__ import annotations

import html
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pandas as pd
import pytest
from report.fake import METHODS, write_results
from report.measured import FULL, one_section

from harness.report import write_report
from harness.report.page import LEFT_OUT, Report, make_report
from harness.report.table import Cell, Group, Row, Table, narrowed
from harness.report.views import Given, ReportView, show
from harness.report.views.convergence import AccuracyView
from harness.report.views.leaderboard import LeaderboardView
from harness.results.frames import load_inputs


def table(*rows: tuple[str, ...], heads: tuple[str, ...] = ("Sent (MiB)", "Rows", "Score (%)")) -> Table:
    cells = [Row(f"m{i}", tuple(map(Cell, row))) for i, row in enumerate(rows)]
    return Table("Made up", "Of an epoch.", "Method", (Group("", heads),), tuple(cells))


def test_a_column_that_is_alike_in_all_rows_stands_in_the_caption() -> None:
    found = narrowed(table(("1.5", "0", "90.0"), ("2.5", "0", "n/a")))
    assert found is not None
    assert found.columns == ("Sent (MiB)", "Score (%)")
    assert [[cell.text for cell in row.cells] for row in found.rows] == [["1.5", "90.0"], ["2.5", "n/a"]]
    assert found.caption == "Of an epoch. In all rows: Rows 0."
    other = table(("1.5", "0", "90.0"), ("2.5", "1", "n/a"))
    assert narrowed(other) == other


def test_columns_keep_their_parts() -> None:
    rows = tuple(
        Row(name, tuple(map(Cell, ("1.00", one, two)))) for name, one, two in (("a", "1", "2"), ("b", "3", "4"))
    )
    groups = (Group("Speed-up", ("P = 1", "P = 2"), (1, 2)), Group("Score", ("P = 2",), (2,)))
    found = narrowed(Table("Made up", "Of an epoch.", "Method", groups, (Row("P", parts=2), *rows)))
    assert found is not None
    assert found.column_parts == (2, 2)
    assert found.columns == ("Speed-up P = 2", "Score P = 2")
    assert found.rows[0] == Row("P", parts=2)
    assert "In all rows: Speed-up P = 1 1.00." in found.caption


@pytest.mark.parametrize(
    "rows",
    [
        [("0", "0", "0"), ("0", "0", "0")],
        [("n/a", "n/a", "n/a"), ("n/a", "n/a", "n/a")],
        [("1", "2", "3"), ("1", "2", "3")],
        [("0", "n/a", "0.00 ± 0.00")],
        [("n/a", "not available", "n/a")],
    ],
)
def test_a_table_of_one_value_a_column_says_nothing(rows: list[tuple[str, ...]]) -> None:
    assert narrowed(table(*rows)) is None


@pytest.mark.parametrize("row", [("1", "2", "3"), ("5", "5", "5"), ("n/a", "0.5", "n/a")])
def test_what_is_of_one_method_says_something_unless_it_is_nothing(row: tuple[str, ...]) -> None:
    assert narrowed(table(row)) == table(row)


def shown(report: Report) -> set[str]:
    return {view.title for own in (*report.answers, *report.shown) for view in own.views}


@pytest.mark.slow
def test_where_nothing_is_exchanged_and_what_was_said_is_left_out(tmp_path: Path) -> None:
    write_results(tmp_path, methods=(FULL, METHODS[2]), parts=(1,))
    report = make_report(load_inputs(tmp_path))
    names = report.left_out.split(", ")
    assert len(names) == len(set(names))
    assert {"Traffic", "Traffic from rank to rank", "Accuracy", "Feature cache", "Explanations"} <= set(names)
    assert not set(names) & shown(report)
    assert {"Leaderboard", "Epoch time", "Convergence", "Memory"} <= shown(report)
    page = write_report(tmp_path, tmp_path / "out", ("html", "md", "csv", "latex"))
    line = f"{LEFT_OUT} {report.left_out}."
    assert html.unescape(page.read_text()).count(line) == 1
    assert (tmp_path / "out" / "report.md").read_text().endswith(f"\n{line}\n")
    assert line in (tmp_path / "out" / "latex" / "main.tex").read_text()
    frame = pd.read_csv(tmp_path / "out" / "results.csv")
    assert {"bytes_feature", "test_at_best_val"} <= set(frame.columns)
    assert len(frame) == 6


def test_a_view_that_one_section_lacks_is_named_with_it(tmp_path: Path) -> None:
    write_results(tmp_path, methods=(FULL, METHODS[0]), parts=(2,))
    write_results(tmp_path, suite="alone", datasets=[("yelp", "real", "")], methods=(FULL, METHODS[2]), parts=(1,))
    report = make_report(load_inputs(tmp_path))
    assert "Traffic (yelp · sage)" in report.left_out.split(", ")
    assert "Traffic" in shown(report)


class Constant(ReportView):
    """Does a view of one's own show what it wants?"""

    name = "constant"
    title = "Constant"
    columns: ClassVar[tuple[str, ...]] = ("epochs",)


def test_a_view_of_ones_own_shows_what_it_wants_and_declares_that_it_is_silent(tmp_path: Path) -> None:
    write_results(tmp_path, methods=(FULL, METHODS[0]), parts=(2,))
    section = one_section(tmp_path)
    assert show(Constant, section, set(), own=True) is None
    assert show(Constant, section, set(), own=False) is not None
    silent = type("Silent", (Constant,), {"columns": (), "__doc__": "Nothing?"})
    assert show(silent, section, set(), own=False) is None


def test_a_table_without_a_figure_is_left_out_where_another_has_all_of_it(tmp_path: Path) -> None:
    write_results(tmp_path, methods=(FULL, METHODS[0]), parts=(1, 2))
    section = one_section(tmp_path)
    given: set[Given] = set()
    assert show(AccuracyView, section, given) is not None
    given.clear()
    assert show(LeaderboardView, section, given) is not None
    assert show(AccuracyView, section, given) is None
    other = {(who, parts, unit, text.replace("9", "8")) for who, parts, unit, text in given}
    assert show(AccuracyView, replace(section), other) is not None
