"""What score each method reaches."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator

from harness.report.courses import trial_curve
from harness.report.drawing import Picture, line_legend, mark, mark_panel, new_figure, panel, plot_line, save, set_ticks
from harness.report.sections import Section, Variant, values_of
from harness.report.table import Table, column, grid, seeds_note
from harness.report.views import ReportView
from harness.results.text import byte_unit


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


SMALL = 4.5  # markers of curves
CURVE_COLUMNS = ("epoch", "time_s", "sent_bytes", "score", "low", "high")
# Rows found in the cache and rows asked for, of full-graph methods and of mini-batches.
CACHED = (("stat_cached_boundary", "stat_sampled_boundary"), ("stat_cached_nodes", "stat_remote_nodes"))


def mean_curve(section: Section, variant: Variant, parts: int) -> pd.DataFrame:
    """Return the curve of a variant: means over seeds of time, bytes and score, lowest and highest score.

    It ends where the first seed ended, because a mean over those left would be biased. Columns as
    `CURVE_COLUMNS`; no rows if no trial was evaluated.
    """
    trials = section.select(variant, parts)
    epochs = section.epochs[section.epochs["trial"].isin(trials["trial"])]
    curves = [trial_curve(rows) for _, rows in epochs.groupby("trial", sort=True)]
    curves = [curve for curve in curves if len(curve)]
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

    def figure(self) -> Picture | None:
        """Draw validation score against epochs, training time and bytes sent, a column a number of parts.

        The rows stand below one another; that of bytes is there if any were sent.
        """
        section = self.section
        curves = {(v, p): mean_curve(section, v, p) for v in section.variants for p in section.parts}
        curves = {key: curve for key, curve in curves.items() if len(curve)}
        if not curves:
            return None
        rows = _rows(list(curves.values()))
        figure = new_figure(3.3 * len(rows), section, "Convergence", legend=True)
        axes = figure.subplots(len(rows), len(section.parts), sharey=True, sharex="row", squeeze=False)
        for j, parts in enumerate(section.parts):
            for ax, row in zip(axes[:, j], rows, strict=True):
                for variant in section.variants:
                    if (variant, parts) in curves:
                        _curve(ax, curves[variant, parts], row, variant, parts)
                _curve_axes(ax, row)
                mark_panel(ax, parts)
                ax.set_visible(bool(ax.lines))
            panel(axes[0][j], parts)
        for own in axes:
            first = next(ax for ax in own if ax.get_visible())
            first.set_ylabel(f"Validation {section.metric} (%)")
            first.tick_params(labelleft=True)
        cut = _cut(axes[0][0], pd.concat(curves.values())["score"] * 100)
        shown = [v for v in section.variants if any(key[0] == v for key in curves)]
        line_legend(figure, shown, SMALL)
        caption = (
            "Validation score at each evaluation, against epochs, against training time (the sum of the slowest rank's "
            "epoch times so far, warm-up included, evaluation and set-up excluded) and against the bytes that all "
            "ranks have sent each other so far, where there are any. Line: mean over seeds, as far as all of them ran; "
            "band: lowest to highest seed; markers at some of the evaluations."
        )
        return save(figure, section, "convergence", "Convergence", caption + cut)


@dataclass(frozen=True)
class _Row:
    """One row of panels: what a score stands against, in units of `size`."""

    column: str
    label: str
    size: float = 1.0
    log: bool = False


def _rows(curves: list[pd.DataFrame]) -> list[_Row]:
    """Return the rows that curves have anything for; logarithmic where their ends lie far apart."""
    rows = [_Row("epoch", "Epoch")]
    for key, name in (("time_s", "Training time"), ("sent_bytes", "Sent by all ranks")):
        ends = [end for curve in curves if (end := float(curve[key].iloc[-1])) > 0]
        if ends:
            size, unit = (1.0, "s") if key == "time_s" else byte_unit(max(ends))
            rows.append(_Row(key, f"{name} ({unit})", size, max(ends) > 12 * min(ends)))
    return rows


def _curve_axes(ax: Axes, row: _Row) -> None:
    """Label an x axis; plain numbers on a logarithmic one."""
    ax.set_xlabel(f"{row.label}, log scale" if row.log else row.label)
    if row.log:
        ax.set_xscale("log")
        set_ticks(ax.xaxis, LogLocator(subs=(1.0, 3.0), numticks=7), "{:g}".format)
    else:
        ax.xaxis.set_major_locator(MaxNLocator(5))


def _cut(ax: Axes, scores: pd.Series[float]) -> str:
    """Leave out the first steep rise if it would squeeze all the rest; return what the caption says of it."""
    low, early, top = float(scores.min()), float(scores.quantile(0.15)), float(scores.max())
    if top - low <= 2.5 * (top - early):
        return ""
    margin = 0.05 * (top - early)
    ax.set_ylim(early - margin, top + margin)
    return f" The lowest 15 % of the scores (down to {low:.1f} %) are below the axis."


def _curve(ax: Axes, curve: pd.DataFrame, row: _Row, variant: Variant, parts: int) -> None:
    if not curve[row.column].iloc[-1] > 0:
        return
    shown, x = 100 * curve[["score", "low", "high"]], curve[row.column] / row.size
    line = plot_line(ax, x.tolist(), shown["score"].tolist(), variant.style, markers=8, size=SMALL)
    band = ax.fill_between(x, shown["low"], shown["high"], color=variant.style.colour, alpha=0.12, lw=0)
    data = {column: curve[column] for column in ("epoch", "time_s", "sent_bytes")}
    data |= {f"{name}_percent": shown[name] for name in shown}
    mark([*line, band], variant, parts, data if row.column == "epoch" else None)  # other rows have the same points
