"""What the whole training of a method costs, and who has no better one for its score: the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from harness.metrics import Metric
from harness.report.plot import Axis, Entry, Mark, Panel, Plot, cost_axis, guide, line_entries, make_plot
from harness.report.sections import Section
from harness.report.table import Cell, Table, scale_of
from harness.report.values import Values, values_of
from harness.report.variants import Variant
from harness.report.views import ReportView, variants_table
from harness.report.views.sampling import score_mark
from harness.results.stats import common_places, percent


@dataclass(frozen=True)
class Cost:
    """One kind of cost: a metric of a section's trials, and what it is called of the whole training."""

    metric: Metric
    name: str


COSTS = {  # by metric: what is of the whole training has another name than an epoch's
    "epoch_time_s": "Training time", "counted_bytes": "Bytes sent", "peak_memory_bytes": "",
    "energy_gpu_j": "", "energy_cpu_j": "",
}  # fmt: skip
PEAKS = ("peak_memory_bytes",)


def costs(section: Section) -> dict[Cost, Values]:
    """Return the kinds of cost that a section's trials have above 0: of the whole training, over seeds."""
    frame = section.frame
    found = {}
    for column, name in COSTS.items():
        if column in frame:
            metric = section.metric_of(column)
            own = pd.to_numeric(frame[column]) * (1 if column in PEAKS else frame["epochs"])
            values = values_of(replace(section, frame=frame.assign(**{column: own})), column)
            if any(stat.mean for stat in values.values()):
                found[Cost(metric, name or metric.title)] = values
    return found


def front(scores: Mapping[Variant, float], amounts: Mapping[Variant, float]) -> list[Variant]:
    """Return the variants that no other beats in score without costing more, nor in cost with no lower score.

    By rising cost. Of equals in both, each is on the front. Those without an amount are left out.
    """
    there = [variant for variant in scores if variant in amounts]

    def beaten(variant: Variant) -> bool:
        own = scores[variant], -amounts[variant]
        others = ((scores[other], -amounts[other]) for other in there)
        return any(each != own and each[0] >= own[0] and each[1] >= own[1] for each in others)

    return sorted((v for v in there if not beaten(v)), key=lambda v: (amounts[v], scores[v]))


NOTHING = "none"


class ParetoView(ReportView):
    """What the whole training of a method costs, and who has no better one for its score: the Pareto front."""

    name = "pareto"
    title = "Accuracy and cost"
    question = "Who reaches most for the time, bytes, memory and energy of the whole training?"
    place = 180

    def table(self) -> Table | None:
        """Test score, the costs of the whole training, and on which fronts a method is; None without scores."""
        section = self.section
        found, score = costs(section), values_of(section, "test_at_best_val")
        if not found or not score:
            return None
        scales = {cost: scale_of(cost.metric, values) for cost, values in found.items()}
        places = {
            cost: min(3, common_places(stat.mean / scales[cost][0] for stat in values.values() if stat.mean))
            for cost, values in found.items()
        }
        on_front = fronts(section, found, score)

        def cells(variant: Variant, parts: int) -> Sequence[Cell]:
            key = variant, parts
            amounts = [
                Cell(f"{values[key].mean / scales[cost][0]:,.{places[cost]}f}") if key in values else Cell()
                for cost, values in found.items()
            ]
            on = [cost.name.lower() for cost in found if variant in on_front.get((cost, parts), ())]
            return [Cell(percent(score[key])), *amounts, Cell(", ".join(on) or NOTHING, number=False)]

        heads = (
            f"Test {section.metric} (%)",
            *(f"{cost.name} ({unit})" for cost, (_, unit) in scales.items()),
            "On the front of",
        )
        return variants_table(
            section,
            "Accuracy and cost",
            "Of the whole training, means over seeds: time = epochs × epoch time, bytes between all ranks and "
            "energy likewise; peak memory of the rank that has most. On the front of a cost: no other method "
            f"at that P reaches as much for less, or more for as much; “{NOTHING}”: for every cost there is a "
            "better one. The means decide, however close: see the deviations.",
            heads,
            cells,
            score,
        )

    def figure(self) -> Plot | None:
        """Return the test score against each cost, a row a number of parts; None without scores."""
        section = self.section
        found, score = costs(section), values_of(section, "test_at_best_val")
        on_front = fronts(section, found, score)
        on_front = {key: own for key, own in on_front.items() if own}
        shown = [v for v in section.variants if any(v == key[0] for key in score)]
        if not on_front or len(shown) < 2:
            return None
        kinds = [cost for cost in found if any(cost == own for own, _ in on_front)]
        rows = [
            [
                cost_panel(section, parts, cost, found[cost], score, best) if best else None
                for cost in kinds
                for best in [on_front.get((cost, parts))]
            ]
            for parts in sorted({parts for _, parts in on_front})
        ]
        caption = (
            "Each method by what its whole training costs and what it reaches: the numbers of the table above, "
            "mean over seeds, whisker: ± sample standard deviation. Filled and joined by the dashed line: no "
            "other method reaches as much for less. Up and left is better."
        )
        title, height = "Accuracy and cost", 0.9 + 2.7 * len(rows)
        entries = entries_of(shown)
        return make_plot(section, "pareto", title, caption, rows, height, entries=entries, share=("none", "row"))


def entries_of(shown: Sequence[Variant]) -> tuple[Entry, ...]:
    """Return the legend's entries of methods, and of the front."""
    return (*line_entries(shown, "point"), Entry("front", FRONT, "path"))


FRONT = guide((0, (4, 2)))


def fronts(section: Section, found: dict[Cost, Values], score: Values) -> dict[tuple[Cost, int], list[Variant]]:
    """Return who is on the front of each cost and number of parts; none where nobody has that cost."""
    return {
        (cost, parts): front(
            {v: stat.mean for (v, own), stat in score.items() if own == parts},
            {v: stat.mean for (v, own), stat in values.items() if own == parts},
        )
        for cost, values in found.items()
        for parts in section.parts
        if any(own == parts and stat.mean for (_, own), stat in values.items())
    }


def cost_panel(
    section: Section, parts: int, cost: Cost, amounts: Values, score: Values, best: Sequence[Variant]
) -> Panel:
    """Return a panel of the score of methods against a cost; `best`: who is on the front."""
    size, unit = scale_of(cost.metric, amounts)
    label = f"{cost.name} ({unit})"
    there = [v for v, own in score if own == parts and (v, parts) in amounts]
    at = {v: amounts[v, parts].mean / size for v in there}
    x, y = [at[v] for v in best], [100 * score[v, parts].mean for v in best]
    marks = [score_mark((v, parts), (label, at[v]), score[v, parts], on=v in best) for v in there]
    front = Mark("front", None, parts, ("", x), ("", y), style=FRONT)
    across, up = cost_axis(label, list(at.values())), Axis(f"Test {section.metric} (%)")
    return Panel(across, up, (front, *marks), parts)
