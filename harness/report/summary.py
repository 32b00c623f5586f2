"""What won, where, by how much and how sure that is: in sentences, and as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.claims import Finding, Judged, State, Verdict, subject
from harness.report.sections import Section
from harness.report.table import Cell, Group, Row, Table
from harness.report.values import Comparison, Values, by_seed, counted_units, values_of
from harness.report.variants import Variant
from harness.report.views.answer import AnswerView
from harness.results.stats import byte_unit, join_unique, percent, significant, trials


@dataclass(frozen=True)
class Win:
    """Who is best in something: `what` it is, and a sentence of it."""

    what: str
    text: str
    variant: Variant


@dataclass(frozen=True)
class Summary:
    """The winners of a section, at its `compared_parts`."""

    section: Section
    parts: int
    wins: tuple[Win, ...]


MEMORY = {  # by metric, the better one first
    "peak_above_base_bytes": "a rank at its peak, interpreter and libraries left out",
    "peak_memory_bytes": "a rank at its peak",
}


def make_summaries(sections: Sequence[Section]) -> list[Summary]:
    """Return the winners of every section in which there is something to compare."""
    found = []
    for section in sections:
        parts = section.compared_parts
        if parts is not None and (wins := tuple(_wins(section, parts))):
            found.append(Summary(section, parts, wins))
    return found


def _wins(section: Section, parts: int) -> Iterator[Win]:
    answer = AnswerView(section)
    if section.target is not None and (found := answer.verdict(parts)):
        yield Win(answer.goal, found[1], found[0])
    if times := _at(values_of(section, "epoch_time_s"), parts):
        yield _fastest(section, parts, times)
    if scores := _at(values_of(section, "best_val"), parts):
        yield _best_score(section, parts, scores)
    if sent := _at(values_of(section, "counted_bytes"), parts):
        yield _least(section, parts, "counted_bytes", "Fewest bytes sent", sent, "an epoch")
    for column, of in MEMORY.items():
        if peaks := _at(values_of(section, column), parts):
            yield _least(section, parts, column, "Least memory", peaks, of)
            break


def _at(values: Values, parts: int) -> dict[Variant, float]:
    """Return the means at a number of parts; nothing of fewer than two variants, or if all are equal."""
    own = {variant: stat.mean for (variant, count), stat in values.items() if count == parts}
    return own if len(own) > 1 and len(set(own.values())) > 1 else {}


def _baseline(section: Section, own: Variant, means: dict[Variant, float]) -> Variant | None:
    base = section.baseline
    return base if base in means and base != own else None


def _fastest(section: Section, parts: int, times: dict[Variant, float]) -> Win:
    found = Comparison(section, parts, "epoch_time_s", times)
    best, following, *_ = found.order
    text = f"{best.label}, {significant(times[best])} s"
    base = _baseline(section, best, times)
    if base and base != following:
        text += f"; {base.label} takes {found.gap(base)}"
    text += f". Next is {following.label}: takes {found.gap(following)}"
    return Win("Fastest epoch", f"{text}.{found.sure()}", best)


def _best_score(section: Section, parts: int, scores: dict[Variant, float]) -> Win:
    found = Comparison(section, parts, "best_val", scores)
    best, *others = found.order
    own, tested = (values_of(section, name).get((best, parts)) for name in ("best_val", "test_at_best_val"))
    assert own is not None
    count = counted_units(len(by_seed(section, best, parts, "best_val")), "seed")
    test = f"; test {percent(tested)} %" if tested else ""
    what, text = f"Best validation {section.metric}", f"{best.label}, {percent(own)} % ({count}{test})"
    if equal := [v for v in others if f"{100 * (scores[best] - scores[v]):.2f}" == "0.00"]:
        more = f" and {len(equal) - 1} more have" if len(equal) > 1 else " has"
        return Win(what, f"{text}; {equal[0].label}{more} as much.", best)
    return Win(what, f"{text}. Next is {others[0].label}: {found.gap(others[0])}.{found.sure()}", best)


def _least(section: Section, parts: int, column: str, what: str, sizes: dict[Variant, float], of: str) -> Win:
    found = Comparison(section, parts, column, sizes)
    best = found.order[0]
    size, unit = byte_unit(sizes[best])
    text = f"{best.label}, {significant(sizes[best] / size)} {unit} {of}"
    base = _baseline(section, best, sizes)
    if base and sizes[base]:
        text += f", {100 * sizes[best] / sizes[base]:.1f} % of {base.label}"
    return Win(what, f"{text}.{found.sure()}", best)


def overview_table(sections: list[Section]) -> Table:
    """Return what each section holds and who was best in it."""
    rows = []
    for section in sections:
        ok = section.ok
        cells = (
            Cell(f"{len(ok)} / {len(section.frame)}"),
            Cell(str(len(section.variants))),
            Cell(join_unique(section.parts), number=False),
            _winner(section, "test_at_best_val", highest=True),
            _winner(section, "epoch_time_s", highest=False),
        )
        rows.append(Row(section.title, cells, dataset=section.name))
    heads = Group("", ("Trials ok", "Methods", "P", "Best mean test score (%)", "Shortest mean epoch (s)"))
    caption = "Means over seeds, any number of parts; how sure the first is of its place, the summary says."
    return Table("Overview", caption, "Data set · model", (heads,), tuple(rows))


def _winner(section: Section, column: str, *, highest: bool) -> Cell:
    values = values_of(section, column)
    if not values:
        return Cell(number=False)
    choose = max if highest else min
    variant, parts = choose(values, key=lambda key: values[key].mean)
    mean = values[variant, parts].mean
    shown = f"{100 * mean:.2f}" if highest else significant(mean)
    return Cell(shown, f"{variant.label}, P = {parts}", number=False, wrap=True)


MARKS: dict[State, str] = {
    "holds": "✓",
    "indicated": "(✓)",
    "indicated against": "(✗)",
    "fails": "✗",
    "not measured": "–",
}
BAD: tuple[State, ...] = ("fails", "indicated against")
OWN = "own claim"  # the source of a claim that names none
ON_TWIN = "on a twin: says nothing of the paper's absolute numbers"
RULE = (
    "Value [interval over seeds, of times over their repeats too, 95 % for all rows of a claim together]. Holds, "
    "fails: the whole interval is on one side of the bound; indicated, indicated against: the value is, but of one "
    "seed (of times: one run), or the interval reaches past it. "
    "Of several trials or pairs each has a row: a claim is what the worst of them is."
)


def claims_text(judged: Sequence[Judged]) -> str:
    """Return the claims summary as lines for a terminal."""
    return "\n".join(_plain(line) for suite in judged for line in _lines(suite))


def counted(verdicts: Sequence[Verdict]) -> str:
    """Return "3 claims: 1 holds, 1 fails, 1 not measured"."""
    states = Counter(verdict.state for verdict in verdicts)
    what = "1 claim" if len(verdicts) == 1 else f"{len(verdicts)} claims"
    words: dict[State, str] = {"holds": "hold", "fails": "fail"}
    counts = [
        f"{states[state]} {words.get(state, state) if states[state] != 1 else state}"
        for state in MARKS
        if states[state]
    ]
    return f"{what}: {', '.join(counts)}"


def claims_table(suite: Judged) -> Table:
    """Return the table of a suite's claims: below every claim its verdict, then those of its rows."""
    rows: list[Row] = []
    for verdict in suite.verdicts:
        expected = _words(verdict.expected, verdict.claim.metric)
        cells = (_state(verdict.state, verdict.twin), expected, _words(verdict.measured, verdict.why))
        rows += [Row(verdict.claim.name), Row(verdict.claim.source or OWN, cells)]
        if len(verdict.rows) > 1:
            rows += [
                Row(row.label, (_state(row.state), _words(""), _words(row.shown, _why(row)))) for row in verdict.rows
            ]
    twin = f" Twin: {ON_TWIN.removeprefix('on a twin: ')}." if any(each.twin for each in suite.verdicts) else ""
    caption = f"{counted(suite.verdicts)}; {_finished(suite)}. {RULE}{twin}"
    columns = ("Verdict", "Expected", "Measured")
    return Table(f"Claims of {suite.suite}", caption, "Source", (Group("", columns),), tuple(rows))


