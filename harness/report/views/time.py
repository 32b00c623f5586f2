"""How long an epoch takes, over all ranks and of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.report.bars import MEANS, BarRow, against_baseline, grouped_bars
from harness.report.columns import RANK, RANK_SUFFIX
from harness.report.notes import explain_flags, flag_marks
from harness.report.plot import Plot
from harness.report.sections import Section
from harness.report.table import Cell, Table, column, grid, heading, missing, ratios, seeds_note
from harness.report.values import numbered, values_of
from harness.report.variants import Variant
from harness.report.views import ReportView, variants_table
from harness.results.stats import common_places, join_unique, time_unit


class EpochTimeView(ReportView):
    """How long an epoch takes, over all ranks and of each."""

    name = "time"
    title = "Epoch time"
    question = "How fast is an epoch, and how much faster than the baseline's?"
    place = 20

    def table(self) -> Table:
        """Epoch time and speed-up over the baseline, method by parts; flagged trials are marked."""
        section = self.section
        times = values_of(section, "epoch_time_s")
        shown = column(section, times, highest=False)
        marked = [
            [replace(cell, mark=flag_marks(section, v, parts)) for cell, v in zip(cells, section.variants, strict=True)]
            for parts, cells in zip(section.parts, shown, strict=True)
        ]
        columns = {heading(section.metric_of("epoch_time_s"), "s"): marked}
        rule = "No trials of a baseline, hence no speed-up."
        if baseline := section.baseline:
            rule = f"Speed-up: mean epoch time of {baseline.label} / that of the method, at equal P."
            columns["Speed-up (×)"] = ratios(section, times, baseline, lambda base, own: base / own, 2)
        timing = join_unique(section.ok["timing"])
        which = {
            "breakdown": " The epochs are those without barriers (timing: breakdown).",
            "wall": " Only whole epochs were timed (timing: wall), hence there are no phases.",
        }.get(timing, "")
        return grid(
            section,
            "Epoch time",
            "Seconds per training epoch, evaluation excluded: of each trial the median over the epochs after "
            f"warm-up of the slowest rank's time.{which} {seeds_note(times)} {rule} Bold: fastest of the column, "
            f"underlined: second fastest.{explain_flags(section)}",
            columns,
        )

    def figure(self) -> Plot | None:
        """Return epochs per second, and below them the speed-up over the baseline, grouped by number of parts."""
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
        """See `ReportView`."""
        return {"ranks": rank_table(self.section)}


LISTED = 16  # ranks; of more only slowest, mean and fastest are shown


def rank_table(section: Section) -> Table | None:
    """Epoch time of every rank and their imbalance; None if no trial has more than one rank."""
    ranks = numbered(section, RANK, RANK_SUFFIX)
    which = {name: values_of(section, f"rank_time_{name}_s") for name in ("slowest", "mean", "fastest")}
    imbalance = values_of(section, "imbalance")
    size, unit = time_unit(max((stat.mean for stat in which["slowest"].values()), default=None))
    places = common_places(stat.mean / size for stat in which["fastest"].values())

    def cells(variant: Variant, parts: int) -> Sequence[Cell]:
        key = variant, parts
        own = [found[key].mean / size for found in ranks if key in found]
        listed = Cell(", ".join(f"{each:,.{places}f}" for each in own), number=False, wrap=True)
        if not own or len(own) > LISTED:
            listed = Cell(f"{len(own)} ranks", number=False) if own else missing(section, variant, parts)
        times = [
            Cell(f"{found[key].mean / size:,.{places}f}") if key in found else missing(section, variant, parts)
            for found in which.values()
        ]
        return (*times, Cell(f"{imbalance[key].mean:.2f}"), listed)

    return variants_table(
        section,
        f"Epoch time by rank ({unit})",
        "Epoch time above is the maximum over ranks, not their mean: it takes the slowest rank of each epoch, which "
        "need not be the same one, so it is at least the slowest rank's value here. Here: each rank's median over the "
        "same epochs; slowest, mean and fastest of them; imbalance = slowest / mean (1 = balanced). Means over seeds.",
        ("Slowest", "Mean", "Fastest", "Imbalance", "Ranks 0, 1, …"),
        cells,
        {key for key in imbalance if key[1] > 1},
    )
