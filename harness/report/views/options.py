"""A method's options swept: what each value of a rate, a staleness or a D costs and reaches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from harness.metrics import Metric
from harness.report.palette import DASHES, Dash
from harness.report.plot import Axis, Entry, Mark, Panel, Plot, amount_axis, guide, make_plot, value_axis
from harness.report.sections import Section
from harness.report.sweeps import Line, sweep
from harness.report.table import Cell, Group, Row, Table, heading, missing, scale_of
from harness.report.values import Values, values_of
from harness.report.views import ReportView
from harness.results.stats import Stat, common_places, percent, scaled, show_value

SHOWN = ("test_at_best_val", "epoch_time_s", "counted_bytes", "peak_memory_bytes")  # and what methods declare as better


def swept_options(section: Section) -> dict[str, list[Line]]:
    """Return the numeric options of which a method has several values, by name, and their lines."""
    names = sorted({name for variant in section.variants for name in variant.options})
    found = {
        # Switches are numbers to Python.
        name: [ln for ln in lines if not any(isinstance(v.options[name], bool) for _, v in ln.points)]
        for name in names
        if (lines := sweep(section.variants, name))
    }
    return {name: lines for name, lines in found.items() if lines}


def _values(section: Section, swept: dict[str, list[Line]]) -> dict[Metric, Values]:
    """Return the metrics that sweeps show: those of all methods, and those of which a swept one says what is better."""
    variants = {variant for lines in swept.values() for line in lines for _, variant in line.points}
    own = [name for name, metric in section.declared.items() if metric.better and name not in SHOWN]
    found = {section.metric_of(name): values_of(section, name) for name in (*SHOWN, *own)}
    return {
        metric: values
        for metric, values in found.items()
        if any(stat.mean for (variant, _), stat in values.items() if variant in variants)
    }


class OptionsView(ReportView):
    """A method's options swept: what each value of a rate, a staleness or a D costs and reaches."""

    name = "options"
    title = "Options swept"
    question = "What does each value of a method's option cost and reach?"
    place = 190

    def table(self) -> Table | None:
        """A row a value of each swept option and number of parts; None where no option was swept."""
        section = self.section
        swept = swept_options(section)
        values = _values(section, swept)
        if not values:
            return None
        scales = {metric: scale_of(metric, own) for metric, own in values.items()}
        places = {
            metric: min(3, common_places(stat.mean / scales[metric][0] for stat in own.values()))
            for metric, own in values.items()
        }
        rows: list[Row] = []
        for name, line, parts in _places(section, swept, values):
            rows.append(Row(f"{name} of {line.label}, P = {parts}", parts=parts))
            for value, variant in line.points:
                gap = missing(section, variant, parts)
                stats = [(own.get((variant, parts)), metric) for metric, own in values.items()]
                cells = [_cell(stat, scales[m][0], places[m], m) if stat else gap for stat, m in stats]
                rows.append(Row(f"{name} = {show_value(value)}", tuple(cells), variant))
        return Table(
            "Options that were swept",
            "Variants of a method that differ in one numeric option alone, by its value; score, epoch time, bytes sent "
            "in an epoch (all ranks), peak memory of a rank and what methods declare as better or worse as in their "
            "own tables. Mean ± sample standard deviation over seeds.",
            "Value",
            (Group("", tuple(heading(metric, unit) for metric, (_, unit) in scales.items())),),
            tuple(rows),
        )

    def figure(self) -> Plot | None:
        """Return score, epoch time, bytes and memory against each swept option, a row an option."""
        section = self.section
        swept = swept_options(section)
        values = _values(section, swept)
        places = list(_places(section, swept, values)) if values else []
        if not places:
            return None
        names = list(dict.fromkeys(name for name, _, _ in places))
        lines = {f"{name} of {line.label}": line for name, line, _ in places}
        counts = sorted({parts for _, _, parts in places})
        dashes = {parts: DASHES[i % len(DASHES)] for i, parts in enumerate(counts)}
        rows = []
        for name in names:
            own = [(line, parts) for other, line, parts in places if other == name]
            rows.append([_panel(name, metric, found, own, dashes) for metric, found in values.items()])
        entries = [Entry(label, replace(line.style, dash="-"), of=line) for label, line in lines.items()]
        if len(counts) > 1:
            entries += [Entry(f"P = {parts}", guide(dashes[parts]), "path") for parts in counts]
        caption = (
            "The numbers of the table above against each option's value, means over seeds; a line joins what "
            "differs in that option alone, in the colour of its lowest value"
            + ("; dashes tell numbers of parts apart." if len(counts) > 1 else ".")
        )
        title, height = "Options that were swept", 0.8 + 2.5 * len(names)
        return make_plot(section, "options", title, caption, rows, height, entries=tuple(entries))


def _places(
    section: Section, swept: dict[str, list[Line]], values: dict[Metric, Values]
) -> Iterator[tuple[str, Line, int]]:
    """Yield the swept options with their lines and numbers of parts, where two values have a figure."""
    for name, lines in swept.items():
        for line in lines:
            for parts in section.parts:
                known = [v for _, v in line.points if any((v, parts) in own for own in values.values())]
                if len(known) > 1:
                    yield name, line, parts


def _cell(stat: Stat, size: float, places: int, metric: Metric) -> Cell:
    return Cell(percent(stat) if metric.difference else scaled(stat, size, places))


def _panel(
    name: str, metric: Metric, found: Values, own: Sequence[tuple[Line, int]], dashes: Mapping[int, Dash]
) -> Panel:
    """Return a panel of one metric of the trials against one option."""
    size, unit = scale_of(metric, found)
    label, marks = heading(metric, unit), []
    for line, parts in own:
        there = [(value, variant) for value, variant in line.points if (variant, parts) in found]
        stats = [found[variant, parts] for _, variant in there]
        x, y = (name, [value for value, _ in there]), (label, [stat.mean / size for stat in stats])
        style, who = replace(line.style, dash=dashes[parts]), [variant for _, variant in there]
        marks.append(Mark("line", line, parts, x, y, seeds=[stat.n for stat in stats], style=style, who=who))
    across = value_axis(name, sorted({value for line, _ in own for value, _ in line.points}))
    up = Axis(label) if metric.difference else amount_axis(label, [amount for mark in marks for amount in mark.y[1]])
    return Panel(across, up, tuple(marks))
