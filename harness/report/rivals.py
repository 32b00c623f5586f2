"""One method against others on every data set and number of parts: all comparisons are judged together."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from harness.errors import UserError, nearest, spelled
from harness.metrics import Metric
from harness.report.columns import DERIVED
from harness.report.sections import Section, make_sections
from harness.report.values import Comparison, values_of
from harness.report.variants import Variant, of_a_search
from harness.report.views.answer import AnswerView
from harness.results.censored import Lead
from harness.results.comparison import SAME, UNSURE, Compared, Pair, compared, metric_of
from harness.results.contrast import Estimate, every_two, holm, needed, reach
from harness.results.frames import ResultInputs
from harness.results.record import Record
from harness.results.stats import join_unique

TARGET = "time_to_target_s"
USUAL = (TARGET, "epoch_time_s", "best_val", "test_at_best_val", "counted_bytes")


@dataclass(frozen=True)
class Place:
    """A section and a number of parts, with the trials there of the variant that is asked about and of another."""

    section: Section
    parts: int
    mine: Variant
    other: Variant
    pairs: tuple[Pair, ...]

    def __str__(self) -> str:
        return f"{self.section.title}, P = {self.parts}"


@dataclass(frozen=True)
class Match:
    """A metric at a place, seed by seed: `row` has the other variant as A and the one that is asked about as B.

    Its values are those of the report: means over seeds, of times to the target medians (infinite where half of the
    seeds or more do not reach it).
    """

    metric: Metric
    place: Place
    row: Compared


@dataclass(frozen=True)
class _Open:
    """A match that is not judged yet.

    `values`: of A and B; `doubt`: its p-value; `at`: its estimate at a risk, of which `turned` says whether B is its A;
    `same`: whether all seeds are equal; `needs`: what an estimate that is not sure needs.
    """

    metric: Metric
    place: Place
    values: tuple[float, float]
    doubt: float
    at: Callable[[float], Estimate]
    turned: bool
    same: bool
    needs: Callable[[Estimate], str]

    def match(self, risk: float) -> Match:
        """Return it judged."""
        found = self.at(risk)
        if self.turned:
            low, high = (None if end is None else -end for end in (found.high, found.low))
            found = replace(found, size=-found.size, raw=-found.raw, low=low, high=high)
        row = compared(str(self.place), self.values, found, self.metric, same=self.same, needs=self.needs)
        return Match(self.metric, self.place, row)


def find_places(inputs: ResultInputs, method: str, against: Sequence[str]) -> list[Place]:
    """Return where variants were tried whose trials may be compared; each of `method` with each of `against`.

    Both name methods, or variants by the labels of a report; no `against`: all others. Trials of a search are left
    out. UserError for a name that is not there, and where nothing is to compare.
    """
    sections = [s for s in make_sections(inputs) if not of_a_search(inputs.config(s.frame.iloc[0].to_dict()))]
    variants = list(dict.fromkeys(variant for section in sections for variant in section.variants))
    own = _named(method, variants, "--method")
    chosen = [v for name in against for v in _named(name, variants, "--against")] if against else variants
    others = [variant for variant in dict.fromkeys(chosen) if variant not in own]
    rest = join_unique(v.label for v in variants if v not in own) or "no other method"
    if not others:
        raise UserError(f"nothing but '{method}' itself to hold it against", key="--against", fix=f"there: {rest}")
    found: dict[tuple[tuple[str, str], ...], Place] = {}
    for section in sections:
        for parts in section.parts:
            for mine in own:
                for other in others:
                    sides = [_records(inputs, section, variant, parts) for variant in (other, mine)]
                    pairs = tuple(Pair(sides[0][seed], sides[1][seed]) for seed in sides[0] if seed in sides[1])
                    if pairs:  # trials of one part are in every section that differs in partitioner or network only
                        key = tuple((pair.before.trial, pair.after.trial) for pair in pairs)
                        found.setdefault(key, Place(section, parts, mine, other, pairs))
    if not found:
        what = f"no data set and number of parts has a seed of '{method}' and of what it is compared with"
        raise UserError(what, key="--against", fix=f"there: {rest}")
    return list(found.values())


def _records(inputs: ResultInputs, section: Section, variant: Variant, parts: int) -> dict[int, Record]:
    rows = section.select(variant, parts, ok=False).to_dict("records")
    return {int(row["seed"]): record for row in rows if (record := inputs.record(row))}


def names_in(text: str) -> list[str]:
    """Return the names of a list with commas; those in a label's parentheses separate nothing."""
    return [name.strip() for name in re.split(r",(?![^()]*\))", text) if name.strip()]


def _named(name: str, variants: Sequence[Variant], key: str) -> list[Variant]:
    methods, labels = ({getattr(v, kind) for v in variants} for kind in ("method", "label"))
    meant = spelled(name, methods | labels)
    found = [variant for variant in variants if meant in (variant.method, variant.label)]
    if not found:
        raise UserError(f"no trial of '{name}'", key=key, fix=nearest(name, methods | labels))
    return found


def match_all(
    inputs: ResultInputs, places: Sequence[Place], columns: Collection[str], worth: float | None = None
) -> list[Match]:
    """Compare metrics at places, those of `columns` in their order; none where a metric is not there.

    Of equal variants any is called different with a probability of 5 % at most over all that is returned (Holm).
    Variances are those of a report: of every two variants of a section. `worth`: as of `needed`. UserError for an
    unknown metric.
    """
    metrics = [metric_of(column, [*inputs.records.values()], DERIVED) for column in columns]
    every = [one for metric in metrics for one in _open(metric, places, worth)]
    return [one.match(risk) for one, risk in zip(every, holm([one.doubt for one in every]), strict=True)]


