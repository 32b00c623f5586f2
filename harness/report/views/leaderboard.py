"""Which method to use: all of them side by side, and those with no better one for their score: the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from harness.metrics import Metric
from harness.report.figure import Axis, Chart, Figure, Layer, cost_axis, deviation, guide_style, make_figure, tidy
from harness.report.sections import Section
from harness.report.table import Cell, Group, Key, Row, Table, heading, missing, scale_of, stand, variants_table
from harness.report.values import Values, counted_units, values_of
from harness.report.variants import Variant
from harness.report.views import ReportView, prose
from harness.report.views.answer import AnswerView
from harness.report.views.convergence import RISING, not_converged
from harness.results.stats import Stat, common_places, percent, scaled

COSTS = {  # by metric: what is of the whole training has another name than an epoch's
    "epoch_time_s": "Training time", "counted_bytes": "Bytes sent", "peak_memory_bytes": "",
    "energy_gpu_j": "", "energy_cpu_j": "",
}  # fmt: skip
PEAKS = ("peak_memory_bytes",)
NOTHING = "none"
FRONT = {"front": guide_style((0, (4, 2)))}  # line of the legend


def costs(section: Section) -> dict[Metric, Values]:
    """Return the kinds of cost that a section's trials have above 0: of the whole training, over seeds."""
    frame = section.frame
    found = {}
    for column, name in COSTS.items():
        if column in frame:
            metric = section.metric_of(column)
            own = pd.to_numeric(frame[column]) * (1 if column in PEAKS else frame["epochs"])
            values = values_of(replace(section, frame=frame.assign(**{column: own})), column)
            if any(stat.mean for stat in values.values()):
                found[replace(metric, heading=name or metric.heading)] = values
    return found


def front(scores: Mapping[Variant, float], amounts: Mapping[Variant, float]) -> list[Variant]:
    """Return the variants that no other surpasses in score without costing more, nor in cost with no lower score.

    By rising cost. Of equals in both, each is on the front. Those without an amount are left out.
    """
    there = [variant for variant in scores if variant in amounts]

    def beaten(variant: Variant) -> bool:
        own = scores[variant], -amounts[variant]
        others = ((scores[other], -amounts[other]) for other in there)
        return any(each != own and each[0] >= own[0] and each[1] >= own[1] for each in others)

    return sorted((v for v in there if not beaten(v)), key=lambda v: (amounts[v], scores[v]))


class ParetoView(ReportView):
    """Which methods reach most for the time, bytes, memory and energy of the whole training?"""

    name = "pareto"
    title = "Accuracy and cost"
    place = 180

    def table(self) -> Table | None:
        section = self.section
        found, score = costs(section), values_of(section, "test_at_best_val")
        if not found or not score:
            return None
        on_front = fronts(section, found, score)
        columns = {f"Test {section.metric} (%)": {key: Cell(percent(stat)) for key, stat in score.items()}}
        for cost, values in found.items():
            size, unit = scale_of(cost, values)
            places = min(3, common_places(stat.mean / size for stat in values.values() if stat.mean))
            own = {key: Cell(f"{stat.mean / size:,.{places}f}") for key, stat in values.items()}
            columns[f"{cost.title} ({unit})"] = own
        columns["On the front of"] = {
            (v, parts): Cell(
                ", ".join(cost.title.lower() for cost in found if v in on_front.get((cost, parts), ())) or NOTHING,
                number=False,
            )
            for v, parts in score
        }
        return variants_table(
            section, "Accuracy and cost", prose("pareto.table", nothing=NOTHING), columns, score, absent=Cell()
        )

    def figure(self) -> Figure | None:
        section = self.section
        found, score = costs(section), values_of(section, "test_at_best_val")
        on_front = {key: own for key, own in fronts(section, found, score).items() if own}
        if not on_front or len({v for v, _ in score}) < 2:
            return None
        rows = [
            [
                cost_chart(section, parts, cost, found[cost], score, on_front[cost, parts])
                if (cost, parts) in on_front
                else None
                for cost in found
                if any(cost == own for own, _ in on_front)
            ]
            for parts in sorted({parts for _, parts in on_front})
        ]
        caption = prose("pareto.figure")
        height = 0.9 + 2.7 * len(rows)
        return make_figure(
            section, "pareto", "Accuracy and cost", caption, rows, height, keys=FRONT, share=("none", "row")
        )


def fronts(section: Section, found: dict[Metric, Values], score: Values) -> dict[tuple[Metric, int], list[Variant]]:
    """Return the front of each cost and number of parts; none where no method has that cost."""
    return {
        (cost, parts): front(
            {v: stat.mean for (v, own), stat in score.items() if own == parts},
            {v: stat.mean for (v, own), stat in values.items() if own == parts},
        )
        for cost, values in found.items()
        for parts in section.parts
        if any(own == parts and stat.mean for (_, own), stat in values.items())
    }


