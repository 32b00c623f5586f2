"""Which method reaches the suite's target soonest, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import pandas as pd

from harness.report.plot import Axis, Plot, line_row, make_plot
from harness.report.table import Cell, Table, bold_best, column
from harness.report.values import values_of
from harness.report.variants import Variant
from harness.report.views import ReportView, variants_table
from harness.report.views.targets import NEVER
from harness.results.censored import Ahead, Times, compare
from harness.results.stats import MISSING, Interval, byte_unit, common_places, significant, time_to_score, time_unit

Place = tuple[Variant, int]
AMOUNTS = ("time_s", "sent_bytes", "joules")  # columns of a course that add up until the target


class AnswerView(ReportView):
    """Which method reaches the suite's target soonest, and how sure that is."""

    name = "answer"
    title = "Soonest to the target"
    question = "Which method reaches the suite's target soonest, and how sure is that?"
    place = 5

    def table(self) -> Table | None:
        """Share of seeds that reach the target, time and bytes to it, and who is ahead; None without one target."""
        section, target = self.section, self.target
        if target is None or not self.times:
            return None
        bold = {(variant, parts): cell for parts in section.parts for variant, cell in self.written(parts).items()}
        behind = {(variant, p): cell for p in section.parts for variant, cell in self.distances(p).items()}
        more = {head: own for head, own in self._columns().items() if own}

        def cells(variant: Variant, parts: int) -> Sequence[Cell]:
            key = variant, parts
            own = self.times[key]
            found = (Cell(f"{len(own.reached)} of {own.count}"), bold[key], behind[key])
            return (*found, *(column.get(key, Cell(number=False)) for column in more.values()))

        return variants_table(
            section,
            self.goal,
            "Seeds that reach the target; training time to it (slowest rank of each epoch, warm-up included, "
            "evaluation and set-up not): the Kaplan-Meier median with its 95 % interval, in which a seed that does not "
            "reach the target counts as one that takes longer than any was trained. Behind: times the soonest method's "
            "time, mean over seeds (at least, where a seed does not reach it), and whether that is sure: with 95 % for "
            "all pairs of methods at that P together, paired over seeds"
            + (", for another search of the settings too" if self._luck else "")
            + " (docs/tuning.md). Test score at the best "
            "validation, mean over seeds. Sent: payload between all ranks up to the target, median. Peak: the largest "
            "rank's memory, mean over seeds. Energy: an epoch's mean times the epochs to the target, median. Search: "
            "hours of the trials by which the settings were found. Bold: soonest at that P.",
            ("Reach it", f"Time to it ({self.unit[1]})", "Behind", *more),
            cells,
            self.times,
        )

    @cached_property
    def unit(self) -> tuple[float, str]:
        """The unit of the medians: seconds, name."""
        return time_unit(max((found.centre for found in self.medians.values() if found), default=None))

    def written(self, parts: int) -> dict[Variant, Cell]:
        """Return the medians at a number of parts with their intervals, the shortest marked."""
        size, _ = self.unit
        places = common_places(found.centre / size for found in self.medians.values() if found)
        keys = [place for place in self.times if place[1] == parts]
        found = [self.medians[key] for key in keys]
        cells = [Cell(self._time(each, size, places), number=each is not None) for each in found]
        best = bold_best(cells, [each.centre if each else None for each in found], highest=False)
        return {variant: cell for (variant, _), cell in zip(keys, best, strict=True)}

    def _columns(self) -> dict[str, dict[Place, Cell]]:
        """Return the further columns by heading; empty where nothing was measured."""
        section, tuning = self.section, self.section.tuning
        scores, peaks = (values_of(section, name) for name in ("test_at_best_val", "peak_memory_bytes"))
        tested: dict[Place, Cell] = {}
        for parts, cells in zip(section.parts, column(section, scores, None, highest=True, usual=scores), strict=True):
            tested |= {(variant, parts): cell for variant, cell in zip(section.variants, cells, strict=True)}
        peak_size, peak_unit = byte_unit(max((stat.mean for stat in peaks.values()), default=None))
        hours = {each.method: each.wall_s / 3600 for each in tuning.methods} if tuning else {}
        sent, joules = self._to_it("sent_bytes"), self._to_it("joules")
        sent_size, sent_unit = byte_unit(max((found.centre for found in sent.values() if found), default=None))
        return {
            f"Test {section.metric} (%)": tested if scores else {},
            f"Sent to it ({sent_unit})": _written(sent, sent_size),
            f"Peak ({peak_unit})": {key: Cell(f"{stat.mean / peak_size:,.2f}") for key, stat in peaks.items()},
            "Energy to it (J)": _written(joules, 1.0),
            "Search (h)": {
                key: Cell(significant(hours[key[0].method])) for key in self.times if key[0].method in hours
            },
        }

    def _to_it(self, name: str) -> dict[Place, Interval | None]:
        """Return the median of what it took to the target; None where that is not reached."""
        return {place: own.of_one_budget.median for place, own in self._amounts(name).items()}

    def figure(self) -> Plot | None:
        """Return the share of seeds that has reached the target by training time, a panel a number of parts."""
        section, target = self.section, self.target
        if target is None or not any(own.reached for own in self.times.values()):
            return None
        longest = max(max(own.reached.values()) for own in self.times.values() if own.reached)
        size, unit = time_unit(longest)
        lines: dict[Place, dict[float, float]] = {}
        for place, own in self.times.items():
            at = sorted(own.reached.values())
            lines[place] = {0.0: 0.0} | {time / size: 100 * (i + 1) / own.count for i, time in enumerate(at)}
            lines[place].setdefault(1.05 * longest / size, 100 * len(at) / own.count)
        panels = line_row(
            lines,
            (f"training_time_{unit}", Axis(f"Training time ({unit})", zero=True)),
            ("seeds_percent", Axis("Seeds at the target (%)", zero=True, high=105)),
            kind="steps",
        )
        caption = (
            f"Share of seeds whose validation {section.metric} has been {100 * target:.1f} % or more, by the time "
            "trained so far. Up and to the left is better; a line that ends below 100 % has seeds that never were."
        )
        title = "Soonest to the target"
        return make_plot(section, "answer", title, caption, [panels], 3.6, share=("none", "all"))

    @property
    def target(self) -> float | None:
        """The target of the section's trials, None if there is none."""
        return self.section.target

    @property
    def goal(self) -> str:
        """What methods are compared by, as a heading."""
        assert self.target is not None
        return f"Soonest to {100 * self.target:.1f} % validation {self.section.metric}"

    @cached_property
    def _reached(self) -> dict[Place, dict[str, Times]]:
        """What it took to the target, of each variant and number of parts, by column of a course: seconds, bytes, J."""
        section, target = self.section, self.target
        if target is None:
            return {}
        joules = _joules(section.frame)
        courses = {trial: course.assign(joules=joules.get(trial, np.nan)) for trial, course in section.courses.items()}
        most = {name: max((float(course[name].sum()) for course in courses.values()), default=0.0) for name in AMOUNTS}
        found = {}
        for variant in section.variants:
            for parts in section.parts:
                reached: dict[str, dict[int, float]] = {name: {} for name in AMOUNTS}
                censored: dict[str, dict[int, float]] = {name: {} for name in AMOUNTS}
                for row in section.select(variant, parts, ok=False).to_dict("records"):
                    course, seed = courses.get(str(row["trial"])), int(row["seed"])
                    if row["status"] == "skipped":
                        continue
                    for name in AMOUNTS:
                        if row["status"] != "ok" or course is None:  # it took longer than any that was trained
                            censored[name][seed] = most[name]
                            continue
                        amount = time_to_score(list(course[name]), list(course["score"]), target)
                        if amount is None:
                            censored[name][seed] = float(course[name].sum(skipna=False))
                        else:
                            reached[name][seed] = amount
                own = {name: Times(reached[name], censored[name]) for name in AMOUNTS}
                if own["time_s"].count:
                    found[variant, parts] = own
        return found

    def _amounts(self, name: str) -> dict[Place, Times]:
        """Return what it took of a column, where all of it was measured."""
        found = {place: own[name] for place, own in self._reached.items()}
        return {
            p: own for p, own in found.items() if not np.isnan([*own.reached.values(), *own.censored.values()]).any()
        }

    @cached_property
    def times(self) -> dict[Place, Times]:
        """The seconds to the target, where epochs were timed."""
        return self._amounts("time_s")

    @cached_property
    def medians(self) -> dict[Place, Interval | None]:
        """The median seconds to the target, all seeds of one budget; None where half of them or more do not arrive."""
        return self._to_it("time_s")

    @cached_property
    def ahead(self) -> dict[int, list[Ahead]]:
        """Who is ahead of whom, by number of parts; methods by their variants' keys."""
        return {
            parts: compare(
                {variant.key: own for (variant, count), own in self.times.items() if count == parts}, self._luck
            )
            for parts in self.section.parts
        }

    @cached_property
    def _luck(self) -> list[float]:
        """By how much times would differ with another search of the settings, of each method that tells."""
        tuning = self.section.tuning
        found = (each.luck(tuning.goal) for each in tuning.methods) if tuning else ()
        return [each for each in found if each is not None]

    def verdict(self, parts: int) -> tuple[Variant, str] | None:
        """Return who is soonest at a number of parts, and in words by how much and how sure; None if nobody arrives."""
        there = [v for v, count in self.times if count == parts]
        medians, soonest = self._arrived(parts), self._soonest(parts)
        if soonest is None or len(there) < 2:
            return None
        size, unit = time_unit(medians[soonest].centre)
        places = common_places([medians[soonest].centre / size])
        said = f"{soonest.label}, {self._time(medians[soonest], size, places)} {unit}"
        others = sorted((v for v in medians if v != soonest), key=lambda v: medians[v].centre)
        leads = {v: pair.factor for v in others if (pair := self._pair(soonest, v, parts)) and pair.sure
                 and pair.method == soonest.key}  # fmt: skip
        behind = list(leads)
        tied, never = [v for v in others if v not in behind], [v for v in there if v not in medians]
        if tied:
            said += f". Cannot be told from {', '.join(v.label for v in tied)}"
        if behind:
            said += f". Surely ahead of {', '.join(v.label for v in behind)}, {min(leads.values()):.2f} times or more"
        if never:
            said += f". Half of the seeds or more do not reach it with {', '.join(v.label for v in never)}"
        return soonest, f"{said}."

    def _arrived(self, parts: int) -> dict[Variant, Interval]:
        """Return the medians of the variants of which more than half of the seeds arrive."""
        return {v: found for (v, count), found in self.medians.items() if count == parts and found}

    def _soonest(self, parts: int) -> Variant | None:
        """Return the variant with the shortest median; None if nobody arrives."""
        known = self._arrived(parts)
        return min(known, key=lambda v: known[v].centre, default=None)

    def _pair(self, one: Variant, other: Variant, parts: int) -> Ahead | None:
        """Return how two variants compare; None if they have no seed in common."""
        return next((p for p in self.ahead[parts] if {p.method, p.over} == {one.key, other.key}), None)

    def distances(self, parts: int) -> dict[Variant, Cell]:
        """Return how far each variant is behind the soonest at a number of parts, and how sure that is.

        The cells know what they would say if another variant were the soonest of those shown.
        """
        medians = self._arrived(parts)
        arrived = sorted(medians, key=lambda v: medians[v].centre)
        found = {}
        for variant in (v for v, count in self.times if count == parts):
            against = tuple(self._behind(variant, parts, soonest) for soonest in arrived)
            rank = arrived.index(variant) if variant in arrived else None
            found[variant] = Cell(*(against[0] if against else ("", "")), rank=rank, against=against)
        return found

    def _behind(self, variant: Variant, parts: int, soonest: Variant) -> tuple[str, str]:
        """Return how far a variant is behind another that is the soonest shown, and how sure that is."""
        if variant == soonest:
            others = [pair for pair in self.ahead[parts] if soonest.key in (pair.method, pair.over)]
            alone = all(pair.method == soonest.key and pair.sure for pair in others)
            return ("soonest" if alone and others else "soonest, not surely"), ""
        pair = self._pair(soonest, variant, parts)
        if pair is None:
            return "", ""
        factor = pair.factor if pair.method == soonest.key else 1 / pair.factor
        censored = self.times[variant, parts].censored
        if censored and factor < 1:  # it was trained for less time than the soonest took
            return MISSING, "cannot tell"
        least = "at least " if censored else ""
        return f"{least}{factor:.2f} ×", "" if pair.sure else "cannot tell"

    @staticmethod
    def _time(found: Interval | None, size: float, places: int) -> str:
        """Write a median with its interval."""
        if found is None:
            return NEVER
        high = f"{found.high / size:,.{places}f}" if np.isfinite(found.high) else "∞"
        return f"{found.centre / size:,.{places}f} [{found.low / size:,.{places}f}, {high}]"


def _written(found: Mapping[Place, Interval | None], size: float) -> dict[Place, Cell]:
    """Return a cell of each median; none of any if nowhere is one."""
    if not any(found.values()):
        return {}
    return {
        place: Cell(significant(own.centre / size)) if own else Cell(NEVER, number=False)
        for place, own in found.items()
    }


def _joules(frame: pd.DataFrame) -> dict[str, float]:
    """Return the energy of an epoch of each trial, all processors and devices; nothing of those without a counter."""
    kinds = [name for name in ("energy_cpu_j", "energy_gpu_j") if name in frame]
    sums = frame[kinds].apply(pd.to_numeric).sum(axis=1, min_count=1)
    return dict(zip(frame["trial"], sums, strict=True)) if kinds else {}
