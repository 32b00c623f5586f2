"""What sampling and feature caches save."""

from __future__ import annotations

import itertools
from typing import Any

from harness.report.figure import DASHED, Axis, Chart, Figure, Layer, cost_axis, guide_style, lines, make_figure, tidy
from harness.report.sections import Section
from harness.report.sweeps import sweep
from harness.report.table import Cell, Table, number_cells, variants_table
from harness.report.values import Values, values_of
from harness.report.views import ReportView, prose
from harness.report.views.convergence import hit_curve
from harness.report.views.leaderboard import score_columns
from harness.results.stats import Stat, byte_unit, common_places, percent

UNREPORTED = Cell("none")
SHARES = {  # column of record_values: heading
    "edge_share": "Edges drawn (%)",
    "asked_share": "Boundary asked for (%)",
    "expected_share": "Predicted (%)",
}


def sent_by_sampled(section: Section) -> Values:
    """Return the bytes sent in an epoch; none unless a method reports how much of the boundary it asks for."""
    asked = values_of(section, "asked_boundary")
    if not any(not variant.is_baseline("full-graph") and parts > 1 for variant, parts in asked):
        return {}
    sent = values_of(section, "counted_bytes")
    return {(variant, parts): stat for (variant, parts), stat in sent.items() if parts > 1}


def full_of(section: Section, values: Values, parts: int) -> Stat | None:
    """Return the value of full-graph methods' baseline at a number of parts; None if there is none, or it is 0."""
    stat = values.get((section.baseline, parts)) if section.baseline else None
    return stat if stat and stat.mean > 0 else None


class SamplingView(ReportView):
    """What do sampled edges save of the bytes, at what score?"""

    name = "sampling"
    title = "What sampling saves"
    place = 80
    shows = ("stat_kept_boundary", "stat_sampled_boundary", "stat_expected_boundary", "stat_drawn_edges")

    def table(self) -> Table | None:
        section = self.section
        sent, score = sent_by_sampled(section), values_of(section, "test_at_best_val")
        size, unit = byte_unit(max((stat.mean for stat in sent.values()), default=None))
        places = max(1, min(3, common_places(stat.mean / size for stat in sent.values() if stat.mean)))
        shown = {"Boundary rows": number_cells(values_of(section, "asked_boundary"), places=0)}
        shown |= {heading: number_cells(values_of(section, name), 0.01, 1) for name, heading in SHARES.items()}
        base = {key: full_of(section, sent, key[1]) for key in sent}
        shares = {key: stat.mean / own.mean for key, stat in sent.items() if (own := base[key])}
        name = section.baseline.method if section.baseline else "the baseline"
        return variants_table(
            section,
            "What sampling saves",
            prose("sampling.table", unit=unit, size=size),
            {
                f"Sent ({unit})": number_cells(sent, size, places),
                f"Share of {name} (%)": {key: Cell() for key in sent} | number_cells(shares, 0.01, 1),
                f"Halo bytes ({unit})": number_cells(values_of(section, "halo_bytes"), size, places),
                **{head: {key: own.get(key, UNREPORTED) for key in sent} for head, own in shown.items()},
                f"Test {section.metric} (%)": {key: Cell(percent(stat)) for key, stat in score.items()},
            },
            sent,
            falling=sent,
        )

    def figure(self) -> Figure | None:
        section = self.section
        sent = {key: stat for key, stat in sent_by_sampled(section).items() if stat.mean > 0}
        size, unit = byte_unit(max((stat.mean for stat in sent.values()), default=None))
        caption = prose("sampling.figure")
        label = f"Sent per epoch ({unit})"
        return score_figure(section, "sampling", "Score and bytes", caption, sent, size, label, swept="")


