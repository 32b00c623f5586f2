"""Settings of methods: options that were swept, searches of settings, and metrics that methods declare."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from statistics import median

from harness.metrics import Metric
from harness.report.figure import Axis, Chart, Figure, Layer, amount_axis, lines, make_figure, tidy, value_axis
from harness.report.sections import Section
from harness.report.sweeps import Line, sweep
from harness.report.table import Cell, Group, Row, Table, heading, metrics_table, missing, scale_of
from harness.report.values import Values, values_of
from harness.report.variants import Variant
from harness.report.views import VIEWS, ReportView, prose
from harness.report.views.convergence import NEVER
from harness.results.stats import common_places, percent, scaled, show_value, significant
from harness.results.tuned import TunedMethod, TuningTrial

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
    """What does each value of a method's option cost and reach?"""

    name = "options"
    title = "Options swept"
    place = 190

    def table(self) -> Table | None:
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
                cells = [
                    gap if not stat else Cell(percent(stat) if m.difference else scaled(stat, scales[m][0], places[m]))
                    for stat, m in stats
                ]
                rows.append(Row(f"{name} = {show_value(value)}", tuple(cells), variant))
        return Table(
            "Options that were swept",
            prose("options.table"),
            "Value",
            (Group("", tuple(heading(metric, unit) for metric, (_, unit) in scales.items())),),
            tuple(rows),
        )

    def figure(self) -> Figure | None:
        section = self.section
        swept = swept_options(section)
        values = _values(section, swept)
        places = list(_places(section, swept, values)) if values else []
        if not places:
            return None
        found = {name: [(line, parts) for other, line, parts in places if other == name] for name, _, _ in places}
        several = len({parts for _, _, parts in places}) > 1
        rows = [
            [_chart(name, metric, own, drawn, "parts" if several else "") for metric, own in values.items()]
            for name, drawn in found.items()
        ]
        series = [_named(name, line) for name, own in found.items() for line, _ in own]
        caption = prose("options.figure") + ("; dashes distinguish numbers of parts." if several else ".")
        height = 0.8 + 2.5 * len(rows)
        return make_figure(section, "options", "Options that were swept", caption, rows, height, series=series)


def _places(
    section: Section, swept: dict[str, list[Line]], values: dict[Metric, Values]
) -> Iterator[tuple[str, Line, int]]:
    """Yield the swept options with their lines and numbers of parts, where two values have a figure."""
    for name, found in swept.items():
        for line in found:
            for parts in section.parts:
                known = [v for _, v in line.points if any((v, parts) in own for own in values.values())]
                if len(known) > 1:
                    yield name, line, parts


def _named(option: str, line: Line) -> Line:
    """Return a line whose name distinguishes it from those of other options."""
    return replace(line, label=f"{option} of {line.label}", style=replace(line.style, dash="-"))


def _chart(name: str, metric: Metric, found: Values, drawn: Sequence[tuple[Line, int]], dash: str) -> Chart:
    """Return a chart of one metric of the trials against one option."""
    size, unit = scale_of(metric, found)
    label = heading(metric, unit)
    there = [
        (_named(name, line), parts, [(at, v) for at, v in line.points if (v, parts) in found]) for line, parts in drawn
    ]
    data = tidy(
        (
            line,
            parts,
            {
                name: [at for at, _ in points],
                label: [found[v, parts].mean / size for _, v in points],
                "seeds": [found[v, parts].n for _, v in points],
                "who": [v.label for _, v in points],
            },
        )
        for line, parts, points in there
    )
    x = value_axis(name, name, sorted({at for line, _ in drawn for at, _ in line.points}))
    y = Axis(label, label) if metric.difference else amount_axis(label, label, data[label].tolist())
    return Chart((Layer(data),), x, y, "", dash=dash)


class OwnMetricsView(ReportView):
    """What do methods report besides what the other views show?"""

    name = "own-metrics"
    title = "Methods' own metrics"
    place = 210

    def table(self) -> Table | None:
        elsewhere = [pattern for view in map(VIEWS.load, VIEWS.names()) for pattern in view.shows]
        declared = [name for name, metric in self.section.declared.items() if metric.value == "number"]
        names = [
            str(column)
            for column in self.section.ok.columns
            if _like(str(column), declared) and not _like(str(column), elsewhere) and values_of(self.section, column)
        ]
        if not names:
            return None
        metrics = [self.section.metric_of(name) for name in names]
        known = [f"{metric.title}: {metric.doc}" for metric in metrics if metric.doc]
        caption = f"{'; '.join(known)}. " if known else ""
        return metrics_table(self.section, names, self.title, f"{caption}Means over seeds.", sparse=True)


