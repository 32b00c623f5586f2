"""What score each method reaches, how it rises, and when it first reaches a target: its time, epochs and bytes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.report.figure import DOTTED, Axis, Chart, Figure, Guide, Layer, amount_axis, lines, make_figure, tidy
from harness.report.sections import Section
from harness.report.table import Cell, Group, Key, Table, by_parts, column, grid, seeds_note
from harness.report.values import values_of
from harness.report.variants import Variant
from harness.report.views import ReportView, prose
from harness.results.stats import Stat, byte_unit, common_places, over_seeds, scaled, time_to_score, time_unit


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
            f"Test {section.metric} (%)": column(section, "test_at_best_val", None, test | val),
            f"Validation {section.metric} (%)": column(section, "best_val", None, test | val),
        }
        what = "Test score at the epoch of the best validation score, and that validation score"
        if values_of(section, sampled := "sampled_test_at_best_val"):
            columns["Test, sampled (%)"] = column(section, sampled, None, test | val)
            what += prose("accuracy.sampled")
        return grid(
            section,
            f"{section.score} by method and number of parts P",
            prose("accuracy.table", what=what, seeds_note=seeds_note(test | val)),
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


RISING = "not converged"


def still_rises(scores: Sequence[float]) -> bool:
    """Return whether the best score of a curve is in its last tenth, and above the earlier ones by more than noise.

    The noise is the median of the falls from one evaluation to the next.
    """
    values = np.asarray(scores, dtype=float)
    last = max(1, len(values) // 10)
    if len(values) < 3:
        return False
    falls = -np.diff(values)
    falls = falls[falls > 0]
    return bool(values[-last:].max() - values[:-last].max() > (np.median(falls) if len(falls) else 0.0))


def not_converged(section: Section) -> set[Key]:
    """Return the variants and numbers of parts of which more than half of the trials' curves still rise."""
    rises = {trial: still_rises(curve["score"].tolist()) for trial, curve in section.curves.items()}
    own = {key: [rises.get(str(trial), False) for trial in section.select(*key)["trial"]] for key in section.cells}
    return {key for key, each in own.items() if 2 * sum(each) > len(each)}


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


SHARES = (0.9, 0.95, 0.99)  # of the best score of a section
NEVER = "not reached"
DRAWN = np.linspace(0.9, 1.0, 11)  # scores of the figure, as shares of the best


@dataclass(frozen=True)
class Reached:
    """The amounts that `hits` of `seeds` trials needed to reach a score first; None if none did.

    `prepared_s`: the time, and that of the whole set-up before it; None where a set-up's is not known.
    """

    time_s: Stat | None
    epochs: Stat | None
    hits: int
    seeds: int
    prepared_s: Stat | None = None

    @property
    def always(self) -> bool:
        """Whether every seed reached it, so that the means are comparable."""
        return self.hits == self.seeds


def targets(section: Section) -> tuple[float, ...]:
    """Return the validation scores to be reached, ascending: those of the suite and `SHARES` of the best.

    A share of the best (`best_score`) is rounded down to 0.1 %.
    """
    top = best_score(section)
    if top is None:
        return ()
    own = section.ok["target"].dropna().unique() if "target" in section.ok else ()
    return tuple(sorted({math.floor(1000 * share * top) / 1000 for share in SHARES} | set(map(float, own))))


def best_score(section: Section) -> float | None:
    """Return the highest mean over seeds of a best validation score; None if nothing was scored."""
    return max((stat.mean for stat in values_of(section, "best_val").values()), default=None)


def scored_trials(section: Section) -> dict[Key, list[pd.DataFrame]]:
    """Return the epochs of the scored trials (`epoch_sums`), by variant and number of parts."""
    scored = {trial: own for trial, own in section.epoch_sums.items() if own["score"].notna().any()}
    if "prepared_s" in section.ok:
        known = section.ok.set_index("trial").reindex(columns=["prepared_s", "precompute_s"]).astype(float)
        before = known["prepared_s"] - known["precompute_s"].fillna(0.0)  # which is in the time
        scored = {trial: own.assign(prepared_s=before.get(trial)) for trial, own in scored.items()}
    keys = itertools.product(section.variants, section.parts)
    found = {key: [scored[t] for t in section.select(*key)["trial"] if t in scored] for key in keys}
    return {key: own for key, own in found.items() if own}


