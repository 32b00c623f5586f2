"""The trials of a report as data in its page, from which a browser draws charts by what is chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from harness.metrics import METRICS, Metric
from harness.report.columns import DERIVED
from harness.report.embedding import SHAPES, in_element, rounded
from harness.report.palette import on_dark
from harness.report.sections import Section
from harness.report.table import Cell, Group, Row, Table, heading, scale_of
from harness.report.values import values_of
from harness.results.stats import MISSING, common_places, numbers, time_unit

POINTS = 100  # of a curve; of more every second, third, ...
WHOLE = (
    Metric("training_time_s", "epoch time times epochs", "s", "Training time", "less"),
    Metric("training_bytes", "sent in an epoch times epochs", "B", "Bytes of the training", "less"),
)
"""Of the whole training, with the metric of an epoch that they follow from."""
OF_EPOCH = {"training_time_s": "epoch_time_s", "training_bytes": "counted_bytes"}
ACROSS, UP = ("training_time_s", "epochs"), ("test_at_best_val", "final_test", "epoch_time_s")
"""What a chart shows at first: of each the first that was measured."""


def embedded(sections: Iterable[Section]) -> str:
    """Return the trials that ended well of each section as JSON that an HTML script element may hold.

    Of each section that has trials to compare: its anchor and name, its variants as they are drawn, its metrics with
    unit and direction, and a column of values in that unit for each of them, a value a trial.
    """
    found = [_section(section) for section in sections if section.compared_parts is not None]
    return in_element(found)


def _section(section: Section) -> dict[str, Any]:
    curves = section.curves
    section = replace(section, frame=with_whole(section.frame))
    frame = section.ok
    labels = {variant.key: number for number, variant in enumerate(section.variants)}
    metrics, columns = {}, {}
    for metric in measured(section):
        size, unit = scale_of(metric, values_of(section, metric.name))
        metrics[metric.name] = {"title": heading(metric, unit), "better": metric.better}
        columns[metric.name] = [rounded(value / size) for value in numbers(frame[metric.name])]
    return {
        "anchor": section.anchor,
        "dataset": section.name,
        "parts": section.compared_parts,
        "variants": [
            {
                "label": v.label,
                "method": v.method,
                "colour": v.style.colour,
                "dark": on_dark(v.style.colour),
                "shape": SHAPES[v.style.marker],
            }
            for v in section.variants
        ],
        "metrics": metrics,
        "across": next((name for name in ACROSS if name in metrics), ""),
        "up": next((name for name in UP if name in metrics), ""),
        "trials": {
            "trial": frame["trial"].astype(str).tolist(),
            "variant": [labels[key] for key in frame["variant"]],
            "parts": frame["parts"].astype(int).tolist(),
            "network": frame["network"].fillna("").astype(str).tolist() if "network" in frame else [""] * len(frame),
            "seed": frame["seed"].astype(int).tolist(),
        },
        "values": columns,
        "curves": [_curve(curves.get(str(trial))) for trial in frame["trial"]],
        "score": f"Validation {section.metric} (%)",
    }


def _curve(curve: pd.DataFrame | None) -> list[list[float | None]]:
    """Return epochs, training seconds and validation scores (%) of a trial's evaluations, thinned to `POINTS`."""
    if curve is None:
        return [[], [], []]
    kept = curve.iloc[:: -(-len(curve) // POINTS) or 1]
    return [[rounded(float(v)) for v in kept[name]] for name in ("epoch", "time_s")] + [
        [rounded(100 * float(v)) for v in kept["score"]]
    ]


def trials_table(section: Section, place: Callable[[str], str]) -> Table:
    """Return a row a trial, whatever became of it: parts, seed, status, scores, epoch time, flags, and its files.

    `place`: the address of a trial's directory, "" if it is not known.
    """
    frame = section.frame.sort_values(["parts", "variant", "seed"], kind="stable")
    variants = {variant.key: variant for variant in section.variants}
    size, unit = time_unit(frame["epoch_time_s"].max() if "epoch_time_s" in frame else None)
    times = frame["epoch_time_s"] / size if "epoch_time_s" in frame else pd.Series(np.nan, frame.index)
    places = common_places(times.dropna())
    rows = []
    for own, seconds in zip(frame.to_dict("records"), times, strict=True):
        home, reason = place(str(own["trial"])), _words(own.get("reason"))
        rows.append(
            Row(
                variants[own["variant"]].label,
                (
                    Cell(str(int(own["parts"]))),
                    Cell(str(int(own["seed"]))),
                    Cell(str(own["status"]), reason, number=False, wrap=bool(reason)),
                    *(_share(own.get(name)) for name in ("best_val", "test_at_best_val")),
                    Cell(f"{seconds:,.{places}f}" if np.isfinite(seconds) else MISSING),
                    Cell(_words(own.get("flags")), number=False, wrap=True),
                    Cell(str(own["trial"]), number=False, link=f"{home}/record.json" if home else ""),
                    Cell("log" if home else "", number=False, link=f"{home}/log.txt" if home else ""),
                ),
                variants[own["variant"]],
                int(own["parts"]),
            )
        )
    heads = ("P", "Seed", "Status", "Val (%)", "Test (%)", f"Epoch ({unit})", "Flags", "Record", "Log")
    caption = "Every trial; a click on a heading sorts. Links lead to its files while the page is where it was written."
    return Table(f"Trials, {section.title}", caption, "Method", (Group("", heads),), tuple(rows))


def _words(value: object) -> str:
    return value if isinstance(value, str) else ""


def _share(value: Any) -> Cell:
    return Cell(f"{100 * value:.2f}" if value is not None and np.isfinite(value) else MISSING)


def with_whole(frame: pd.DataFrame) -> pd.DataFrame:
    """Return trials with the columns of `WHOLE`, as far as an epoch's are there."""
    made = {
        name: numbers(frame[column]) * numbers(frame["epochs"])
        for name, column in OF_EPOCH.items()
        if column in frame and "epochs" in frame
    }
    return frame.assign(**made)


def measured(section: Section) -> list[Metric]:
    """Return the metrics of which some trial has a number, the most asked for first, then in the order of columns."""
    first = ("test_at_best_val", "best_val", "training_time_s", "epoch_time_s", "counted_bytes")
    known = {metric.name: metric for metric in (*WHOLE, *METRICS.values(), *DERIVED, *section.declared.values())}
    order = [*first, *(name for name in known if name not in first)]
    frame, of_trials = section.ok, ("parts", "seed", "repeat")
    return [
        known[name]
        for name in order
        if name in frame and name in known and name not in of_trials and known[name].value == "number"
        and frame[name].notna().any()
    ]  # fmt: skip
