"""When a method first reaches a score: its time, epochs and bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import seaborn as sns

from harness.report.drawing import (
    Picture,
    amount_axis,
    draw_line,
    legend,
    legend_rows,
    line_handle,
    new_figure,
    panel,
    save,
)
from harness.report.sections import Section, Variant, values_of
from harness.report.table import Cell, Group, Row, Table, bold_best, by_parts
from harness.report.views import ReportView
from harness.report.views.convergence import trial_course
from harness.results.stats import time_to_score
from harness.results.text import Stat, common_places, over_seeds, scaled, time_unit

SHARES = (0.9, 0.95, 0.99)  # of the best score of a section
Courses = dict[tuple[Variant, int], list[pd.DataFrame]]


@dataclass(frozen=True)
class Reached:
    """What the `hits` of `seeds` trials needed to reach a score first: s and epochs; None if none did."""

    time_s: Stat | None
    epochs: Stat | None
    hits: int
    seeds: int

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
    by_trial = dict(iter(section.epochs.groupby("trial", sort=True)))
    cells = dict(iter(section.ok.groupby(["variant", "parts"])["trial"]))
    found: Courses = {}
    for place in ((variant, parts) for variant in section.variants for parts in section.parts):
        own = [by_trial[trial] for trial in cells.get((place[0].key, place[1]), ()) if trial in by_trial]
        if scored := [course for rows in own if (course := trial_course(rows))["score"].notna().any()]:
            found[place] = scored
    return found


def reached(own: Sequence[pd.DataFrame], target: float) -> Reached:
    """Return when the trials of one variant and number of parts first reached a score."""
    times = [time_to_score(list(c["time_s"]), list(c["score"]), target) for c in own]
    epochs = [time_to_score([1.0] * len(c), list(c["score"]), target) for c in own]
    hits = sum(time is not None for time in times)
    seconds, counts = (over_seeds(pd.Series(values, dtype=float)) for values in (times, epochs))
    return Reached(seconds, counts, hits, len(own))


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

        def cells(variant: Variant, parts: int) -> Sequence[Cell]:
            own = all_reached.get((variant, parts), ())
            return [cell for each in own for cell in _cells(each, size, places)]

        rows = by_parts(section, cells)
        groups = tuple(Group(_percent(score), (f"Time ({unit})", "Epochs")) for score in scores)
        return Table(
            "Time to accuracy",
            f"Training time ({unit}; slowest rank of each epoch, warm-up included, evaluation and set-up not) "
            f"and epochs until the validation {section.metric} was first as high as the heading, as far "
            "as it was evaluated: a target is met between two evaluations and told by the later. Mean ± sample "
            "standard deviation over the seeds that reach it; where not all do, their number stands beside it "
            "and the mean is of those. Headings: 90, 95 and 99 % of the best mean score of this section, "
            "and the target of the suite, if it has one. Bold: soonest at that P, of those that all seeds reach.",
            "Method",
            groups,
            _bold(rows, all_reached, section),
        )

    def figure(self) -> Picture | None:
        """Draw the training time against the score that it takes, a panel a number of parts."""
        section = self.section
        best, found = best_score(section), courses(section)
        lines = {key: line for key, own in found.items() if best and (line := _line(own, (best * DRAWN).tolist()))}
        if not lines:
            return None
        times = [time for line in lines.values() for _, time in line]
        size, unit = time_unit(max(times))
        panels = sorted({parts for _, parts in lines})
        shown = [variant for variant in section.variants if any(key[0] == variant for key in lines)]
        figure = new_figure(3.6 + 0.2 * legend_rows(section), section, "Time to accuracy")
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for ax, parts in zip(axes, panels, strict=True):
            for variant in shown:
                if (variant, parts) in lines:
                    x = ("score_percent", [100 * score for score, _ in lines[variant, parts]])
                    y = (f"training_time_{unit}", [time / size for _, time in lines[variant, parts]])
                    draw_line(ax, variant, parts, x, y, style=variant.style)
            for score in targets(section):
                ax.axvline(100 * score, color="#999999", lw=0.8, ls=":", zorder=0)
            ax.set_xlabel(f"Validation {section.metric} to reach (%)")
            panel(ax, parts)
            sns.despine(ax=ax)
        amount_axis(axes[0], f"Training time ({unit})", times)
        legend(figure, [line_handle(v.style) for v in shown], [v.label for v in shown], shown)
        caption = (
            "Training time until the score was first reached, mean over seeds; a line ends where not all seeds "
            "reach more. Dotted: the targets of the table above. Down and to the right is better."
        )
        return save(figure, section, "targets", "Time to accuracy", caption)


def _percent(score: float) -> str:
    return f"{100 * score:.1f} %"


def _cells(each: Reached, size: float, places: int) -> tuple[Cell, Cell]:
    if not each.time_s or not each.epochs:
        return Cell(NEVER, number=False), Cell()
    note = "" if each.always else f"{each.hits} of {each.seeds}"
    return Cell(scaled(each.time_s, size, places), note), Cell(f"{each.epochs.mean:,.0f}")


def _bold(rows: Sequence[Row], found: dict[tuple[Variant, int], list[Reached]], section: Section) -> tuple[Row, ...]:
    """Mark the soonest of each target and number of parts."""
    marked, start = list(rows), 0
    for parts in sorted({parts for _, parts in found}):
        own = [found[variant, parts] for variant in section.variants if (variant, parts) in found]
        start += 1  # the heading
        for i in range(len(own[0])):
            times = [stat.mean if each[i].always and (stat := each[i].time_s) else None for each in own]
            shown = bold_best([marked[start + j].cells[2 * i] for j in range(len(own))], times, highest=False)
            for j, cell in enumerate(shown):
                row = marked[start + j]
                marked[start + j] = replace(row, cells=(*row.cells[: 2 * i], cell, *row.cells[2 * i + 1 :]))
        start += len(own)
    return tuple(marked)


def _line(own: Sequence[pd.DataFrame], scores: Sequence[float]) -> list[tuple[float, float]]:
    """Return (score, mean seconds) of the scores that all of a method's trials reach."""
    each = [(score, reached(own, score)) for score in scores]
    return [(score, found.time_s.mean) for score, found in each if found.always and found.time_s]
