"""Trials that may be compared: sections, their method variants, and values over seeds."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import numpy as np
import pandas as pd

from harness.metrics import SUMS, Metric, find_metric
from harness.report.columns import DERIVED, MODEL, MODEL_SUFFIX, record_values
from harness.report.courses import curve_of, trial_course
from harness.report.palette import PHASES, PURPOSES, Style, variant_styles
from harness.results.frames import ResultInputs, declared_by, declared_metrics, declared_of, is_baseline
from harness.results.record import Json, Record, flatten, of_workload, own_settings
from harness.results.text import Stat, numbers, over_seeds, show_value, text
from harness.results.tuned import Tuning
from harness.spec import of_presets
from harness.suite.schema import FEW, LATER

MOST = 3  # options that a label shows also where they are the defaults


@dataclass(frozen=True)
class Variant:
    """A method with its options; `label` shows those that tell it from others, `common` what these share.

    `family`: the method's; `baseline`: whether those of its family are compared with it; `plain`: options at
    which the method leaves out what is its own, see `Method`.
    """

    key: str
    method: str
    label: str
    style: Style
    common: str = ""
    family: str = ""
    baseline: bool = False
    plain: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def is_baseline(self, family: str) -> bool:
        """Return whether methods of a family are compared with it."""
        return self.baseline and self.family == family

    @property
    def options(self) -> dict[str, Any]:
        """All of the method's options; its key holds them, so that a variant can be one."""
        return dict(json.loads(self.key)[1])


