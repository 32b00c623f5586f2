"""The page of what is reproduced: every table and figure of the papers, and the state of its claims.

python -m tools.reproduction [--docs docs] [--suites suites/papers] [RESULTS ...]

Holds RESULTS (directories with suites' results) against the claims of their suites, keeps the verdicts in
`DOCS/reproduction-results.json`, and writes `DOCS/reproduction.md` from these and `DOCS/reproduction.yaml`.
Without RESULTS the page is made again of what is kept.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, Field, ValidationError

from harness.claims import Judged, State, Verdict, judge_directories, suite_of
from harness.errors import DataUnavailable, UserError
from harness.metrics import METRICS, Formula
from harness.report.page import escape_markdown
from harness.results.record import Record
from harness.results.record_store import SUITE_FILE, read_at, records_under
from harness.spec import Spec
from harness.suite import document
from harness.suite.schema import Suite
from harness.suite.suite_file import load_suite

HEAD = """# What is reproduced

Every table and figure of five papers, some of two comparisons, the suites held against them, and what came of it.

This page is generated: `python -m tools.reproduction RESULTS ...` holds results against the claims
of their suites, keeps the verdicts in [reproduction-results.json](reproduction-results.json) and writes the
page; [reproduction.yaml](reproduction.yaml) lists tables and figures.

A claim is a sentence of the paper with the figure that would make it true; it holds, fails, is indicated or
indicated against where the value is on that side of the bound but not surely ([claims.md](claims.md)), or is not
measured because its trials were not run or lack the figure. Verdicts on values that are not exact, kept before
verdicts stated how often they err, count as indicated. Claims count as run on

- **the paper's graphs**: its own data, and all settings that it gives. Only these reproduce its numbers.
- **another real graph**, or **smaller** graphs of the paper's kind: they can show an order or a difference.
- **a twin**: a generated graph with degrees, homophily and widths of the paper's. It shows what depends on
  structure, and says nothing of the paper's absolute numbers.

[papers.md](papers.md) says what the papers leave open and why some claims fail.
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
    runs = {name: _as_of_now(run, suites[name]) for name, run in runs.items()}
    lines = [HEAD, *_summary(papers, runs)]
    for paper in papers.papers:
        lines += [f"\n## {paper.name}\n", f"{paper.title}.\n"]
        lines += ["| of the paper | shows | suites | state |", "|---|---|---|---|"]
        for item in paper.items:
            named = ", ".join(f"`{suite}`" for _, suite in item.suites())
            state = "; ".join(_state(item, runs, suites))
            lines.append(f"| {item.item} | {item.shows} | {named} | {state} |")
    lines += ["\n## Claims that fail or are indicated against\n", *_failing(runs)]
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


def _as_of_now(run: Run, suite: Suite) -> Run:
    """Return a run's verdicts, older ones only indicated unless their metric is exact."""
    verdicts = []
    for verdict, claim in zip(run.verdicts, suite.claims, strict=True):
        formula = Formula.parse(claim.metric)
        exact = all(name in METRICS and METRICS[name].exact for name in (*formula.columns, *formula.per))
        doubted: dict[State, State] = {"holds": "indicated", "fails": "indicated against"}
        older = not verdict.stated and not exact
        state = doubted.get(verdict.state, verdict.state) if older else verdict.state
        verdicts.append(verdict.model_copy(update={"state": state}))
    return run.model_copy(update={"verdicts": tuple(verdicts)})


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
    measured = len(verdicts) - states["not measured"]
    if not measured:
        return f"{_claims(len(verdicts))} not measured"
    others: tuple[State, ...] = ("indicated", "indicated against", "not measured")
    told = [f"{states[state]} {state}" for state in others if states[state]]
    verb = "holds" if measured == 1 else "hold"
    return ", ".join([f"{states['holds']} of {_claims(measured)} {verb}", *told])


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
    failing = [(name, v) for name in sorted(runs) for v in runs[name].verdicts if v.state in BAD]
    if not failing:
        yield "None."
        return
    yield from ("| suite | claim | expected | measured | not at | verdict |", "|---|---|---|---|---|---|")
    for name, verdict in failing:
        cells = (verdict.name, verdict.expected, verdict.measured, "; ".join(verdict.failing), verdict.state)
        yield f"| `{name}` | {' | '.join(escape_markdown(cell) for cell in cells)} |"


