"""What an epoch and a step are made of: phases, and the effect of a swept setting."""

from __future__ import annotations

from collections.abc import Sequence

from harness.metrics import BOUNDED
from harness.report.figure import Chart, Figure, Guide, Layer, amount_axis, make_figure, stacked_bars, tidy, value_axis
from harness.report.palette import PHASES
from harness.report.sections import Section
from harness.report.sweeps import THREADS, Swept
from harness.report.table import (
    Cell,
    Cells,
    Group,
    Row,
    Table,
    by_parts,
    components_table,
    number_cells,
    parts_heading,
    variants_table,
)
from harness.report.values import component_columns, components, largest_total, totals, values_of
from harness.report.variants import Variant
from harness.report.views import ReportView, SweptView, prose
from harness.results.stats import ENOUGH, Stat, common_places, scaled, show_value, time_unit

HIDEABLE = ("fetch", "comm")  # phases that are shorter than their least time where they go on behind others


class BreakdownView(ReportView):
    """Which phases is an epoch made of?"""

    name = "breakdown"
    title = "Time breakdown"
    place = 40

    def table(self) -> Table | None:
        section = self.section
        phases = components(section, "phase")
        size, unit = time_unit(largest_total(phases))
        return components_table(
            section,
            phases,
            size,
            f"Time breakdown ({unit} per epoch)",
            prose("breakdown.table", barriers=_barriers(section)),
        )

    def figure(self) -> Figure | None:
        section = self.section
        if not (phases := components(section, "phase")):
            return None
        size, unit = time_unit(largest_total(phases))
        caption = prose("breakdown.figure")
        title, scale = "Time breakdown of an epoch", (size, f"Time per epoch ({unit})")
        return stacked_bars(section, "breakdown", title, caption, phases, PHASES, scale)

    def details(self) -> dict[str, Table | None]:
        """Return which share of the machine's rates the phases reach, where those were measured."""
        section, columns, above = self.section, dict[str, Cells](), ""
        least = {phase: values_of(section, f"least_{phase}_s") for phase in BOUNDED}
        times = {phase: values_of(section, f"time_{phase}_s") for phase in BOUNDED} | {
            "Epoch": values_of(section, "epoch_time_s")
        }
        for phase in HIDEABLE:
            whole = {key: times[phase][key].mean for key in least[phase] if key in times[phase]}
            least[phase] = {key: own for key, own in least[phase].items() if own.mean <= whole.get(key, 0.0)}
        for phase, own in (least | {"Epoch": totals(least)}).items():
            means = {key: stat.mean if isinstance(stat, Stat) else stat for key, stat in own.items()}
            shares = {key: 100 * mean / times[phase][key].mean for key, mean in means.items() if mean}
            if shares:
                columns[f"{phase} (%)"] = number_cells(shares, places=0)
                above = prose("breakdown.above") if max(shares.values()) > 100 else above
        title, caption = "Share of the machine's rates", prose("breakdown.rates", above=above)
        among = columns.get("Epoch (%)", {})
        return {"rates": variants_table(section, title, caption, columns, among, absent=Cell())}


def _barriers(section: Section) -> str:
    """Say in which epochs phases were measured, and what that costs."""
    if not section.ok["timing"].eq("breakdown").any():
        return "Without barriers (timing: plain) the time that a rank waits for slower ones is inside comm and reduce."
    cost = ""
    known = 100 * section.ok["barrier_cost"].dropna()
    if len(known):
        low, high = f"{known.min():+.1f} %", f"{known.max():+.1f} %"
        cost = f"; the barriers change its median by {low if low == high else f'{low} to {high}'}"
    return prose("breakdown.barriers", cost=cost)


class SweptBreakdownView(BreakdownView):
    """Which phases does a setting change?"""

    name = "swept-breakdown"
    anchor = "breakdown"
    place = 20
    of = "sweep"

    def __init__(self, swept: Swept) -> None:
        super().__init__(swept.unfolded())


Points = dict[tuple[Variant, int, float], Stat]


class StepView(SweptView):
    """What does a setting do to the time of a step?"""

    name = "step"
    title = "Time of a step"
    place = 10

    def table(self) -> Table | None:
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
        few = swept.section.ok["too_short"].eq(True).any()
        short = f" Some medians are of fewer than {ENOUGH} epochs." if few else ""
        return Table(
            f"Time of a step by {name}",
            prose("step.table", rule=rule, short=short),
            "Method",
            tuple(Group(title, heads) for title in titles),
            by_parts(swept.section, cells),
        )

    def figure(self) -> Figure | None:
        swept = self.swept
        section, times = swept.section, swept.values_of("step_time_s")
        if not times:
            return None
        size, unit = time_unit(max(stat.mean for stat in times.values()))
        name = swept.axis.name
        ratios = {key: ratio for key in times if (ratio := relative(swept, times, key))}
        step, relation = f"step ({unit})", "to the first"
        upper = tidy((v, p, {name: x, step: s.mean / size, "seeds": s.n}) for (v, p, x), s in times.items())
        lower = tidy((v, p, {name: x, relation: own}) for (v, p, x), own in ratios.items())
        x = value_axis(name, swept.axis.label, swept.values)
        ideal = Guide(x=swept.values, y=[value / swept.values[0] for value in swept.values])
        charts = [
            Chart((Layer(upper),), x, amount_axis(step, f"Step ({unit})", [stat.mean for stat in times.values()])),
            Chart(
                (Layer(lower),),
                x,
                amount_axis(relation, _ratio_name(swept)),
                guides=(ideal,) if swept.axis is THREADS else (),
            ),
        ]
        caption = f"Above: the times of the table above; below: {_ratio_name(swept)} as there" + (
            "; dashed: as many times faster as there are threads." if swept.axis is THREADS else "."
        )
        return make_figure(section, "step", f"Time of a step and {name}", caption, charts, 6.6)

    def details(self) -> dict[str, Table | None]:
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
    """Return the speed-up of each phase and of all of them, a row a variant and number of threads but the first."""
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
        prose("step.phases", name=swept.axis.name, first=show_value(swept.values[0])),
        "Method",
        (Group("", (*columns, "Total")),),
        tuple(rows),
    )
