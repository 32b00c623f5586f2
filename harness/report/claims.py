"""The claims summary: claims beside what was measured, as tables of a report and as lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from harness.claims.evaluate import Finding, Judged, State, Verdict
from harness.claims.text import subject
from harness.report.table import Cell, Group, Row, Table
from harness.results.text import trials

MARKS: dict[State, str] = {"holds": "✓", "fails": "✗", "not measured": "–"}
ON_TWIN = "on a twin: says nothing of the paper's absolute numbers"
RULE = (
    "Value [95 % interval]: bootstrap over seeds; of a time with one seed over epochs; none of other values "
    "of one seed. Of several trials or pairs each has a row: a claim fails if one of them does; it holds if "
    "some are measured and none fails."
)


def claims_tables(judged: Sequence[Judged]) -> list[Table]:
    """Return a table of claims for each suite: below every claim its verdict, then those of its rows."""
    return [_claims_table(suite) for suite in judged]


def claims_text(judged: Sequence[Judged]) -> str:
    """Return the claims summary as lines for a terminal."""
    return "\n".join(_plain(line) for suite in judged for line in _lines(suite))


def counted(verdicts: Sequence[Verdict]) -> str:
    """Return "3 claims: 1 holds, 1 fails, 1 not measured"."""
    states = Counter(verdict.state for verdict in verdicts)
    what = "1 claim" if len(verdicts) == 1 else f"{len(verdicts)} claims"
    words = {"holds": ("holds", "hold"), "fails": ("fails", "fail"), "not measured": ("not measured",) * 2}
    told = [f"{states[state]} {words[state][states[state] != 1]}" for state in MARKS if states[state]]
    return f"{what}: {', '.join(told)}"


def _claims_table(suite: Judged) -> Table:
    rows: list[Row] = []
    for verdict in suite.verdicts:
        expected = _words(verdict.expected, verdict.claim.metric)
        cells = (_state(verdict.state, verdict.twin), expected, _words(verdict.measured, verdict.why))
        rows += [Row(verdict.claim.name), Row(verdict.claim.source, cells)]
        if len(verdict.rows) > 1:
            rows += [
                Row(row.label, (_state(row.state), _words(""), _words(row.shown, _why(row)))) for row in verdict.rows
            ]
    twin = f" Twin: {ON_TWIN.removeprefix('on a twin: ')}." if any(_twins(suite)) else ""
    caption = f"{counted(suite.verdicts)}; {_finished(suite)}. {RULE}{twin}"
    columns = ("Verdict", "Expected", "Measured")
    return Table(f"Claims of {suite.suite}", caption, "Source", (Group("", columns),), tuple(rows))


def _state(state: State, twin: bool = False) -> Cell:
    return Cell(state, "twin" if twin else "", MARKS[state], best=state == "fails", number=False)


def _words(text: str, note: str = "") -> Cell:
    return Cell(text, note, number=False, wrap=True)


def _why(row: Finding) -> str:
    unsure = "not sure: the interval reaches past the bound" if row.sure is False else ""
    return "; ".join(part for part in (unsure, row.why) if part)


def _twins(suite: Judged) -> list[bool]:
    return [verdict.twin for verdict in suite.verdicts]


def _finished(suite: Judged) -> str:
    others = f", {trials(suite.others)} not of the suite as it is now" if suite.others else ""
    return f"{suite.finished} of {trials(suite.trials)} run{others}"


def _lines(suite: Judged) -> Iterator[str]:
    """Yield a suite's lines: every claim, and the rows of those that do not plainly hold."""
    yield f"{suite.suite}: {counted(suite.verdicts)}; {_finished(suite)}"
    everywhere = all(_twins(suite))
    if everywhere:
        yield f"  all {ON_TWIN}"
    for verdict in suite.verdicts:
        yield f"  {MARKS[verdict.state]} {verdict.state}: {verdict.claim.name}"
        twin = f" ({ON_TWIN})" if verdict.twin and not everywhere else ""
        yield f"      source:   {verdict.claim.source}{twin}"
        yield f"      measures: {subject(verdict.claim)}"
        yield f"      expected: {verdict.expected}"
        if verdict.measured:
            yield f"      measured: {verdict.measured}"
        if verdict.why:
            yield f"      why:      {verdict.why}"
        if len(verdict.rows) > 1 and (verdict.why or verdict.state == "fails"):
            for row in verdict.rows:
                told = ", ".join(part for part in (row.shown, _why(row)) if part)
                yield f"        {MARKS[row.state]} {row.label}: {told}"


def _plain(line: str) -> str:
    """Return a line without the control characters that a suite's text may hold."""
    return "".join(c if c.isprintable() else "?" for c in line)
