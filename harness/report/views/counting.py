"""Subgraphs that were drawn to be counted, before the training: how many a second, by threads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from harness.report.drawing import Picture, amount_axis, legend_rows, line_panels, mark, save, value_axis
from harness.report.sections import Variant, values_of
from harness.report.sweeps import THREADS
from harness.report.table import Cell, Group, Table, by_parts
from harness.report.views import ReportView, SweptView, variants_table
from harness.results.text import common_places, fixed, show_value, significant

REUSED = Cell("reused")


class CountingView(ReportView):
    """Subgraphs that were drawn to be counted, before the training: how many a second, by threads."""

    name = "counting"
    title = "Subgraphs counted"
    question = "What does it take to count subgraphs before the training?"
    place = 120
    shows = ("presampled", "presample_s", "presample_threads")

    def table(self) -> Table | None:
        """Subgraphs that were counted and the time that it took, a row a variant; None where nothing was."""
        section = self.section
        columns = "presampled", "presample_s", "presample_threads", "subgraphs_per_s"
        drawn, seconds, threads, rates = (values_of(section, column) for column in columns)

        def cells(variant: Variant, parts: int) -> Sequence[Cell]:
            key = variant, parts
            if key not in rates:
                return [Cell(f"{drawn[key].mean:,.0f}"), REUSED, REUSED, REUSED]
            return [
                Cell(f"{drawn[key].mean:,.0f}"),
                Cell(significant(seconds[key].mean)),
                Cell(f"{threads[key].mean:g}"),
                Cell(significant(rates[key].mean)),
            ]

        return variants_table(
            section,
            "Subgraphs counted before the training",
            "Drawn and induced, to learn how often there are nodes and edges; “reused”: an earlier trial had "
            "counted them. Wall time; means over seeds.",
            ("Subgraphs", "Seconds", "Threads", "Subgraphs / s"),
            cells,
            drawn,
        )


class SweptCountingView(SweptView):
    """Subgraphs counted a second by threads."""

    name = "swept-counting"
    anchor = "counted"
    title = "Subgraphs counted a second"
    question = "How much faster do more threads count subgraphs?"
    place = 40

    def table(self) -> Table | None:
        """Subgraphs counted a second by threads, and the speed-up; None if that was not swept."""
        swept = self.swept
        rates = swept.values_of("subgraphs_per_s") if swept.axis is THREADS else {}
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
            "Subgraphs counted a second by threads",
            "Drawn and induced before the training, by as many threads as the training has; wall time, means "
            f"over seeds. Speed-up: own / that with threads = {heads[0]}.",
            "Method",
            (Group("Subgraphs / s, threads =", heads), Group("Speed-up (×), threads =", heads)),
            by_parts(swept.section, cells),
        )

    def figure(self) -> Picture | None:
        """Draw the subgraphs counted a second against the threads."""
        swept = self.swept
        rates = swept.values_of("subgraphs_per_s") if swept.axis is THREADS else {}
        if not rates:
            return None
        section, title = swept.section, "Subgraphs counted a second and threads"
        lines: dict[tuple[Variant, int], dict[float, float]] = defaultdict(dict)
        for (variant, parts, value), stat in rates.items():
            lines[variant, parts][value] = stat.mean
        height = 3.6 + 0.2 * legend_rows(section)
        figure = line_panels(section, title, height, lines, swept.axis.name, "subgraphs_per_s")
        axes = dict(zip(sorted({parts for _, parts in lines}), figure.axes, strict=True))
        for (variant, parts), line in lines.items():
            fewest, slowest = next(iter(line.items()))
            ideal = [slowest * threads / fewest for threads in line]
            drawn = axes[parts].plot(list(line), ideal, color=variant.style.colour, lw=0.8, ls=":", zorder=1)
            mark(drawn, variant, parts)
        for ax in figure.axes:
            value_axis(ax, swept.values, swept.axis.label)
        amount_axis(figure.axes[0], "Subgraphs / s", [stat.mean for stat in rates.values()])
        caption = "The numbers of the table above; dotted: as many times more as there are threads. Higher is better."
        return save(figure, section, "counted", title, caption)
