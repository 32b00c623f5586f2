"""A step against a swept setting: its time, what that is made of, and the nodes of its layers."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report.plot import Mark, Panel, Plot, amount_axis, guide, make_plot, value_axis
from harness.report.sweeps import THREADS, Swept
from harness.report.table import Cell, Group, Row, Table, by_parts, parts_heading
from harness.report.values import component_columns, totals
from harness.report.variants import Variant
from harness.report.views import SweptView
from harness.results.stats import ENOUGH, Stat, common_places, scaled, show_value, time_unit

Points = dict[tuple[Variant, int, float], Stat]


class StepView(SweptView):
    """A step against a swept setting: its time, what that is made of, and the nodes of its layers."""

    name = "step"
    title = "Time of a step"
    question = "What does a setting do to the time of a step?"
    place = 10

    def table(self) -> Table | None:
        """Time of a step, relative to the first value's, and the share of it that goes into sampling."""
        swept = self.swept
        times = swept.values_of("step_time_s")
        if not times:
            return None
        size, unit = time_unit(max(stat.mean for stat in times.values()))
        places = min(3, common_places(stat.mean / size for stat in times.values()))
        phases = {name: swept.values_of(column) for name, column in component_columns(swept.section, "phase").items()}
        sums = totals(phases)
        shares = {key: stat.mean / sums[key] for key, stat in phases.get("sample", {}).items() if sums[key]}
        heads = tuple(show_value(value) for value in swept.values)

        def cells(variant: Variant, parts: int) -> Sequence[Cell]:
            keys = [(variant, parts, value) for value in swept.values]
            return [
                *(Cell(scaled(times[key], size, places)) if key in times else Cell() for key in keys),
                *(Cell(f"{ratio:.2f}") if (ratio := relative(swept, times, key)) else Cell() for key in keys),
                *(Cell(f"{100 * shares[key]:.1f}") if key in shares else Cell() for key in keys),
            ]

        name, first = swept.axis.name, f"{swept.axis.name} = {heads[0]}"
        titles = (f"Step ({unit}), {name} =", f"{_ratio_name(swept)}, {name} =", f"Sampling (%), {name} =")
        rule = f"Relative: own time of a step / that with {first}"
        if swept.axis is THREADS:
            rule = f"Speed-up: time of a step with {first} / own"
        # One disturbance moves a median of so few.
        short = (
            f" Some medians are of fewer than {ENOUGH} epochs." if swept.section.ok["too_short"].eq(True).any() else ""
        )
        return Table(
            f"Time of a step by {name}",
            "Epoch time / steps, of each trial the median over its epochs, mean over seeds. "
            f"{rule}. Sampling: phase “sample” / all phases.{short}",
            "Method",
            tuple(Group(title, heads) for title in titles),
            by_parts(swept.section, cells),
        )

    def figure(self) -> Plot | None:
        """Return the time of a step, and beside it what that is to the first value's, against the setting."""
        swept = self.swept
        section, times = swept.section, swept.values_of("step_time_s")
        shown = sorted({parts for _, parts, _ in times})
        if not shown:
            return None
        size, unit = time_unit(max(stat.mean for stat in times.values()))
        title = f"Time of a step and {swept.axis.name}"
        across = value_axis(swept.axis.label, swept.values)
        rows = []
        for parts in shown:
            left, right = [], []
            for variant in section.variants:
                own = {x: stat for x in swept.values if (stat := times.get((variant, parts, x)))}
                ratios = {x: ratio for x in own if (ratio := relative(swept, times, (variant, parts, x)))}
                seeds, x, name = [stat.n for stat in own.values()], list(own), swept.axis.name
                y = (f"step ({unit})", [stat.mean / size for stat in own.values()])
                left.append(Mark("line", variant, parts, (name, x), y, seeds=seeds))
                y = ("to the first", list(ratios.values()))
                right.append(Mark("line", variant, parts, (name, list(ratios)), y))
            if swept.axis is THREADS:
                ideal = [value / swept.values[0] for value in swept.values]
                right.append(Mark("line", x=("", swept.values), y=("", ideal), style=guide(), bare=True))
            amounts = [times[key].mean for key in times if key[1] == parts]
            ups = amount_axis(f"Step ({unit})", amounts), amount_axis(_ratio_name(swept))
            own_marks = zip(ups, (left, right), strict=True)
            rows.append([Panel(across, up, tuple(marks), parts) for up, marks in own_marks])
        caption = f"Left: the times of the table above; right: {_ratio_name(swept)} as there" + (
            "; dashed: as many times faster as there are threads." if swept.axis is THREADS else "."
        )
        return make_plot(section, "step", title, caption, rows, 0.6 + 3.0 * len(shown))

    def details(self) -> dict[str, Table | None]:
        """See `ReportView`."""
        return {"phases": phase_table(self.swept)}


def relative(swept: Swept, times: Points, key: tuple[Variant, int, float]) -> float | None:
    """Return what a step's time is to the first value's; of threads the inverse, a speed-up."""
    base, own = times.get((*key[:2], swept.values[0])), times.get(key)
    if not (base and own and base.mean and own.mean):
        return None
    return base.mean / own.mean if swept.axis is THREADS else own.mean / base.mean


def _ratio_name(swept: Swept) -> str:
    return "Speed-up (×)" if swept.axis is THREADS else "Relative (×)"


def phase_table(swept: Swept) -> Table | None:
    """Speed-up of each phase and of all of them, a row a variant and number of threads but the first."""
    columns = component_columns(swept.section, "phase")
    if swept.axis is not THREADS or not columns:
        return None
    values = {name: swept.values_of(column) for name, column in columns.items()}

    def sums(key: tuple[Variant, int, float]) -> list[float]:
        own = [found[key].mean if key in found else 0.0 for found in values.values()]
        return [*own, sum(own)]

    rows: list[Row] = []
    for parts in swept.section.parts:
        rows.append(parts_heading(parts))
        for variant in swept.section.variants:
            base = sums((variant, parts, swept.values[0]))
            for value in swept.values[1:]:
                own = sums((variant, parts, value))
                shown = [Cell(f"{b / o:.2f}") if b and o else Cell() for b, o in zip(base, own, strict=True)]
                label = f"{variant.label}, {swept.axis.name}={show_value(value)}"
                rows += [Row(label, tuple(shown), variant)] if any(own) and any(base) else []
    return Table(
        "Speed-up of phases",
        f"Seconds of the phase with {swept.axis.name} = {show_value(swept.values[0])} / with more, means "
        "over epochs and seeds; where an epoch has equally many steps, this is that of a step.",
        "Method",
        (Group("", (*columns, "Total")),),
        tuple(rows),
    )
