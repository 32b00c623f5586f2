"""What a feature cache saves on top of sampling."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from harness.report.plot import Axis, Panel, Plot, line_row, make_plot
from harness.report.sections import Section
from harness.report.sweeps import Line, sweep
from harness.report.table import Cell, Table
from harness.report.values import Values, values_of
from harness.report.variants import Variant
from harness.report.views import ReportView, variants_table
from harness.report.views.convergence import hit_curve
from harness.results.stats import byte_unit, fixed, percent


def caching(section: Section) -> Values:
    """Return the hit rates of the variants that have a cache, where there is a boundary, or rows are the host's."""
    rates = values_of(section, "hit_rate")
    return {
        (variant, parts): stat
        for (variant, parts), stat in rates.items()
        if (parts > 1 or variant.options.get("storage") == "host") and variant.options.get("cache", "none") != "none"
    }


class CacheView(ReportView):
    """What a feature cache saves on top of sampling."""

    name = "cache"
    title = "Feature cache"
    question = "How often is what is asked for in the cache?"
    place = 110
    shows = ("stat_cached_boundary", "stat_cached_nodes")

    def table(self) -> Table | None:
        """Hit rate of the feature cache, and of its first and last epoch; None if nothing is cached."""
        section = self.section
        rates, sent = caching(section), values_of(section, "bytes_feature")
        asked, found = (values_of(section, f"cache_{name}") for name in ("asked", "found"))
        size, unit = byte_unit(max((sent[key].mean for key in rates if key in sent), default=None))

        def cells(variant: Variant, parts: int) -> Sequence[Cell]:
            key = variant, parts
            curve = hit_curve(section, variant, parts)
            ends = [f"{100 * value:.1f}" for value in curve.iloc[[0, -1]]] if len(curve) else []
            return [
                Cell(f"{asked[key].mean:,.0f}"),
                Cell(f"{found[key].mean:,.0f}"),
                Cell(percent(rates[key])),
                *([Cell(end) for end in ends] or [Cell(), Cell()]),
                Cell(fixed(sent[key].mean / size, 2)) if key in sent else Cell(),
            ]

        heads = ("Rows asked for", "Found", "Hit rate (%)", "First epoch (%)", "Last epoch (%)", f"Features ({unit})")
        return variants_table(
            section,
            "Feature cache",
            "Of an epoch, all ranks: boundary rows asked for (of mini-batches: remote nodes read), those of them "
            "found in the cache, and found / asked for: means over the epochs after warm-up, then over seeds; "
            "hit rate of the first and of the last epoch, mean over seeds. Features: bytes of input "
            f"features sent, refills of the cache included, mean over all epochs; 1 {unit} = {size:,.0f} bytes.",
            heads,
            cells,
            rates,
        )

    def figure(self) -> Plot | None:
        """Return the hit rate against the cache's capacity, where that was swept, else against the epoch."""
        section = self.section
        rates = caching(section)
        swept = sweep(list(dict.fromkeys(variant for variant, _ in rates)), "capacity")
        return _by_capacity(section, rates, swept) if swept else _by_epoch(section, rates)


def _by_capacity(section: Section, rates: Values, swept: list[Line]) -> Plot:
    lines = {
        (line, parts): {100 * x: 100 * rates[v, parts].mean for x, v in line.points if (v, parts) in rates}
        for line, parts in itertools.product(swept, {parts for _, parts in rates})
    }
    across = "capacity_percent", Axis("Capacity (% of the boundary)", zero=True)
    caption = (
        "The hit rates of the table above, mean over seeds; a line a cache policy, or whatever else the "
        "methods differ in."
    )
    return _plot(section, "Hit rate and capacity of the cache", caption, line_row(lines, across, UP))


def _by_epoch(section: Section, rates: Values) -> Plot | None:
    curves = {key: hit_curve(section, *key) for key in rates}
    lines = {key: dict(zip(curve.index, 100 * curve, strict=True)) for key, curve in curves.items() if len(curve)}
    if not lines:
        return None
    caption = (
        "Rows found in the cache / boundary rows asked for, of each epoch, all ranks; mean over seeds, as "
        "far as all of them ran."
    )
    panels = line_row(lines, ("epoch", Axis("Epoch", whole=True)), UP)
    return _plot(section, "Hit rate of the cache by epoch", caption, panels)


UP = "hit_rate_percent", Axis("Hit rate (%)", zero=True)


def _plot(section: Section, title: str, caption: str, panels: list[Panel]) -> Plot:
    return make_plot(section, "cache", title, f"{caption} Higher is better.", [panels], 3.5, share=("none", "all"))
