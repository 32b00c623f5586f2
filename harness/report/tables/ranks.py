"""Epoch time rank by rank."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report.numbers import common_places, time_unit
from harness.report.tables.grid import by_parts
from harness.report.tables.table import Cell, Group, Table, missing
from harness.report.trials.aggregate import figures_of, rank_columns
from harness.report.trials.sections import Section
from harness.report.trials.variants import Variant

LISTED = 16  # ranks; of more only slowest, mean and fastest are shown


def rank_table(section: Section) -> Table | None:
    """Epoch time of every rank and their imbalance; None if no trial has more than one rank."""
    ranks = {rank: figures_of(section, column) for rank, column in rank_columns(section).items()}
    which = {name: figures_of(section, f"rank_time_{name}_s") for name in ("slowest", "mean", "fastest")}
    imbalance = figures_of(section, "imbalance")
    size, unit = time_unit(max((stat.mean for stat in which["slowest"].values()), default=None))
    places = common_places(stat.mean / size for stat in which["fastest"].values())

    def cells(variant: Variant, parts: int) -> Sequence[Cell]:
        if parts == 1 or (variant, parts) not in imbalance:
            return ()
        key = variant, parts
        own = [found[key].mean / size for found in ranks.values() if key in found]
        listed = Cell(", ".join(f"{each:,.{places}f}" for each in own), number=False, wrap=True)
        if not own or len(own) > LISTED:
            listed = Cell(f"{len(own)} ranks", number=False) if own else missing(section, variant, parts)
        times = [
            Cell(f"{found[key].mean / size:,.{places}f}") if key in found else missing(section, variant, parts)
            for found in which.values()
        ]
        return (*times, Cell(f"{imbalance[key].mean:.2f}"), listed)

    rows = by_parts(section, cells)
    if not rows:
        return None
    return Table(
        f"Epoch time by rank ({unit})",
        "Epoch time above is the maximum over ranks, not their mean: it takes the slowest rank of each "
        "epoch, which need not be the same one, so it is at least the slowest rank's figure here. Here: each "
        "rank's median over the same epochs; slowest, mean and fastest of them; imbalance = slowest / mean "
        "(1 = balanced). Means over seeds.",
        "Method",
        (Group("", ("Slowest", "Mean", "Fastest", "Imbalance", "Ranks 0, 1, …")),),
        rows,
    )
