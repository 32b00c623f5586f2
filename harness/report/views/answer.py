"""Which method reaches the target fastest, and how sure that is: on one data set, and over all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import pandas as pd

from harness.report.figure import Axis, Chart, Figure, Layer, lines, make_figure
from harness.report.sections import Section
from harness.report.table import Cell, Cells, Group, Key, Row, Table, column, mark_best, number_cells, variants_table
from harness.report.values import values_of
from harness.report.variants import Variant
from harness.report.views import ReportView, WorkloadsView, prose
from harness.report.views.convergence import NEVER
from harness.results.censored import R_MAX, Ahead, Lead, Profile, Times, compare, leads, profiles, risk_of_look
from harness.results.contrast import RISK
from harness.results.stats import MISSING, Interval, byte_unit, common_places, significant, time_to_score, time_unit

AMOUNTS = ("time_s", "sent_bytes", "joules")  # columns of an epoch that add up until the target


class AnswerView(ReportView):
    """Which method reaches the suite's target fastest, and how sure is that?"""

    name = "answer"
    title = "Fastest to target"
    place = 5

    def table(self) -> Table | None:
        section = self.section
        if not self.times:
            return None
        by_parts = [[key for key in self.rows if key[1] == parts] for parts in section.parts]
        columns: dict[str, Cells] = {
            "Reach it": {key: Cell(f"{len(own.reached)} of {own.count}") for key, own in self.times.items()},
            f"Time to it ({self.unit[1]})": {key: c for keys in by_parts for key, c in self.written(keys).items()},
            "Behind": {key: cell for keys in by_parts for key, cell in self.distances(keys).items()},
        }
        search = ", with the settings that the search found" if self._luck else ""
        return variants_table(
            section,
            self.goal,
            prose("answer.table", target=section.target_text, search=search, same=self.same),
            columns | {head: own for head, own in self._columns().items() if own},
            self.rows,
            absent=Cell(number=False),
        )

    @cached_property
    def unit(self) -> tuple[float, str]:
        """The unit of the medians: seconds, name."""
        return time_unit(max((found.centre for found in self.medians.values() if found), default=None))

    @cached_property
    def rows(self) -> list[Key]:
        """What is compared: every variant and number of parts but those that train as the baseline does on one part."""
        return [key for key in self.times if key not in self.repeated]

    @cached_property
    def repeated(self) -> list[Key]:
        """The variants on one part, where there is no boundary, whose losses and scores are the baseline's, by seed."""
        section, known = self.section, {"loss", "val_score"} <= set(self.section.epochs)
        curves = {
            str(trial): own[["loss", "val_score"]].astype(float).to_numpy().tobytes()
            for trial, own in (section.epochs.groupby("trial") if known else ())
        }

        def of(variant: Variant | None) -> dict[int, bytes]:
            own = section.select(variant, 1) if variant else section.ok[:0]
            return {seed: curves.get(str(trial), b"") for seed, trial in zip(own["seed"], own["trial"], strict=True)}

        first = of(section.baseline)
        others = {variant: of(variant) for variant in section.variants if variant != section.baseline}
        return [
            (variant, 1)
            for variant, own in others.items()
            if own and all(curve and curve == first.get(seed) for seed, curve in own.items())
        ]

    @property
    def same(self) -> str:
        """A sentence that names those that are `repeated`."""
        if not self.repeated or self.section.baseline is None:
            return ""
        names = ", ".join(variant.label for variant, _ in self.repeated)
        return f"On one part {names} train as {self.section.baseline.label} does, whose row is theirs."

    @cached_property
    def order(self) -> list[Key]:
        """The rows of which more than half of the seeds arrive, the shortest median first."""
        found = {key: own.centre for key in self.rows if (own := self.medians[key])}
        return sorted(found, key=lambda key: found[key])

    def written(self, keys: Sequence[Key]) -> dict[Key, Cell]:
        """Return the medians of rows with their intervals, the shortest marked; ranks are those of all rows."""
        size, _ = self.unit
        places = common_places(found.centre / size for found in self.medians.values() if found)
        cells = []
        for key in keys:
            rank = self.order.index(key) if key in self.order else None
            ties = tuple(i for i, first in enumerate(self.order[:rank]) if not self.leads(first, key)) if rank else ()
            text = _time(self.medians[key], self.times[key], size, places)
            cells.append(Cell(text, rank=rank, ties=ties, number=rank is not None))
        return dict(zip(keys, mark_best(cells), strict=True))

    def _columns(self) -> dict[str, Cells]:
        """Return the further columns by heading; empty where nothing was measured."""
        section, tuning = self.section, self.section.tuning
        scores, peaks = (values_of(section, name) for name in ("test_at_best_val", "peak_memory_bytes"))
        peak_size, peak_unit = byte_unit(max((stat.mean for stat in peaks.values()), default=None))
        hours = {each.method: each.wall_s / 3600 for each in tuning.methods} if tuning else {}
        sent, joules = self._to_it("sent_bytes"), self._to_it("joules")
        sent_size, sent_unit = byte_unit(max((found.centre for found in sent.values() if found), default=None))
        searched = {key: hours[key[0].method] for key in self.times if key[0].method in hours}
        return {
            f"Test {section.metric} (%)": column(section, "test_at_best_val", None) if scores else {},
            f"Sent to it ({sent_unit})": _written(sent, sent_size),
            f"Peak ({peak_unit})": number_cells(peaks, peak_size, 2),
            "Energy to it (J)": _written(joules, 1.0),
            "Search (h)": {key: Cell(significant(own)) for key, own in searched.items()},
        }

    def _to_it(self, name: str) -> dict[Key, Interval | None]:
        """Return the median of an amount up to the target; None where that is not reached."""
        return {key: own.of_one_budget.median for key, own in self._amounts(name).items()}

    def figure(self) -> Figure | None:
        section, target = self.section, self.section.target
        if target is None or not any(self.times[key].reached for key in self.rows):
            return None
        longest = max(max(own.reached.values()) for own in self.times.values() if own.reached)
        size, unit = time_unit(longest)
        x = Axis(f"training_time_{unit}", f"Training time ({unit})", zero=True)
        y = Axis("seeds_percent", "Seeds at the target (%)", zero=True, high=105)
        found: dict[tuple[Variant, int | None], dict[float, float]] = {}
        for key in self.rows:
            own, at = self.times[key], sorted(self.times[key].reached.values())
            found[key] = {0.0: 0.0} | {time / size: 100 * (i + 1) / own.count for i, time in enumerate(at)}
            found[key].setdefault(1.05 * longest / size, 100 * len(at) / own.count)
        chart = Chart((Layer(lines(found, x, y), "steps"),), x, y)
        caption = prose("answer.figure", metric=section.metric, target=100 * target)
        return make_figure(section, "answer", self.title, caption, [chart], 3.6, share=("none", "all"))

    @property
    def goal(self) -> str:
        """The comparison, as a heading."""
        assert self.section.target is not None
        return f"Fastest to {100 * self.section.target:.1f} % validation {self.section.metric}"

    @cached_property
    def _reached(self) -> dict[Key, dict[str, Times]]:
        """The amounts up to the target of each variant and number of parts: seconds, bytes, J, by column."""
        section, target = self.section, self.section.target
        if target is None:
            return {}
        joules = _joules(section.frame)
        sums = {trial: own.assign(joules=joules.get(trial, np.nan)) for trial, own in section.epoch_sums.items()}
        most = {name: max((float(own[name].sum()) for own in sums.values()), default=0.0) for name in AMOUNTS}
        found = {}
        for variant in section.variants:
            for parts in section.parts:
                reached: dict[str, dict[int, float]] = {name: {} for name in AMOUNTS}
                censored: dict[str, dict[int, float]] = {name: {} for name in AMOUNTS}
                for row in section.select(variant, parts, ok=False)[["trial", "seed", "status"]].to_dict("records"):
                    epochs, seed = sums.get(str(row["trial"])), int(row["seed"])
                    if row["status"] == "skipped":
                        continue
                    for name in AMOUNTS:
                        if row["status"] != "ok" or epochs is None:  # it took longer than any that was trained
                            censored[name][seed] = most[name]
                            continue
                        amount = time_to_score(list(epochs[name]), list(epochs["score"]), target)
                        if amount is None:
                            censored[name][seed] = float(epochs[name].sum(skipna=False))
                        else:
                            reached[name][seed] = amount
                own = {name: Times(reached[name], censored[name]) for name in AMOUNTS}
                if own["time_s"].count:
                    found[variant, parts] = own
        return found

    def _amounts(self, name: str) -> dict[Key, Times]:
        """Return the amounts of a column, where all of it was measured."""
        found = {key: own[name] for key, own in self._reached.items()}
        return {
            key: own
            for key, own in found.items()
            if not np.isnan([*own.reached.values(), *own.censored.values()]).any()
        }

    @cached_property
    def times(self) -> dict[Key, Times]:
        """The seconds to the target, where epochs were timed."""
        return self._amounts("time_s")

    @cached_property
    def medians(self) -> dict[Key, Interval | None]:
        """The median seconds to the target, all seeds of one budget; None where half of them or more do not arrive."""
        return self._to_it("time_s")

    @cached_property
    def _ahead(self) -> dict[frozenset[Key], Ahead[Key]]:
        """How every two rows compare, whatever their numbers of parts, with the settings that they have."""
        return self._compared(())

    def _compared(self, luck: Sequence[float]) -> dict[frozenset[Key], Ahead[Key]]:
        found = compare({key: self.times[key] for key in self.rows}, luck, self.section.looks)
        return {frozenset((pair.method, pair.over)): self._beyond_doubt(pair) for pair in found}

    def _beyond_doubt(self, pair: Ahead[Key]) -> Ahead[Key]:
        """Return a pair as it is whatever a projection's error."""
        doubt = self.section.doubt(pair.method[1], pair.over[1])
        return replace(pair, sure=pair.sure and pair.least >= doubt, least=max(1.0, pair.least / doubt))

    @cached_property
    def open(self) -> list[Key]:
        """The rows that no other is surely ahead of."""
        return self._unbeaten(self._ahead)

    def _unbeaten(self, ahead: Mapping[frozenset[Key], Ahead[Key]]) -> list[Key]:
        behind = {pair.over for pair in ahead.values() if pair.sure}
        return [key for key in self.rows if key not in behind]

    @cached_property
    def open_to_search(self) -> list[Key]:
        """The further rows that may be as fast as any after another search of the settings; none without a search."""
        return [key for key in self._unbeaten(self._compared(self._luck)) if key not in self.open] if self._luck else []

    def equal(self, share: float) -> bool:
        """Return whether the times of all rows that are `open` surely differ by less than a share of the shorter."""
        looks = self.section.looks
        known = leads({key: self.times[key] for key in self.open})
        risk = (risk_of_look(len(looks) - 1) if looks else RISK) / max(1, len(known))
        ends = [lead.estimate(risk).high for lead in known]
        return bool(ends) and all(high is not None and high <= math.log1p(share) for high in ends)

    def leads(self, one: Key, other: Key) -> float | None:
        """Return by which factor at least a row is surely ahead of another, at most that of medians; else None."""
        pair, (own, behind) = self._ahead.get(frozenset((one, other))), (self.medians[one], self.medians[other])
        if pair is None or own is None or not pair.sure or pair.method != one:
            return None
        return min(pair.least, behind.centre / own.centre) if behind else pair.least

    def at(self, parts: int) -> list[Lead[str]]:
        """Return how far ahead of each other every two variants are at a number of parts, by their keys; not judged."""
        return leads({v.key: own for (v, count), own in self.times.items() if count == parts}, self._luck)

    @cached_property
    def _luck(self) -> list[float]:
        """By how much times would differ with another search of the settings, of each method that has one."""
        tuning = self.section.tuning
        found = (each.luck(tuning.goal) for each in tuning.methods) if tuning else ()
        return [each for each in found if each is not None]

    def distances(self, keys: Sequence[Key]) -> dict[Key, Cell]:
        """Return how far rows are behind the fastest of them, and whether that is significant.

        Cells hold their distance from every row, first those of `order`, of which one is the fastest of those shown.
        """
        every = [*self.order, *(key for key in self.rows if key not in self.order)]
        against = {key: tuple(self._against(key, base) for base in every) for key in keys}
        fastest = next((i for i, key in enumerate(self.order) if key in keys), None)
        behind = {key: "" if fastest is None else own[fastest] for key, own in against.items()}
        others = [said for said in behind.values() if said not in ("", OWN)]
        alone = bool(others) and all(SURELY in said for said in others)
        found = {}
        for key, said in behind.items():
            text, sure, _ = said.partition(SURELY)
            if said == OWN:
                text, sure = "fastest", SURELY if alone else ""
            place = self.order.index(key) if key in self.order else None
            found[key] = Cell(text, UNSURE if text and not sure else "", rank=place, against=against[key])
        return found

    def _against(self, key: Key, base: Key) -> str:
        """Return how many times as long as another a row takes, and, where that is significant, how many surely.

        OWN of the row itself, nothing of two without a seed in common.
        """
        if key == base or frozenset((key, base)) not in self._ahead:
            return OWN if key == base else ""
        if not any(self.medians[each] for each in (key, base)):
            return MISSING
        mine, theirs = (  # a row without a median takes longer than it was trained
            found.centre if (found := self.medians[each]) else max(self.times[each].of_one_budget.censored.values())
            for each in (key, base)
        )
        ratio = mine / theirs
        first, last = (base, key) if ratio > 1 else (key, base)
        if self.medians[first] is None:  # it was trained for less time than the other took
            return MISSING
        way, toward = ("at least ", math.floor) if ratio > 1 else ("at most ", math.ceil)
        text = _times(ratio) if self.medians[last] else f"{way}{_times(ratio, toward)}"
        least = min(self.leads(first, last) or 0.0, max(ratio, 1 / ratio))
        return f"{text}{SURELY}{way}{_times(least if ratio > 1 else 1 / least, toward)}" if least >= 1 else text