def _runs(runs: Mapping[str, Run]) -> Iterator[str]:
    machines = {"; ".join(run.machines) for run in runs.values()}
    alike = f" All ran on {escape_markdown(machines.pop())}." if len(machines) == 1 else ""
    yield f"A commit with + had changes that were not committed.{alike}\n"
    yield from ("| suite | run | trials | machine | commit |", "|---|---|---|---|---|")
    for name in sorted(runs):
        run = runs[name]
        days = run.first if run.first == run.last else f"{run.first} to {run.last}"
        where = "" if alike else escape_markdown("; ".join(run.machines))
        yield f"| `{name}` | {days} | {run.finished} of {run.trials} | {where} | {' '.join(run.commits)} |"


BAD: tuple[State, ...] = ("fails", "indicated against")
ITEMS, VERDICTS, PAGE = "reproduction.yaml", "reproduction-results.json", "reproduction.md"
KINDS = ("paper", "real", "smaller", "twin")
M = TypeVar("M", bound=BaseModel)


class Item(Spec):
    """A table or figure of a paper, and the suites that are held against it."""

    item: str = Field(description="its number in the paper")
    shows: str = Field(description="what it shows, in a few words, Markdown")
    paper: tuple[str, ...] = Field((), description="suites of the paper's own graphs")
    real: tuple[str, ...] = Field((), description="suites of other real graphs")
    smaller: tuple[str, ...] = Field((), description="suites of the paper's kind of graph, smaller")
    twin: tuple[str, ...] = Field((), description="suites of generated twins")
    claims: tuple[str, ...] = Field((), description="count claims whose source has one of these; empty: all")
    why: str = Field("", description="what there is to say, Markdown; without suites: why there is none")

    def suites(self) -> Iterator[tuple[str, str]]:
        """Yield what each suite runs on, one of `KINDS`, and its name."""
        for kind in KINDS:
            for suite in getattr(self, kind):
                yield kind, suite

    def counts(self, source: str) -> bool:
        """Return whether a claim of this source is about the item."""
        words = (rf"(?<!\w){re.escape(text)}(?!\w)" for text in self.claims)
        return not self.claims or any(re.search(word, source) for word in words)


class Paper(Spec):
    """A paper and its tables and figures, in their order."""

    name: str
    title: str
    items: tuple[Item, ...]


class Papers(Spec):
    """The data file."""

    papers: tuple[Paper, ...]


class KeptVerdict(Spec):
    """What became of a claim; `failing`: its rows that are not as expected, each with its value.

    `stated`: whether the state allows for seeds, drift and number, as it does now.
    """

    name: str
    source: str
    state: State
    expected: str
    measured: str
    why: str
    failing: tuple[str, ...] = ()
    stated: bool = False


class Run(Spec):
    """Results of a suite that were held against its claims; dates ISO 8601, commits of the code that ran."""

    first: str
    last: str
    machines: tuple[str, ...]
    commits: tuple[str, ...]
    trials: int
    finished: int
    verdicts: tuple[KeptVerdict, ...]


class Runs(Spec):
    """The kept verdicts, by suite."""

    runs: dict[str, Run] = Field(default_factory=dict)


