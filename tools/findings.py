"""The pages of what tuned comparisons found: which method, on what, and how sure that is.

python -m tools.findings RESULTS [docs/findings.md]

RESULTS is the directory of a `NAME-tuned` suite's results, as `harness tune` leaves it, or one of several of these.
The page has a sentence and a row for each graph and network; next to it, `findings/NAME.md` has a suite's tables.
Every number and word of a verdict is the report's.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.report.page import Report, escape_markdown, make_report, templates
from harness.report.sections import Section
from harness.report.table import Table
from harness.report.views import ShownView
from harness.report.views.answer import AnswerView
from harness.results.frames import load_inputs

MADE = "<!-- Made from results by `python -m tools.findings`; do not edit. -->\n"
FRONT = f"""# Findings

{MADE}
Every method tuned with the same budget, its settings chosen by validation alone, trained again with fresh seeds, and
judged by the time to a validation score ([tuning.md](tuning.md)): statements about the settings that were found, on
this machine; what another search may change stands after them. [error-rates.md](error-rates.md) has how often they err.
"""
HEAD = f"""# Findings of {{suite}}

{MADE}
What `harness tune suites/fair/{{suite}}.yaml` found, in full, on the networks and with the target and trials that the
tables name; in short, and with other graphs, in [findings.md](../findings.md).
"""
# Headings of the report whose tables the page of a suite has.
SHOWN = ("Over all data sets", "Leaderboard", "Fastest to target", "Tuning")
FEW = 3  # methods that are still an answer to "which one"
SMOKE = "small"  # the suite of graphs that nobody distributes: in the table, but not counted


def front(reports: Mapping[str, Report], earlier: Sequence[str] = ()) -> str:
    """Return the page of all suites' reports, by the suite's name: sentences, then a row for each.

    `earlier`: suites that have a page of before.
    """
    rows, few, pairs = list[str](), 0, 0
    for suite, report in reports.items():
        for section, _ in report.sentences:
            count, cells = _row(section)
            if suite != SMOKE:
                pairs += 1
                few += 0 < count <= min(FEW, len(section.variants) - 1)
            rows.append(f"| {' | '.join((f'[{suite}](findings/{suite}.md)', *map(escape_markdown, cells)))} |")
    counted = f"On {few} of {pairs} pairs of graph and network, the fastest is one method, or one of {FEW} at most"
    lines = [FRONT, f"{counted} (without the smoke test, {SMOKE}).\n" if SMOKE in reports else f"{counted}.\n"]
    for suite, report in reports.items():
        lines.append(f"**[{suite}](findings/{suite}.md)** ({', '.join(_machine(report))})\n")
        lines += [f"- {escape_markdown(sentence)}" for _, sentence in report.sentences]
        lines.append("")
    lines += [
        "Methods that may be the fastest, the shortest median first; each of the others surely takes at least so many",
        "times as long as one of them.\n",
        "| Suite | Data | Network | Target | The fastest is | The others take, at least |",
        "| :-- | :-- | :-- | :-- | :-- | --: |",
        *rows,
    ]
    if earlier:
        pages = ", ".join(f"[{suite}](findings/{suite}.md)" for suite in earlier)
        lines.append(f"\nNot run again since, and of fewer methods: {pages}.")
    return "\n".join(lines)


def _machine(report: Report) -> Iterator[str]:
    known = dict(report.environment)
    for name in ("CPU", "CPU cores", "GPU"):
        if known.get(name, "none") != "none":
            yield f"{name}: {known[name]}"


def _row(section: Section) -> tuple[int, tuple[str, ...]]:
    """Return how many may be the fastest (0: nobody reaches the target), and the cells of a graph on a network."""
    answer = AnswerView(section)
    networks = ", ".join("loopback" if name == "none" else name for name in section.networks)
    where = section.name, networks, section.target_text
    if not answer.order:
        return 0, (*where, "not known: no method reaches the target with most seeds", "")
    open_ = [*(key for key in answer.order if key in answer.open), *(k for k in answer.open if k not in answer.order)]
    several = len({variant.method for variant, _ in answer.rows}) < len(answer.rows)
    names = [f"{v.label}, P = {parts}" if several else v.method for v, parts in open_]
    text = " or ".join(names) if len(names) <= FEW else f"one of {len(names)} ({names[0]}'s median is the shortest)"
    least = []
    for key in set(answer.rows) - set(open_):
        found = [factor for own in open_ if (factor := answer.leads(own, key)) is not None]
        least += found[:1]  # of the fastest median, where it is surely ahead
    floor = math.floor(100 * min(least, default=0)) / 100  # rounded up it would not hold
    behind = (f"{floor:.2f} ×" if floor > 1 else "more than 1 ×") if least else ""
    return len(open_), (*where, text, behind)


def render(report: Report, suite: str) -> str:
    """Return the page of one suite's report."""
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
            for view in views:
                yield from (markdown_table(table) for table in (view.table, *view.more) if table)


def markdown_table(table: Table) -> str:
    """Return a table as Markdown, without a number."""
    module = templates(autoescape=False).get_template("table.md.j2").module
    return str(module.numbers(table, None))  # type: ignore[attr-defined]


def write(results: Path, page: Path) -> list[Path]:
    """Write the pages of all tuned results in a directory; returns their paths, that of all suites first."""
    directories = [results] if results.name.endswith("-tuned") else sorted(results.glob("*-tuned"))
    reports = {each.name.removesuffix("-tuned"): make_report(load_inputs(each)) for each in directories}
    if not reports:
        raise SystemExit(f"{results}: no results of a tuned suite (NAME-tuned): see `harness tune`")
    earlier = sorted(each.stem for each in page.with_suffix("").glob("*.md") if each.stem not in reports)
    texts = {page: front(reports, earlier)}
    texts |= {page.with_suffix("") / f"{suite}.md": render(report, suite) for suite, report in reports.items()}
    page.with_suffix("").mkdir(exist_ok=True)
    for path, text in texts.items():
        path.write_text(text.rstrip() + "\n", encoding="utf-8")
    return list(texts)


if __name__ == "__main__":
    for written in write(Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else "docs/findings.md")):
        print(f"written: {written}")
