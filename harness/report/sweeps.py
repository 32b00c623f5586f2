"""What a suite varies besides methods: an option, a setting, the network, or the data set."""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from harness.report.palette import Style
from harness.report.sections import Section, make_sections, suites_fact
from harness.report.variants import OPTION, Variant, variant_label
from harness.results.frames import ResultInputs
from harness.results.projection import base_of, compare_counterparts, counterparts, network_label, network_of
from harness.results.record import Record, flatten
from harness.results.stats import Stat, join_unique, over_seeds, show_value
from harness.suite.sections import NetworkSpec


@dataclass(frozen=True)
class Line:
    """Variants that differ in one option: `points` are its values, ascending, each with its variant."""

    label: str
    style: Style
    points: tuple[tuple[float, Variant], ...]

    @property
    def method(self) -> str:
        """The method's name."""
        return self.points[0][1].method


def sweep(variants: Sequence[Variant], option: str) -> list[Line]:
    """Return the lines along a numeric option, of two values at least; none if it was not swept."""
    groups: dict[str, list[Variant]] = defaultdict(list)
    for variant in variants:
        if isinstance(variant.options.get(option), int | float):
            rest = {name: value for name, value in variant.options.items() if name != option}
            groups[json.dumps([variant.method, rest], sort_keys=True)].append(variant)
    swept = [group for group in groups.values() if len(group) > 1]
    return [
        Line(
            variant_label(group[0].method, group[0].options, _varying(swept, group[0].method) - {option}),
            group[0].style,
            tuple(sorted(((v.options[option], v) for v in group), key=lambda point: point[0])),
        )
        for group in swept
    ]


def _varying(groups: Sequence[Sequence[Variant]], method: str) -> set[str]:
    """Return the options in which the lines of a method differ."""
    mine = [group[0].options for group in groups if group[0].method == method]
    return {name for options in mine for name in options if any(o.get(name) != options[name] for o in mine)}


AT = "swept_value"  # column of a swept section: the setting's value


@dataclass(frozen=True)
class Axis:
    """A setting: its key in a flattened configuration, a short name, and what an axis of it says."""

    key: str
    name: str
    label: str


THREADS = Axis("train.threads", "threads", "CPU threads of a rank")
LAYERS = Axis("model.layers", "layers", "Graph layers of the model")


@dataclass(frozen=True)
class Swept:
    """Comparable trials that differ in a setting too: its `values`, ascending, two or more.

    The section's frames have a column `AT`, with the setting's value.
    """

    section: Section
    axis: Axis
    values: tuple[float, ...]

    def values_of(self, column: str) -> dict[tuple[Variant, int, float], Stat]:
        """Return the statistics over seeds of a column, by variant, number of parts and value."""
        frame = self.section.ok
        if column not in frame:
            return {}
        cells = frame.groupby(["variant", "parts", AT])[column]
        stats = {key: stat for key, own in cells if (stat := over_seeds(own))}
        places = itertools.product(self.section.variants, self.section.parts, self.values)
        return {(v, parts, x): stats[v.key, parts, x] for v, parts, x in places if (v.key, parts, x) in stats}

    def unfolded(self, *chosen: float) -> Section:
        """Return the section with a variant for each value (default: all) of the setting, which its label names."""
        section = self.section
        pairs = zip(section.frame["variant"], section.frame[AT], strict=True)
        frame = section.frame.assign(variant=[_point_key(key, value) for key, value in pairs])
        variants = tuple(
            replace(v, key=key, label=f"{v.label}, {self.axis.name}={show_value(value)}")
            for v in section.variants
            for value in chosen or self.values
            if (key := _point_key(v.key, value)) in set(frame["variant"])
        )
        return replace(section, frame=frame, variants=variants)


def _point_key(variant: str, value: float) -> str:
    """Return the key of a variant at a value: still JSON that begins with method and options."""
    return json.dumps([*json.loads(variant), value])


def sweeps(inputs: ResultInputs) -> Iterator[Swept]:
    """Yield the trials that differ in threads, layers or a number of the data set, where one was varied."""
    for axis in _axes(inputs):
        merged = replace(inputs, results=_merge_lists(inputs.results)) if axis is LAYERS else inputs
        for section in make_sections(merged, ignoring=axis.key):
            if swept := _swept(inputs, section, axis):
                yield swept


def _axes(inputs: ResultInputs) -> list[Axis]:
    settings = pd.DataFrame([_setting_numbers(inputs.config(row)) for row in inputs.results.to_dict("records")])
    known = {axis.key: axis for axis in (THREADS, LAYERS)}
    names = {key: key.removeprefix(OPTION) for key in sorted(map(str, settings)) if settings[key].nunique() > 1}
    return [known.get(key) or Axis(key, name, f"{name} of the data set") for key, name in names.items()]