def cost_chart(
    section: Section, parts: int, cost: Metric, amounts: Values, score: Values, best: Sequence[Variant]
) -> Chart:
    """Return a chart of the score of methods against a cost; `best`: those on the front."""
    size, unit = scale_of(cost, amounts)
    label, there = f"{cost.title} ({unit})", [v for v, own in score if own == parts and (v, parts) in amounts]
    x = cost_axis(label, [amounts[v, parts].mean / size for v in there])
    data = tidy(
        (v, parts, {label: amounts[v, parts].mean / size, **score_columns(score[v, parts]), "front": v in best})
        for v in there
    )
    y = Axis("score_percent", f"Test {section.metric} (%)")
    return Chart((Layer(data, "points", ("sd",)),), x, y, "", title=f"P = {parts}", parts=parts, front=True)


def score_columns(score: Stat) -> dict[str, float | None]:
    """Return the columns of a score: percent, its deviation, and the seeds behind it."""
    return {"score_percent": 100 * score.mean, **deviation(score, 0.01)}


COLUMNS = (
    ("best_val",), ("test_at_best_val",), ("epoch_time_s",), ("counted_bytes",),
    ("peak_above_base_bytes", "peak_memory_bytes"), ("energy_cpu_j",), ("energy_gpu_j",),
)  # fmt: skip
"""Metrics, a column each: of several the first that was measured."""


class LeaderboardView(ReportView):
    """Which method should be used, by its time, score, bytes, memory and energy?"""

    name = "leaderboard"
    title = "Leaderboard"
    place = 2
    first = True
    chart = True

    def table(self) -> Table | None:
        section, answer = self.section, AnswerView(self.section)
        tried = [(v, parts) for parts in section.parts for v in section.tried(parts)]
        keys = [key for key in tried if key not in answer.repeated]
        if len(keys) < 2 or section.ok.empty:
            return None
        columns: dict[str, Mapping[Key, Cell]] = {}
        if answer.rows:
            columns[f"To {100 * (section.target or 0):.1f} % ({answer.unit[1]})"] = answer.written(answer.rows)
            columns["Behind"] = answer.distances(answer.rows)
        known = [[name for name in names if values_of(section, name)] for names in COLUMNS]
        rising = not_converged(section)
        for name in (names[0] for names in known if names):
            head, cells = self._column(name)
            marked = {k: replace(c, note=RISING) if k in rising else c for k, c in cells.items()}
            columns[head] = marked if name == "best_val" else cells
        medians, scores = answer.medians, values_of(section, "best_val")

        def order(key: Key) -> tuple[float, float]:
            median, score = medians.get(key), scores.get(key)
            return median.centre if median else float("inf"), -score.mean if score else 0.0

        several = len(section.parts) > 1
        rows = [
            Row(
                f"{key[0].label}, P = {key[1]}" if several else key[0].label,
                tuple(cells.get(key, Cell(number=False)) for cells in columns.values()),
                *key,
            )
            for key in sorted(keys, key=order)
        ]
        counts = [len(section.select(*key)) for key in keys]
        least, most = min(filter(None, counts), default=0), max(counts)
        why = prose("leaderboard.rising") if rising else ""
        caption = prose(
            "leaderboard.table",
            parts="" if several else f"P = {section.parts[0]}, ",
            seeds=counted_units(most, "seed") if least == most else f"{least} to {most} seeds",
            target=f", {section.target_text}," if answer.rows else "",
            same=answer.same,
            rising=why,
        )
        return Table(f"Leaderboard, {section.title}", caption, "Method", (Group("", tuple(columns)),), tuple(rows))

    def figure(self) -> Figure | None:
        section, parts = self.section, self.section.compared_parts
        score = values_of(section, "test_at_best_val")
        timed = {cost: own for cost, own in costs(section).items() if cost.name == "epoch_time_s"}
        if parts is None or not timed:
            return None
        ((cost, amounts),) = timed.items()
        shown = [v for v in section.tried(parts) if (v, parts) in amounts and (v, parts) in score]
        if len(shown) < 2:
            return None
        best = fronts(section, {cost: amounts}, score)[cost, parts]
        chart = cost_chart(section, parts, cost, amounts, score, best)
        caption = prose("leaderboard.figure")
        return make_figure(section, "leaderboard", "Test score and training time", caption, [chart], 3.4, keys=FRONT)

    def _column(self, name: str) -> tuple[str, dict[Key, Cell]]:
        """Return the heading and the cells of a metric, the best of each number of parts marked."""
        section, metric = self.section, self.section.metric_of(name)
        stats = values_of(section, name)
        size, unit = scale_of(metric, stats)
        places = 2 if metric.difference else common_places(stat.mean / size for stat in stats.values())
        found: dict[Key, Cell] = {}
        for parts in section.parts:
            cells = {
                v: Cell(scaled(stats[v, parts], size, places)) if (v, parts) in stats else missing(section, v, parts)
                for v in section.tried(parts)
            }
            own = stand(section, name, parts, cells)
            found |= {(v, parts): replace(cell, among=str(parts)) for v, cell in own.items()}
        return heading(metric, unit), found
