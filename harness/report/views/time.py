"""How long an epoch takes, over all ranks and of each, and what more parts bring."""

from __future__ import annotations

from dataclasses import replace

from harness.report.columns import RANK, RANK_SUFFIX
from harness.report.figure import (
    MEANS,
    Axis,
    BarRow,
    Chart,
    Figure,
    Guide,
    Layer,
    against_baseline,
    amount_axis,
    deviation,
    grouped_bars,
    make_figure,
    tidy,
)
from harness.report.sections import Section
from harness.report.table import (
    Cell,
    Cells,
    Key,
    Table,
    column,
    grid,
    heading,
    number_cells,
    ratios,
    seeds_note,
    variants_table,
)
from harness.report.values import numbered, values_of
from harness.report.variants import Variant
from harness.report.views import ReportView, prose
from harness.report.warnings import explain_flags, flag_marks
from harness.results.stats import Stat, common_places, join_unique, time_unit

LISTED = 16  # ranks; of more only slowest, mean and fastest are shown


class EpochTimeView(ReportView):
    """How fast is an epoch, and how much faster than the baseline's?"""

    name = "time"
    title = "Epoch time"
    place = 20

    def table(self) -> Table:
        section = self.section
        times = values_of(section, "epoch_time_s")
        shown = column(section, "epoch_time_s")
        marked: Cells = {key: replace(cell, mark=flag_marks(section, *key)) for key, cell in shown.items()}
        columns = {heading(section.metric_of("epoch_time_s"), "s"): marked}
        rule = "No trials of a baseline, hence no speed-up."
        if baseline := section.baseline:
            rule = f"Speed-up: mean epoch time of {baseline.label} / that of the method, at equal P."
            columns["Speed-up (×)"] = ratios(times, baseline, lambda base, own: base / own, 2)
        timing = join_unique(section.ok["timing"])
        which = {
            "breakdown": " The epochs are those without barriers (timing: breakdown).",
            "wall": " Only whole epochs were timed (timing: wall), hence there are no phases.",
        }.get(timing, "")
        return grid(
            section,
            "Epoch time",
            prose(
                "time.table", which=which, seeds_note=seeds_note(times), rule=rule, explain_flags=explain_flags(section)
            ),
            columns,
        )

    def figure(self) -> Figure | None:
        section = self.section
        rates = values_of(section, "throughput_epochs_s")
        if not rates:
            return None
        shown = [BarRow("Throughput (epochs / s)", rates)]
        caption = (
            f"Epochs per second = 1 / epoch time of the table above (evaluation excluded); {MEANS}. Higher is better."
        )
        if section.baseline and (faster := against_baseline(section, rates, lambda own, base: own / base)):
            name = section.baseline.method
            shown.append(BarRow(f"Speed-up over {name} (×)", faster, base=1.0))
            caption += f" Below: mean throughput / that of {name} at equal P, of those that it was run on."
        return grouped_bars(section, "throughput", "Throughput", caption, shown)

    def details(self) -> dict[str, Table | None]:
        """Return the epoch time of every rank and their imbalance, of trials of more than one rank."""
        section = self.section
        ranks = numbered(section, RANK, RANK_SUFFIX)
        which = {name: values_of(section, f"rank_time_{name.lower()}_s") for name in ("Slowest", "Mean", "Fastest")}
        imbalance = values_of(section, "imbalance")
        size, unit = time_unit(max((stat.mean for stat in which["Slowest"].values()), default=None))
        places = common_places(stat.mean / size for stat in which["Fastest"].values())
        listed: dict[Key, Cell] = {}
        for key in imbalance:
            own = [f"{found[key].mean / size:,.{places}f}" for found in ranks if key in found]
            if own:
                text = ", ".join(own) if len(own) <= LISTED else f"{len(own)} ranks"
                listed[key] = Cell(text, number=False, wrap=len(own) <= LISTED)
        columns = {name: number_cells(found, size, places) for name, found in which.items()}
        columns |= {"Imbalance": number_cells(imbalance, places=2), "Ranks 0, 1, …": listed}
        title, among = f"Epoch time by rank ({unit})", [key for key in imbalance if key[1] > 1]
        return {"ranks": variants_table(section, title, prose("time.ranks"), columns, among)}


class ScalingView(ReportView):
    """What do more parts bring a method?"""

    name = "scaling"
    title = "Scaling"
    place = 30

    def table(self) -> Table | None:
        section = self.section
        scaling = _scaling(section)
        if not scaling:
            return None
        rates = {(v, parts): stat for v, found in scaling.items() for parts, stat in found.items()}
        own: dict[Key, float] = {}
        efficiency: Cells = {}
        for (variant, parts), stat in rates.items():
            fewest, first = next(iter(scaling[variant].items()))
            if first.mean:
                own[variant, parts] = ratio = stat.mean / first.mean
                efficiency[variant, parts] = Cell(f"{100 * ratio * fewest / parts:.0f}")
        section = replace(section, variants=tuple(scaling))
        return grid(
            section,
            "Throughput and speed-up by number of parts",
            prose("scaling.table", seeds_note=seeds_note(rates)),
            {
                "Throughput (epochs/s)": column(section, "throughput_epochs_s"),
                "Speed-up over own fewest P (×)": number_cells(own, places=2),
                "Efficiency (%)": efficiency,
            },
        )

    def figure(self) -> Figure | None:
        section = self.section
        own = _scaling(section)
        if not own:
            return None
        left = tidy(
            (v, None, {"P": p, "epochs_per_s": stat.mean, **deviation(stat)})
            for v, found in own.items()
            for p, stat in found.items()
        )
        right = tidy(
            (v, None, {"P": list(found), "speed_up": [s.mean / first.mean for s in found.values()]})
            for v, found in own.items()
            for first in [next(iter(found.values()))]
        )
        ends = section.parts[0], section.parts[-1]
        ticks = {float(parts): str(parts) for parts in section.parts}
        x = Axis("P", "Number of parts P (= ranks), log scale", log=True, ticks=ticks, base=2)
        rate = amount_axis(
            "epochs_per_s", "Throughput (epochs / s)", [stat.mean for found in own.values() for stat in found.values()]
        )
        charts = (
            Chart((Layer(left, "line", ("sd",)),), x, rate, ""),
            Chart(
                (Layer(right),),
                x,
                amount_axis("speed_up", "Speed-up over own fewest P (×)"),
                "",
                (Guide(x=ends, y=(1.0, ends[1] / ends[0])),),
            ),
        )
        caption = prose("scaling.figure")
        return make_figure(section, "scaling", "Throughput and speed-up by parts", caption, [charts], 3.8)


def _scaling(section: Section) -> dict[Variant, dict[int, Stat]]:
    """Return the throughputs by number of parts, ascending, of the variants that were run on several."""
    rates = values_of(section, "throughput_epochs_s")
    own = {v: {parts: rates[v, parts] for parts in section.parts if (v, parts) in rates} for v in section.variants}
    return {variant: found for variant, found in own.items() if len(found) > 1}