def _setting_numbers(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the settings that may be an axis."""
    return {
        key: value
        for key, value in flatten(config).items()
        if (key in (THREADS.key, LAYERS.key) or key.startswith(OPTION))
        and isinstance(value, int | float)
        and not isinstance(value, bool)
    }


def _merge_lists(results: pd.DataFrame) -> pd.DataFrame:
    """Give one value to an option that lists a number a layer, the shallower models' the deepest's first.

    That is the deepest's: models of different depths are then of the same variant.
    """
    lists: defaultdict[tuple[str, str], list[list[Any]]] = defaultdict(list)
    for method, options in zip(results["method"], results["options"], strict=True):
        for name, value in (options or {}).items():
            if isinstance(value, list):
                lists[method, name].append(value)
    longest = {key: max(found, key=len) for key, found in lists.items()}
    whole = {key: most for key, most in longest.items() if all(most[: len(own)] == own for own in lists[key])}

    def merge(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
        return {k: whole.get((method, k), v) if isinstance(v, list) else v for k, v in options.items()}

    pairs = zip(results["method"], results["options"], strict=True)
    merged = [merge(method, options or {}) for method, options in pairs]
    return results.assign(options=pd.Series(merged, results.index, dtype=object))


def _swept(inputs: ResultInputs, section: Section, axis: Axis) -> Swept | None:
    """Return a section as a sweep; None unless a variant has two values that ended well."""
    rows = section.frame.to_dict("records")
    values = [float(_setting_numbers(inputs.config(row)).get(axis.key, math.nan)) for row in rows]
    frame = section.frame.assign(**{AT: values})
    there = frame[(frame["status"] == "ok") & frame[AT].notna()]
    counts = there.groupby(["variant", "parts"])[AT].nunique()
    several = set(counts[counts > 1].index.get_level_values("variant"))
    if not several:
        return None
    frame = frame[frame["variant"].isin(several)]
    own = replace(
        section,
        anchor=f"{axis.name}-{section.anchor}",
        badge=section.badge if frame["dataset_note"].nunique() < 2 else str(frame["origin"].iloc[0]),
        extra=", ".join(part for part in (section.extra, f"by {axis.name}") if part),
        frame=frame,
        variants=tuple(variant for variant in section.variants if variant.key in several),
        parts=tuple(sorted(int(parts) for parts in frame["parts"].unique())),
    )
    return Swept(own, axis, tuple(sorted(float(value) for value in there[AT].unique())))


@dataclass(frozen=True)
class Networks:
    """Comparable trials on several networks.

    `frame` has a row a trial, see `network_frame`; `bases`: the records that are projected from, by trial.
    """

    section: Section
    frame: pd.DataFrame
    bases: Mapping[str, Record]


def find_networks(inputs: ResultInputs) -> list[Networks]:
    """Return, for each data set, model and so on, the trials that differ in their network only."""
    found = []
    for section in make_sections(replace(inputs, results=inputs.results.assign(network=""))):
        mine = [inputs.record(row) for row in section.ok.to_dict("records")]
        groups = [group for group in counterparts(r for r in mine if r) if len(group) > 1]
        if groups:
            extra = join_unique([section.extra, "networks"])
            own = replace(section, anchor=f"network-{section.anchor}", extra=extra)
            bases = {record.trial: record for group in groups if (record := base_of(group))}
            found.append(Networks(own, network_frame(own, groups), bases))
    return found


PARTITIONER = "partitioner_of"


def find_partitioners(inputs: ResultInputs) -> list[Section]:
    """Return, for each data set, model and so on, the trials that differ in how the graph was partitioned only.

    The frame names the partitioner as `PARTITIONER`, and has columns `partition_s`, the seconds that the partition was
    made in, `cut_percent` and `volume`.
    """
    found = []
    for section in make_sections(replace(inputs, results=inputs.results.assign(partitioner="")), ignoring="partition"):
        frame = section.frame[section.frame["parts"] > 1]
        if frame.empty:
            continue
        facts = [_partition_facts(inputs.record(row), inputs.config(row)) for row in frame.to_dict("records")]
        frame = frame.join(pd.DataFrame(facts, frame.index))
        if frame.loc[frame["status"] == "ok", PARTITIONER].nunique() > 1:
            extra = join_unique([section.extra, "by partitioner"])
            parts = tuple(sorted(int(count) for count in frame["parts"].unique()))
            anchor = f"partitioner-{section.anchor}"
            found.append(replace(section, anchor=anchor, extra=extra, frame=frame, parts=parts))
    return found


def _partition_facts(record: Record | None, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of `find_partitioners`; a partitioner is named with the settings that are not the default."""
    spec = config.get("partition") or {}
    total = next((row for row in (record.partition if record else ()) if row["part"] == "total"), {})
    cut, edges = total.get("edges_cut", math.nan), total.get("edges")
    own = [f"{key}={show_value(value)}" for key, value in (spec.get("options") or {}).items()]
    if spec.get("method") == "metis":
        own.append(str(spec.get("objective")))
    usual = {"balance": "nodes", "order": "none"}
    own += [f"{key}={spec[key]}" for key in usual if spec.get(key, usual[key]) != usual[key]]
    if spec.get("file"):
        own.append(Path(spec["file"]).name)
    return {
        PARTITIONER: f"{spec.get('method')}({', '.join(own)})" if own else str(spec.get("method")),
        "partition_s": (record.result.get("found") or {}).get("partition") if record else None,
        "cut_percent": 100 * cut / edges if edges else math.nan,
        "volume": total.get("boundary"),
    }


TIMES = ("epoch_time_s", "epoch_time_low_s", "epoch_time_high_s")


def network_frame(section: Section, groups: list[list[Record]]) -> pd.DataFrame:
    """Return a row a trial: what it took, and what was projected for it from its unshaped counterpart.

    Columns: suite, trial, base (that one's id), variant, label, parts, seed, network, rate_bits_s (infinite:
    not limited), latency_s, ranks_per_host, epoch_time_s with the ends of its 95 % interval, projected_s and
    error (projected / measured - 1; both NaN for the one that is projected from).
    """
    variant_of = dict(zip(section.frame["trial"], section.frame["variant"], strict=True))
    label_of = {variant.key: variant.label for variant in section.variants}
    rows = []
    for group in groups:
        base = base_of(group)
        assert base is not None  # a group is not empty
        found = {each.trial.trial: each for each in compare_counterparts(group, base)}
        for record in group:
            spec, comparison = network_of(record) or NetworkSpec(), found.get(record.trial)
            variant = variant_of[record.trial]
            row = {"suite": record.suite, "trial": record.trial, "base": base.trial, "variant": variant}
            row |= {"label": label_of[variant], "parts": len(record.ranks), "seed": record.config["seed"]}
            row |= {"network": network_label(record), "rate_bits_s": spec.bits_s, "latency_s": spec.latency_s}
            row |= {"ranks_per_host": spec.ranks_per_host} | {name: record.result[name] for name in TIMES}
            row["projected_s"] = comparison.projection.epoch_time_s if comparison else None
            row["error"] = comparison.error if comparison else None
            rows.append(row)
    frame = pd.DataFrame(rows).astype({"projected_s": float, "error": float})
    return frame.sort_values(["parts", "rate_bits_s", "latency_s", "seed"], kind="stable", ignore_index=True)


MADE = {"twin", "generated"}  # origins of data that are like real ones at most


@dataclass(frozen=True)
class Workloads:
    """Sections of one suite with a target each: of graphs that there are, or of generated ones, never both.

    `section`: what they are called together, with the trials of all; `sections`: each alone.
    """

    section: Section
    sections: tuple[Section, ...]

    def series(self) -> dict[str, Variant]:
        """Return the methods by name, each with a variant of it; where one has several anywhere, its variants by label.

        What is tuned for each data set has other options on each, and is one method.
        """
        found: dict[str, Variant] = {}
        for section in self.sections:
            for variant in section.variants:
                found.setdefault(self.name_of(variant), replace(variant, label=self.name_of(variant)))
        return found

    def name_of(self, variant: Variant) -> str:
        """Return what a variant is called among all of them."""
        several = any(sum(v.method == variant.method for v in each.variants) > 1 for each in self.sections)
        return variant.label if several else variant.method


def find_workloads(sections: Sequence[Section]) -> list[Workloads]:
    """Return workloads of suites with a target on two data sets or more, no search's; suites that share one are one."""
    groups: list[tuple[set[str], bool, list[Section]]] = []
    for section in sections:
        if section.ok.empty or section.target is None or ("search", "settings") in section.facts:
            continue
        suites, own = set(section.suites), [section]
        made = bool(set(section.frame["origin"].dropna()) & MADE)
        apart = []
        for group in groups:
            if group[1] == made and group[0] & suites:
                suites, own = suites | group[0], [*group[2], *own]
            else:
                apart.append(group)
        groups = [*apart, (suites, made, own)]
    return [_together(own) for _, _, own in groups if len({section.name for section in own}) > 1]


def _together(own: Sequence[Section]) -> Workloads:
    suites = tuple(dict.fromkeys(suite for section in own for suite in section.suites))
    section = replace(
        own[0],
        anchor=f"all-{own[0].anchor}",
        dataset="All data sets",
        badge=join_unique([each.badge if each.name != each.dataset else "twins" for each in own if each.badge]),
        model=join_unique([each.model for each in own]),
        extra="",
        suites=suites,
        facts=(suites_fact(suites), ("data sets", join_unique([each.dataset for each in own]))),
        frame=pd.concat([each.frame for each in own], ignore_index=True),
        repeats=None,
        epochs=own[0].epochs.iloc[:0],
        parts=tuple(sorted({parts for each in own for parts in each.parts})),
        variants=tuple(dict.fromkeys(variant for each in own for variant in each.variants)),
        tuning=None,
    )
    found = Workloads(section, tuple(own))
    return replace(found, section=replace(section, variants=tuple(found.series().values())))
