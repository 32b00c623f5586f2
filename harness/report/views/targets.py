"""When a method first reaches a score: its time, epochs and bytes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.report.figure import DOTTED, Axis, Chart, Figure, Guide, Layer, amount_axis, lines, make_figure
from harness.report.sections import Section
from harness.report.table import Cell, Group, Key, Table, bold_best, by_parts
from harness.report.values import values_of
from harness.report.views import ReportView, prose
from harness.results.stats import Stat, common_places, over_seeds, scaled, time_to_score, time_unit

SHARES = (0.9, 0.95, 0.99)  # of the best score of a section
NEVER = "not reached"
DRAWN = np.linspace(0.9, 1.0, 11)  # scores of the figure, as shares of the best


@dataclass(frozen=True)
class Reached:
    """The amounts that `hits` of `seeds` trials needed to reach a score first; None if none did.

    `prepared_s`: the time, and that of the set-up before it; None where a set-up's is not known.
    """

    time_s: Stat | None
    epochs: Stat | None
    hits: int
    seeds: int
    prepared_s: Stat | None = None

    @property
    def always(self) -> bool:
        """Whether every seed reached it, so that the means are comparable."""
        return self.hits == self.seeds


def targets(section: Section) -> tuple[float, ...]:
    """Return the validation scores to be reached, ascending: those of the suite and `SHARES` of the best.

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


def scored_trials(section: Section) -> dict[Key, list[pd.DataFrame]]:
    """Return the epochs of the scored trials (`epoch_sums`), by variant and number of parts."""
    scored = {trial: own for trial, own in section.epoch_sums.items() if own["score"].notna().any()}
    if "prepared_s" in section.ok:
        before = section.ok.set_index("trial")["prepared_s"].astype(float)
        scored = {trial: own.assign(prepared_s=before.get(trial)) for trial, own in scored.items()}
    keys = itertools.product(section.variants, section.parts)
    found = {key: [scored[t] for t in section.select(*key)["trial"] if t in scored] for key in keys}
    return {key: own for key, own in found.items() if own}


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


class TargetsView(ReportView):
    """How long does a method train until it reaches a score?"""

    name = "targets"
    title = "Time to accuracy"
    place = 170

    def table(self) -> Table | None:
        section = self.section
        scores, found = targets(section), scored_trials(section)
        if not scores or not found:
            return None
        all_reached = {key: [reached(own, score) for score in scores] for key, own in found.items()}
        times = [each.time_s.mean for own in all_reached.values() for each in own if each.time_s]
        size, unit = time_unit(max(times, default=None))
        places = min(3, common_places(time / size for time in times))
        shown: dict[Key, list[Cell]] = {key: [] for key in found}
        for parts in section.parts:
            keys = [key for key in found if key[1] == parts]
            for column in zip(*(all_reached[key] for key in keys), strict=True):
                cells = [
                    Cell(scaled(each.time_s, size, places), "" if each.always else f"{each.hits} of {each.seeds}")
                    if each.time_s
                    else Cell(NEVER, number=False)
                    for each in column
                ]
                own = [each.time_s.mean if each.always and each.time_s else None for each in column]
                for key, each, cell in zip(keys, column, bold_best(cells, own, highest=False), strict=True):
                    whole = Cell(scaled(each.prepared_s, size, places)) if each.prepared_s else Cell()
                    shown[key] += [cell, whole, Cell(f"{each.epochs.mean:,.0f}") if each.epochs else Cell()]
        headings = f"Time ({unit})", "With set-up", "Epochs"
        return Table(
            "Time to accuracy",
            prose("targets.table", unit=unit, metric=section.metric),
            "Method",
            tuple(Group(f"{100 * score:.1f} %", headings) for score in scores),
            by_parts(section, lambda variant, parts: shown.get((variant, parts), ())),
        )

    def figure(self) -> Figure | None:
        section, best = self.section, best_score(self.section)
        drawn: dict[Key, dict[float, float]] = {}
        for key, own in scored_trials(section).items():
            each = {score: reached(own, score) for score in (best * DRAWN).tolist()} if best else {}
            known = {score: found.time_s.mean for score, found in each.items() if found.always and found.time_s}
            drawn |= {key: known} if known else {}
        if not drawn:
            return None
        times = [time for line in drawn.values() for time in line.values()]
        size, unit = time_unit(max(times))
        x = Axis("score_percent", f"Validation {section.metric} to reach (%)")
        y = amount_axis(f"training_time_{unit}", f"Training time ({unit})", times)
        scaled_lines = {key: {100 * score: time / size for score, time in own.items()} for key, own in drawn.items()}
        dotted = Guide(x=[100 * score for score in targets(section)], dash=DOTTED)
        chart = Chart((Layer(lines(scaled_lines, x, y)),), x, y, guides=(dotted,))
        caption = prose("targets.figure")
        return make_figure(section, "targets", "Time to accuracy", caption, [chart], 3.6, share=("none", "all"))
