"""Throughput and speed-up against the number of parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from matplotlib.ticker import FixedLocator

from harness.report.drawing import Picture, amount_axis, draw_line, line_legend, mark, new_figure, save, set_ticks
from harness.report.sections import Section, Values, Variant, values_of
from harness.report.table import Cell, Table, column, grid, seeds_note
from harness.report.views import ReportView


class ScalingView(ReportView):
    """Throughput and speed-up against the number of parts."""

    name = "scaling"
    title = "Scaling"
    question = "What do more parts bring a method?"
    place = 30

    def table(self) -> Table | None:
        """Throughput, speed-up over a method's own fewest parts, and efficiency; None at one number of parts."""
        section = self.section
        rates = _scaling(section)
        if not rates:
            return None
        section = replace(section, variants=_several(section, rates))
        own = [[_own_speed_up(section, rates, v, parts) for v in section.variants] for parts in section.parts]
        efficiency = [
            [Cell(f"{100 * found[0] * found[1] / parts:.0f}") if found else Cell() for found in row]
            for parts, row in zip(section.parts, own, strict=True)
        ]
        return grid(
            section,
            "Throughput and speed-up by number of parts",
            f"Epochs per second = 1 / epoch time. {seeds_note(rates)} Speed-up: mean throughput / the method's "
            "own with the fewest parts that it was run on. Efficiency: speed-up / how many times as many parts; "
            "100 % is ideal, as long as a rank has cores or a GPU of its own. Bold: highest of the column.",
            {
                "Throughput (epochs/s)": column(section, rates, highest=True),
                "Speed-up over own fewest P (×)": [
                    [Cell(f"{found[0]:.2f}") if found else Cell() for found in row] for row in own
                ],
                "Efficiency (%)": efficiency,
            },
        )

    def figure(self) -> Picture | None:
        """Draw throughput (left) and speed-up over the fewest parts (right) against the number of parts."""
        section = self.section
        rates = _scaling(section)
        if not rates:
            return None
        shown = _several(section, rates)
        figure = new_figure(3.8, section, "Throughput and speed-up by parts", legend=True)
        left, right = figure.subplots(1, 2)
        for variant in shown:
            there = [(p, rates[variant, p]) for p in section.parts if (variant, p) in rates]
            x = ("P", [p for p, _ in there])
            draw_line(left, variant, None, x, ("epochs_per_s", [s.mean for _, s in there]), style=variant.style)
            if known := [(p, s.mean, s.std) for p, s in there if s.std is not None]:
                places, means, spread = zip(*known, strict=True)
                whiskers = left.errorbar(places, means, spread, color=variant.style.colour, ls="", capsize=2.5, lw=1)
                mark(whiskers, variant)
            ratios = [s.mean / there[0][1].mean for _, s in there]
            draw_line(right, variant, None, x, ("speed_up", ratios), style=variant.style)
        ends = np.array([section.parts[0], section.parts[-1]], dtype=float)
        right.plot(ends, ends / ends[0], color="#999999", lw=1, ls="--", zorder=1)
        for ax in (left, right):
            ax.set_xscale("log", base=2)  # doublings are at equal steps
            set_ticks(ax.xaxis, FixedLocator(list(section.parts)), "{:g}".format)
            ax.set_xlabel("Number of parts P (= ranks), log scale")
        amount_axis(left, "Throughput (epochs / s)", [stat.mean for stat in rates.values()])
        amount_axis(right, "Speed-up over own fewest P (×)", [])
        line_legend(figure, shown)
        caption = (
            "The numbers of the table above, mean over seeds; whisker: ± sample standard deviation; dashed: as "
            "many times faster as there are parts. Higher is better."
        )
        return save(figure, section, "scaling", "Throughput and speed-up by parts", caption)


def _scaling(section: Section) -> Values:
    """Return the throughputs of the methods that have them at two numbers of parts."""
    rates = values_of(section, "throughput_epochs_s")
    return {key: stat for key, stat in rates.items() if key[0] in _several(section, rates)}


def _several(section: Section, rates: Values) -> tuple[Variant, ...]:
    """Return the variants that were run on several numbers of parts."""
    return tuple(v for v in section.variants if sum(key[0] == v for key in rates) > 1)


def _own_speed_up(section: Section, rates: Values, variant: Variant, parts: int) -> tuple[float, int] | None:
    """Return the speed-up over the fewest parts of a variant, and those; None without either figure."""
    first = next((count for count in section.parts if (variant, count) in rates), None)
    if first is None or (variant, parts) not in rates or not rates[variant, first].mean:
        return None
    return rates[variant, parts].mean / rates[variant, first].mean, first