def reached(own: Sequence[pd.DataFrame], target: float) -> Reached:
    """Return when the trials of one variant and number of parts first reached a score."""
    times = [time_to_score(list(c["time_s"]), list(c["score"]), target) for c in own]
    epochs = [time_to_score([1.0] * len(c), list(c["score"]), target) for c in own]
    hits = sum(time is not None for time in times)
    seconds, counts = (over_seeds(pd.Series(values, dtype=float)) for values in (times, epochs))
    before = [c["prepared_s"].iloc[0] if "prepared_s" in c else math.nan for c in own]
    whole = [time + setup for time, setup in zip(times, before, strict=True) if time is not None]
    known = over_seeds(pd.Series(whole, dtype=float)) if not any(map(math.isnan, whole)) else None
    return Reached(seconds, counts, hits, len(own), known)


class TargetsView(ReportView):
    """How long does a method train until it reaches a score?"""

    name = "targets"
    title = "Time to accuracy"
    place = 170

    def table(self) -> Table | None:
        section = self.section
        scores, found = targets(section), scored_trials(section)
        if not scores or not found:
            return None
        all_reached = {key: [reached(own, score) for score in scores] for key, own in found.items()}
        times = [each.time_s.mean for own in all_reached.values() for each in own if each.time_s]
        size, unit = time_unit(max(times, default=None))
        places = min(3, common_places(time / size for time in times))
        shown: dict[Key, list[Cell]] = {key: [] for key in found}
        for parts in section.parts:
            keys = [key for key in found if key[1] == parts]
            for alike in zip(*(all_reached[key] for key in keys), strict=True):
                for key, each in zip(keys, alike, strict=True):
                    note = "" if each.always else f"{each.hits} of {each.seeds}"
                    time = Cell(scaled(each.time_s, size, places), note) if each.time_s else Cell(NEVER, number=False)
                    whole = Cell(scaled(each.prepared_s, size, places)) if each.prepared_s else Cell()
                    shown[key] += [time, whole, Cell(f"{each.epochs.mean:,.0f}") if each.epochs else Cell()]
        headings = f"Time ({unit})", "With set-up", "Epochs"
        return Table(
            "Time to accuracy",
            prose("targets.table", unit=unit, metric=section.metric),
            "Method",
            tuple(Group(f"{100 * score:.1f} %", headings) for score in scores),
            by_parts(section, lambda variant, parts: shown.get((variant, parts), ())),
        )

    def figure(self) -> Figure | None:
        section, best = self.section, best_score(self.section)
        drawn: dict[Key, dict[float, float]] = {}
        for key, own in scored_trials(section).items():
            each = {score: reached(own, score) for score in (best * DRAWN).tolist()} if best else {}
            known = {score: found.time_s.mean for score, found in each.items() if found.always and found.time_s}
            drawn |= {key: known} if known else {}
        if not drawn:
            return None
        times = [time for line in drawn.values() for time in line.values()]
        size, unit = time_unit(max(times))
        x = Axis("score_percent", f"Validation {section.metric} to reach (%)")
        y = amount_axis(f"training_time_{unit}", f"Training time ({unit})", times)
        scaled_lines = {key: {100 * score: time / size for score, time in own.items()} for key, own in drawn.items()}
        dotted = Guide(x=[100 * score for score in targets(section)], dash=DOTTED)
        chart = Chart((Layer(lines(scaled_lines, x, y)),), x, y, guides=(dotted,))
        caption = prose("targets.figure")
        return make_figure(section, "targets", "Time to accuracy", caption, [chart], 3.6, share=("none", "all"))
