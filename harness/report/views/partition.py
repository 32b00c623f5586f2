"""What each part of a partition holds."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

import numpy as np
import pandas as pd

from harness.metrics import METRICS
from harness.report.figure import DASHED, Axis, Chart, Figure, Guide, Layer, make_figure, tidy
from harness.report.palette import Style
from harness.report.sections import Section
from harness.report.table import Cell, Group, Row, Table
from harness.report.views import ReportView, prose


class PartitionView(ReportView):
    """What does each part hold?"""

    name = "partition"
    title = "Partition"
    place = 200

    def table(self) -> Table:
        section = self.section
        rows = []
        for parts in section.parts:
            frame = section.frame[section.frame["parts"] == parts]
            inner, boundary = (_range(frame[c]) for c in ("inner_nodes", "boundary_nodes"))
            ratio = (frame["boundary_nodes"] / frame["inner_nodes"]).dropna()
            shown = Cell(f"{ratio.mean():.2f}") if len(ratio) else Cell()
            cells = inner, boundary, shown, _range(frame[BUSIEST], 2)
            rows.append(Row(f"P = {parts}", cells, parts=parts))
        heads = (*HEADS, METRICS[BUSIEST].title)
        return Table("Partition", prose("partition.table"), "Parts", (Group("", heads),), tuple(rows))

    def figure(self) -> Figure | None:
        section = self.section
        found = sizes(section)
        if not found:
            return None
        charts = []
        for parts, own in found.items():
            if parts <= LISTED:
                each = enumerate(own)
                data = tidy(
                    (kind, parts, {"part": i, "nodes": n})
                    for i, pair in each
                    for kind, n in zip(KINDS, pair, strict=True)
                )
                x, y = Axis("part", "Part"), Axis("nodes", "Nodes", zero=True)
                charts.append(Chart((Layer(data, "bar"),), x, y, "", title=f"P = {parts}", parts=parts))
                continue
            ratios = [nodes / inner if inner else 0.0 for inner, nodes in own]
            columns = {"part": list(range(parts)), "nodes": [nodes for _, nodes in own], "ratio": ratios}
            data = tidy([(KINDS[1], parts, columns)])
            x, y = Axis("ratio", "Boundary / inner nodes"), Axis("count", "Parts", zero=True, whole=True)
            mean = Guide(x=[fmean(ratios)])
            charts.append(Chart((Layer(data, "hist"),), x, y, "", (mean,), f"P = {parts}", parts))
        caption = prose("partition.figure", listed=LISTED)
        return make_figure(section, "partition", "Inner and boundary nodes", caption, [charts], 3.4, series=KINDS)


def _range(values: pd.Series[float], places: int = 0) -> Cell:
    known = values.dropna()
    if known.empty:
        return Cell()
    return Cell(" to ".join(dict.fromkeys(f"{end:,.{places}f}" for end in (known.min(), known.max()))))


BUSIEST = "boundary_imbalance"
HEADS = (METRICS["inner_nodes"].title, METRICS["boundary_nodes"].title, "Boundary / inner")
LISTED = 32  # parts; of more, only their distribution is shown
Sizes = dict[int, list[tuple[float, float]]]


@dataclass(frozen=True)
class _Kind:
    """The nodes that a bar counts; it belongs to no method."""

    label: str
    style: Style
    method: str = ""


KINDS = (_Kind("inner nodes", Style("#0072b2", "s", "-")), _Kind("boundary nodes", Style("#e69f00", "s", DASHED)))


def sizes(section: Section) -> Sizes:
    """Return (inner, boundary) nodes of each part by number of parts, mean over the partitions there are."""
    if "part_sizes" not in section.ok:
        return {}
    found: Sizes = {}
    for parts in section.parts:
        own = section.ok.loc[section.ok["parts"] == parts, "part_sizes"]
        distinct = sorted({each for each in own if each is not None and len(each) == parts})
        if distinct and parts > 1:
            found[parts] = [(float(inner), float(boundary)) for inner, boundary in np.mean(distinct, axis=0)]
    return found
