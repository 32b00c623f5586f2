"""Which method to use: time, score, bytes, memory and energy of every method, side by side."""

from __future__ import annotations

from collections.abc import Mapping

from harness.report.figure import Figure, make_figure
from harness.report.table import Cell, Group, Row, Table, heading, mark_best, missing, scale_of
from harness.report.values import Comparison, by_seed, counted_units, values_of
from harness.report.variants import Variant
from harness.report.views import ReportView, prose
from harness.report.views.answer import AnswerView
from harness.report.views.pareto import FRONT, cost_chart, costs, fronts
from harness.results.contrast import mean_reach
from harness.results.stats import CONFIDENCE, common_places

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
        section, parts = self.section, self.section.compared_parts
        if parts is None:
            return None
        answer, columns = AnswerView(section), dict[str, Mapping[Variant, Cell]]()
        if section.target is not None and any(count == parts for _, count in answer.times):
            columns[f"To {100 * section.target:.1f} % ({answer.unit[1]})"] = answer.written(parts)
            columns["Behind"] = answer.distances(parts)
        known = [[name for name in names if values_of(section, name)] for names in COLUMNS]
        columns |= dict(self._column(names[0], parts) for names in known if names)
        medians, scores = answer.medians, values_of(section, "best_val")

        def order(variant: Variant) -> tuple[float, float]:
            median, score = medians.get((variant, parts)), scores.get((variant, parts))
            return median.centre if median else float("inf"), -score.mean if score else 0.0

        rows = [
            Row(v.label, tuple(cells.get(v, Cell(number=False)) for cells in columns.values()), v, parts)
            for v in sorted(section.tried(parts), key=order)
        ]
        counts = [len(section.select(v, parts)) for v in section.tried(parts)]
        least, most = min(filter(None, counts), default=0), max(counts)
        seeds = counted_units(most, "seed") if least == most else f"{least} to {most} seeds"
        caption = prose("leaderboard.table", parts=parts, seeds=seeds)
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

    def _column(self, name: str, parts: int) -> tuple[str, dict[Variant, Cell]]:
        """Return the heading and the cells of a metric."""
        section, metric = self.section, self.section.metric_of(name)
        stats = {v: stat for (v, count), stat in values_of(section, name).items() if count == parts}
        size, unit = scale_of(metric, values_of(section, name))
        places = 2 if metric.difference else common_places(stat.mean / size for stat in stats.values())
        ranks, ties = self._ranked(name, parts, {v: stat.mean for v, stat in stats.items()})
        cells = {}
        for variant in section.tried(parts):
            stat = stats.get(variant)
            if stat is None:
                cells[variant] = missing(section, variant, parts)
                continue
            reach = None if metric.exact else mean_reach(list(by_seed(section, variant, parts, name)), 1 - CONFIDENCE)
            text = f"{stat.mean / size:,.{places}f}" + (f" ± {reach / size:,.{places}f}" if reach is not None else "")
            cells[variant] = Cell(text, rank=ranks[variant], ties=ties[variant])
        return heading(metric, unit), dict(zip(cells, mark_best(list(cells.values())), strict=True))

    def _ranked(
        self, name: str, parts: int, means: Mapping[Variant, float]
    ) -> tuple[dict[Variant, int], dict[Variant, tuple[int, ...]]]:
        """Return the rank of each variant, and the better ranks from which it does not differ significantly."""
        more = self.section.metric_of(name).better == "more"
        order = sorted(means, key=lambda v: -means[v] if more else means[v])
        places = list(dict.fromkeys(means[v] for v in order))
        ranks = {v: places.index(means[v]) for v in order}
        comparison = Comparison(self.section, parts, name)
        ties: dict[Variant, list[int]] = {v: [] for v in order}
        for rank, mean in enumerate(places):
            best = next(v for v in order if means[v] == mean)
            if others := [v for v in order if ranks[v] > rank]:
                found = comparison.against(best, others, len(order) - 1)
                for other in others:
                    if not found.behind(other):
                        ties[other].append(rank)
        return ranks, {v: tuple(own) for v, own in ties.items()}
