"""The page of every table and figure of the papers and what became of it, as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from harness.claims.reproduction import Item, KeptVerdict, Papers, Run
from harness.errors import UserError
from harness.report.page.render import escape_markdown
from harness.suite.schema import Suite

HEAD = """# What is reproduced

Every table and figure of the five papers, the suites that are held against it, and what came of it.

This page is generated: `python -m harness.claims.reproduction RESULTS ...` holds results against the claims
of their suites, keeps the verdicts in [reproduction-results.json](reproduction-results.json) and writes the
page; [reproduction.yaml](reproduction.yaml) lists tables and figures.

A claim is a sentence of the paper with the figure that would make it true; it holds, fails, or is not
measured because its trials were not run or lack the figure. Claims count as run on

- **the paper's graphs**: its own data, and all settings that it gives. Only these reproduce its figures.
- **another real graph**, or **smaller** graphs of the paper's kind: they can show an order or a difference.
- **a twin**: a generated graph with degrees, homophily and widths of the paper's. It shows what depends on
  structure, and says nothing of the paper's absolute figures.

What the papers leave open, and why some claims fail, is told in [papers.md](papers.md).
"""
RUN = {
    "paper": "run on the paper's graphs",
    "real": "run on another real graph",
    "smaller": "run on smaller graphs",
    "twin": "twin run",
}


def render(papers: Papers, runs: Mapping[str, Run], suites: Mapping[str, Suite]) -> str:
    """Return the page.

    Args:
        papers: the tables and figures.
        runs: kept verdicts, by suite.
        suites: every suite of the papers, by name.

    Raises:
        UserError: a table or figure has neither suites nor a reason, names a suite that there is not, or a
            kept verdict is of a claim that its suite no longer has.
    """
    _check(papers, runs, suites)
    lines = [HEAD, *_summary(papers, runs)]
    for paper in papers.papers:
        lines += [f"\n## {paper.name}\n", f"{paper.title}.\n"]
        lines += ["| of the paper | shows | suites | state |", "|---|---|---|---|"]
        for item in paper.items:
            named = ", ".join(f"`{suite}`" for _, suite in item.suites())
            state = "; ".join(_state(item, runs, suites))
            lines.append(f"| {item.item} | {item.shows} | {named} | {state} |")
    lines += ["\n## Claims that fail\n", *_failing(runs)]
    lines += ["\n## Runs\n", *_runs(runs)]
    return "\n".join(lines) + "\n"


def _check(papers: Papers, runs: Mapping[str, Run], suites: Mapping[str, Suite]) -> None:
    for paper in papers.papers:
        for item in paper.items:
            where = f"{paper.name}, {item.item}"
            if not item.why and not any(item.suites()):
                raise UserError("has neither suites nor a reason", key=where, fix="write `why: ...`")
            if unknown := [name for _, name in item.suites() if name not in suites]:
                raise UserError(f"no such suite '{unknown[0]}'", key=where)
    for name, run in runs.items():
        claims = [claim.name for claim in suites[name].claims] if name in suites else []
        if claims != [verdict.name for verdict in run.verdicts]:
            raise UserError("kept verdicts are not of its claims", key=name, fix="hold its results again")


def _state(item: Item, runs: Mapping[str, Run], suites: Mapping[str, Suite]) -> Iterator[str]:
    """Yield what became of an item, on each kind of graph that there are suites for."""
    if not any(item.suites()):
        yield f"not reproduced: {item.why}"
        return
    ran = [(kind, name) for kind, name in item.suites() if name in runs]
    for kind, name in item.suites():
        if name in runs:
            count = _count([v for v in runs[name].verdicts if item.counts(v.source)])
            yield f"{RUN[kind]}{_partly(runs[name])}: {count}"
        elif kind == "paper":
            claims = sum(item.counts(claim.source) for claim in suites[name].claims)
            yield f"planned{'' if ran else ' only'} on the paper's graphs: {_claims(claims)}"
        else:
            yield f"{RUN[kind].replace('run', 'planned', 1)}"
    if item.why:
        yield item.why


def _partly(run: Run) -> str:
    return "" if run.finished == run.trials else f" in part ({run.finished} of {run.trials} trials)"


def _count(verdicts: Sequence[KeptVerdict]) -> str:
    states = Counter(verdict.state for verdict in verdicts)
    measured = states["holds"] + states["fails"]
    if not measured:
        return f"{_claims(len(verdicts))} not measured"
    missing = f", {states['not measured']} not measured" if states["not measured"] else ""
    verb = "holds" if measured == 1 else "hold"
    return f"{states['holds']} of {_claims(measured)} {verb}{missing}"


def _claims(count: int) -> str:
    return "1 claim" if count == 1 else f"{count} claims"


def _summary(papers: Papers, runs: Mapping[str, Run]) -> list[str]:
    """Return how many tables and figures there are, and how far each was come with."""
    items = [item for paper in papers.papers for item in paper.items]
    kinds: Counter[str] = Counter()
    for item in items:
        ran = [kind for kind, name in item.suites() if name in runs]
        kinds[ran[0] if ran else "planned" if any(item.suites()) else "none"] += 1
    told = (
        ("paper", "run on the paper's own graphs"),
        ("real", "on another real graph"),
        ("smaller", "on smaller graphs of its kind"),
        ("twin", "on a twin only"),
        ("planned", "planned only"),
        ("none", "not reproduced (drawings, lists, motivation)"),
    )
    counts = ", ".join(f"{kinds[kind]} {words}" for kind, words in told if kinds[kind])
    return [f"Of {len(items)} tables and figures: {counts}."]


def _failing(runs: Mapping[str, Run]) -> Iterator[str]:
    failing = [(name, v) for name in sorted(runs) for v in runs[name].verdicts if v.state == "fails"]
    if not failing:
        yield "None."
        return
    yield from ("| suite | claim | expected | measured | fails at |", "|---|---|---|---|---|")
    for name, verdict in failing:
        cells = (verdict.name, verdict.expected, verdict.measured, "; ".join(verdict.failing))
        yield f"| `{name}` | {' | '.join(escape_markdown(cell) for cell in cells)} |"


def _runs(runs: Mapping[str, Run]) -> Iterator[str]:
    yield "A commit with + had changes that were not committed.\n"
    yield from ("| suite | run | trials | claims | machine | commit |", "|---|---|---|---|---|---|")
    for name in sorted(runs):
        run = runs[name]
        days = run.first if run.first == run.last else f"{run.first} to {run.last}"
        trials = f"{run.finished} of {run.trials}"
        where = escape_markdown("; ".join(run.machines))
        commits = " ".join(run.commits)
        yield f"| `{name}` | {days} | {trials} | {_count(run.verdicts)} | {where} | {commits} |"
