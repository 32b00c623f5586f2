"""BarRow: grouped by number of parts, or stacked of components."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from harness.report.drawing import Drawing, legend, mark, mark_panel, new_figure, panel
from harness.report.palette import PHASES, SPARE
from harness.report.sections import Section, Values, Variant
from harness.results.text import Stat, significant

MEANS = "bar: mean over seeds, whisker: ± sample standard deviation"


@dataclass(frozen=True)
class BarRow:
    """One row of bars: values in units of `unit`, and where on the axis a method without effect stands."""

    label: str
    values: Values
    unit: float = 1.0
    base: float | None = None


def against_baseline(section: Section, values: Values, ratio: Callable[[float, float], float]) -> Values:
    """Return `ratio(own mean, the baseline's)` at equal numbers of parts; none if baselines alone have values."""
    base = {parts: stat.mean for (variant, parts), stat in values.items() if variant == section.baseline}
    found = {
        (variant, parts): Stat(ratio(stat.mean, base[parts]), None, stat.n)
        for (variant, parts), stat in values.items()
        if base.get(parts)
    }
    return found if any(not variant.is_baseline("full-graph") for variant, _ in found) else {}


def grouped_bars(section: Section, shown: list[BarRow], what: str) -> Drawing:
    """Draw rows of grouped bars: a group a number of parts, a bar a variant."""
    figure = new_figure(0.8 + 2.6 * len(shown), section, what, legend=True)
    axes = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for ax, bars in zip(axes, shown, strict=True):
        _groups(ax, section, bars)
    axes[-1].set_xlabel("Number of parts P (= ranks)")
    handles = [Patch(facecolor=v.style.colour, hatch=_hatch(v)) for v in section.variants]
    legend(figure, handles, [v.label for v in section.variants], section.variants)
    return figure


def _groups(ax: Axes, section: Section, bars: BarRow) -> None:
    slot = min(0.84 / max(len(section.tried(parts)) for parts in section.parts), 0.2)
    for j, parts in enumerate(section.parts):
        there = section.tried(parts)
        left = j - slot * len(there) / 2
        for i, variant in enumerate(there):
            _bar(ax, bars, (variant, parts), left + (i + 0.5) * slot, 0.92 * slot)
    ax.set_xticks(range(len(section.parts)), [f"P = {parts}" for parts in section.parts])
    ax.set_xlim(-0.5, len(section.parts) - 0.5)
    if all(stat.mean >= 0 for stat in bars.values.values()):
        ax.set_ylim(bottom=0)
    if bars.base is not None:
        ax.axhline(bars.base, color="#666666", lw=1, ls="-" if not bars.base else "--", zorder=3)
    ax.set_ylabel(bars.label)
    ax.grid(visible=False, axis="x")


def _bar(ax: Axes, bars: BarRow, key: tuple[Variant, int], x: float, width: float) -> None:
    variant, stat = key[0], bars.values.get(key)
    if stat is None:
        text = ax.annotate(
            "n/a", (x, 0), (0, 3), textcoords="offset points", rotation=90, ha="center", va="bottom",
            fontsize=7, color="#666666",
        )  # fmt: skip
        mark(text, *key)
        return
    height, ends = stat.mean / bars.unit, None if stat.std is None else stat.std / bars.unit
    bar = ax.bar(x, height, width, color=variant.style.colour, hatch=_hatch(variant))
    mark(bar, *key, {bars.label: height, "sd": ends})
    if ends is not None:
        mark(ax.errorbar(x, height, ends, color="#666666", capsize=1.5, lw=0.9), *key)


def _hatch(variant: Variant) -> str:
    return "" if variant.style.dash == "-" else "////"


def stacked_bars(
    section: Section, values: dict[str, Values], known: dict[str, str], unit: float, label: str, what: str
) -> Drawing:
    """Draw horizontal stacked bars of components, a panel a number of parts; shares below if these are times."""
    spare = itertools.cycle(SPARE)  # of phases or purposes that are not known here
    colours = {name: known[name] if name in known else next(spare) for name in values}
    labels = [label, "Share of the epoch (%)"] if known is PHASES else [label]
    shown = sorted({parts for found in values.values() for (_, parts), stat in found.items() if stat.mean})
    figure = new_figure(1.3 + len(labels) * (0.75 + 0.26 * len(section.variants)), section, what)
    axes = figure.subplots(len(labels), len(shown), sharey=True, squeeze=False)
    for j, parts in enumerate(shown):
        stacks = {
            v: [found[v, parts].mean / unit if (v, parts) in found else None for found in values.values()]
            for v in section.variants
        }
        for i, name in enumerate(labels):
            _stack_panel(axes[i][j], stacks, colours, parts, share=i == 1, unit=label)
            mark_panel(axes[i][j], parts)
            axes[i][j].set_xlabel(name)
        panel(axes[0][j], parts)
    legend(figure, [Patch(facecolor=c) for c in colours.values()], list(colours))
    return figure


def _stack_panel(
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
    names = [textwrap.fill(v.label, 52, max_lines=2, placeholder=" …") for v in values]
    ax.set_yticks(range(len(values)), names, fontsize=7.5)
    for name, variant in zip(ax.get_yticklabels(), values, strict=False):
        mark(name, variant)
    ax.set_ylim(len(values) - 0.5, -0.5)
    if share:
        ax.set_xlim(0, 100)
    elif top:
        ax.set_xlim(0, 1.25 * top)
    ax.grid(visible=False, axis="y")
    ax.xaxis.set_major_locator(MaxNLocator(4))
    ax.spines["left"].set_visible(False)
