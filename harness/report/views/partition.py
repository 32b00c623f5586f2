"""What each part of a partition holds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import pandas as pd

from harness.metrics import METRICS
from harness.report.figure import DASHED, Axis, Chart, Figure, Guide, Layer, make_figure, tidy
from harness.report.palette import Style
from harness.report.sections import Section
from harness.report.sweeps import PARTITIONER
from harness.report.table import Cell, Group, Row, Table
from harness.report.views import ReportView, prose
from harness.results.contrast import DRIFT, RISK, mean_reach
from harness.results.stats import numbers, significant


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


class PartitionersView(ReportView):
    """Which partitioner is worth its time?"""

    name = "partitioners"
    title = "Partitioners"
    place = 10
    of = "partitioners"

    def table(self) -> Table | None:
        section, rows = self.section, []
        for variant in section.variants:
            for parts in section.parts:
                frame = section.ok[(section.ok["variant"] == variant.key) & (section.ok["parts"] == parts)]
                own = {str(name): trials for name, trials in frame.groupby(PARTITIONER, sort=False)}
                for cells in _worth(own) if len(own) > 1 else ():
                    rows.append(Row(variant.label, (Cell(f"{parts}"), *cells), variant, parts))
        if not rows:
            return None
        heads = ("P", "Partitioner", "Cut edges (%)", "Boundary nodes", METRICS[BUSIEST].title, "To partition (s)",
                 "Epoch (s)", "Pays after (epochs)")  # fmt: skip
        return Table("Partitioners", prose("partitioners.table"), "Method", (Group("", heads),), tuple(rows))


def _worth(trials: Mapping[str, pd.DataFrame]) -> Iterator[tuple[Cell, ...]]:
    """Yield the cells of each partitioner of a method; epochs pay for one against the one that partitions fastest."""
    made = {name: float(numbers(own["partition_s"]).mean()) for name, own in trials.items()}
    epochs = {name: numbers(own["epoch_time_s"]) for name, own in trials.items()}
    first = min(made, key=lambda name: math.inf if math.isnan(made[name]) else made[name])
    for name, own in trials.items():
        gain, more = float(epochs[first].mean() - epochs[name].mean()), made[name] - made[first]
        reach = mean_reach(epochs[first], RISK / max(len(trials) - 1, 1), less=epochs[name])
        if name == first or math.isnan(more):
            pays = Cell()
        elif reach is None or abs(gain) <= reach + DRIFT * epochs[first].mean():
            pays = Cell("not sure", number=False)
        else:
            pays = Cell(f"{math.ceil(more / gain):,}") if gain > 0 else Cell("never", number=False)
        cut, nodes, busiest = (float(numbers(own[key]).mean()) for key in ("cut_percent", "volume", BUSIEST))
        seconds = Cell() if math.isnan(made[name]) else Cell(significant(made[name]))
        of_parts = Cell(name, number=False), Cell(f"{cut:.1f}"), Cell(f"{nodes:,.0f}"), Cell(f"{busiest:.2f}")
        yield *of_parts, seconds, Cell(significant(float(epochs[name].mean()))), pays


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
