"""What a feature cache saves on top of sampling."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from harness.report.drawing import Picture, draw_line, legend, line_handle, new_figure, panel, save
from harness.report.sections import Section, Values, Variant, values_of
from harness.report.sweeps import Line, sweep
from harness.report.table import Cell, Group, Table, by_parts
from harness.report.views import ReportView
from harness.report.views.convergence import hit_curve
from harness.results.text import byte_unit, fixed, percent


def caching(section: Section) -> Values:
    """Return the hit rates of the variants that have a cache, where there is a boundary."""
    rates = values_of(section, "hit_rate")
    return {
        (variant, parts): stat
        for (variant, parts), stat in rates.items()
        if parts > 1 and variant.options.get("cache", "none") != "none"
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
            if key not in rates:
                return ()
            curve = hit_curve(section, variant, parts)
            ends = [f"{100 * value:.1f}" for value in (curve.iloc[0], curve.iloc[-1])] if len(curve) else []
            return [
                Cell(f"{asked[key].mean:,.0f}"),
                Cell(f"{found[key].mean:,.0f}"),
                Cell(percent(rates[key])),
                *([Cell(end) for end in ends] or [Cell(), Cell()]),
                Cell(fixed(sent[key].mean / size, 2)) if key in sent else Cell(),
            ]

        rows = by_parts(section, cells)
        if not rows:
            return None
        heads = ("Rows asked for", "Found", "Hit rate (%)", "First epoch (%)", "Last epoch (%)", f"Features ({unit})")
        return Table(
            "Feature cache",
            "Of an epoch, all ranks: boundary rows asked for (of mini-batches: remote nodes read), those of them "
            "found in the cache, and found / asked for: means over the epochs after warm-up, then over seeds; "
            "hit rate of the first and of the last epoch, mean over seeds. Features: bytes of input "
            f"features sent, refills of the cache included, mean over all epochs; 1 {unit} = {size:,.0f} bytes.",
            "Method",
            (Group("", heads),),
            rows,
        )

    def figure(self) -> Picture | None:
        """Draw the hit rate against the cache's capacity, where that was swept, else against the epoch."""
        section = self.section
        variants = [variant for variant in section.variants if any(key[0] == variant for key in caching(section))]
        if not variants:
            return None
        lines = sweep(variants, "capacity")
        return _by_capacity(section, lines) if lines else _by_epoch(section)


def _by_capacity(section: Section, lines: list[Line]) -> Picture:
    rates = caching(section)
    panels = sorted({parts for _, parts in rates})
    figure = new_figure(3.6 + 0.2 * (1 + len(lines) // 3), section, "Hit rate and capacity")
    axes = _panels(figure, panels)
    for ax, parts in zip(axes, panels, strict=True):
        for line in lines:
            there = [(x, rates[v, parts].mean) for x, v in line.points if (v, parts) in rates]
            capacity = ("capacity_percent", [100 * x for x, _ in there])
            hits = ("hit_rate_percent", [100 * y for _, y in there])
            draw_line(ax, line, parts, capacity, hits, style=line.style)
        ax.set_xlabel("Capacity (% of the boundary)")
        ax.set_xlim(left=0)
    axes[0].set_ylim(bottom=0)
    legend(figure, [line_handle(line.style) for line in lines], [line.label for line in lines], lines)
    caption = (
        "The hit rates of the table above, mean over seeds; a line a cache policy, or whatever else the "
        "methods differ in. Higher is better."
    )
    return save(figure, section, "cache", "Hit rate and capacity of the cache", caption)


def _by_epoch(section: Section) -> Picture | None:
    rates = caching(section)
    curves = {key: hit_curve(section, *key) for key in rates}
    curves = {key: curve for key, curve in curves.items() if len(curve)}
    if not curves:
        return None
    panels = sorted({parts for _, parts in curves})
    shown = [variant for variant in section.variants if any(key[0] == variant for key in curves)]
    figure = new_figure(3.4 + 0.2 * (1 + len(shown) // 3), section, "Hit rate by epoch")
    axes = _panels(figure, panels)
    for ax, parts in zip(axes, panels, strict=True):
        for variant in shown:
            if (curve := curves.get((variant, parts))) is not None:
                rate = ("hit_rate_percent", list(100 * curve))
                draw_line(ax, variant, parts, ("epoch", list(curve.index)), rate, style=variant.style)
        ax.set_xlabel("Epoch")
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes[0].set_ylim(bottom=0)
    legend(figure, [line_handle(v.style) for v in shown], [v.label for v in shown], shown)
    caption = (
        "Rows found in the cache / boundary rows asked for, of each epoch, all ranks; mean over seeds, as "
        "far as all of them ran. Higher is better."
    )
    return save(figure, section, "cache", "Hit rate of the cache by epoch", caption)


def _panels(figure: Figure, panels: list[int]) -> list[Axes]:
    """Return a panel a number of parts, with a common axis of hit rates."""
    axes: list[Axes] = list(figure.subplots(1, len(panels), sharey=True, squeeze=False)[0])
    for ax, parts in zip(axes, panels, strict=True):
        panel(ax, parts)
    axes[0].set_ylabel("Hit rate (%)")
    return axes
