"""The page of findings: the report's verdicts and tables, and nothing else."""

from __future__ import annotations

from pathlib import Path

from tune.made_up import Machine, tuned_results

from harness.report.page import make_report
from harness.results.frames import load_inputs
from tools.findings import render


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
