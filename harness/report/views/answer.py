"""Which method reaches the target fastest, and how sure that is: on one data set, and over all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
from harness.results.censored import R_MAX, Ahead, Lead, Profile, Times, judged, leads, profiles
from harness.results.stats import MISSING, Interval, byte_unit, common_places, significant, time_to_score, time_unit

AMOUNTS = ("time_s", "sent_bytes", "joules")  # columns of an epoch that add up until the target


class AnswerView(ReportView):
    """Which method reaches the suite's target fastest, and how sure is that?"""

    name = "answer"
    title = "Fastest to target"
    place = 5

    def table(self) -> Table | None:
        section, target = self.section, self.section.target
        if target is None or not self.times:
            return None
        columns: dict[str, Cells] = {
            "Reach it": {key: Cell(f"{len(own.reached)} of {own.count}") for key, own in self.times.items()},
            f"Time to it ({self.unit[1]})": {(v, p): c for p in section.parts for v, c in self.written(p).items()},
            "Behind": {(v, p): c for p in section.parts for v, c in self.distances(p).items()},
        }
        search = ", and for another search of the settings too" if self._luck else ""
        return variants_table(
            section,
            self.goal,
            prose("answer.table", search=search),
            columns | {head: own for head, own in self._columns().items() if own},
            self.times,
            absent=Cell(number=False),
        )

    @cached_property
    def unit(self) -> tuple[float, str]:
        """The unit of the medians: seconds, name."""
        return time_unit(max((found.centre for found in self.medians.values() if found), default=None))

    def written(self, parts: int) -> dict[Variant, Cell]:
        """Return the medians at a number of parts with their intervals, the shortest marked."""
        size, _ = self.unit
        places = common_places(found.centre / size for found in self.medians.values() if found)
        keys = [key for key in self.times if key[1] == parts]
        arrived = self._arrived(parts)
        order = sorted(arrived, key=lambda v: arrived[v].centre)
        cells = []
        for variant, _ in keys:
            rank = order.index(variant) if variant in order else None
            better = [self._pair(first, variant, parts) for first in order[:rank]]
            ties = tuple(i for i, pair in enumerate(better) if not (pair and pair.sure and pair.over == variant.key))
            text = _time(self.medians[variant, parts], self.times[variant, parts], size, places)
            cells.append(Cell(text, rank=rank, ties=ties if rank else (), number=rank is not None))
        return {variant: cell for (variant, _), cell in zip(keys, mark_best(cells), strict=True)}

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
        if target is None or not any(own.reached for own in self.times.values()):
            return None
        longest = max(max(own.reached.values()) for own in self.times.values() if own.reached)
        size, unit = time_unit(longest)
        x = Axis(f"training_time_{unit}", f"Training time ({unit})", zero=True)
        y = Axis("seeds_percent", "Seeds at the target (%)", zero=True, high=105)
        found: dict[tuple[Variant, int | None], dict[float, float]] = {}
        for key, own in self.times.items():
            at = sorted(own.reached.values())
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
                for row in section.select(variant, parts, ok=False).to_dict("records"):
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
    def ahead(self) -> dict[int, list[Ahead]]:
        """How pairs of methods compare, by number of parts; methods by their variants' keys."""
        return {parts: judged(self.leads(parts)) for parts in self.section.parts}

    def leads(self, parts: int) -> list[Lead]:
        """Return how far ahead of each other every two methods are at a number of parts, not judged yet."""
        return leads({v.key: own for (v, count), own in self.times.items() if count == parts}, self._luck)

    @cached_property
    def _luck(self) -> list[float]:
        """By how much times would differ with another search of the settings, of each method that has one."""
        tuning = self.section.tuning
        found = (each.luck(tuning.goal) for each in tuning.methods) if tuning else ()
        return [each for each in found if each is not None]

    def verdict(self, parts: int) -> tuple[Variant, str] | None:
        """Return the fastest method at a number of parts, and in words how sure that is; None if none arrives."""
        there = [v for v, count in self.times if count == parts]
        medians = self._arrived(parts)
        fastest = min(medians, key=lambda v: medians[v].centre, default=None)
        if fastest is None or len(there) < 2:
            return None
        size, unit = time_unit(medians[fastest].centre)
        places = common_places([medians[fastest].centre / size])
        said = f"{fastest.label}, {_time(medians[fastest], self.times[fastest, parts], size, places, f' {unit}')}"
        others = sorted((v for v in medians if v != fastest), key=lambda v: medians[v].centre)
        leads = {v: max(own) for v in others if (own := self._leads(v, parts))}
        tied, never = [v for v in others if v not in leads], [v for v in there if v not in medians]
        if tied:
            said += f". Not significantly different from {', '.join(v.label for v in tied)}"
        if leads:
            least = f"{min(leads.values()):.2f} times or more"
            said += f". Significantly behind the fastest: {', '.join(v.label for v in leads)}, {least}"
        if never:
            said += f". Half of the seeds or more do not reach it with {', '.join(v.label for v in never)}"
        return fastest, f"{said}."

    def _arrived(self, parts: int) -> dict[Variant, Interval]:
        """Return the medians of the variants of which more than half of the seeds arrive."""
        return {v: found for (v, count), found in self.medians.items() if count == parts and found}

    def _leads(self, variant: Variant, parts: int) -> list[float]:
        """Return by which factors at least others, whose medians are less, are significantly ahead of a variant."""
        medians = self._arrived(parts)
        sooner = (v for v in medians if v != variant and medians[v].centre < medians[variant].centre)
        pairs = (self._pair(v, variant, parts) for v in sooner)
        return [pair.least for pair in pairs if pair and pair.sure and pair.over == variant.key]

    def _pair(self, one: Variant, other: Variant, parts: int) -> Ahead | None:
        """Return how two variants compare; None if they have no seed in common."""
        return next((p for p in self.ahead[parts] if {p.method, p.over} == {one.key, other.key}), None)

    def distances(self, parts: int) -> dict[Variant, Cell]:
        """Return how far each variant is behind the fastest at a number of parts, and whether that is significant.

        Cells hold their text for each variant that may be the fastest of those shown.
        """
        medians = self._arrived(parts)
        arrived = sorted(medians, key=lambda v: medians[v].centre)
        found = {}
        for variant in (v for v, count in self.times if count == parts):
            against = tuple(self._behind(variant, parts, fastest) for fastest in arrived)
            rank = arrived.index(variant) if variant in arrived else None
            found[variant] = Cell(*(against[0] if against else ("", "")), rank=rank, against=against)
        return found

    def _behind(self, variant: Variant, parts: int, fastest: Variant) -> tuple[str, str]:
        """Return text and note: how far a variant is behind another that is the fastest shown."""
        if variant == fastest:
            others = [pair for pair in self.ahead[parts] if fastest.key in (pair.method, pair.over)]
            alone = all(pair.method == fastest.key and pair.sure for pair in others)
            return ("fastest" if alone and others else "fastest, not significantly"), ""
        pair = self._pair(fastest, variant, parts)
        if pair is None:
            return "", ""
        sure, medians = pair.sure and pair.method == fastest.key, self._arrived(parts)
        if variant in medians:
            return f"{medians[variant].centre / medians[fastest].centre:.2f} ×", "" if sure else UNSURE
        if pair.method != fastest.key:  # it was trained for less time than the fastest took
            return MISSING, UNSURE
        return f"at least {pair.factor:.2f} ×", "" if sure else UNSURE


UNSURE = "not significant"


def _time(found: Interval | None, own: Times, size: float, places: int, unit: str = "") -> str:
    """Write a median with its interval, or of so few seeds that it has none, how many reached the target."""
    if found is None:
        return NEVER
    centre, low, high = (f"{each / size:,.{places}f}" for each in (found.centre, found.low, found.high))
    if found.absurd:
        return f"{centre}{unit} ({len(own.reached)} of {own.count} seeds)"
    return f"{centre} [{low}, {high}]{unit}"


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
        return f"{section.name}, P = {parts}" if len(self.section.parts) > 1 else section.name

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
