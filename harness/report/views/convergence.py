"""What score each method reaches."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd

from harness.report.plot import Axis, Mark, Panel, Plot, make_plot
from harness.report.sections import Section
from harness.report.table import Table, column, grid, seeds_note
from harness.report.values import values_of
from harness.report.variants import Variant
from harness.report.views import ReportView
from harness.results.stats import byte_unit


class AccuracyView(ReportView):
    """What score each method reaches."""

    name = "accuracy"
    title = "Accuracy"
    question = "Which method reaches the best score?"
    place = 10

    @property
    def heading(self) -> str:
        """The name of the score."""
        return self.section.score

    def table(self) -> Table | None:
        """Test score at the best validation, and that validation score, by parts; None if nothing was scored."""
        section = self.section
        test, val = (values_of(section, column) for column in ("test_at_best_val", "best_val"))
        if not (test or val) and len(section.ok):
            return None
        columns = {
            f"Test {section.metric} (%)": column(section, test, None, highest=True, usual=test | val),
            f"Validation {section.metric} (%)": column(section, val, None, highest=True, usual=test | val),
        }
        what = "Test score at the epoch of the best validation score, and that validation score"
        if sampled := values_of(section, "sampled_test_at_best_val"):
            columns["Test, sampled (%)"] = column(section, sampled, None, highest=True, usual=test | val)
            what += (
                ", both with all neighbours; sampled: the test score of that epoch by the method's own sampler, "
                "where it has one and was asked to (train.sampled_eval)"
            )
        return grid(
            section,
            f"{section.score} by method and number of parts P",
            f"{what}. {seeds_note(test | val)} Bold: best of the column, underlined: second best.",
            columns,
        )


CURVE_COLUMNS = ("epoch", "time_s", "sent_bytes", "score", "low", "high")
# Rows found in the cache and rows asked for, of full-graph methods and of mini-batches.
CACHED = (("stat_cached_boundary", "stat_sampled_boundary"), ("stat_cached_nodes", "stat_remote_nodes"))


def mean_curve(section: Section, variant: Variant, parts: int) -> pd.DataFrame:
    """Return the curve of a variant: means over seeds of time, bytes and score, lowest and highest score.

    It ends where the first seed ended, because a mean over those left would be biased. Columns as
    `CURVE_COLUMNS`; no rows if no trial was evaluated.
    """
    trials = sorted(map(str, section.select(variant, parts)["trial"]))
    curves = [section.curves[trial] for trial in trials if trial in section.curves]
    if not curves:
        return pd.DataFrame(columns=list(CURVE_COLUMNS))
    by_epoch = pd.concat(curves).groupby("epoch", sort=True)
    mean, scores = by_epoch[["time_s", "sent_bytes", "score"]].mean(), by_epoch["score"]
    mean = mean.assign(low=scores.min(), high=scores.max())[scores.size() == len(curves)]
    return mean.reset_index()[list(CURVE_COLUMNS)]


def hit_curve(section: Section, variant: Variant, parts: int) -> pd.Series[float]:
    """Return the hit rate of the feature cache by epoch (from 1), mean over seeds, as far as all of them ran.

    Of an epoch: rows found, summed over ranks, / rows asked for; epochs that ask for none have no rate.
    """
    there = [list(pair) for pair in CACHED if set(pair) <= set(section.epochs)]
    epochs = section.epochs[section.epochs["trial"].isin(section.select(variant, parts)["trial"])]
    for columns in there:
        sums = epochs.groupby(["epoch", "trial"])[columns].sum(min_count=1)
        rates = (sums[columns[0]] / sums[columns[1]]).unstack("trial").dropna().mean(axis=1)
        if len(rates):
            return rates.set_axis(rates.index + 1)
    return pd.Series(dtype=float)


class ConvergenceView(ReportView):
    """Validation score against epochs, training time and bytes."""

    name = "convergence"
    title = "Convergence"
    question = "How does the score rise with epochs, time and bytes?"
    place = 160

    def figure(self) -> Plot | None:
        """Return validation score against epochs, training time and bytes sent, a column a number of parts.

        The rows stand below one another; that of bytes is there if any were sent.
        """
        section = self.section
        curves = {(v, p): mean_curve(section, v, p) for v in section.variants for p in section.parts}
        curves = {key: curve for key, curve in curves.items() if len(curve)}
        if not curves:
            return None
        shown = pd.concat(curves.values())["score"] * 100
        low, cut = _cut(shown)
        up = Axis(f"Validation {section.metric} (%)", low=low)
        rows = [
            [
                Panel(row.axis, up, marks, parts) if (marks := _curves(curves, row, parts)) else None
                for parts in section.parts
            ]
            for row in _rows(list(curves.values()))
        ]
        caption = (
            "Validation score at each evaluation, against epochs, against training time (the sum of the slowest rank's "
            "epoch times so far, warm-up included, evaluation and set-up excluded) and against the bytes that all "
            "ranks have sent each other so far, where there are any. Line: mean over seeds, as far as all of them ran; "
            "band: lowest to highest seed; markers at some of the evaluations."
        )
        height = 3.3 * len(rows)
        return make_plot(section, "convergence", "Convergence", caption + cut, rows, height, share=("row", "all"))


@dataclass(frozen=True)
class _Row:
    """One row of panels: what a score stands against, in units of `size`."""

    column: str
    axis: Axis
    size: float = 1.0


def _rows(curves: list[pd.DataFrame]) -> list[_Row]:
    """Return the rows that curves have anything for; logarithmic where their ends lie far apart."""
    rows = [_Row("epoch", Axis("Epoch", whole=True))]
    for key, name in (("time_s", "Training time"), ("sent_bytes", "Sent by all ranks")):
        ends = [end for curve in curves if (end := float(curve[key].iloc[-1])) > 0]
        if ends:
            size, unit = (1.0, "s") if key == "time_s" else byte_unit(max(ends))
            rows.append(_Row(key, Axis(f"{name} ({unit})", log=max(ends) > 12 * min(ends)), size))
    return rows


def _cut(scores: pd.Series[float]) -> tuple[float | None, str]:
    """Leave out the steep rise if it would squeeze all the rest: where the axis begins, and what to say of it."""
    low, early, top = float(scores.min()), float(scores.quantile(0.15)), float(scores.max())
    if top - low <= 2.5 * (top - early):
        return None, ""
    said = f" The lowest 15 % of the scores (down to {low:.1f} %) are below the axis."
    return early - 0.05 * (top - early), said


def _curves(curves: dict[tuple[Variant, int], pd.DataFrame], row: _Row, parts: int) -> tuple[Mark, ...]:
    """Return the curves of a panel; those of the first row tell the numbers of all rows, which have the same points."""
    marks = []
    for (variant, count), curve in curves.items():
        if count != parts or not curve[row.column].iloc[-1] > 0:
            continue
        low, high, score = ((100 * curve[name]).tolist() for name in ("low", "high", "score"))
        data = {name: curve[name].tolist() for name in ("epoch", "time_s", "sent_bytes")}
        data |= {"score_percent": score, "low_percent": low, "high_percent": high}
        x = (curve[row.column] / row.size).tolist()
        own = Mark("line", variant, parts, ("", x), ("", score), low, high, more=data, band=True)
        marks.append(own if row.column == "epoch" else replace(own, more={}, told=False))
    return tuple(marks)
