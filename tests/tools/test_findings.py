"""The page of findings: the report's verdicts and tables, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from tune.made_up import Machine, tuned_results

from harness.report.page import escape_markdown, make_report
from harness.report.views.answer import AnswerView
from harness.results.frames import load_inputs
from tools.findings import render, write


def test_the_page_has_the_reports_verdicts_and_tables(tmp_path: Path) -> None:
    report = make_report(load_inputs(tuned_results(tmp_path, Machine(), target=0.7)))
    page = render(report, "made-up")
    assert "`harness tune suites/fair/made-up.yaml`" in page
    wins = [win for summary in report.summaries for win in summary.wins]
    ((_, sentence),) = report.sentences
    assert " 70 %" in sentence
    assert f"\n{sentence}\n" in page
    for win in wins:
        assert f"- {win.what}: {win.text}" in page
    for title in ("Fastest to 70.0 % validation score.", "Search of the settings."):
        assert page.count(f"**{title}**") == 1
    rows = [line for line in page.splitlines() if line.startswith("| full |")]
    assert len(rows) == 3  # of the leaderboard, the fastest to target, and the tuning
    assert "**Epoch time" not in page.split("## digits")[1]


def test_the_front_page_has_a_sentence_and_a_row_of_each_pair(tmp_path: Path) -> None:
    results = tuned_results(tmp_path / "r", Machine(), target=0.7)
    report = make_report(load_inputs(results))
    ((section, sentence),) = report.sentences
    page, detail = write(tmp_path / "r", tmp_path / "findings.md")
    text = page.read_text()
    assert f"- {escape_markdown(sentence)}\n" in text
    assert text.index(sentence[:20]) < text.index("| Suite |")
    assert detail == tmp_path / "findings" / "made-up.md"
    assert detail.read_text().rstrip() == render(report, "made-up").rstrip()
    assert "](../findings.md)" in detail.read_text()
    answer = AnswerView(section)
    open_ = " or ".join(v.method for v, _ in answer.order if v in {own for own, _ in answer.open})
    (row,) = [line for line in text.splitlines() if line.startswith("| [made-up](findings/made-up.md) |")]
    assert row.split(" | ")[1:5] == ["digits", "loopback", "70 %", open_]
    assert f"On {int(len(answer.open) < 2)} of 1 pairs" in text


def test_results_without_a_tuned_suite_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no results of a tuned suite"):
        write(tmp_path, tmp_path / "findings.md")