def _state(state: State, twin: bool = False) -> Cell:
    return Cell(state, "twin" if twin else "", MARKS[state], best=state in BAD, number=False)


def _words(text: str, note: str = "") -> Cell:
    return Cell(text, note, number=False, wrap=True)


def _why(row: Finding) -> str:
    unsure = "not sure: the interval reaches past the bound" if row.sure is False else ""
    single = "not sure: one seed" if row.single else ""
    return "; ".join(part for part in (unsure, single, row.why) if part)


def _finished(suite: Judged) -> str:
    others = f", {trials(suite.others)} not of the suite as it is now" if suite.others else ""
    return f"{suite.finished} of {trials(suite.trials)} run{others}"


def _lines(suite: Judged) -> Iterator[str]:
    """Yield a suite's lines: every claim, and the rows of those that do not plainly hold."""
    yield f"{suite.suite}: {counted(suite.verdicts)}; {_finished(suite)}"
    everywhere = all(verdict.twin for verdict in suite.verdicts)
    if everywhere:
        yield f"  all {ON_TWIN}"
    for verdict in suite.verdicts:
        yield f"  {MARKS[verdict.state]} {verdict.state}: {verdict.claim.name}"
        twin = f" ({ON_TWIN})" if verdict.twin and not everywhere else ""
        yield f"      source:   {verdict.claim.source or OWN}{twin}"
        yield f"      measures: {subject(verdict.claim)}"
        yield f"      expected: {verdict.expected}"
        results = {"measured:": verdict.measured, "why:": verdict.why}
        yield from (f"      {key:<9} {words}" for key, words in results.items() if words)
        if len(verdict.rows) > 1 and (verdict.why or verdict.state in BAD):
            for row in verdict.rows:
                shown = ", ".join(part for part in (row.shown, _why(row)) if part)
                yield f"        {MARKS[row.state]} {row.label}: {shown}"


def _plain(line: str) -> str:
    """Return a line without the control characters that a suite's text may hold."""
    return "".join(c if c.isprintable() else "?" for c in line)