def collect(results: Sequence[Path], suites: Path, data_dir: Path | None = None) -> dict[str, Run]:
    """Hold results against the suites in a directory.

    Args:
        results: results directories, with a directory for each suite.
        suites: directory with the suites; of results beside which a suite is kept, with the same claims, its
            trials are those kept.
        data_dir: where the user's own data sets are; default $HARNESS_DATA.

    Raises:
        UserError: a mistake in a suite, claims beside the results that are not the suite's, a damaged record.
    """
    found: dict[str, Run] = {}
    for home in (home for root in results for home in sorted(root.iterdir())):
        file = suites / f"{home.name}.yaml"
        if file.is_file() and (places := records_under(home)):
            records = [read_at(place) for place in places]
            [judged] = _judge(home, file, data_dir)
            found[home.name] = _run(judged, records)
    return found


def _judge(home: Path, file: Path, data_dir: Path | None) -> list[Judged]:
    if not (home / SUITE_FILE).is_file():
        return judge_directories([home], [suite_of(file, [home], data_dir)])
    judged = judge_directories([home])
    if [v.claim for one in judged for v in one.verdicts] != list(load_suite(file).claims):
        raise UserError(f"not the claims of {file}", file=home / SUITE_FILE, fix="run the suite again")
    return judged


def _run(judged: Judged, records: Sequence[Record]) -> Run:
    environments = [record.environment for record in records]
    commits = {f"{(env.get('commit') or 'unknown')[:8]}{'+' * bool(env.get('dirty'))}" for env in environments}
    machines = {f"{env.get('cpu')}, {env.get('usable_cores') or env.get('cores')} cores" for env in environments}
    started = sorted(record.started[:10] for record in records)
    return Run(
        first=started[0],
        last=started[-1],
        machines=tuple(sorted(machines)),
        commits=tuple(sorted(commits)),
        trials=judged.trials,
        finished=judged.finished,
        verdicts=tuple(_kept(verdict) for verdict in judged.verdicts),
    )


def _kept(verdict: Verdict) -> KeptVerdict:
    several = len(verdict.rows) > 1
    failing = [f"{row.label}: {row.shown}" for row in verdict.rows if several and row.state in BAD]
    return KeptVerdict(
        name=verdict.claim.name,
        source=verdict.claim.source,
        state=verdict.state,
        expected=verdict.expected,
        measured=verdict.measured,
        why=verdict.why,
        failing=tuple(failing),
        stated=True,
    )


def read_papers(path: Path) -> Papers:
    """Read the data file; UserError if it is not as it should be."""
    try:
        data = document.parse(path.read_text(encoding="utf-8"), str(path)).data
    except OSError as error:
        raise UserError("cannot be read", file=path, fix="--docs DIR names the directory it is in") from error
    return _checked(Papers, data, path)


def read_runs(path: Path) -> dict[str, Run]:
    """Read the kept verdicts, none if there is no file; UserError if it is damaged."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError("damaged: not JSON", file=path) from error
    return _checked(Runs, content, path).runs


def _checked(kind: type[M], content: object, path: Path) -> M:
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(first["msg"], file=path, key=where) from error


def write_runs(path: Path, runs: Mapping[str, Run]) -> None:
    """Write the kept verdicts, by suite."""
    kept = Runs(runs={name: runs[name] for name in sorted(runs)})
    path.write_text(json.dumps(kept.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n", "utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Exit code 0, or 2 for a mistake, told in one line."""
    parser = argparse.ArgumentParser(prog="python -m tools.reproduction", description=__doc__)
    parser.add_argument("results", nargs="*", type=Path, metavar="RESULTS")
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    parser.add_argument("--suites", type=Path, default=Path("suites/papers"))
    asked = parser.parse_args(arguments)
    try:
        papers, runs = read_papers(asked.docs / ITEMS), read_runs(asked.docs / VERDICTS)
        if asked.results:
            runs |= collect(asked.results, asked.suites)
            write_runs(asked.docs / VERDICTS, runs)
        page = render(papers, runs, {path.stem: load_suite(path) for path in asked.suites.glob("*.yaml")})
    except (UserError, DataUnavailable) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    (asked.docs / PAGE).write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
