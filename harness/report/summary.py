"""What won, where, by how much and how sure that is: in sentences, and as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from harness.claims import Finding, Judged, State, Verdict
from harness.claims.text import subject
from harness.report.sections import Section, Values, Variant, values_of
from harness.report.table import Cell, Group, Row, Table
from harness.results.stats import Interval, difference_interval, ratio_interval
from harness.results.text import byte_unit, join_unique, percent, significant, trials

_UNSURE = "of too few epochs to say how sure"


@dataclass(frozen=True)
class Win:
    """Who is best in something: `what` it is, and a sentence of it."""

    what: str
    text: str
    variant: Variant


@dataclass(frozen=True)
class Summary:
    """The winners of a section, at the number of parts at which most methods can be compared."""

    section: Section
    parts: int
    wins: tuple[Win, ...]


def make_summaries(sections: Sequence[Section]) -> list[Summary]:
    """Return the winners of every section in which there is something to compare."""
    found = []
    for section in sections:
        parts = compared_parts(section)
        if parts is not None and (wins := tuple(_wins(section, parts))):
            found.append(Summary(section, parts, wins))
    return found


def compared_parts(section: Section) -> int | None:
    """Return the number of parts with most variants, of equal ones the largest; None below two variants."""
    counts = section.ok.groupby("parts")["variant"].nunique()
    if counts.empty or counts.max() < 2:
        return None
    return int(counts[counts == counts.max()].index.max())


def _wins(section: Section, parts: int) -> Iterator[Win]:
    if times := _at(values_of(section, "epoch_time_s"), parts):
        yield _fastest(section, parts, times)
    if scores := _at(values_of(section, "test_at_best_val"), parts):
        yield _best_score(section, parts, scores)
    if sent := _at(values_of(section, "exchanged_bytes"), parts):
        yield _least(section, "Fewest bytes exchanged", sent, "an epoch")
    if peaks := _at(values_of(section, "peak_memory_bytes"), parts):
        yield _least(section, "Least memory", peaks, "a rank at its peak")


def _at(values: Values, parts: int) -> dict[Variant, float]:
    """Return the means at a number of parts; nothing of fewer than two variants, or if all are equal."""
    own = {variant: stat.mean for (variant, count), stat in values.items() if count == parts}
    return own if len(own) > 1 and len(set(own.values())) > 1 else {}


def _baseline(section: Section, own: Variant, means: dict[Variant, float]) -> Variant | None:
    base = section.baseline
    return base if base in means and base != own else None


def _fastest(section: Section, parts: int, times: dict[Variant, float]) -> Win:
    best, second = sorted(times, key=lambda variant: times[variant])[:2]
    text = f"{best.label}, {significant(times[best])} s"
    base = _baseline(section, best, times)
    if base:
        seeds = len(_by_seed(section, best, parts, "epoch_time_s"))
        speed_up, sure = _speed_up(section, parts, base, best)
        text += f": {speed_up:.2f} times as fast as {base.label} ({_how_sure(sure, seeds)})"
    if second != base:
        ratio, sure = _speed_up(section, parts, second, best)
        text += f". Next is {second.label}: takes {ratio:.2f} times as long"
        if sure is None:
            text += f", {_UNSURE}"
        elif sure.has(1.0):
            text += ", which cannot be told from a tie"
    return Win("Fastest epoch", f"{text}.", best)


def _speed_up(section: Section, parts: int, slow: Variant, fast: Variant) -> tuple[float, Interval | None]:
    """Return time of `slow` / time of `fast`, with its interval: over seeds, of one seed over epochs."""
    a, b = (_by_seed(section, variant, parts, "epoch_time_s") for variant in (slow, fast))
    centre = float(a.mean() / b.mean())
    shared = a.index.intersection(b.index)
    if len(shared) > 1:
        return centre, ratio_interval(a[shared].to_numpy(), b[shared].to_numpy(), paired=True, statistic="mean")
    ends = [
        _by_seed(section, variant, parts, f"epoch_time_{end}_s").mean()
        for variant, end in ((slow, "low"), (fast, "high"), (slow, "high"), (fast, "low"))
    ]
    short = any(section.select(v, parts)["too_short"].eq(True).any() for v in (slow, fast))
    if short or any(pd.isna(end) for end in ends):
        return centre, None
    return centre, Interval(centre, ends[0] / ends[1], ends[2] / ends[3])


def _best_score(section: Section, parts: int, scores: dict[Variant, float]) -> Win:
    best, second = sorted(scores, key=lambda variant: -scores[variant])[:2]
    own, next_ = (_by_seed(section, variant, parts, "test_at_best_val") for variant in (best, second))
    stat = values_of(section, "test_at_best_val")[best, parts]
    what, text = f"Best test {section.metric}", f"{best.label}, {percent(stat)} % ({_seeds(len(own))})"
    behind = f"{100 * (scores[best] - scores[second]):.2f}"
    if behind == "0.00":
        return Win(what, f"{text}; {second.label} has as much.", best)
    text += f". Next is {second.label}: {behind} points below"
    shared = own.index.intersection(next_.index)
    if len(shared) < 2:
        return Win(what, f"{text}, which of one seed may be chance.", best)
    samples = 100 * own[shared].to_numpy(), 100 * next_[shared].to_numpy()
    if sure := difference_interval(*samples, paired=True, statistic="mean"):
        text += f" (95 % interval {sure.low:.2f} to {sure.high:.2f}"
        text += ": may be chance)" if sure.has(0.0) else ")"
    return Win(what, f"{text}.", best)


def _least(section: Section, what: str, sizes: dict[Variant, float], of: str) -> Win:
    best = min(sizes, key=lambda variant: sizes[variant])
    size, unit = byte_unit(sizes[best])
    text = f"{best.label}, {significant(sizes[best] / size)} {unit} {of}"
    base = _baseline(section, best, sizes)
    if base and sizes[base]:
        text += f", {100 * sizes[best] / sizes[base]:.1f} % of what {base.label} needs"
    return Win(what, f"{text}.", best)


def _by_seed(section: Section, variant: Variant, parts: int, column: str) -> pd.Series[float]:
    """Return a metric of the trials of a variant, by seed, where it is there."""
    trials = section.select(variant, parts)
    return trials.set_index("seed")[column].dropna().groupby(level=0).mean()


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"{count} seeds"


def _how_sure(sure: Interval | None, seeds: int) -> str:
    """Say what an interval of a ratio is, and of what."""
    if sure is None:
        return _UNSURE
    of = "over the epochs of one seed" if seeds == 1 else f"over {_seeds(seeds)}"
    return f"95 % interval {sure.low:.2f} to {sure.high:.2f} {of}"


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
    heads = Group("", ("Trials ok", "Methods", "P", "Best test score (%)", "Fastest epoch (s)"))
    caption = "Best and fastest: mean over seeds, any number of parts; the rules are under the tables that follow."
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


MARKS: dict[State, str] = {"holds": "✓", "fails": "✗", "not measured": "–"}
ON_TWIN = "on a twin: says nothing of the paper's absolute numbers"
RULE = (
    "Value [95 % interval]: bootstrap over seeds; of a time with one seed over epochs; none of other values "
    "of one seed. Of several trials or pairs each has a row: a claim fails if one of them does; it holds if "
    "some are measured and none fails."
)


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


def claims_table(suite: Judged) -> Table:
    """Return the table of a suite's claims: below every claim its verdict, then those of its rows."""
    rows: list[Row] = []
    for verdict in suite.verdicts:
        expected = _words(verdict.expected, verdict.claim.metric)
        cells = (_state(verdict.state, verdict.twin), expected, _words(verdict.measured, verdict.why))
        rows += [Row(verdict.claim.name), Row(verdict.claim.source, cells)]
        if len(verdict.rows) > 1:
            rows += [
                Row(row.label, (_state(row.state), _words(""), _words(row.shown, _why(row)))) for row in verdict.rows
            ]
    twin = f" Twin: {ON_TWIN.removeprefix('on a twin: ')}." if any(each.twin for each in suite.verdicts) else ""
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
        yield f"      source:   {verdict.claim.source}{twin}"
        yield f"      measures: {subject(verdict.claim)}"
        yield f"      expected: {verdict.expected}"
        results = {"measured:": verdict.measured, "why:": verdict.why}
        yield from (f"      {key:<9} {words}" for key, words in results.items() if words)
        if len(verdict.rows) > 1 and (verdict.why or verdict.state == "fails"):
            for row in verdict.rows:
                told = ", ".join(part for part in (row.shown, _why(row)) if part)
                yield f"        {MARKS[row.state]} {row.label}: {told}"


def _plain(line: str) -> str:
    """Return a line without the control characters that a suite's text may hold."""
    return "".join(c if c.isprintable() else "?" for c in line)
