"""When a method first reaches a score: its time, epochs and bytes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.report.plot import DOTTED, Axis, Mark, Plot, amount_axis, guide, line_row, make_plot
from harness.report.sections import Section
from harness.report.table import Cell, Group, Table, bold_best, by_parts
from harness.report.values import values_of
from harness.report.variants import Variant
from harness.report.views import ReportView
from harness.results.stats import Stat, common_places, over_seeds, scaled, time_to_score, time_unit

SHARES = (0.9, 0.95, 0.99)  # of the best score of a section
Courses = dict[tuple[Variant, int], list[pd.DataFrame]]


@dataclass(frozen=True)
class Reached:
    """What the `hits` of `seeds` trials needed to reach a score first: s and epochs; None if none did."""

    time_s: Stat | None
    epochs: Stat | None
    hits: int
    seeds: int
    prepared_s: Stat | None = None  # the time, and that of the set-up before it; None where a set-up's is not known

    @property
    def always(self) -> bool:
        """Whether every seed reached it, so that the means are comparable."""
        return self.hits == self.seeds


def targets(section: Section) -> tuple[float, ...]:
    """Return the validation scores to be reached, ascending: those the suite names and `SHARES` of the best.

    A share of the best (`best_score`) is rounded down to 0.1 %.
    """
    top = best_score(section)
    if top is None:
        return ()
    own = section.ok["target"].dropna().unique() if "target" in section.ok else ()
    return tuple(sorted({math.floor(1000 * share * top) / 1000 for share in SHARES} | set(map(float, own))))


def best_score(section: Section) -> float | None:
    """Return the highest mean over seeds of a best validation score; None if nothing was scored."""
    return max((stat.mean for stat in values_of(section, "best_val").values()), default=None)


def courses(section: Section) -> Courses:
    """Return the scored trials of a section as `trial_course` has them, by variant and number of parts."""
    scored = {trial: course for trial, course in section.courses.items() if course["score"].notna().any()}
    if "prepared_s" in section.ok:
        before = section.ok.set_index("trial")["prepared_s"].astype(float)
        scored = {trial: course.assign(prepared_s=before.get(trial)) for trial, course in scored.items()}
    places = itertools.product(section.variants, section.parts)
    found = {place: [scored[t] for t in section.select(*place)["trial"] if t in scored] for place in places}
    return {place: own for place, own in found.items() if own}


def reached(own: Sequence[pd.DataFrame], target: float) -> Reached:
    """Return when the trials of one variant and number of parts first reached a score."""
    times = [time_to_score(list(c["time_s"]), list(c["score"]), target) for c in own]
    epochs = [time_to_score([1.0] * len(c), list(c["score"]), target) for c in own]
    hits = sum(time is not None for time in times)
    seconds, counts = (over_seeds(pd.Series(values, dtype=float)) for values in (times, epochs))
    before = [c["prepared_s"].iloc[0] if "prepared_s" in c else math.nan for c in own]
    whole = [time + setup for time, setup in zip(times, before, strict=True) if time is not None]
    known = over_seeds(pd.Series(whole, dtype=float)) if not any(map(math.isnan, whole)) else None
    return Reached(seconds, counts, hits, len(own), known)


NEVER = "not reached"
DRAWN = np.linspace(0.9, 1.0, 11)  # scores of the figure, as shares of the best


class TargetsView(ReportView):
    """When a method first reaches a score: its time, epochs and bytes."""

    name = "targets"
    title = "Time to accuracy"
    question = "How long does a method train until it reaches a score?"
    place = 170

    def table(self) -> Table | None:
        """Training time and epochs until each target was first reached; None if nothing was scored."""
        section = self.section
        scores, found = targets(section), courses(section)
        if not scores or not found:
            return None
        all_reached = {key: [reached(own, score) for score in scores] for key, own in found.items()}
        times = [each.time_s.mean for own in all_reached.values() for each in own if each.time_s]
        size, unit = time_unit(max(times, default=None))
        places = min(3, common_places(time / size for time in times))
        shown = _cells(all_reached, lambda stat: scaled(stat, size, places))
        headings = f"Time ({unit})", "With set-up", "Epochs"
        groups = tuple(Group(f"{100 * score:.1f} %", headings) for score in scores)
        return Table(
            "Time to accuracy",
            f"Training time ({unit}; slowest rank of each epoch, warm-up included, evaluation and set-up not), the "
            "same with the set-up before it (what that found ready-made, such as the partition, counts as much as "
            "its making took; compilation is in neither), and epochs until the validation "
            f"{section.metric} was first as high as the heading, as far as it was evaluated: a target is met "
            "between two evaluations and told by the later. Mean ± sample "
            "standard deviation over the seeds that reach it; where not all do, their number stands beside it "
            "and the mean is of those. Headings: 90, 95 and 99 % of the best mean score of this section, "
            "and the target of the suite, if it has one. Bold: soonest at that P, of those that all seeds reach.",
            "Method",
            groups,
            by_parts(section, lambda variant, parts: shown.get((variant, parts), ())),
        )

    def figure(self) -> Plot | None:
        """Return the training time against the score that it takes, a panel a number of parts."""
        section = self.section
        best, found = best_score(section), courses(section)
        drawn = {key: line for key, own in found.items() if best and (line := _line(own, (best * DRAWN).tolist()))}
        if not drawn:
            return None
        times = [time for line in drawn.values() for time in line.values()]
        size, unit = time_unit(max(times))
        lines = {key: {100 * score: time / size for score, time in line.items()} for key, line in drawn.items()}
        dotted = [Mark("up", x=("", [100 * score]), style=guide(DOTTED)) for score in targets(section)]
        across = "score_percent", Axis(f"Validation {section.metric} to reach (%)")
        up = f"training_time_{unit}", amount_axis(f"Training time ({unit})", times)
        panels = line_row(lines, across, up, beside=dotted)
        caption = (
            "Training time until the score was first reached, mean over seeds; a line ends where not all seeds "
            "reach more. Dotted: the targets of the table above. Down and to the right is better."
        )
        title = "Time to accuracy"
        return make_plot(section, "targets", title, caption, [panels], 3.6, share=("none", "all"))


def _cells(
    found: dict[tuple[Variant, int], list[Reached]], write: Callable[[Stat], str]
) -> dict[tuple[Variant, int], list[Cell]]:
    """Return the cells of all rows: of each target the time, the soonest at a number of parts bold, and epochs."""
    cells: dict[tuple[Variant, int], list[Cell]] = {key: [] for key in found}
    for parts in {parts for _, parts in found}:
        keys = [key for key in found if key[1] == parts]
        for column in zip(*(found[key] for key in keys), strict=True):
            times = [each.time_s.mean if each.always and each.time_s else None for each in column]
            shown = bold_best([_time_cell(each, write) for each in column], times, highest=False)
            for key, each, cell in zip(keys, column, shown, strict=True):
                whole = Cell(write(each.prepared_s)) if each.prepared_s else Cell()
                cells[key] += [cell, whole, Cell(f"{each.epochs.mean:,.0f}") if each.epochs else Cell()]
    return cells


def _time_cell(each: Reached, write: Callable[[Stat], str]) -> Cell:
    if not each.time_s:
        return Cell(NEVER, number=False)
    return Cell(write(each.time_s), "" if each.always else f"{each.hits} of {each.seeds}")


def _line(own: Sequence[pd.DataFrame], scores: Sequence[float]) -> dict[float, float]:
    """Return the mean seconds by score, of those that all of a method's trials reach."""
    each = {score: reached(own, score) for score in scores}
    return {score: found.time_s.mean for score, found in each.items() if found.always and found.time_s}