OWN = "="
SURELY = ", surely "
UNSURE = "not significant"


def _times(ratio: float, toward: Callable[[float], int] = round) -> str:
    """Write a ratio of times with two digits at least."""
    places = max(2, 1 - math.floor(math.log10(ratio)))
    return f"{toward(ratio * 10**places) / 10**places:.{places}f} ×"


def _time(found: Interval | None, own: Times, size: float, places: int) -> str:
    """Write a median with its interval, or of so few seeds that it has none, how many reached the target."""
    if found is None:
        return NEVER
    centre, low, high = (f"{each / size:,.{places}f}" for each in (found.centre, found.low, found.high))
    if found.absurd:
        return f"{centre} ({len(own.reached)} of {own.count} seeds)" if own.censored else centre
    return f"{centre} [{low}, {high}]"


def _written(found: Mapping[Key, Interval | None], size: float) -> dict[Key, Cell]:
    """Return a cell of each median; none of any if nowhere is one."""
    if not any(found.values()):
        return {}
    return {
        key: Cell(significant(own.centre / size)) if own else Cell(NEVER, number=False) for key, own in found.items()
    }


def _joules(frame: pd.DataFrame) -> dict[str, float]:
    """Return the energy of an epoch of each trial, all processors and devices; none of those without a counter."""
    kinds = [name for name in ("energy_cpu_j", "energy_gpu_j") if name in frame]
    sums = frame[kinds].apply(pd.to_numeric).sum(axis=1, min_count=1)
    return dict(zip(frame["trial"], sums, strict=True)) if kinds else {}


