"""The page of what a tuned comparison found: which method, on what, and how sure that is.

python -m tools.findings RESULTS [docs/findings.md]

RESULTS is the directory of a `NAME-tuned` suite's results, as `harness tune` leaves it. Every number and word of a
verdict is the report's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from harness.report.page import Report, make_report, markdown_table
from harness.report.views import ShownView
from harness.results.frames import load_inputs

HEAD = """# Findings

<!-- Made from results by `python -m tools.findings`; do not edit. -->

What `harness tune suites/fair/{suite}.yaml` found: every method tuned with the same budget, its settings chosen by
validation alone, trained again with fresh seeds, and judged by the time to a validation score ([tuning.md](tuning.md)).
Verdicts are about methods with such a budget on this machine; how often they err is in
[error-rates.md](error-rates.md).
"""
# Headings of the report whose tables the page has.
SHOWN = ("Over all data sets", "Leaderboard", "Fastest to target", "Tuning")


def render(report: Report, suite: str) -> str:
    """Return the page of a report of tuned results."""
    return "\n".join([HEAD.format(suite=suite), *_where(report), *_verdicts(report), *_tables(report)])


def _where(report: Report) -> Iterator[str]:
    yield "## Where\n"
    known = dict(report.environment)
    for name in ("CPU", "CPU cores", "memory", "GPU", "platform", "commit", "Trials started"):
        if name in known:
            yield f"- {name}: {known[name]}"


def _verdicts(report: Report) -> Iterator[str]:
    yield "\n## Verdicts\n"
    yield from (f"{sentence}\n" for _, sentence in report.sentences)
    for summary in report.summaries:
        yield f"**{summary.section.title}, P = {summary.parts}**\n"
        yield from (f"- {win.what}: {win.text}" for win in summary.wins)
        yield ""
    for table in report.claims:
        yield markdown_table(table)


def _tables(report: Report) -> Iterator[str]:
    for shown in (*report.answers, *report.shown):
        views: list[ShownView] = [view for view in shown.views if view.title in SHOWN and view.table]
        if views:
            yield f"## {shown.section.title}\n"
            yield from (markdown_table(view.table) for view in views if view.table)


if __name__ == "__main__":
    results = Path(sys.argv[1])
    made = make_report(load_inputs(results))
    page = Path(sys.argv[2] if len(sys.argv) > 2 else "docs/findings.md")
    page.write_text(render(made, results.name.removesuffix("-tuned")).rstrip() + "\n", encoding="utf-8")
    print(f"written: {page}")
