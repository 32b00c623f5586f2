"""Throughput and speed-up against the number of parts."""

from __future__ import annotations

from dataclasses import replace

from harness.report.plot import Axis, Mark, Panel, Plot, amount_axis, guide, make_plot
from harness.report.sections import Section
from harness.report.table import Cell, Table, column, grid, seeds_note
from harness.report.values import Values, values_of
from harness.report.variants import Variant
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

    def figure(self) -> Plot | None:
        """Return throughput (left) and speed-up over the fewest parts (right) against the number of parts."""
        section = self.section
        rates = _scaling(section)
        if not rates:
            return None
        shown = _several(section, rates)
        left, right = [], []
        for variant in shown:
            there = [(p, rates[variant, p]) for p in section.parts if (variant, p) in rates]
            x, stats = [p for p, _ in there], [stat for _, stat in there]
            means, spread = [s.mean for s in stats], [s.std or 0.0 for s in stats]
            low, high = ([m + way * d for m, d in zip(means, spread, strict=True)] for way in (-1, 1))
            y = ("epochs_per_s", means)
            left.append(Mark("line", variant, None, ("P", x), y, low, high, seeds=[s.n for s in stats]))
            right.append(Mark("line", variant, None, ("P", x), ("speed_up", [mean / means[0] for mean in means])))
        first, last = section.parts[0], section.parts[-1]
        ideal = Mark("line", x=("", [first, last]), y=("", [1.0, last / first]), style=guide(), bare=True)
        ticks = {float(parts): str(parts) for parts in section.parts}
        across = Axis("Number of parts P (= ranks), log scale", log=True, ticks=ticks, base=2)
        panels = [
            Panel(across, amount_axis("Throughput (epochs / s)", [s.mean for s in rates.values()]), tuple(left)),
            Panel(across, amount_axis("Speed-up over own fewest P (×)"), (ideal, *right)),
        ]
        caption = (
            "The numbers of the table above, mean over seeds; whisker: ± sample standard deviation; dashed: as "
            "many times faster as there are parts. Higher is better."
        )
        return make_plot(section, "scaling", "Throughput and speed-up by parts", caption, [panels], 3.8)


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