def _like(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _amount(amount: str, trial: TuningTrial | None) -> Cell:
    """Return what a trial came to: seconds to a target, or its best score."""
    if trial is None:
        return Cell(number=False)
    if amount.startswith("To"):
        return Cell(NEVER, number=False) if trial.target_s is None else Cell(significant(trial.target_s))
    return Cell("failed", number=False) if trial.best_val is None else Cell(f"{100 * trial.best_val:.2f}")


class TuningView(ReportView):
    """What did it cost to find each method's settings, how much was there to gain, and is it easy to find?"""

    name = "tuning"
    title = "Tuning"
    place = 6

    @cached_property
    def tuned(self) -> dict[Variant, TunedMethod]:
        """The search of each variant's settings."""
        tuning = self.section.tuning
        of = {each.method: each for each in tuning.methods} if tuning else {}
        return {variant: of[variant.method] for variant in self.section.variants if variant.method in of}

    def table(self) -> Table | None:
        if not self.tuned:
            return None
        targets = {each.target for each in self.tuned.values()} - {None}
        heads = ["Trials", "Hours", "Trained (s)"]
        heads += ["Reach the target"] * bool(targets)
        heads += ["Own (%)", "Median (%)", "Best (%)", "Chosen settings"]
        target = f" Target: {100 * max(t for t in targets if t is not None):.1f} %." if targets else ""
        return Table(
            "Search of the settings",
            prose("tuning.table", metric=self.section.metric, target=target),
            "Method",
            (Group("", tuple(heads)),),
            tuple(Row(v.label, tuple(self._cells(each, bool(targets))), v) for v, each in self.tuned.items()),
        )

    @staticmethod
    def _cells(each: TunedMethod, target: bool) -> Sequence[Cell]:
        own, drawn, best = each.own_val, each.drawn_vals, each.best
        reaching, count = each.reaching
        scores = (own, median(drawn) if drawn else None, max(drawn + [t.best_val or 0.0 for t in each.tried]))
        point = (
            ", ".join(
                f"{key} {significant(value) if isinstance(value, float) and value else show_value(value)}"
                for key, value in best.point.items()
            )
            if best
            else ""
        )
        return [
            Cell(str(len(each.tried))),
            Cell(significant(each.wall_s / 3600)),
            Cell(significant(each.trained_s)),
            *([Cell(f"{reaching} of {count}" if count else "–")] if target else []),
            *(Cell("–" if score is None else f"{100 * score:.2f}") for score in scores),
            Cell(point or ("the suite's own" if best else "all failed"), number=False, wrap=True),
        ]

    def details(self) -> Mapping[str, Table | None]:
        """See `ReportView`: the chosen settings against the other family's, and with other depths and widths."""
        target = next((each.target for each in self.tuned.values()), None)
        goal = () if target is None else (f"To {100 * target:.1f} % (s)",)
        score = ("Best validation (%)",)
        return {
            "cross": self._changed(
                "Settings of the other family", prose("tuning.cross"), ("settings of",), (*goal, *score)
            ),
            "sensitivity": self._changed(
                "Depth and width", prose("tuning.sensitivity"), ("layers", "hidden"), goal or score
            ),
        }

    def _changed(self, title: str, caption: str, starts: tuple[str, ...], amounts: Sequence[str]) -> Table | None:
        """Return the changes whose names begin so, next to the chosen settings; None if there are none."""
        found = {
            variant: {c.change: c for c in each.changed if c.change.startswith(starts)}
            for variant, each in self.tuned.items()
        }
        changes = list(dict.fromkeys(change for own in found.values() for change in own))
        rows = []
        for variant, own in found.items():
            tried = [self.tuned[variant].best, *map(own.get, changes)]
            cells = [_amount(amount, trial) for amount in amounts for trial in tried]
            rows += [Row(variant.label, tuple(cells), variant)] if own else []
        if not rows:
            return None
        groups = tuple(Group(amount, ("chosen", *changes)) for amount in amounts)
        return Table(title, caption, "Method", groups, tuple(rows))

    def figure(self) -> Figure | None:
        section, tuning = self.section, self.section.tuning
        if tuning is None:
            return None
        found = {
            (variant, section.parts[0]): {k: 100 * score for k, score in enumerate(each.course(tuning.sampler), 1)}
            for variant, each in self.tuned.items()
            if each.drawn_in_a_study > 1
        }
        if not found:
            return None
        x = Axis("trials", "Drawn settings tried", whole=True)
        y = Axis("best_validation_percent", f"Best validation {section.metric} (%)")
        chart = Chart((Layer(lines(found, x, y)),), x, y)
        how = (
            "mean over studies of the best so far, of a sampler that learns from earlier trials"
            if tuning.sampler == "tpe"
            else "best of so many draws from all drawn settings' scores (Dodge et al., EMNLP 2019, Eq. 4)"
        )
        caption = prose("tuning.figure", metric=section.metric, how=how)
        return make_figure(section, "tuning", "What tuning gains", caption, [chart], 3.6, share=("none", "all"))