class ProfileView(WorkloadsView):
    """Which method reaches its target fastest over all data sets, and does that depend on one of them?"""

    name = "profile"
    title = "Over all data sets"
    place = 1
    first = True

    @cached_property
    def medians(self) -> dict[str, dict[str, float | None]]:
        """The median time to the target of each method, by workload; None where it is not reached."""
        found: dict[str, dict[str, float | None]] = {name: {} for name in self.series}
        for section in self.workloads.sections:
            for (variant, parts), middle in AnswerView(section).medians.items():
                found[self.workloads.name_of(variant)][self._named(section, parts)] = middle.centre if middle else None
        return found

    def _named(self, section: Section, parts: int) -> str:
        alone = sum(each.name == section.name for each in self.workloads.sections) == 1
        name = section.name if alone else section.title
        return f"{name}, P = {parts}" if len(self.section.parts) > 1 else name

    @cached_property
    def series(self) -> dict[str, Variant]:
        """The methods by name."""
        return self.workloads.series()

    @cached_property
    def profiles(self) -> dict[str, Profile]:
        """The performance profile of each method."""
        return profiles(self.medians)

    def table(self) -> Table | None:
        names = list(dict.fromkeys(name for own in self.medians.values() for name in own))
        best = {
            name: min((t for own in self.medians.values() if (t := own.get(name)) is not None), default=None)
            for name in names
        }
        if not any(best.values()):
            return None
        order = sorted(self.profiles, key=lambda name: -self.profiles[name].score)
        cells = [Cell(f"{self.profiles[name].score:.2f}") for name in order]

        def ratio(method: str, name: str) -> Cell:
            if name not in self.medians[method]:
                return Cell(number=False)
            own, first = self.medians[method][name], best[name]
            if own is None or first is None:
                return Cell(NEVER, number=False)
            return Cell(f"{own / first:.2f}", value=own)

        def without(method: str) -> Cell:
            found = [score for score in self.profiles[method].without.values() if not math.isnan(score)]
            return Cell(f"{min(found):.2f} to {max(found):.2f}" if found else "–")

        of = {self._named(each, parts): (parts, each.name) for each in self.workloads.sections for parts in each.parts}
        parts, datasets = zip(*(of[name] for name in names), strict=True)
        rows = [
            Row(name, (cell, without(name), *(ratio(name, each) for each in names)), self.series[name])
            for name, cell in zip(order, cells, strict=True)
        ]
        return Table(
            "Fastest to target over all data sets",
            prose("profile.table", r_max=R_MAX),
            "Method",
            (
                Group("", ("Score", "Without one")),
                Group("Relative to the fastest's time", tuple(names), parts, datasets),
            ),
            tuple(rows),
            profile_to=R_MAX,
        )

    def figure(self) -> Figure | None:
        found: dict[tuple[Variant, None], dict[float, float]] = {}
        for name, own in self.profiles.items():
            if own.taus:
                pairs = zip(own.taus, own.shares, strict=True)
                at = {1.0: 0.0} | {tau: 100 * share for tau, share in pairs if tau <= R_MAX}
                found[self.series[name], None] = at | {R_MAX: max(at.values())}
        if not found:
            return None
        x = Axis("tau", "τ: time relative to the fastest's", low=0.97, high=R_MAX)
        y = Axis("data_sets_percent", "Data sets with the target within τ (%)", zero=True, high=105)
        caption = prose("profile.figure")
        chart = Chart((Layer(lines(found, x, y), "steps"),), x, y, "")
        series = [variant for variant, _ in found]
        return make_figure(self.section, "profile", "Fastest to target", caption, [chart], 3.4, series=series)
