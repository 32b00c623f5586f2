"""What score each method reaches, and how it rises."""

from __future__ import annotations

import pandas as pd

from harness.report.figure import Axis, Chart, Figure, Layer, make_figure, tidy
from harness.report.sections import Section
from harness.report.table import Table, column, grid, seeds_note
from harness.report.values import values_of
from harness.report.variants import Variant
from harness.report.views import ReportView, prose
from harness.results.stats import byte_unit


class AccuracyView(ReportView):
    """Which method reaches the best score?"""

    name = "accuracy"
    title = "Accuracy"
    place = 10

    @property
    def heading(self) -> str:
        return self.section.score

    def table(self) -> Table | None:
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
            what += prose("accuracy.sampled")
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
    """Return the learning curve of a variant: means over seeds of time, bytes and score, lowest and highest score.

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
    """How does the score rise with epochs, time and bytes?"""

    name = "convergence"
    title = "Convergence"
    place = 160

    def figure(self) -> Figure | None:
        """Return validation score against epochs, training time and bytes sent, a column a number of parts.

        The row of bytes is there if any were sent.
        """
        section = self.section
        curves = {(v, p): mean_curve(section, v, p) for v in section.variants for p in section.parts}
        curves = {key: curve for key, curve in curves.items() if len(curve)}
        if not curves:
            return None
        low, cut = _cut(pd.concat(curves.values())["score"] * 100)
        y = Axis("score_percent", f"Validation {section.metric} (%)", low=low)
        charts = []
        for x, size in _axes(list(curves.values())):
            drawn = {key: curve for key, curve in curves.items() if curve[x.column].iloc[-1] > 0}
            # The rows are the same of all charts, in the units of their axes; those by epoch are the file's.
            data = tidy((v, parts, _columns(curve, x.column, size)) for (v, parts), curve in drawn.items())
            layer = Layer(data, "line", ("low_percent", "high_percent"), band=True, exported=x.column == "epoch")
            charts.append(Chart((layer,), x, y))
        caption = prose("convergence.figure")
        height = 3.3 * len(charts)
        return make_figure(section, "convergence", "Convergence", caption + cut, charts, height, share=("row", "all"))


def _axes(curves: list[pd.DataFrame]) -> list[tuple[Axis, float]]:
    """Return the axes that curves have anything for, each with its unit; logarithmic where their ends are far apart."""
    axes = [(Axis("epoch", "Epoch", whole=True), 1.0)]
    for key, name in (("time_s", "Training time"), ("sent_bytes", "Sent by all ranks")):
        ends = [end for curve in curves if (end := float(curve[key].iloc[-1])) > 0]
        if ends:
            size, unit = (1.0, "s") if key == "time_s" else byte_unit(max(ends))
            axes.append((Axis(key, f"{name} ({unit})", log=max(ends) > 12 * min(ends)), size))
    return axes


def _cut(scores: pd.Series[float]) -> tuple[float | None, str]:
    """Return where an axis without the steep rise begins (None: at the lowest), and a sentence for the caption."""
    low, early, top = float(scores.min()), float(scores.quantile(0.15)), float(scores.max())
    if top - low <= 2.5 * (top - early):
        return None, ""
    said = f" The lowest 15 % of the scores (down to {low:.1f} %) are below the axis."
    return early - 0.05 * (top - early), said


def _columns(curve: pd.DataFrame, scaled: str, size: float) -> dict[str, list[float]]:
    """Return the columns of a curve; `scaled`: the column that is in units of `size`."""
    data = {name: (curve[name] / (size if name == scaled else 1)).tolist() for name in ("time_s", "sent_bytes")}
    scores = {"score_percent": "score", "low_percent": "low", "high_percent": "high"}
    return {"epoch": curve["epoch"].tolist(), **data, **{n: (100 * curve[c]).tolist() for n, c in scores.items()}}