def _mapping(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def variant_key(method: object, options: object, own: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return what tells variants apart as canonical JSON: method and options, and what it sets itself if given."""
    parts = [str(method), _mapping(options), *([dict(own)] if own else [])]
    return json.dumps(parts, sort_keys=True, default=str)


RecordOf = Callable[[Mapping[Any, Any]], Record | None]


def _variant_keys(results: pd.DataFrame, record_of: RecordOf) -> list[str]:
    """Return the key of each row's variant.

    What a method sets itself (`per_method`) is part of it only where trials of one data set have several such settings:
    on several data sets it is one variant.
    """
    rows = results.to_dict("records")
    records = [record_of(row) for row in rows]
    own = [own_settings(record.config) if record else {} for record in records]
    plain = [variant_key(row["method"], row["options"]) for row in rows]
    found: dict[str, dict[str, set[str]]] = {}
    for key, record, settings in zip(plain, records, own, strict=True):
        if record is not None:
            alike = of_workload(record.config) | {"seed": None, "repeat": None, "data": None}
            place = json.dumps([_of_a_search(record.config), _without_target(alike)], sort_keys=True, default=str)
            found.setdefault(key, {}).setdefault(place, set()).add(json.dumps(settings, sort_keys=True))
    several = {key for key, places in found.items() if any(len(kinds) > 1 for kinds in places.values())}
    return [
        variant_key(row["method"], row["options"], settings) if key in several else key
        for key, row, settings in zip(plain, rows, own, strict=True)
    ]


def _sort_key(value: object) -> tuple[int, tuple[float, ...], str]:
    numbers = value if isinstance(value, list | tuple) else (value,)
    if all(isinstance(number, int | float) for number in numbers):
        return 0, tuple(float(number) for number in numbers), ""
    return 1, (), str(value)


def find_variants(results: pd.DataFrame, record_of: RecordOf = lambda row: None) -> dict[str, Variant]:
    """Name and colour every method variant of a report; `record_of`: the record of a row of `results`, if there is one.

    The baseline of full-graph methods comes first, then the methods by name; of one method, false comes before true
    and smaller numbers before larger ones. See `variant_styles` for colours. Shown are the options that vary among a
    method's variants, those that are not the default, and a few numbers. Of more than `MOST` not those that are
    everywhere the default, nor, where there are several variants, what these have in common: `common` has that.
    The default of an option that a preset decides is the preset's. What a method sets itself of the training is in the
    label where it tells variants apart.
    """
    found: dict[str, tuple[str, dict[str, Any], Json]] = {}
    shown: dict[str, set[str]] = {}
    for key, row in zip(_variant_keys(results, record_of), results.to_dict("records"), strict=True):
        method, options, record = str(row["method"]), _mapping(row["options"]), record_of(row)
        said = declared_by(record) if record else declared_of(method)
        own = _mapping(record.config["method"].get("options")) if record else options
        found[key] = method, options, said
        shown.setdefault(method, set()).update(_labelled(own, said))
    common: dict[str, str] = {}
    for method, names in shown.items():
        mine = [options for own, options, _ in found.values() if own == method]
        said = next(said for own, _, said in found.values() if own == method)
        usual = [_defaults(options, said) for options in mine]
        unsaid = {k for k in usual[0] if all(o.get(k) == u[k] for o, u in zip(mine, usual, strict=True))}
        varying = {k for options in mine for k in options if any(o.get(k) != options[k] for o in mine)} - unsaid
        if len(names | varying) > MOST:
            names -= unsaid
            if varying:
                common[method] = _listed(mine[0], names - varying)
                names &= varying
        names |= varying

    def order(key: str) -> tuple[object, ...]:
        method, options, said = found[key]
        values = [_sort_key(options.get(name)) for name in sorted(shown[method])]
        return not is_baseline(said, options, "full-graph"), method, values, key

    variants, keys = {}, sorted(found, key=order)
    colours = {method: str(said.get("colour") or "") for method, _, said in found.values()}
    styles = variant_styles([found[key][0] for key in keys], colours)
    for key, style in zip(keys, styles, strict=True):
        method, options, said = found[key]
        own = {name.partition(".")[2]: value for name, value in _own_of(key).items()}
        label = variant_label(method, options | own, shown[method] | own.keys())
        family = str(said.get("family", ""))
        base, plain = is_baseline(said, options, family), said.get("plain") or {}
        variants[key] = Variant(key, method, label, style, common.get(method, ""), family, base, plain)
    return variants


def _own_of(key: str) -> Json:
    """Return what the variant of a key sets itself, as far as it is part of the key."""
    parts = json.loads(key)
    return dict(parts[2]) if len(parts) > 2 else {}


def _labelled(options: Mapping[str, Any], declared: Json) -> set[str]:
    """Return the options that a label names: what is not the default, and numbers where they are few."""
    defaults = _defaults(options, declared)
    numbers = [name for name in declared.get("numbers") or () if name in options]
    if len(numbers) > FEW:
        numbers = []
    return {name for name in options if name in numbers or name not in defaults or defaults[name] != options[name]}


def _defaults(options: Mapping[str, Any], declared: Json) -> dict[str, Any]:
    return _mapping(declared.get("defaults")) | of_presets(_mapping(declared.get("presets")), options)


def variant_label(method: str, options: Mapping[str, Any], shown: set[str]) -> str:
    """Return a method's name with the options that are to be `shown`, of those it has."""
    inside = _listed(options, shown)
    return f"{method} ({inside})" if inside else method


def _listed(options: Mapping[str, Any], names: set[str]) -> str:
    return ", ".join(f"{name}={show_value(options[name])}" for name in sorted(names) if name in options)


@dataclass(frozen=True)
class Section:
    """Trials, of one suite or several, that differ in method, number of parts and seed only: they may be compared.

    `frame` holds all of them whatever their status, `ok` those that ended well; both have a column
    `variant` (a variant's `key`) and those of `record_values`. `repeats`: the runs that rows of `frame` are
    means of, see `ResultInputs.runs`; None where each is of one. `badge` says what the data are if not the
    real set; `declared`: the metrics that the methods declare, by column; `tuning`: of the methods on this data
    set, if their settings were chosen by a search.
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

    @cached_property
    def ok(self) -> pd.DataFrame:
        """Trials whose values count."""
        return self.frame[self.frame["status"] == "ok"]

    @cached_property
    def cells(self) -> Cells:
        """The rows of `ok` of each variant and number of parts that has any."""
        return _cells(self.ok, self.variants, self.parts)

    @cached_property
    def courses(self) -> dict[str, pd.DataFrame]:
        """The course of each trial that has epochs, see `trial_course`."""
        return {str(trial): trial_course(rows) for trial, rows in self.epochs.groupby("trial")}

    @cached_property
    def curves(self) -> dict[str, pd.DataFrame]:
        """The curve of each trial that was evaluated, see `trial_curve`."""
        found = {trial: curve_of(course) for trial, course in self.courses.items()}
        return {trial: curve for trial, curve in found.items() if len(curve)}

    @cached_property
    def target(self) -> float | None:
        """The validation score that methods are to reach: what most trials ask for, of equals the higher; or None."""
        return _target(self.frame)

    @cached_property
    def _all_cells(self) -> Cells:
        return _cells(self.frame, self.variants, self.parts)

    @property
    def score(self) -> str:
        """The score's name at the start of a sentence."""
        return self.metric[0].upper() + self.metric[1:]

    @property
    def name(self) -> str:
        """Data set as it must be named wherever it is shown."""
        return f"{self.dataset} [{self.badge}]" if self.badge else self.dataset

    @property
    def title(self) -> str:
        """Heading: data set, model and what else sets this section apart."""
        return " · ".join(part for part in (self.name, self.model, self.extra) if part)

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
        frame, cells = (self.ok, self.cells) if ok else (self.frame, self._all_cells)
        return frame.iloc[cells.get((variant, parts), [])]


Cells = dict[tuple[Variant, int], np.ndarray]


def _cells(frame: pd.DataFrame, variants: Iterable[Variant], parts: Iterable[int]) -> Cells:
    """Return the positions of a frame's rows, by variant and number of parts."""
    found = frame.groupby(["variant", "parts"]).indices
    places = itertools.product(variants, parts)
    return {(v, count): np.asarray(found[v.key, count]) for v, count in places if (v.key, count) in found}


def _setting(inputs: ResultInputs, row: Mapping[Any, Any], ignoring: str) -> dict[str, Any]:
    """Return what two trials must share to be compared: what affects training, but method, parts and seed.

    Not their suite's name, nor the target that it asks the time of. `ignoring`: a key that may differ, too.
    """
    columns = ["dataset", "model", "partitioner", "network", "device", "timing"]
    config = inputs.config(row)
    if not config:
        columns.append("dataset_note")
    setting: dict[str, Any] = {key: text(row.get(key)) for key in columns}
    setting["data"], setting["partition.content"] = inputs.data(row)
    setting["traffic"] = text(config.get("traffic", LATER["traffic"]))
    setting["search"] = "settings" if _of_a_search(config) else None
    for key, value in flatten(_without_target(of_workload(dict(config)))).items():
        is_default = key in LATER and value == LATER[key]  # older records do not have these keys
        shared = key.split(".")[0] in ("dataset", "model", "train", "partition") and key != "partition.parts"
        if shared and not is_default:
            setting[key] = value
    setting.pop(ignoring, None)
    return _of_one_part(setting) if row["parts"] == 1 else setting


def _of_a_search(config: Mapping[str, Any]) -> bool:
    """Return whether a trial is one of a search of settings; what was chosen is trained by others."""
    return bool(config.get("tuning"))


def _without_target(config: Json) -> Json:
    """Return a configuration without the score whose time is asked for, unless training stops there."""
    train = config.get("train") or {}
    if train.get("stop_at_target"):
        return config
    return config | {"train": {key: value for key, value in train.items() if key != "target"}}


def _once(inputs: ResultInputs, results: pd.DataFrame) -> pd.DataFrame:
    """Return trials without those that another suite has run since with the same settings on the same data.

    What is stored to compare with gives way, whenever it ran.
    """
    kinds = []
    for row in results.to_dict("records"):
        config = inputs.config(row)
        same = [_without_target(dict(config)), inputs.data(row)] if config else [row["suite"], row["trial"]]
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
    results["variant"] = _variant_keys(results, inputs.record)
    own = pd.DataFrame([record_values(inputs.record(row)) for row in results.to_dict("records")])
    results = _once(inputs, results.join(own)).reset_index(drop=True)
    groups = _group(replace(inputs, results=results), ignoring)
    extras = _extras([setting for setting, _ in groups])
    taken: set[str] = set()
    sections = [
        _section(inputs, results.iloc[sorted(rows)], setting, extra, variants, taken)
        for (setting, rows), extra in zip(groups, extras, strict=True)
    ]
    return sorted(sections, key=lambda s: (bool(s.badge), s.dataset, s.model, s.suites, s.extra))


def with_needed_baselines(inputs: ResultInputs) -> ResultInputs:
    """Return a report's trials without the stored ones that stand beside none of its own."""
    if not inputs.stored:
        return inputs
    every = set(zip(inputs.results["suite"], inputs.results["trial"], strict=True))
    needed = every - inputs.stored
    for section in make_sections(inputs):
        beside = set(zip(section.frame["suite"], section.frame["trial"], strict=True))
        if beside - inputs.stored:
            needed |= beside
    return inputs.only(needed)


def _extras(settings: list[dict[str, Any]]) -> list[str]:
    """Say what sets apart the sections that have the same data set and model."""
    extras = []
    for setting in settings:
        twins = [s for s in settings if all(s[k] == setting[k] for k in ("dataset", "model"))]
        keys = sorted(k for k in setting if any(s.get(k) != setting[k] for s in twins))
        keys = [k for k in keys if k not in ("partition.method", "dataset_note") and setting[k] is not None]
        extras.append(", ".join(f"{k.removeprefix('dataset.options.')}={show_value(setting[k])}" for k in keys))
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
    # What must stand beside a data set's name: of data that are not real their note or origin.
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
            told_suites(suites),
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
    )


def told_suites(suites: Sequence[str]) -> tuple[str, str]:
    """Return the fact which suites trials are of."""
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
    names = {_mapping(record.config.get("dataset")).get("name") for record in records}
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
    """Name the score: micro-F1 of multi-label data, else accuracy; "score" if no record tells."""
    told = [r.dataset["multilabel"] for r in records if isinstance(r.dataset.get("multilabel"), bool)]
    return ("micro-F1" if told[0] else "accuracy") if told else "score"


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


Values = dict[tuple[Variant, int], Stat]


def values_of(section: Section, column: str) -> Values:
    """Return the statistics over seeds of a column, for each variant and number of parts that has any."""
    if column not in section.ok:
        return {}
    values = numbers(section.ok[column])
    return {cell: stat for cell, rows in section.cells.items() if (stat := over_seeds(values[rows]))}


def named_columns(section: Section, prefix: str, suffix: str) -> dict[str, str]:
    """Return the columns `prefix<name>suffix` with any figure, by name, as they come."""
    return {
        column[len(prefix) : len(column) - len(suffix)]: column
        for column in section.ok.columns
        if column.startswith(prefix) and column.endswith(suffix) and section.ok[column].notna().any()
    }


def numbered(section: Section, prefix: str, suffix: str = "") -> list[Values]:
    """Return the statistics of the columns `prefix<number>suffix` with any figure, by rising number."""
    found = named_columns(section, prefix, suffix)
    return [values_of(section, found[number]) for number in sorted(found, key=int)]


# Prefix and suffix of the columns of each kind of component, and the usual order of their names (() as they come).
_COMPONENTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "phase": ("time_", "_s", tuple(PHASES)),
    "sum": ("sum_", "_s", tuple(SUMS)),
    "purpose": ("bytes_", "", tuple(PURPOSES)),
    "model": (MODEL, MODEL_SUFFIX, ()),
}
Component = Literal["phase", "sum", "purpose", "model"]


