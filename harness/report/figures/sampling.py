"""Figures of sampling and caching: score against bytes, hit rate against capacity or epoch."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from harness.report.figures.axes import cost_axis
from harness.report.figures.drawing import Picture, draw_line, legend, line_handle, new_figure, panel, save
from harness.report.figures.marks import Drawing, mark
from harness.report.numbers import Stat, byte_unit
from harness.report.tables.batches import communicated
from harness.report.tables.sampling import caching, exchanged
from harness.report.trials.aggregate import Figures, figures_of
from harness.report.trials.curves import hit_curve
from harness.report.trials.sections import Section
from harness.report.trials.sweeps import Line, sweep
from harness.report.trials.variants import Variant


def sampling_figure(section: Section) -> Picture | None:
    """Draw the test score against the bytes of an epoch, a panel a number of parts; None without sampling."""
    sent = {key: stat for key, stat in exchanged(section).items() if stat.mean > 0}
    size, unit = byte_unit(max((stat.mean for stat in sent.values()), default=None))
    figure = _score_against(section, sent, size, f"Sent per epoch ({unit})", "Score and bytes", swept="")
    caption = (
        "Each method by what it sends in an epoch and what it reaches: the numbers of the table above, "
        "mean over seeds, whisker: ± sample standard deviation. Up and left is better; what stands one "
        "above the other costs the network the same."
    )
    return save(figure, section, "sampling", "Score and bytes", caption) if figure else None


def batch_figure(section: Section) -> Picture | None:
    """Draw the test score against the nodes communicated in an epoch; None without mini-batch methods."""
    title = "Score and communicated nodes"
    label = "Communicated nodes per epoch"
    figure = _score_against(section, communicated(section), 1.0, label, title, swept="distortion")
    caption = (
        "Each mini-batch method by the nodes whose features are sent in an epoch and by what it reaches: the "
        "numbers of the table above, mean over seeds, whisker: ± sample standard deviation. A line joins "
        "what differs in the distortion D alone; dashed: a method that communicates nothing. Up and left is "
        "better."
    )
    return save(figure, section, "batches", title, caption) if figure else None


def _score_against(
    section: Section, amounts: Figures, size: float, label: str, title: str, *, swept: str
) -> Drawing | None:
    """Draw the test score against amounts in units of `size`, a panel a number of parts.

    Variants that differ in the option `swept` alone are joined. None where nothing has both.
    """
    score = figures_of(section, "test_at_best_val")
    cells = [key for key in score if key in amounts]
    if not any(amounts[key].mean for key in cells):
        return None
    shown = [variant for variant in section.variants if any(key[0] == variant for key in cells)]
    panels = sorted({parts for _, parts in cells})
    figure = new_figure(3.6 + 0.2 * (1 + len(shown) // 3), section, title)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for ax, parts in zip(axes, panels, strict=True):
        for line in sweep(shown, swept):
            there = [variant for _, variant in line.points if (variant, parts) in cells]
            ax.plot(
                [amounts[variant, parts].mean / size for variant in there],
                [100 * score[variant, parts].mean for variant in there],
                color="#999999",
                lw=1,
                zorder=1,
            )
        for variant in shown:
            if (key := (variant, parts)) in cells:
                _score_mark(ax, key, (label, amounts[key].mean / size), score[key])
        cost_axis(ax, label, [amounts[key].mean / size for key in cells if key[1] == parts])
        panel(ax, parts)
    axes[0].set_ylabel(f"Test {section.metric} (%)")
    handles = [Line2D([], [], color=v.style.colour, marker=v.style.marker, linestyle="", markersize=6.5) for v in shown]
    legend(figure, handles, [v.label for v in shown], shown)
    return figure


def _score_mark(ax: Axes, of: tuple[Variant, int], amount: tuple[str, float], score: Stat) -> None:
    """Draw a score with its deviation; a line across where the amount is 0, which a logarithm cannot show."""
    style, (label, x) = of[0].style, amount
    ends = None if score.std is None else 100 * score.std
    shown = {label: x, "score_percent": 100 * score.mean, "sd": ends}
    if not x:
        across = ax.axhline(100 * score.mean, color=style.colour, linestyle="--", lw=1)
        mark(across, *of, shown)
        return
    drawn = ax.errorbar(
        x, 100 * score.mean, ends, color=style.colour, marker=style.marker, markersize=6.5, capsize=2.5, lw=1
    )
    mark(drawn, *of, shown)


def cache_figure(section: Section) -> Picture | None:
    """Draw the hit rate against the cache's capacity, where that was swept, else against the epoch."""
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
