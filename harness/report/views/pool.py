"""Batches that a pool is filled with while the training waits: how many a second, by threads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from harness.report.plot import DOTTED, Mark, Plot, amount_axis, line_row, make_plot, value_axis
from harness.report.sweeps import THREADS
from harness.report.table import Cell, Group, Table, by_parts
from harness.report.variants import Variant
from harness.report.views import SweptView
from harness.results.stats import common_places, fixed, show_value


class SweptPoolView(SweptView):
    """Batches that a pool is filled with a second, by threads."""

    name = "swept-pool"
    anchor = "pool"
    title = "Batches of a pool a second"
    question = "How much faster do more threads fill a pool?"
    place = 40

    def table(self) -> Table | None:
        """Batches drawn a second by threads, and the speed-up; None if that was not swept."""
        swept = self.swept
        rates = swept.values_of("pooled_per_s") if swept.axis is THREADS else {}
        if not rates:
            return None
        places = min(1, common_places(stat.mean for stat in rates.values()))
        heads = tuple(show_value(value) for value in swept.values)

        def cells(variant: Variant, parts: int) -> Sequence[Cell]:
            own = [rates.get((variant, parts, value)) for value in swept.values]
            if not any(own):
                return ()
            base = own[0]
            return [
                *(Cell(fixed(stat.mean, places)) if stat else Cell() for stat in own),
                *(Cell(f"{stat.mean / base.mean:.2f}") if stat and base else Cell() for stat in own),
            ]

        return Table(
            "Batches of a pool a second by threads",
            "Drawn while the training waits, by as many threads as a rank has: steps / phase “sample”, of each trial "
            f"the median epoch's, means over seeds. Speed-up: own / that with threads = {heads[0]}.",
            "Method",
            (Group("Batches / s, threads =", heads), Group("Speed-up (×), threads =", heads)),
            by_parts(swept.section, cells),
        )

    def figure(self) -> Plot | None:
        """Return the batches a second against the threads."""
        swept = self.swept
        rates = swept.values_of("pooled_per_s") if swept.axis is THREADS else {}
        if not rates:
            return None
        section, title = swept.section, "Batches of a pool a second and threads"
        lines: dict[tuple[Variant, int], dict[float, float]] = defaultdict(dict)
        for (variant, parts, value), stat in rates.items():
            lines[variant, parts][value] = stat.mean
        across = swept.axis.name, value_axis(swept.axis.label, swept.values)
        up = "pooled_per_s", amount_axis("Batches / s", [stat.mean for stat in rates.values()])
        panels = [
            replace(panel, marks=(*(_ideal(mark) for mark in panel.marks), *panel.marks))
            for panel in line_row(lines, across, up)
        ]
        caption = "The numbers of the table above; dotted: as many times more as there are threads. Higher is better."
        return make_plot(section, "pool", title, caption, [panels], 3.6, share=("none", "all"))


def _ideal(line: Mark) -> Mark:
    """Return what a line would be if each thread drew as many batches."""
    (_, threads), (_, rates) = line.x, line.y
    ideal = [rates[0] * count / threads[0] for count in threads]
    style = replace(line.look, dash=DOTTED)
    return replace(line, x=("", threads), y=("", ideal), style=style, bare=True, told=False)
