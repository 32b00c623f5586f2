"""Trials that may be compared, in sections."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from harness.metrics import Metric, find_metric
from harness.report.columns import DERIVED, curve_of, epoch_sums, record_values
from harness.report.variants import (
    TWIN,
    Variant,
    as_mapping,
    dataset_labels,
    find_variants,
    of_a_search,
    variant_keys,
    without_target,
)
from harness.results.frames import EXTERNAL, ResultInputs, declared_metrics
from harness.results.projection import Checked
from harness.results.record import Record, flatten, of_workload, own_settings
from harness.results.stats import derived_target, show_value, text
from harness.results.tuned import Tuning
from harness.suite.schema import LATER

EVALUATIONS = 3  # of a trial, of fewer no target is derived


@dataclass(frozen=True)
class Section:
    """Trials, of one suite or several, that differ in method, number of parts and seed only: they may be compared.

    `frame` holds all of them whatever their status; a column `variant` (a variant's `key`) and those of `record_values`
    are added. `repeats`: the runs that its rows are means of, see `ResultInputs.runs` (None: each is of one). `badge`:
    the origin of data that are not the real set. `declared`: the metrics that the methods declare, by column. `tuning`:
    the search of the methods' settings on this data set, if there was one. `looks`: the seeds at which methods were
    compared, time after time, see `KeptSuite.looks`. `off`: how far times are off at most that are projected. `below`:
    how far a derived target is below what it is derived from.
    """

    anchor: str
    dataset: str
    badge: str
    model: str
    extra: str
    suites: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    metric: str
    frame: pd.DataFrame
    repeats: pd.DataFrame | None
    epochs: pd.DataFrame
    parts: tuple[int, ...]
    variants: tuple[Variant, ...]
    declared: Mapping[str, Metric]
    tuning: Tuning | None = None
    looks: tuple[tuple[int, ...], ...] = ()
    off: Checked | None = None
    below: float = 0.01

    def doubt(self, *parts: int) -> float:
        """Return up to which ratio of times trials on these numbers of parts cannot be distinguished, 1 as measured.

        Each that is projected may be off; none on one part is.
        """
        return self.off.factor ** sum(count > 1 for count in parts) if self.off else 1.0

    @cached_property
    def ok(self) -> pd.DataFrame:
        """Trials whose values count."""
        return self.frame[self.frame["status"] == "ok"]

    @cached_property
    def cells(self) -> Positions:
        """The rows of `ok` of each variant and number of parts that has any."""
        return _cells(self.ok, self.variants, self.parts)

    @cached_property
    def epoch_sums(self) -> dict[str, pd.DataFrame]:
        """The epochs of each trial that has some, see `columns.epoch_sums`."""
        return {str(trial): epoch_sums(rows) for trial, rows in self.epochs.groupby("trial")}

    @cached_property
    def curves(self) -> dict[str, pd.DataFrame]:
        """The learning curve of each trial that was evaluated, see `curve_of`."""
        found = {trial: curve_of(sums) for trial, sums in self.epoch_sums.items()}
        return {trial: curve for trial, curve in found.items() if len(curve)}

    @cached_property
    def target(self) -> float | None:
        """The validation score that methods are to reach: that of most trials, of equals the higher; else one derived.

        See `derived_from`; None where no trial asks for one and none can be derived.
        """
        asked = _target(self.frame)
        if asked is not None or self.derived_from is None:
            return asked
        best = [float(self.curves[trial]["score"].max()) for trial in self._trials(*self.derived_from)]
        return found if (found := derived_target(best, self.below)) > 0 else None

    @cached_property
    def derived_from(self) -> tuple[Variant, int] | None:
        """The variant and number of parts whose best scores the target follows from; None if trials ask for one.

        The baseline's best mean over its numbers of parts, of equals the most parts; without a baseline, of all rows.
        None if a trial of these has less than `EVALUATIONS`; others may be too slow for so many.
        """

        def reached(key: tuple[Variant, int]) -> tuple[float, int]:
            return float(np.mean([self.curves[trial]["score"].max() for trial in self._trials(*key)])), key[1]

        own = [key for key in self.cells if key[0] == self.baseline] or [*self.cells]
        trials = [trial for key in own for trial in self._trials(*key)]
        if _target(self.frame) is not None or any(len(self.curves.get(each, ())) < EVALUATIONS for each in trials):
            return None
        return max(own, key=reached, default=None)

    def _trials(self, variant: Variant, parts: int) -> list[str]:
        return [str(trial) for trial in self.select(variant, parts)["trial"]]

    @property
    def target_text(self) -> str:
        """The target as it is shown: "97.2 %", or "97.2 % (1 point below what full reached)"; "" without one."""
        if self.target is None:
            return ""
        points = f"{100 * self.below:g} point{'s' * (self.below != 0.01)}"
        origin = f" ({points} below what {self.derived_from[0].label} reached)" if self.derived_from else ""
        return f"{100 * self.target:.4g} %{origin}"

    @cached_property
    def _all_cells(self) -> Positions:
        return _cells(self.frame, self.variants, self.parts)

    @property
    def score(self) -> str:
        """The score's name at the start of a sentence."""
        return self.metric[0].upper() + self.metric[1:]

    @property
    def name(self) -> str:
        """Data set as it must be named wherever it is shown: a label may say that it is a twin."""
        return f"{self.dataset} [{self.badge}]" if self.badge and f" {TWIN}" not in self.dataset else self.dataset

    @property
    def title(self) -> str:
        """Heading: data set, model and what else sets this section apart."""
        return " · ".join(part for part in (self.name, self.model, self.extra) if part)

    @property
    def commands(self) -> bool:
        """Whether commands trained some of its trials."""
        return any(variant.family == EXTERNAL for variant in self.variants)

    @property
    def baseline(self) -> Variant | None:
        """What speed-ups and savings are relative to: the first baseline of full-graph methods."""
        return next((v for v in self.variants if v.is_baseline("full-graph")), None)

    @cached_property
    def compared_parts(self) -> int | None:
        """The number of parts that methods are compared at: with most trials, of those that do not crowd the cores.

        Of equal ones the largest; None where no number of parts has two variants.
        """
        ranked = [
            (not bool(own["crowded"].eq(True).any()) if "crowded" in own else True, len(own), int(str(parts)))
            for parts, own in self.ok.groupby("parts")
            if own["variant"].nunique() > 1
        ]
        return max(ranked)[-1] if ranked else None

    @property
    def networks(self) -> list[str]:
        """The networks of its trials; of one part there is none, unless all are."""
        several = self.frame[self.frame["parts"] > 1]
        frame = self.frame if several.empty else several
        return [str(name) for name in frame["network"].dropna().unique()]

    def metric_of(self, name: str) -> Metric:
        """Return what is known of a column; UserError if it is no metric."""
        return find_metric(name, (*DERIVED, *self.declared.values()))

    def tried(self, parts: int) -> tuple[Variant, ...]:
        """Return the variants that were to run on a number of parts, whatever became of them."""
        return tuple(variant for variant in self.variants if (variant, parts) in self._all_cells)

    def runs_of(self, variant: Variant, parts: int) -> pd.DataFrame:
        """Return the runs of a variant at a number of parts whose values count: of each seed one or more."""
        means = self.select(variant, parts)
        if self.repeats is None:
            return means
        return self.repeats[self.repeats["trial"].isin(means["trial"]) & (self.repeats["status"] == "ok")]

    def select(self, variant: Variant, parts: int, *, ok: bool = True) -> pd.DataFrame:
        """Return the trials (one a seed) of a variant at a number of parts."""
        if (variant, parts, ok) not in self._selected:
            frame, cells = (self.ok, self.cells) if ok else (self.frame, self._all_cells)
            self._selected[variant, parts, ok] = frame.iloc[cells.get((variant, parts), [])]
        return self._selected[variant, parts, ok]

    @cached_property
    def _selected(self) -> dict[tuple[Variant, int, bool], pd.DataFrame]:
        return {}


Positions = dict[tuple[Variant, int], np.ndarray]


def _cells(frame: pd.DataFrame, variants: Iterable[Variant], parts: Iterable[int]) -> Positions:
    """Return the positions of a frame's rows, by variant and number of parts."""
    found = frame.groupby(["variant", "parts"]).indices
    keys = itertools.product(variants, parts)
    return {(v, count): np.asarray(found[v.key, count]) for v, count in keys if (v.key, count) in found}


def _setting(inputs: ResultInputs, row: Mapping[Any, Any], ignoring: str) -> dict[str, Any]:
    """Return what two trials must share to be compared: what affects training, but method, parts and seed.

    Not their suite's name, nor the target that it asks the time of. `ignoring`: a key that may differ, too, with those
    below it.
    """
    columns = ["dataset", "model", "partitioner", "network", "device", "timing"]
    config = inputs.config(row)
    if not config:
        columns.append("dataset_note")
    setting: dict[str, Any] = {key: text(row.get(key)) for key in columns}
    setting["data"], setting["partition.content"] = inputs.data(row)
    setting["traffic"] = text(config.get("traffic", LATER["traffic"]))
    setting["search"] = "settings" if of_a_search(config) else None
    usual = of_workload(dict(config))
    setting["model"] = text((usual.get("model") or {}).get("name") or row.get("model"))  # a method may have its own
    for key, value in flatten(without_target(usual)).items():
        is_default = key in LATER and value == LATER[key]  # older records do not have these keys
        shared = key.split(".")[0] in ("dataset", "model", "train", "partition") and key != "partition.parts"
        if shared and not is_default:
            setting[key] = value
    if ignoring:
        setting = {key: value for key, value in setting.items() if not f"{key}.".startswith(f"{ignoring}.")}
    return _of_one_part(setting) if row["parts"] == 1 else setting


def _once(inputs: ResultInputs, results: pd.DataFrame) -> pd.DataFrame:
    """Return trials without those that another suite has run since with the same settings on the same data.

    What is stored to compare with gives way, whenever it ran.
    """
    kinds = []
    for row in results.to_dict("records"):
        config = inputs.config(row)
        same = [without_target(dict(config)), inputs.data(row)] if config else [row["suite"], row["trial"]]
        kinds.append(json.dumps(same, sort_keys=True, default=str))
    keys = zip(results["suite"], results["trial"], strict=True)
    order = results.assign(kind=kinds, own=[key not in inputs.stored for key in keys])
    newest = order.sort_values(["own", "started"], kind="stable").drop_duplicates("kind", keep="last")
    return results.loc[sorted(newest.index)]


def _of_one_part(setting: dict[str, Any]) -> dict[str, Any]:
    """Return what is left of a setting where there is one part: the same whatever the partitioner and the network."""
    between = "partitioner", "network", "partition."
    return {key: value for key, value in setting.items() if not key.startswith(between)}


def _group(inputs: ResultInputs, ignoring: str) -> list[tuple[dict[str, Any], list[int]]]:
    """Group row positions by setting; a trial of one part joins every group that agrees otherwise."""
    groups: dict[str, tuple[dict[str, Any], list[int]]] = {}
    singles: dict[str, tuple[dict[str, Any], list[int]]] = {}
    for position, row in enumerate(inputs.results.to_dict("records")):
        setting = _setting(inputs, row, ignoring)
        target = singles if row["parts"] == 1 else groups
        key = json.dumps(setting, sort_keys=True, default=str)
        target.setdefault(key, (setting, []))[1].append(position)
    for key, (setting, rows) in singles.items():
        hosts = [each for each in groups.values() if _of_one_part(each[0]) == setting]
        for _, members in hosts:
            members.extend(rows)
        if not hosts:
            groups[key] = (setting, rows)
    return list(groups.values())


def make_sections(inputs: ResultInputs, ignoring: str = "") -> list[Section]:
    """Split a report's trials into comparable groups, real data first, then by name and model.

    `ignoring`: a key of the configuration (`train.threads`) in which the trials of a group may differ.
    """
    variants = find_variants(inputs.results, inputs.record)
    results = inputs.results.reset_index(drop=True)
    results["variant"] = variant_keys(results, inputs.record)
    own = pd.DataFrame([record_values(inputs.record(row)) for row in results.to_dict("records")])
    results = _once(inputs, results.join(own)).reset_index(drop=True)
    groups = _group(replace(inputs, results=results), ignoring)
    for (setting, _), label in zip(groups, dataset_labels([setting for setting, _ in groups]), strict=True):
        setting["dataset"] = label
    extras = _extras([setting for setting, _ in groups])
    taken: set[str] = set()
    sections = [
        _section(inputs, results.iloc[sorted(rows)], setting, extra, variants, taken)
        for (setting, rows), extra in zip(groups, extras, strict=True)
    ]
    return sorted(sections, key=lambda s: (bool(s.badge), s.dataset, s.model, s.suites, s.extra))


def with_needed_baselines(inputs: ResultInputs) -> ResultInputs:
    """Return a report's trials without the stored ones that are comparable with none of its own."""
    if not inputs.stored:
        return inputs
    every = set(zip(inputs.results["suite"], inputs.results["trial"], strict=True))
    needed = every - inputs.stored
    for section in make_sections(inputs):
        together = set(zip(section.frame["suite"], section.frame["trial"], strict=True))
        if together - inputs.stored:
            needed |= together
    return inputs.only(needed)


def _extras(settings: list[dict[str, Any]]) -> list[str]:
    """Say what sets apart the sections that have the same data set and model."""
    extras = []
    for setting in settings:
        twins = [s for s in settings if all(s[k] == setting[k] for k in ("dataset", "model"))]
        keys = sorted(k for k in setting if any(s.get(k) != setting[k] for s in twins))
        keys = [k for k in keys if k not in ("partition.method", "dataset_note") and setting[k] is not None]
        extras.append(", ".join(f"{k}={show_value(setting[k])}" for k in keys))
    return extras


def _section(
    inputs: ResultInputs,
    frame: pd.DataFrame,
    setting: dict[str, Any],
    extra: str,
    variants: Mapping[str, Variant],
    taken: set[str],
) -> Section:
    frame = _to_one_target(frame)
    rows = frame.to_dict("records")
    records = [record for row in rows if (record := inputs.record(row))]
    present = set(frame["variant"])
    # Next to the name of data that are not real there must be their note or origin.
    origins = [(text(row.get("dataset_note")), text(row.get("origin"))) for row in rows]
    badges = (note or origin for note, origin in origins if note or origin != "real")
    keys = {(row["suite"], row["trial"]) for row in rows}
    suites = tuple(sorted({str(row["suite"]) for row in rows}))
    mine = [key in keys for key in zip(inputs.epochs["suite"], inputs.epochs["trial"], strict=True)]
    own = tuple(v for key, v in variants.items() if key in present)
    common = {v.method: v.common for v in own if v.common}
    return Section(
        anchor=_anchor(f"{setting['dataset']}-{setting['model']}", taken),
        dataset=setting["dataset"],
        badge=next(filter(None, badges), ""),
        model=setting["model"],
        extra=extra,
        suites=suites,
        facts=(
            suites_fact(suites),
            *_facts(setting),
            *((f"all {method}", options) for method, options in common.items()),
            *_own_settings(rows, inputs, variants),
        ),
        metric=_metric(records),
        frame=frame,
        repeats=inputs.runs[inputs.runs["suite"].isin(suites)] if "runs" in frame else None,
        epochs=inputs.epochs[mine],
        parts=tuple(sorted(int(p) for p in frame["parts"].dropna().unique())),
        variants=own,
        declared={name: metric for record in records for name, metric in declared_metrics(record).items()},
        tuning=_tuning(inputs, suites, records),
        looks=max((own for name, own in inputs.looks.items() if name in suites), key=len, default=()),
    )


def suites_fact(suites: Sequence[str]) -> tuple[str, str]:
    """Return name and value of the fact which suites trials are of."""
    return ("suites" if len(suites) > 1 else "suite", ", ".join(suites))


def _target(frame: pd.DataFrame) -> float | None:
    asked = frame["target"].dropna() if "target" in frame else ()
    counts = Counter(map(float, asked))
    return max(counts, key=lambda score: (counts[score], score)) if counts else None


def _to_one_target(frame: pd.DataFrame) -> pd.DataFrame:
    """Return trials without their times to another target than the section's; views find these in the epochs."""
    target = _target(frame)
    if target is None:
        return frame
    times = [column for column in frame.columns if column.startswith("time_to_target")]
    return frame.assign(**{column: frame[column].where(frame["target"] == target) for column in times})


def _tuning(inputs: ResultInputs, suites: Sequence[str], records: Iterable[Record]) -> Tuning | None:
    """Return what is known of the searches of a section's settings."""
    names = {as_mapping(record.config.get("dataset")).get("name") for record in records}
    found = [inputs.tunings[suite] for suite in suites if suite in inputs.tunings]
    methods = tuple(each for tuning in found for each in tuning.methods if each.dataset in names)
    return found[0].model_copy(update={"methods": methods}) if methods else None


def _anchor(name: str, taken: set[str]) -> str:
    stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "section"
    anchor, count = stem, 1
    while anchor in taken:
        count += 1
        anchor = f"{stem}-{count}"
    taken.add(anchor)
    return anchor


def _metric(records: Iterable[Record]) -> str:
    """Name the score: micro-F1 of multi-label data, else accuracy; "score" if no record says which."""
    known = [r.dataset["multilabel"] for r in records if isinstance(r.dataset.get("multilabel"), bool)]
    return ("micro-F1" if known[0] else "accuracy") if known else "score"


def _facts(setting: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    groups: dict[str, list[str]] = {}
    for key, value in setting.items():
        head, _, rest = key.partition(".")
        if rest and value not in (None, False, "") and rest != "name":
            groups.setdefault(head, []).append(f"{rest.removeprefix('options.')} {show_value(value)}")
    names = (*(() if "partition" in groups else ("partitioner",)), "network", "device", "timing", "traffic", "search")
    facts = [(k, value) for k in names if (value := text(setting.get(k)))]
    return (*facts, *((k, ", ".join(v)) for k, v in groups.items()))


def _own_settings(
    rows: Iterable[Mapping[Any, Any]], inputs: ResultInputs, variants: Mapping[str, Variant]
) -> list[tuple[str, str]]:
    """Return a fact for each variant that sets keys of training or model itself."""
    found = {row["variant"]: own_settings(dict(inputs.config(row))) for row in rows}
    return [
        (f"{variants[key].label} sets itself", ", ".join(f"{name} {show_value(v)}" for name, v in own.items()))
        for key, own in found.items()
        if own
    ]
