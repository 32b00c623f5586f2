"""Stacked bars: the phases of an epoch, the purposes of its bytes."""

from __future__ import annotations

import textwrap

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from harness.report.figures.drawing import Picture, legend, new_figure, panel, save
from harness.report.figures.marks import Drawing, mark, mark_panel
from harness.report.numbers import byte_unit, significant, time_unit
from harness.report.palette import PHASES, PURPOSES, component_colours
from harness.report.trials.aggregate import Figures, figures_of, largest_total, phase_columns, purpose_columns
from harness.report.trials.sections import Section
from harness.report.trials.variants import Variant


def breakdown_figure(section: Section) -> Picture | None:
    """Draw stacked bars of the phases of an epoch: seconds, and below them shares."""
    columns = phase_columns(section)
    if not columns:
        return None
    figures = {name: figures_of(section, column) for name, column in columns.items()}
    size, unit = time_unit(largest_total(figures))
    figure = _stacks(section, figures, PHASES, size, f"Time per epoch ({unit})", "Time breakdown")
    caption = (
        "The phases of the table above, stacked; upper row: absolute, each panel with a scale of its own, "
        "the total beside the bar; lower row: shares of the total."
    )
    return save(figure, section, "breakdown", "Time breakdown of an epoch", caption)


def traffic_figure(section: Section) -> Picture | None:
    """Draw stacked bars of bytes per epoch by purpose."""
    columns = purpose_columns(section)
    if not columns:
        return None
    figures = {name: figures_of(section, column) for name, column in columns.items()}
    size, unit = byte_unit(largest_total(figures))
    figure = _stacks(section, figures, PURPOSES, size, f"Bytes per epoch ({unit})", "Traffic")
    caption = (
        "The purposes of the table above, stacked, all ranks together; each panel has a scale of its own, "
        f"the total stands beside the bar; 1 {unit} = {size:,.0f} bytes. A number of parts without any byte "
        "has no panel."
    )
    return save(figure, section, "traffic", "Bytes per epoch by purpose", caption)


def _stacks(
    section: Section, figures: dict[str, Figures], known: dict[str, str], unit: float, label: str, what: str
) -> Drawing:
    """Draw horizontal stacked bars, a panel a number of parts; shares below if these are times."""
    colours = component_colours(list(figures), known)
    labels = [label, "Share of the epoch (%)"] if known is PHASES else [label]
    shown = sorted({parts for found in figures.values() for (_, parts), stat in found.items() if stat.mean})
    figure = new_figure(1.3 + len(labels) * (0.75 + 0.26 * len(section.variants)), section, what)
    axes = figure.subplots(len(labels), len(shown), sharey=True, squeeze=False)
    for j, parts in enumerate(shown):
        values = {
            v: [found[v, parts].mean / unit if (v, parts) in found else None for found in figures.values()]
            for v in section.variants
        }
        for i, name in enumerate(labels):
            _panel(axes[i][j], values, colours, parts, share=i == 1, unit=label)
            mark_panel(axes[i][j], parts)
            axes[i][j].set_xlabel(name)
        panel(axes[0][j], parts)
    legend(figure, [Patch(facecolor=c) for c in colours.values()], list(colours))
    return figure


def _two_lines(label: str) -> str:
    return textwrap.fill(label, 52, max_lines=2, placeholder=" …")


def _panel(
    ax: Axes, values: dict[Variant, list[float | None]], colours: dict[str, str], count: int, *, share: bool, unit: str
) -> None:
    totals = {v: sum(x for x in stack if x is not None) for v, stack in values.items()}
    top, thick = max(totals.values(), default=0.0), 0.74 if len(values) > 2 else 0.5
    for y, (variant, stack) in enumerate(values.items()):
        present = [x is not None for x in stack]
        scale = 100 / totals[variant] if share and totals[variant] else 1.0
        left = 0.0
        for value, (component, colour) in zip(stack, colours.items(), strict=True):
            if value:
                bar = ax.barh(y, value * scale, thick, left=left, color=colour, edgecolor="white", lw=0.4)
                shown = None if share else {"component": component, unit: value}
                mark(bar, variant, count, shown)
                left += value * scale
        text = significant(totals[variant]) if any(present) else "n/a"
        if not share or text == "n/a":
            end = ax.annotate(text, (left, y), (3, 0), textcoords="offset points", va="center", fontsize=7.5)
            mark(end, variant, count)
    ax.set_yticks(range(len(values)), [_two_lines(v.label) for v in values], fontsize=7.5)
    for name, variant in zip(ax.get_yticklabels(), values, strict=False):
        mark(name, variant)
    ax.set_ylim(len(values) - 0.5, -0.5)
    if share:
        ax.set_xlim(0, 100)
    elif top:
        ax.set_xlim(0, 1.25 * top)
    ax.grid(visible=False, axis="y")
    ax.xaxis.set_major_locator(MaxNLocator(4))
    sns.despine(ax=ax, left=True)
