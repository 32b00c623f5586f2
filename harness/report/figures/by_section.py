"""The figures of one section."""

from __future__ import annotations

from collections.abc import Callable

import seaborn as sns
from matplotlib.patches import Patch

from harness.report.chapters.overlap import staleness_figure
from harness.report.figures.convergence import convergence_figure
from harness.report.figures.drawing import Picture, legend, legend_rows, new_figure, save, style
from harness.report.figures.marks import Drawing, mark
from harness.report.figures.sampling import batch_figure, cache_figure, sampling_figure
from harness.report.figures.stacks import breakdown_figure, traffic_figure
from harness.report.numbers import byte_unit
from harness.report.trials.aggregate import Figures, figures_of
from harness.report.trials.sections import Section
from harness.report.trials.variants import Variant


def section_figures(section: Section) -> dict[str, Picture]:
    """Draw the figures of a section, by the heading they stand under; one without data is left out."""
    drawn: dict[str, Callable[[Section], Picture | None]] = {
        "time": throughput_figure,
        "breakdown": breakdown_figure,
        "overlap": staleness_figure,
        "traffic": traffic_figure,
        "sampling": sampling_figure,
        "batches": batch_figure,
        "cache": cache_figure,
        "memory": memory_figure,
        "convergence": convergence_figure,
    }
    with style():
        pictures = {name: draw(section) for name, draw in drawn.items()}
    return {name: picture for name, picture in pictures.items() if picture}


def throughput_figure(section: Section) -> Picture | None:
    """Draw epochs per second, grouped by number of parts."""
    figures = figures_of(section, "throughput_epochs_s")
    if not figures:
        return None
    figure = _bars(section, figures, 1.0, "Throughput (epochs / s)", "Throughput")
    caption = (
        "Epochs per second = 1 / epoch time of the table above (evaluation excluded); bar: mean over seeds, "
        "whisker: ± sample standard deviation. Higher is better."
    )
    return save(figure, section, "throughput", "Throughput", caption)


def memory_figure(section: Section) -> Picture | None:
    """Draw peak memory, grouped by number of parts."""
    figures = figures_of(section, "peak_memory_bytes")
    if not figures:
        return None
    size, unit = byte_unit(max(stat.mean for stat in figures.values()))
    figure = _bars(section, figures, size, f"Peak memory of a rank ({unit})", "Peak memory")
    caption = (
        "The numbers of the table above; bar: mean over seeds, whisker: ± sample standard deviation. "
        "Lower is better."
    )
    return save(figure, section, "memory", "Peak memory", caption)


def _bars(section: Section, figures: Figures, unit: float, label: str, what: str) -> Drawing:
    """Draw grouped bars: a group a number of parts, a bar a variant."""
    figure = new_figure(3.4 + 0.2 * legend_rows(section), section, what)
    ax = figure.subplots()
    slot = min(0.84 / len(section.variants), 0.2)
    left = -slot * len(section.variants) / 2
    for i, variant in enumerate(section.variants):
        for j, parts in enumerate(section.parts):
            x = j + left + (i + 0.5) * slot
            stat = figures.get((variant, parts))
            if stat is None:
                text = ax.annotate(
                    "n/a", (x, 0), (0, 3), textcoords="offset points", rotation=90, ha="center", va="bottom",
                    fontsize=7, color="#666666",
                )  # fmt: skip
                mark(text, variant, parts)
                continue
            ends = None if stat.std is None else stat.std / unit
            bar = ax.bar(x, stat.mean / unit, 0.92 * slot, color=variant.style.colour, hatch=_hatch(variant))
            mark(bar, variant, parts, {label: stat.mean / unit, "sd": ends})
            if ends is not None:
                whisker = ax.errorbar(x, stat.mean / unit, ends, color="#666666", capsize=1.5, lw=0.9)
                mark(whisker, variant, parts)
    ax.set_xticks(range(len(section.parts)), [f"P = {parts}" for parts in section.parts])
    ax.set_xlim(-0.5, len(section.parts) - 0.5)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("Number of parts P (= ranks)")
    ax.set_ylabel(label)
    ax.grid(visible=False, axis="x")
    sns.despine(ax=ax)
    handles = [Patch(facecolor=v.style.colour, hatch=_hatch(v)) for v in section.variants]
    legend(figure, handles, [v.label for v in section.variants], section.variants)
    return figure


def _hatch(variant: Variant) -> str:
    return "" if variant.style.dash == "-" else "////"
