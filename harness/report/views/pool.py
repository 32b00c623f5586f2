"""Batches that a pool is filled with while the training waits: how many a second, by threads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from harness.report.drawing import Picture, amount_axis, legend_rows, line_panels, mark, save, value_axis
from harness.report.sections import Variant
from harness.report.sweeps import THREADS
from harness.report.table import Cell, Group, Table, by_parts
from harness.report.views import SweptView
from harness.results.text import common_places, fixed, show_value


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

    def figure(self) -> Picture | None:
        """Draw the batches a second against the threads."""
        swept = self.swept
        rates = swept.values_of("pooled_per_s") if swept.axis is THREADS else {}
        if not rates:
            return None
        section, title = swept.section, "Batches of a pool a second and threads"
        lines: dict[tuple[Variant, int], dict[float, float]] = defaultdict(dict)
        for (variant, parts, value), stat in rates.items():
            lines[variant, parts][value] = stat.mean
        height = 3.6 + 0.2 * legend_rows(section)
        figure = line_panels(section, title, height, lines, swept.axis.name, "pooled_per_s")
        axes = dict(zip(sorted({parts for _, parts in lines}), figure.axes, strict=True))
        for (variant, parts), line in lines.items():
            fewest, slowest = next(iter(line.items()))
            ideal = [slowest * threads / fewest for threads in line]
            drawn = axes[parts].plot(list(line), ideal, color=variant.style.colour, lw=0.8, ls=":", zorder=1)
            mark(drawn, variant, parts)
        for ax in figure.axes:
            value_axis(ax, swept.values, swept.axis.label)
        amount_axis(figure.axes[0], "Batches / s", [stat.mean for stat in rates.values()])
        caption = "The numbers of the table above; dotted: as many times more as there are threads. Higher is better."
        return save(figure, section, "pool", title, caption)