def score_figure(
    section: Section, kind: str, title: str, caption: str, amounts: Values, size: float, label: str, *, swept: str
) -> Figure | None:
    """Return the test score against amounts in units of `size`, a panel a number of parts; None if nothing has both.

    Variants that differ in the option `swept` alone are joined.
    """
    score = values_of(section, "test_at_best_val")
    keys = [(v, p) for p in section.parts for v in section.variants if (v, p) in score and (v, p) in amounts]
    if not any(amounts[key].mean for key in keys):
        return None
    points = [(*key, {label: amounts[key].mean / size, **score_columns(score[key])}) for key in keys]
    found = list(dict.fromkeys(variant for variant, _ in keys))
    joined = (
        (line, parts, {label: x, "score_percent": [100 * score[v, parts].mean for v in there], "who": who})
        for line, parts in itertools.product(sweep(found, swept), section.parts)
        if (there := [v for _, v in line.points if (v, parts) in keys])
        for x, who in [([amounts[v, parts].mean / size for v in there], [v.label for v in there])]
    )
    layers = [Layer(tidy(joined), "path", style=guide_style("-"), exported=False)]
    layers.append(Layer(tidy(each for each in points if each[2][label]), "points", ("sd",)))
    # A logarithmic axis has no place for no amount: the score is a line across.
    layers.append(Layer(tidy(each for each in points if not each[2][label]), "across", dash=DASHED))
    y = Axis("score_percent", f"Test {section.metric} (%)")
    drawn = tuple(layer for layer in layers if len(layer.data))
    chart = Chart(drawn, cost_axis(label, [amounts[key].mean / size for key in keys]), y)
    return make_figure(section, kind, title, caption, [chart], 3.6, share=("none", "all"))


def caching(section: Section) -> Values:
    """Return the hit rates of the variants that have a cache, where there is a boundary, or rows are the host's."""
    rates = values_of(section, "hit_rate")
    return {
        (variant, parts): stat
        for (variant, parts), stat in rates.items()
        if (parts > 1 or variant.options.get("storage") == "host") and variant.options.get("cache", "none") != "none"
    }


class CacheView(ReportView):
    """How often is what is asked for in the cache?"""

    name = "cache"
    title = "Feature cache"
    place = 110
    shows = ("stat_cached_boundary", "stat_cached_nodes")

    def table(self) -> Table | None:
        section = self.section
        rates, sent = caching(section), values_of(section, "bytes_feature")
        size, unit = byte_unit(max((sent[key].mean for key in rates if key in sent), default=None))
        curves = {key: curve for key in rates if len(curve := hit_curve(section, *key))}
        return variants_table(
            section,
            "Feature cache",
            prose("cache.table", unit=unit, size=size),
            {
                "Rows asked for": number_cells(values_of(section, "cache_asked"), places=0),
                "Found": number_cells(values_of(section, "cache_found"), places=0),
                "Hit rate (%)": {key: Cell(percent(stat)) for key, stat in rates.items()},
                "First epoch (%)": {key: Cell(f"{100 * curve.iloc[0]:.1f}") for key, curve in curves.items()},
                "Last epoch (%)": {key: Cell(f"{100 * curve.iloc[-1]:.1f}") for key, curve in curves.items()},
                f"Features ({unit})": number_cells(sent, size, 2),
            },
            rates,
            absent=Cell(),
        )

    def figure(self) -> Figure | None:
        section = self.section
        rates = caching(section)
        swept = sweep(list(dict.fromkeys(variant for variant, _ in rates)), "capacity")
        y, found = Axis("hit_rate_percent", "Hit rate (%)", zero=True), dict[Any, dict[float, float]]()
        if swept:
            title, caption = "Hit rate and capacity of the cache", prose("cache.figure")
            x = Axis("capacity_percent", "Capacity (%)", zero=True)
            for line, parts in itertools.product(swept, sorted({parts for _, parts in rates})):
                there = {at: rates[v, parts].mean for at, v in line.points if (v, parts) in rates}
                found[line, parts] = {100 * at: 100 * rate for at, rate in there.items()}
        else:
            title, caption = "Hit rate of the cache by epoch", prose("cache.curves")
            x = Axis("epoch", "Epoch", whole=True)
            curves = {key: curve for key in rates if len(curve := hit_curve(section, *key))}
            found = {key: dict(zip(curve.index, 100 * curve, strict=True)) for key, curve in curves.items()}
        data = lines(found, x, y)
        if data.empty:
            return None
        chart = Chart((Layer(data),), x, y)
        caption, series = f"{caption} Higher is better.", swept or None
        return make_figure(section, "cache", title, caption, [chart], 3.5, series=series, share=("none", "all"))
