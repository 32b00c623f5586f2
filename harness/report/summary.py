"""What won, where, by how much and how sure that is: in sentences, and as a table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.claims import Finding, Judged, State, Verdict, subject
from harness.errors import printable
from harness.report.sections import EVALUATIONS, Section
from harness.report.table import Cell, Group, Key, Row, Table
from harness.report.values import NAMED, Comparison, Values, by_seed, counted_units, listed, values_of
from harness.report.variants import Variant
from harness.report.views.answer import AnswerView
from harness.results.projection import LOOPBACK, rate_label
from harness.results.stats import byte_unit, decimals, join_unique, percent, significant, time_unit, trials


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
    if times := _at(values_of(section, "epoch_time_s"), parts):
        yield _fastest(section, parts, times)
    ended = "stopped" in section.ok and section.ok["stopped"].eq("target").any()  # who would go higher is not known
    if (scores := _at(values_of(section, "best_val"), parts)) and not ended:
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


def answer_sentences(sections: Sequence[Section]) -> list[tuple[Section, str]]:
    """Return of each section who reaches its target first, see `answer_sentence`; of trials of a search nothing."""
    return [(each, answer_sentence(each, name)) for each, name in named_sections(sections)]


def named_sections(sections: Sequence[Section]) -> list[tuple[Section, str]]:
    """Return the sections that are of no search, each with what its data are called in a sentence."""
    own = [section for section in sections if ("search", "settings") not in section.facts]
    places = [_where(section, section.name) for section in own]
    alone = [places.count(place) == 1 for place in places]
    return [(each, each.name if a else each.title) for each, a in zip(own, alone, strict=True)]


def answer_sentence(section: Section, name: str) -> str:
    """Return who reaches the target first, who surely takes longer and who may not, and whether distributing pays.

    Rows are compared whatever their number of parts. `name`: of the data.
    """
    answer, where = AnswerView(section), _where(section, name)
    goal, order = section.target_text, answer.order
    if section.ok.empty:
        return f"{where}: no trial ended well."
    if not answer.rows:
        few = f"trials have fewer than {EVALUATIONS} evaluations (train.eval_every)"
        why = "epochs were not timed" if goal else few
        return f"{where}: no time to a score is known, as {why}."
    if not order:
        scores = {key: stat.mean for key, stat in values_of(section, "best_val").items() if key in answer.rows}
        best = max(scores, key=lambda key: scores[key], default=None)
        closest = f"; {_named(answer, best)} comes closest, to {100 * scores[best]:.2f} %" if best else ""
        return f"{where}: most seeds of every method do not reach {goal}{closest}."
    first, *others = order
    least = {key: factor for key in others if (factor := answer.leads(first, key)) is not None}
    unsure, never = [key for key in others if key not in least], [key for key in answer.rows if key not in order]
    # Where none of these may be the fastest, the first is surely behind another row: which of all is fastest is open.
    open_ = [key for key in unsure if key in answer.open] or unsure
    between, late = ([key for key in some if key not in open_] for some in (unsure, others))
    text = f"{where}: {_named(answer, first)} reaches {goal}{' first,' if others else ''} in {_seconds(answer, first)}"
    arriving = " that reach it" if never else ""
    if least and not between:
        ahead = math.floor(100 * min(least.values())) / 100  # rounded up it would not hold
        all_others = f"all{'' if open_ else ' others'}{arriving}"
        whom = _named(answer, next(iter(least))) if len(others) == 1 else all_others
        text += f", {f'at least {ahead:.4g} times ' if ahead > 1 else ''}sooner than {whom}"
    if open_:
        several = len(open_) > (NAMED if never else 1) and len(open_) == len(others)
        names = f"all others{arriving}" if several else listed([_named(answer, key) for key in open_])
        text += f" but {names}, which may be as fast" if least and not between else f"; {names} may be as fast"
        whom = f"; {_named(answer, late[0])} is" if len(late) == 1 else f". All others{arriving} are"
        text += f"{whom} surely slower than one of these" if between else ""
        text += "" if max(own.count for own in answer.times.values()) > 1 else ", as one seed shows no difference"
    if never:
        names = listed([_named(answer, key) for key in never])
        text += f". In {_trained(answer, never)} of training most seeds do not reach it with {names}"
    if more := answer.open_to_search:
        every = len(more) == len(answer.rows) - len(answer.open)
        names = "all others" if every else listed([_named(answer, key) for key in more])
        text += f". After another search of the settings {names} may be as fast, too"
    return f"{text}.{_pays(answer, set(open_))}"


def _pays(answer: AnswerView, undecided: set[Key]) -> str:
    """Return whether more ranks than one are faster; `undecided`: rows that may be as fast as the fastest."""
    first, base = answer.order[0], answer.section.baseline
    if {parts == 1 for _, parts in answer.rows} != {False, True}:
        return ""
    best = next((key for key in answer.order if (key[1] == 1) != (first[1] == 1)), None)
    unsure = any((key[1] == 1) != (first[1] == 1) for key in undecided)
    if first[1] > 1:
        if best is None:
            return " One rank does not reach it."
        whose = "" if best[0] == base else f" ({best[0].label})"
        doubt = ": whether distributing pays is not decided" if unsure else ""
        return f" One rank needs {_seconds(answer, best)}{whose}{doubt}."
    takes = f"need {_seconds(answer, best)} ({_named(answer, best)})" if best else "do not reach it"
    said = "Whether distributing pays is not decided" if unsure else "Distributing does not pay here"
    return f" {said}: one rank needs {_seconds(answer, first)}, more ranks {takes}."


def _seconds(answer: AnswerView, key: Key) -> str:
    median = answer.medians[key]
    assert median is not None  # it is one of those that arrive
    size, unit = time_unit(median.centre)
    return f"{significant(median.centre / size)} {unit}"


def _trained(answer: AnswerView, keys: Sequence[Key]) -> str:
    """Return what every seed that does not arrive was trained for at least, of several rows."""
    shortest = min(seconds for key in keys for seconds in answer.times[key].censored.values())
    size, unit = time_unit(shortest)
    places = 10 ** decimals(shortest / size)
    return f"{math.floor(places * shortest / size) / places:g} {unit}"


def _named(answer: AnswerView, key: Key) -> str:
    """Name a row, with its number of parts where the variant has a row on one part, or others' numbers differ.

    Of methods that were tuned, settings are not named where each has one row.
    """
    section, (variant, parts) = answer.section, key
    alone = section.tuning and len({each.method for each in section.variants}) == len(section.variants)
    label = variant.method if alone else variant.label
    if parts == 1:
        return f"{label} on one rank" if len(section.parts) > 1 else label
    usual = len({*section.parts} - {1}) == 1 and (variant, 1) not in answer.rows
    return label if usual else f"{label} on {parts} ranks"


def _where(section: Section, name: str) -> str:
    """Name data, network, number of ranks and device."""
    links = [rate_label(each) for each in section.networks if each != LOOPBACK]
    several = [str(parts) for parts in section.parts if parts > 1]
    over = f" over {' and '.join(links)}" if links and several else ""
    devices = join_unique("GPU" if each == "cuda" else str(each).upper() for each in section.frame["device"].dropna())
    ranks = f"{' and '.join(several)} {devices} ranks" if several else f"one {devices} rank"
    return f"On {name}{over}, {ranks}"


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
    return "\n".join(printable(line) for suite in judged for line in _lines(suite))


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
