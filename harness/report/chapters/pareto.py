"""Accuracy against cost: what each method reaches for its time, bytes, memory and energy."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from harness.report.figures.axes import cost_axis
from harness.report.figures.drawing import Picture, legend, legend_rows, new_figure, panel, save
from harness.report.figures.marks import mark
from harness.report.numbers import Stat, common_places, percent
from harness.report.tables.grid import by_parts
from harness.report.tables.table import Cell, Group, Table
from harness.report.trials.aggregate import Figures, figures_of
from harness.report.trials.costs import Cost, costs, front
from harness.report.trials.sections import Section
from harness.report.trials.variants import Variant

NOTHING = "none"


def pareto_table(section: Section) -> Table | None:
    """Test score, the costs of the whole training, and on which fronts a method is; None without scores."""
    found, score = costs(section), figures_of(section, "test_at_best_val")
    if not found or not score:
        return None
    scales = {cost: cost.scale(figures) for cost, figures in found.items()}
    places = {
        cost: min(3, common_places(stat.mean / scales[cost][0] for stat in figures.values() if stat.mean))
        for cost, figures in found.items()
    }
    fronts = _fronts(section, found, score)

    def cells(variant: Variant, parts: int) -> Sequence[Cell]:
        key = variant, parts
        if key not in score:
            return ()
        amounts = [
            Cell(f"{figures[key].mean / scales[cost][0]:,.{places[cost]}f}") if key in figures else Cell()
            for cost, figures in found.items()
        ]
        on = [cost.name.lower() for cost in found if variant in fronts.get((cost, parts), ())]
        return [Cell(percent(score[key])), *amounts, Cell(", ".join(on) or NOTHING, number=False)]

    heads = (
        f"Test {section.metric} (%)",
        *(f"{cost.name} ({unit})" for cost, (_, unit) in scales.items()),
        "On the front of",
    )
    return Table(
        "Accuracy and cost",
        "Of the whole training, means over seeds: time = epochs × epoch time, bytes between all ranks and "
        "energy likewise; peak memory of the rank that has most. On the front of a cost: no other method "
        f"at that P reaches as much for less, or more for as much; “{NOTHING}”: for every cost there is a "
        "better one. The means decide, however close: see the deviations.",
        "Method",
        (Group("", heads),),
        by_parts(section, cells),
    )


def _fronts(section: Section, found: dict[Cost, Figures], score: Figures) -> dict[tuple[Cost, int], list[Variant]]:
    """Return who is on the front of each cost and number of parts; none where nobody has that cost."""
    return {
        (cost, parts): front(
            {v: stat.mean for (v, own), stat in score.items() if own == parts},
            {v: stat.mean for (v, own), stat in figures.items() if own == parts},
        )
        for cost, figures in found.items()
        for parts in section.parts
        if any(own == parts and stat.mean for (_, own), stat in figures.items())
    }


def pareto_figure(section: Section) -> Picture | None:
    """Draw the test score against each cost, a row a number of parts; None without scores."""
    found, score = costs(section), figures_of(section, "test_at_best_val")
    fronts = _fronts(section, found, score)
    fronts = {key: own for key, own in fronts.items() if own}
    shown = [v for v in section.variants if any(v == key[0] for key in score)]
    if not fronts or len(shown) < 2:
        return None
    kinds, rows = [c for c in found if any(c == k for k, _ in fronts)], sorted({p for _, p in fronts})
    figure = new_figure(0.9 + 2.7 * len(rows) + 0.2 * legend_rows(section), section, "Accuracy and cost")
    axes = figure.subplots(len(rows), len(kinds), sharey="row", squeeze=False)
    for i, parts in enumerate(rows):
        for ax, cost in zip(axes[i], kinds, strict=True):
            if (cost, parts) not in fronts:
                ax.set_visible(False)
                continue
            _panel(ax, parts, cost, found[cost], score, fronts[cost, parts])
        axes[i][0].set_ylabel(f"Test {section.metric} (%)")
    handles = [
        *(Line2D([], [], color=v.style.colour, marker=v.style.marker, ls="", ms=6.5) for v in shown),
        Line2D([], [], color="#777777", lw=1, ls="--"),
    ]
    legend(figure, handles, [*(v.label for v in shown), "front"], shown)
    caption = (
        "Each method by what its whole training costs and what it reaches: the numbers of the table above, "
        "mean over seeds, whisker: ± sample standard deviation. Filled and joined by the dashed line: no "
        "other method reaches as much for less. Up and left is better."
    )
    return save(figure, section, "pareto", "Accuracy and cost", caption)


def _panel(ax: Axes, parts: int, cost: Cost, amounts: Figures, score: Figures, best: Sequence[Variant]) -> None:
    size, unit = cost.scale(amounts)
    label = f"{cost.name} ({unit})"
    there = [v for v, own in score if own == parts and (v, parts) in amounts]
    at = {v: amounts[v, parts].mean / size for v in there}
    ax.plot(
        [at[v] for v in best],
        [100 * score[v, parts].mean for v in best],
        color="#777777",
        lw=1,
        ls="--",
        drawstyle="steps-post",
        zorder=1,
    )
    for variant in there:
        _point(ax, (variant, parts), (label, at[variant]), score[variant, parts], on=variant in best)
    cost_axis(ax, label, list(at.values()))
    panel(ax, parts)


def _point(ax: Axes, of: tuple[Variant, int], amount: tuple[str, float], score: Stat, *, on: bool) -> None:
    """Draw one method's score with its deviation, hollow if it is not on the front."""
    style, mean = of[0].style, 100 * score.mean
    spread = None if score.std is None else 100 * score.std
    drawn = ax.errorbar(
        amount[1],
        mean,
        spread,
        color=style.colour,
        marker=style.marker,
        markersize=6.5,
        markerfacecolor=style.colour if on else "white",
        capsize=2.5,
        lw=1,
    )
    label, x = amount
    mark(drawn, *of, {label: x, "score_percent": mean, "sd": spread, "front": on})