def component_columns(section: Section, kind: Component) -> dict[str, str]:
    """Return the columns of the components that any trial has some of, by name, in the usual order.

    Phases of an epoch and the papers' sums of them (seconds), purposes of traffic, components of the memory model
    (bytes). Names that are not known (of a method of a user's) come before the last known one.
    """
    prefix, suffix, known = _COMPONENTS[kind]
    there = named_columns(section, prefix, suffix)
    there = {name: column for name, column in there.items() if (section.ok[column].fillna(0) != 0).any()}
    if not known:
        return there
    there = {name: column for name, column in there.items() if not name.startswith("to_target")}  # no phases
    names = [*known[:-1], *sorted(there.keys() - set(known)), known[-1]]
    return {name: there[name] for name in names if name in there}


def components(section: Section, kind: Component) -> dict[str, Values]:
    """Return the statistics of `component_columns` by name."""
    return {name: values_of(section, column) for name, column in component_columns(section, kind).items()}


Key = TypeVar("Key")


def totals(values: Mapping[str, Mapping[Key, Stat]]) -> dict[Key, float]:
    """Return the sum of the components that are there, for each variant and number of parts, say."""
    totals: dict[Key, float] = {}
    for found in values.values():
        for key, stat in found.items():
            totals[key] = totals.get(key, 0.0) + stat.mean
    return totals


def largest_total(values: dict[str, Values]) -> float | None:
    """Return the largest sum of components, None if there is none."""
    return max(totals(values).values(), default=None)
