"""Figures of bars: grouped by number of parts, or stacked of components."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from harness.report.palette import PHASES, SPARE, Style
from harness.report.plot import Axis, Entry, Mark, Panel, Plot, line_entries, make_plot, whiskers
from harness.report.sections import Section
from harness.report.values import Values
from harness.results.stats import Stat

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


def grouped_bars(section: Section, kind: str, title: str, caption: str, shown: list[BarRow]) -> Plot:
    """Return rows of grouped bars: a group a number of parts, a bar a variant; `kind`: the end of the figure's name."""
    return make_plot(
        section,
        kind,
        title,
        caption,
        [[_groups(section, bars)] for bars in shown],
        0.8 + 2.6 * len(shown),
        entries=line_entries(section.variants, "area"),
        share=("all", "none"),
    )


def _groups(section: Section, bars: BarRow) -> Panel:
    groups = tuple((f"P = {parts}", parts) for parts in section.parts)
    marks = []
    for place, parts in enumerate(section.parts):
        for variant in section.tried(parts):
            stat, x = bars.values.get((variant, parts)), ("", [place])
            if stat is None:
                marks.append(Mark("bar", variant, parts, x, told=False))
                continue
            spread = None if stat.std is None else stat.std / bars.unit
            y = (bars.label, [stat.mean / bars.unit])
            marks.append(Mark("bar", variant, parts, x, y, **whiskers(stat, bars.unit), more={"sd": spread}))
    if bars.base is not None:
        base = Style("#666666", "", "-" if not bars.base else (0, (4, 2)))
        marks.append(Mark("across", y=("", [bars.base]), style=base))
    return Panel(
        Axis("Number of parts P (= ranks)"), Axis(bars.label, zero=True), tuple(marks), kind="bars", groups=groups
    )


def stacked_bars(
    section: Section,
    kind: str,
    title: str,
    caption: str,
    values: dict[str, Values],
    known: dict[str, str],
    scale: tuple[float, str],
) -> Plot:
    """Return horizontal stacked bars of components, a panel a number of parts; shares below if these are times.

    `kind`: the end of the figure's name; `known`: components' colours; `scale`: the unit, and what an axis in it says.
    """
    spare = itertools.cycle(SPARE)  # of phases or purposes that are not known here
    colours = {name: known[name] if name in known else next(spare) for name in values}
    labels = [scale[1], "Share of the epoch (%)"] if known is PHASES else [scale[1]]
    shown = sorted({parts for found in values.values() for (_, parts), stat in found.items() if stat.mean})
    rows = [[_stacks(section, values, parts, scale, name) for parts in shown] for name in labels]
    return make_plot(
        section,
        kind,
        title,
        caption,
        rows,
        1.1 + len(labels) * (0.75 + 0.26 * len(section.variants)),
        entries=tuple(Entry(name, Style(colour, "", "-"), "area") for name, colour in colours.items()),
        components=colours,
    )


def _stacks(section: Section, values: dict[str, Values], parts: int, scale: tuple[float, str], label: str) -> Panel:
    """Return a panel of stacks; shares where its label is not that of the scale."""
    size, unit = scale
    marks = []
    for variant in section.variants:
        own = {name: found[variant, parts].mean / size for name, found in values.items() if (variant, parts) in found}
        pieces = {name: value for name, value in own.items() if value}
        x = (unit, list(pieces.values()))
        total = [sum(own.values())] if own else []
        marks.append(
            Mark("stack", variant, parts, x, value=total, more={"component": list(pieces)}, told=label == unit)
        )
    return Panel(Axis(label, zero=True), Axis(""), tuple(marks), parts, kind="stack", shares=label != unit)
