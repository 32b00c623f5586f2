"""Grouped bars: throughput and speed-up, memory and its reduction, utilisation and energy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from harness.report.figures.drawing import Picture, legend, legend_rows, new_figure, save
from harness.report.figures.marks import Drawing, mark
from harness.report.numbers import Stat, byte_unit
from harness.report.tables.resources import CPU_USE, GPU_USE
from harness.report.trials.aggregate import Figures, figures_of
from harness.report.trials.sections import Section
from harness.report.trials.variants import Variant

MEANS = "bar: mean over seeds, whisker: ± sample standard deviation"


@dataclass(frozen=True)
class Bars:
    """One row of bars: figures in units of `unit`, and where on the axis a method without effect stands."""

    label: str
    figures: Figures
    unit: float = 1.0
    base: float | None = None


def throughput_figure(section: Section) -> Picture | None:
    """Draw epochs per second, and below them the speed-up over `full`, grouped by number of parts."""
    rates = figures_of(section, "throughput_epochs_s")
    if not rates:
        return None
    shown = [Bars("Throughput (epochs / s)", rates)]
    caption = f"Epochs per second = 1 / epoch time of the table above (evaluation excluded); {MEANS}. Higher is better."
    if faster := _against_full(rates, lambda own, full: own / full):
        shown.append(Bars("Speed-up over full (×)", faster, base=1.0))
        caption += " Below: mean throughput / that of full at equal P, of those that it was run on."
    return save(_rows(section, shown, "Throughput"), section, "throughput", "Throughput", caption)


def memory_figure(section: Section) -> Picture | None:
    """Draw peak memory, and below it how much less it is than that of `full`, grouped by number of parts."""
    peaks = figures_of(section, "peak_memory_bytes")
    if not peaks:
        return None
    size, unit = byte_unit(max(stat.mean for stat in peaks.values()))
    shown = [Bars(f"Peak memory of a rank ({unit})", peaks, size)]
    caption = f"The numbers of the table above; {MEANS}. Lower is better."
    if less := _against_full(peaks, lambda own, full: 100 * (1 - own / full)):
        shown.append(Bars("Reduction against full (%)", less, base=0.0))
        caption += " Below: 1 - mean / that of full at equal P; higher is better, below 0 it takes more."
    return save(_rows(section, shown, "Peak memory"), section, "memory", "Peak memory", caption)


def use_figure(section: Section) -> Picture | None:
    """Draw what was measured of utilisation, power and energy, a row each; None if nothing was."""
    units = {"gpu_utilisation": 0.01}
    found = {label: (name, figures_of(section, name)) for name, label in (CPU_USE | GPU_USE).items()}
    shown = [Bars(label, own, units.get(name, 1.0)) for label, (name, own) in found.items() if own]
    if not shown:
        return None
    caption = f"The numbers of the table above; {MEANS}. Energy is of an epoch: lower is better."
    title = "Utilisation and energy"
    return save(_rows(section, shown, title), section, "use", title, caption)


def _against_full(figures: Figures, ratio: Callable[[float, float], float]) -> Figures:
    """Return `ratio(own mean, that of full)` at equal numbers of parts; none if `full` alone has figures."""
    full = {parts: stat.mean for (variant, parts), stat in figures.items() if variant.method == "full"}
    found = {
        (variant, parts): Stat(ratio(stat.mean, full[parts]), None, stat.n)
        for (variant, parts), stat in figures.items()
        if full.get(parts)
    }
    return found if any(variant.method != "full" for variant, _ in found) else {}


def _rows(section: Section, shown: list[Bars], what: str) -> Drawing:
    """Draw rows of grouped bars: a group a number of parts, a bar a variant."""
    figure = new_figure(0.8 + 2.6 * len(shown) + 0.2 * legend_rows(section), section, what)
    axes = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for ax, bars in zip(axes, shown, strict=True):
        _groups(ax, section, bars)
    axes[-1].set_xlabel("Number of parts P (= ranks)")
    handles = [Patch(facecolor=v.style.colour, hatch=_hatch(v)) for v in section.variants]
    legend(figure, handles, [v.label for v in section.variants], section.variants)
    return figure


def _groups(ax: Axes, section: Section, bars: Bars) -> None:
    slot = min(0.84 / max(len(section.tried(parts)) for parts in section.parts), 0.2)
    for j, parts in enumerate(section.parts):
        there = section.tried(parts)
        left = j - slot * len(there) / 2
        for i, variant in enumerate(there):
            _bar(ax, bars, (variant, parts), left + (i + 0.5) * slot, 0.92 * slot)
    ax.set_xticks(range(len(section.parts)), [f"P = {parts}" for parts in section.parts])
    ax.set_xlim(-0.5, len(section.parts) - 0.5)
    if all(stat.mean >= 0 for stat in bars.figures.values()):
        ax.set_ylim(bottom=0)
    if bars.base is not None:
        ax.axhline(bars.base, color="#666666", lw=1, ls="-" if not bars.base else "--", zorder=3)
    ax.set_ylabel(bars.label)
    ax.grid(visible=False, axis="x")
    sns.despine(ax=ax)


def _bar(ax: Axes, bars: Bars, key: tuple[Variant, int], x: float, width: float) -> None:
    variant, stat = key[0], bars.figures.get(key)
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