def _open(metric: Metric, places: Sequence[Place], worth: float | None) -> Iterator[_Open]:
    groups: dict[tuple[str, int], list[Place]] = {}
    for place in places:
        groups.setdefault((place.section.anchor, place.parts), []).append(place)
    for together in groups.values():
        yield from (_to_target if metric.name == TARGET else _of_metric)(metric, together, worth)


def _of_metric(metric: Metric, places: Sequence[Place], worth: float | None) -> Iterator[_Open]:
    section, parts = places[0].section, places[0].parts
    means = {v: stat.mean for (v, count), stat in values_of(section, metric.name).items() if count == parts}
    if not means:
        return
    found = Comparison(section, parts, metric.name, means)
    contrast, order = every_two(found.cells, metric), list(found.cells)
    needs = partial(needed, metric=metric, worth=worth, unit=found.unit)
    for place in places:
        turned = (place.mine, place.other) in found.cells
        names = (place.mine, place.other) if turned else (place.other, place.mine)
        if names in found.cells:
            index, values = order.index(names), (means[place.other], means[place.mine])
            same = not contrast.cells[index].sizes.any()
            at = partial(contrast.row, index)
            yield _Open(metric, place, values, contrast.doubt(index), at, turned, same, needs)
        elif metric.exact and {place.mine, place.other} <= means.keys():  # to or from 0: no ratio, and no doubt
            rise = math.inf if means[place.mine] > means[place.other] else -math.inf
            known = Estimate(rise, rise, rise, rise, len(place.pairs), None, "none", 0.0)
            yield _Open(
                metric, place, (means[place.other], means[place.mine]), 0.0, _always(known), False, False, needs
            )


def _always(known: Estimate) -> Callable[[float], Estimate]:
    return lambda _: known


def _to_target(metric: Metric, places: Sequence[Place], worth: float | None) -> Iterator[_Open]:
    answer, parts = AnswerView(places[0].section), places[0].parts
    leads = {frozenset((lead.method, lead.over)): lead for lead in answer.at(parts)}
    for place in places:
        lead = leads.get(frozenset((place.mine.key, place.other.key)))
        a, b = (answer.medians.get((variant, parts)) for variant in (place.other, place.mine))
        if lead and (a or b):
            values = (a.centre if a else math.inf, b.centre if b else math.inf)
            turned = lead.method == place.mine.key  # it leads by how much less it takes
            needs = partial(_needed_to_target, lead=lead, place=place, metric=metric, worth=worth)
            same = not lead.size and not lead.variances[0][0]
            yield _Open(metric, place, values, lead.doubt, lead.estimate, turned, same, needs)


def _needed_to_target(found: Estimate, lead: Lead[str], place: Place, metric: Metric, worth: float | None) -> str:
    if lead.censored[0]:
        first = place.mine if lead.method == place.mine.key else place.other
        return f"not all seeds of {first.label} reach the target"
    if lead.seeds < 2:
        return "more seeds of each side are needed"
    if lead.variances[1][0]:  # no number of seeds shows what another search would find
        change = 100 * math.expm1(reach(lead.variances[1:], found.risk))
        return f"another search of the settings may change it by {change:.3g} %"
    return needed(found, metric, worth, unit="seed")


def answers(matches: Sequence[Match]) -> list[str]:
    """Return a line for each metric and method that says where it is surely better or worse; the first metric last.

    A method with other options on each data set, as they were tuned, is one; several variants at one place are several.
    """
    at: dict[tuple[str, str], set[str]] = {}
    for place in (match.place for match in matches):
        for variant in (place.mine, place.other):
            at.setdefault((f"{place.section.anchor} {place.parts}", variant.method), set()).add(variant.key)
    several = {method for (_, method), keys in at.items() if len(keys) > 1}

    def name(variant: Variant) -> str:
        return variant.label if variant.method in several else variant.method

    groups: dict[str, dict[str, dict[str, list[Match]]]] = {}
    for match in matches:
        if match.metric.better:
            own = groups.setdefault(match.metric.name, {}).setdefault(name(match.place.mine), {})
            own.setdefault(name(match.place.other), []).append(match)
    return [_answer(mine, own) for metric in reversed(groups) for mine, own in groups[metric].items()]


def _answer(mine: str, against: Mapping[str, Sequence[Match]]) -> str:
    every = [match for own in against.values() for match in own]
    metric = every[0].metric
    rises = metric.better == "more"
    better, worse = metric.word(1.0 if rises else -1.0), metric.word(-1.0 if rises else 1.0)
    if better in ("less", "more"):
        better, worse = "better", "worse"
    counts = []
    for other, own in against.items():
        ahead = sum(match.row.verdict not in (SAME, UNSURE) and not match.row.worse for match in own)
        counts.append(f"than {other} on {ahead} of {len(own)}")
    behind = sum(match.row.worse for match in every)
    return f"{metric.title}: {mine} is surely {better} {', '.join(counts)}; surely {worse} on {behind} of {len(every)}"


def failures(places: Sequence[Place]) -> list[str]:
    """Return a line for each variant of a place some of whose trials failed."""
    found: dict[str, None] = {}
    for place in places:
        before, after = zip(*((pair.before, pair.after) for pair in place.pairs), strict=True)
        for variant, records in ((place.other, before), (place.mine, after)):
            if failed := [record.status for record in records if record.status != "ok"]:
                count = f"{len(failed)} of {len(records)} trials of {variant.label}"
                found[f"{count} on {place} did not end well: {join_unique(failed)}"] = None
    return list(found)
