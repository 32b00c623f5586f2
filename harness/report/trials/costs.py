"""What the whole training of a method costs, and who has no better one for its score: the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import pandas as pd

from harness.report.numbers import byte_unit, time_unit
from harness.report.trials.aggregate import Figures, figures_of
from harness.report.trials.sections import Section
from harness.report.trials.variants import Variant


@dataclass(frozen=True)
class Cost:
    """One kind of cost: a column of a section's trials, an epoch's or (`peak`) the whole training's."""

    name: str
    column: str
    unit: Literal["s", "B", "J"]
    peak: bool = False

    def scale(self, figures: Figures) -> tuple[float, str]:
        """Return the unit in which to show the figures: its size and name."""
        largest = max((stat.mean for stat in figures.values()), default=None)
        if self.unit == "s":
            return time_unit(largest)
        return byte_unit(largest) if self.unit == "B" else (1.0, "J")


COSTS = (
    Cost("Training time", "epoch_time_s", "s"),
    Cost("Bytes sent", "counted_bytes", "B"),
    Cost("Peak memory", "peak_memory_bytes", "B", peak=True),
    Cost("GPU energy", "energy_gpu_j", "J"),
    Cost("CPU energy", "energy_cpu_j", "J"),
)


def costs(section: Section) -> dict[Cost, Figures]:
    """Return the kinds of cost that a section's trials have above 0: of the whole training, over seeds."""
    frame = section.frame
    found = {}
    for cost in COSTS:
        if cost.column in frame:
            own = pd.to_numeric(frame[cost.column]) * (1 if cost.peak else frame["epochs"])
            whole = replace(section, frame=frame.assign(**{cost.column: own}))
            figures = figures_of(whole, cost.column)
            if any(stat.mean for stat in figures.values()):
                found[cost] = figures
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
