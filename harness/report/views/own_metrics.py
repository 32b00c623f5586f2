"""Metrics that methods declare and no other view shows."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from harness.report.table import Table, metrics_table
from harness.report.values import values_of
from harness.report.views import VIEWS, ReportView


class OwnMetricsView(ReportView):
    """Metrics that methods declare and no other view shows."""

    name = "own-metrics"
    title = "Methods' own metrics"
    question = "What do methods tell of themselves beside what the other views show?"
    place = 210

    def table(self) -> Table | None:
        """Return a column a metric, as it was declared when the trials ran."""
        elsewhere = [pattern for view in map(VIEWS.load, VIEWS.names()) for pattern in view.shows]
        declared = [name for name, metric in self.section.declared.items() if metric.value == "number"]
        names = [
            str(column)
            for column in self.section.ok.columns
            if _like(str(column), declared) and not _like(str(column), elsewhere) and values_of(self.section, column)
        ]
        if not names:
            return None
        metrics = [self.section.metric_of(name) for name in names]
        known = [f"{metric.title}: {metric.doc}" for metric in metrics if metric.doc]
        caption = f"{'; '.join(known)}. " if known else ""
        return metrics_table(self.section, names, self.title, f"{caption}Means over seeds.", sparse=True)


def _like(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
