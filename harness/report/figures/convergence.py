"""The convergence figure."""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from harness.report.figures.drawing import Picture, legend, legend_rows, new_figure, panel, save
from harness.report.figures.marks import mark, mark_panel
from harness.report.trials.curves import mean_curve
from harness.report.trials.sections import Section
from harness.report.trials.variants import Variant


def convergence_figure(section: Section) -> Picture | None:
    """Draw validation score against epochs (above) and training time (below), a column a number of parts."""
    curves = {(v, p): mean_curve(section, v, p) for v in section.variants for p in section.parts}
    curves = {key: curve for key, curve in curves.items() if len(curve)}
    if not curves:
        return None
    figure = new_figure(6.6 + 0.2 * legend_rows(section), section, "Convergence")
    axes = figure.subplots(2, len(section.parts), sharey=True, sharex="row", squeeze=False)
    ends = [float(curve["time_s"].iloc[-1]) for curve in curves.values()]
    wide = min(ends) > 0 and max(ends) > 12 * min(ends)
    for j, parts in enumerate(section.parts):
        for variant in section.variants:
            if (variant, parts) in curves:
                for i, x in enumerate(("epoch", "time_s")):
                    _curve(axes[i][j], curves[variant, parts], x, variant, parts)
        _curve_axes(axes[0][j], "Epoch", log=False)
        _curve_axes(axes[1][j], "Training time (s)", log=wide)
        panel(axes[0][j], parts)
        mark_panel(axes[1][j], parts)
    for row in axes:
        row[0].set_ylabel(f"Validation {section.metric} (%)")
    cut = _cut(axes[0][0], pd.concat(curves.values())["score"] * 100)
    shown = [v for v in section.variants if any(key[0] == v for key in curves)]
    legend(figure, [_handle(v) for v in shown], [v.label for v in shown], shown)
    caption = (
        "Validation score at each evaluation, against epochs (above) and against training time (below: the "
        "sum of the slowest rank's epoch times so far, warm-up included, evaluation and set-up excluded). "
        "Line: mean over seeds, as far as all of them ran; band: lowest to highest seed; markers at some "
        "of the evaluations."
    )
    return save(figure, section, "convergence", "Convergence", caption + cut)


def _curve_axes(ax: Axes, label: str, *, log: bool) -> None:
    """Label an x axis; plain numbers on a logarithmic one."""
    ax.set_xlabel(f"{label}, log scale" if log else label)
    if log:
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0), numticks=7))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        ax.xaxis.set_major_locator(MaxNLocator(5))
    sns.despine(ax=ax)


def _cut(ax: Axes, scores: pd.Series[float]) -> str:
    """Leave out the first steep rise if it would squeeze all the rest; return what the caption says of it."""
    low, early, top = float(scores.min()), float(scores.quantile(0.15)), float(scores.max())
    if top - low <= 2.5 * (top - early):
        return ""
    margin = 0.05 * (top - early)
    ax.set_ylim(early - margin, top + margin)
    return f" The lowest 15 % of the scores (down to {low:.1f} %) are below the axis."


def _curve(ax: Axes, curve: pd.DataFrame, x: str, variant: Variant, parts: int) -> None:
    style, shown = variant.style, 100 * curve[["score", "low", "high"]]
    line = ax.plot(
        curve[x],
        shown["score"],
        color=style.colour,
        linestyle=style.dash,
        marker=style.marker,
        markevery=max(1, len(curve) // 8),
        markersize=4.5,
        markeredgecolor="white",
        markeredgewidth=0.75,
        lw=1.4,
    )
    band = ax.fill_between(curve[x], shown["low"], shown["high"], color=style.colour, alpha=0.12, lw=0)
    if x == "epoch":  # the same points are drawn against the time
        data = {column: curve[column] for column in ("epoch", "time_s")}
        data |= {f"{name}_percent": shown[name] for name in shown}
        mark([*line, band], variant, parts, data)
    else:
        mark([*line, band], variant, parts)


def _handle(variant: Variant) -> Line2D:
    s = variant.style
    return Line2D([], [], color=s.colour, linestyle=s.dash, marker=s.marker, markersize=4.5, lw=1.4)
