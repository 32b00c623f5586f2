"""Subgraphs that were drawn to be counted, before the training."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report.table import Cell, Table
from harness.report.values import values_of
from harness.report.variants import Variant
from harness.report.views import ReportView, variants_table
from harness.results.stats import significant

REUSED = Cell("reused")


class CountingView(ReportView):
    """Subgraphs that were drawn to be counted, before the training."""

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
