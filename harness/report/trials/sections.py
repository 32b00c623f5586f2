"""Order in the trials: which belong in one table, and what each method variant is called."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from harness.report.trials.inputs import Inputs
from harness.report.trials.record_figures import record_figures
from harness.report.trials.variants import Variant, find_variants, show_value, text, variant_key
from harness.results.record import Record, flatten
from harness.suite.schema import LATER


@dataclass(frozen=True)
class Section:
    """Trials that differ in method, number of parts and seed only, so that they may be compared.

    `frame` holds all of them whatever their status, `ok` those that ended well; both have a column
    `variant` (a variant's `key`) and those of `record_figures`. `badge` says what the data are if not the
    real set.
    """

    anchor: str
    dataset: str
    badge: str
    model: str
    extra: str
    suite: str
    facts: tuple[tuple[str, str], ...]
    metric: str
    frame: pd.DataFrame
    epochs: pd.DataFrame
    parts: tuple[int, ...]
    variants: tuple[Variant, ...]

    @property
    def ok(self) -> pd.DataFrame:
        """Trials whose figures count."""
        return self.frame[self.frame["status"] == "ok"]

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

    def tried(self, parts: int) -> tuple[Variant, ...]:
        """Return the variants that were to run on a number of parts, whatever became of them."""
        there = set(self.frame.loc[self.frame["parts"] == parts, "variant"])
        return tuple(variant for variant in self.variants if variant.key in there)

    def select(self, variant: Variant, parts: int, *, ok: bool = True) -> pd.DataFrame:
        """Return the trials (one a seed) of a variant at a number of parts."""
        frame = self.ok if ok else self.frame
        return frame[(frame["variant"] == variant.key) & (frame["parts"] == parts)]


def data_badge(row: Mapping[Any, Any]) -> str:
    """Return what must stand beside a data set's name: "" for real data, else its note or origin."""
    note, origin = text(row.get("dataset_note")), text(row.get("origin"))
    return note or ("" if origin in ("", "real") else origin)


def _setting(inputs: Inputs, row: Mapping[Any, Any], ignoring: str) -> dict[str, Any]:
    """Return what two trials must share to be compared: all but method, parts, seed and the ignored key."""
    columns = ["suite", "dataset", "model", "partitioner", "network", "device", "timing"]
    config = inputs.config(row)
    if not config:
        columns.append("dataset_note")
    setting: dict[str, Any] = {key: text(row.get(key)) for key in columns}
    setting["traffic"] = text(config.get("traffic", LATER["traffic"]))
    for key, value in flatten(config).items():
        # Older records do not have these keys.
        is_default = key in LATER and value == LATER[key]
        shared = key.split(".")[0] in ("dataset", "model", "train", "partition") and key != "partition.parts"
        if shared and not is_default:
            setting[key] = value
    if row["parts"] == 1:  # one part is the same whatever the partitioner, and has no network
        setting = {k: v for k, v in setting.items() if not _between_parts(k)}
    setting.pop(ignoring, None)
    return setting


def _between_parts(key: str) -> bool:
    return key in ("partitioner", "network") or key.startswith("partition.")


def _group(inputs: Inputs, ignoring: str) -> list[tuple[dict[str, Any], list[int]]]:
    """Group row positions by setting; a trial of one part joins every group that agrees otherwise."""
    groups: dict[str, tuple[dict[str, Any], list[int]]] = {}
    singles: dict[str, tuple[dict[str, Any], list[int]]] = {}
    for position, row in enumerate(inputs.results.to_dict("records")):
        setting = _setting(inputs, row, ignoring)
        target = singles if row["parts"] == 1 else groups
        key = json.dumps(setting, sort_keys=True, default=str)
        target.setdefault(key, (setting, []))[1].append(position)
    for key, (setting, rows) in singles.items():
        hosts = [
            (host, members)
            for host, members in groups.values()
            if {k: v for k, v in host.items() if not _between_parts(k)} == setting
        ]
        for _, members in hosts:
            members.extend(rows)
        if not hosts:
            groups[key] = (setting, rows)
    return list(groups.values())


def make_sections(inputs: Inputs, ignoring: str = "") -> list[Section]:
    """Split a report's trials into comparable groups, real data first, then by name and model.

    `ignoring`: a key of the configuration (`train.threads`) in which the trials of a group may differ.
    """
    variants = find_variants(inputs.results)
    results = inputs.results.reset_index(drop=True)
    results["variant"] = [variant_key(m, o) for m, o in zip(results["method"], results["options"], strict=True)]
    own = pd.DataFrame([record_figures(inputs.record(row)) for row in results.to_dict("records")])
    results = results.join(own)
    groups = _group(Inputs(results, inputs.epochs, inputs.records), ignoring)
    extras = _extras([setting for setting, _ in groups])
    taken: set[str] = set()
    sections = [
        _section(inputs, results.iloc[sorted(rows)], setting, extra, variants, taken)
        for (setting, rows), extra in zip(groups, extras, strict=True)
    ]
    return sorted(sections, key=lambda s: (bool(s.badge), s.dataset, s.model, s.suite, s.extra))


def _extras(settings: list[dict[str, Any]]) -> list[str]:
    """Say what sets apart the sections that have the same data set and model."""
    extras = []
    for setting in settings:
        twins = [s for s in settings if all(s[k] == setting[k] for k in ("dataset", "model"))]
        keys = sorted(k for k in setting if any(s.get(k) != setting[k] for s in twins))
        keys = [k for k in keys if k not in ("partition.method", "dataset_note") and setting[k] is not None]
        named = [(k.removeprefix("dataset.options."), setting[k]) for k in keys]
        extras.append(", ".join(f"{k}={show_value(v)}" for k, v in named))
    return extras


def _section(
    inputs: Inputs,
    frame: pd.DataFrame,
    setting: dict[str, Any],
    extra: str,
    variants: Mapping[str, Variant],
    taken: set[str],
) -> Section:
    rows = frame.to_dict("records")
    records = [record for row in rows if (record := inputs.record(row))]
    present = set(frame["variant"])
    keys = {(row["suite"], row["trial"]) for row in rows}
    mine = [key in keys for key in zip(inputs.epochs["suite"], inputs.epochs["trial"], strict=True)]
    own = tuple(v for key, v in variants.items() if key in present)
    common = {v.method: v.common for v in own if v.common}
    return Section(
        anchor=_anchor(f"{setting['dataset']}-{setting['model']}", taken),
        dataset=setting["dataset"],
        badge=next((badge for row in rows if (badge := data_badge(row))), ""),
        model=setting["model"],
        extra=extra,
        suite=setting["suite"],
        facts=(*_facts(setting), *((f"all {method}", options) for method, options in common.items())),
        metric=_metric(records),
        frame=frame,
        epochs=inputs.epochs[mine],
        parts=tuple(sorted(int(p) for p in frame["parts"].dropna().unique())),
        variants=own,
    )


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
        if rest and value is not None and value is not False and rest != "name":
            groups.setdefault(head, []).append(f"{rest.removeprefix('options.')} {show_value(value)}")
    names = (
        ("suite", "network", "device", "timing", "traffic")
        if "partition" in groups
        else ("suite", "partitioner", "network", "device", "timing", "traffic")
    )
    plain = [(k, setting.get(k)) for k in names]
    facts = [(k, text(v)) for k, v in plain if text(v)]
    return (*facts, *((k, ", ".join(v)) for k, v in groups.items() if v))


def trials(count: int) -> str:
    """Return "1 trial" or "3 trials"."""
    return f"{count} trial" if count == 1 else f"{count} trials"


def join_unique(values: Iterable[object]) -> str:
    """Join the distinct values in order, for a table's cell."""
    return ", ".join(dict.fromkeys(text(v) for v in values if text(v)))
