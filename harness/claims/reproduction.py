"""What became of every table and figure of the papers: the data behind `docs/reproduction.md`.

    python -m harness.claims.reproduction [--docs docs] [--suites suites/papers] [RESULTS ...]

Holds RESULTS (directories with suites' results) against the claims of their suites, keeps the verdicts in
`DOCS/reproduction-results.json`, and writes `DOCS/reproduction.md` from these and `DOCS/reproduction.yaml`.
Without RESULTS the page is made again of what is kept.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, Field, ValidationError

from harness.claims.evaluate import State, Verdict
from harness.claims.judge import Judged, judge_directories, suite_of
from harness.data.spec import Spec
from harness.errors import DataUnavailable, UserError
from harness.results.record import Record
from harness.results.store import read_at, records_under
from harness.results.suite_file import SUITE_FILE
from harness.suite import document
from harness.suite.load import load_suite

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
    """What became of a claim; `failing`: its rows that fail, each with its value."""

    name: str
    source: str
    state: State
    expected: str
    measured: str
    why: str
    failing: tuple[str, ...] = ()


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
    commits = {
        f"{(env.get('commit') or 'unknown')[:8]}{'+' * bool(env.get('dirty'))}" for env in environments
    }
    machines = {
        f"{env.get('cpu')}, {env.get('usable_cores') or env.get('cores')} cores" for env in environments
    }
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
    failing = [f"{row.label}: {row.shown}" for row in verdict.rows if several and row.state == "fails"]
    return KeptVerdict(
        name=verdict.claim.name,
        source=verdict.claim.source,
        state=verdict.state,
        expected=verdict.expected,
        measured=verdict.measured,
        why=verdict.why,
        failing=tuple(failing),
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
    from harness.claims.reproduction_page import render

    parser = argparse.ArgumentParser(prog="python -m harness.claims.reproduction", description=__doc__)
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
