"""The method variants of a report: their names, their order, their colours."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pandas as pd

from harness.report.palette import Style, variant_styles
from harness.results.frames import EXTERNAL
from harness.results.record import Json, Record, is_baseline, of_workload, other_model, own_settings
from harness.results.stats import show_value
from harness.spec import of_presets
from harness.suite.schema import FEW

MOST = 3  # options that a label shows also where they are the defaults
OPTION = "dataset.options."  # of a flattened configuration
TWIN = "twin"


@dataclass(frozen=True)
class Variant:
    """A method with its options; `label` shows those that distinguish it from others, `common` what these share.

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


def as_mapping(value: object) -> dict[str, Any]:
    """Return a mapping as a dictionary, and an empty one for anything else: records hold what they hold."""
    return dict(value) if isinstance(value, Mapping) else {}


def variant_key(method: object, options: object, own: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return what distinguishes variants as canonical JSON: method and options, and what it sets itself if given."""
    parts = [str(method), as_mapping(options), *([dict(own)] if own else [])]
    return json.dumps(parts, sort_keys=True, default=str)


RecordOf = Callable[[Mapping[Any, Any]], Record | None]


def variant_keys(results: pd.DataFrame, record_of: RecordOf) -> list[str]:
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
            place = json.dumps([of_a_search(record.config), without_target(alike)], sort_keys=True, default=str)
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
    label where it distinguishes variants, and a model that is not the suite's always.
    """
    found: dict[str, tuple[str, dict[str, Any], Json]] = {}
    others: dict[str, str | None] = {}
    shown: dict[str, set[str]] = {}
    datasets: dict[str, set[str]] = {}
    for key, row in zip(variant_keys(results, record_of), results.to_dict("records"), strict=True):
        method, options, record = str(row["method"]), as_mapping(row["options"]), record_of(row)
        said = record.declared if record else {}
        own = as_mapping(record.config["method"].get("options")) if record else options
        found[key], others[key] = (method, options, said), other_model(record.config) if record else None
        datasets.setdefault(key, set()).add(str(row.get("dataset")))
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
    styles = variant_styles([found[key][0] for key in keys], colours, [datasets[key] for key in keys])
    for key, style in zip(keys, styles, strict=True):
        method, options, said = found[key]
        own = {name.partition(".")[2]: value for each in json.loads(key)[2:] for name, value in each.items()}
        family = str(said.get("family", ""))
        label = variant_label(method, options | own, shown[method] | own.keys())
        label += f" [model {others[key]}]" if others[key] else ""
        if family == EXTERNAL:
            label = f"{options.get('name') or options['command']} †"
        base, plain = is_baseline(said, options, family), said.get("plain") or {}
        variants[key] = Variant(key, method, label, style, common.get(method, ""), family, base, plain)
    return variants


def _labelled(options: Mapping[str, Any], declared: Json) -> set[str]:
    """Return the options that a label names: what is not the default, and numbers where they are few."""
    defaults = _defaults(options, declared)
    numbers = [name for name in declared.get("numbers") or () if name in options]
    if len(numbers) > FEW:
        numbers = []
    return {name for name in options if name in numbers or name not in defaults or defaults[name] != options[name]}


def _defaults(options: Mapping[str, Any], declared: Json) -> dict[str, Any]:
    return as_mapping(declared.get("defaults")) | of_presets(as_mapping(declared.get("presets")), options)


def variant_label(method: str, options: Mapping[str, Any], shown: set[str]) -> str:
    """Return a method's name with the options that are to be `shown`, of those it has."""
    inside = _listed(options, shown)
    return f"{method} ({inside})" if inside else method


def _listed(options: Mapping[str, Any], names: set[str]) -> str:
    return ", ".join(f"{name}={show_value(options[name])}" for name in sorted(names) if name in options)


def dataset_labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what to call the data set of each setting: its name, and the options in which those of that name differ.

    A twin's name is the set that it is like and its scale: `reddit twin 0.1`. `settings`: flattened configurations.
    """
    options = [{k.removeprefix(OPTION): value for k, value in own.items() if k.startswith(OPTION)} for own in settings]
    names = []
    for setting, own in zip(settings, options, strict=True):
        twin = setting["dataset"] == TWIN and "of" in own
        said = (own.pop("of"), TWIN, own.pop("scale", None)) if twin else (setting["dataset"],)
        names.append(" ".join(show_value(each) for each in said if each is not None))
    alike = [[own for own, same in zip(options, names, strict=True) if same == name] for name in names]
    varying = [{k for own in all_ for k in own if any(o.get(k) != own[k] for o in all_)} for all_ in alike]
    return [variant_label(*each) for each in zip(names, options, varying, strict=True)]


def of_a_search(config: Mapping[str, Any]) -> bool:
    """Return whether a trial is one of a search of settings; what was chosen is trained by others."""
    return bool(config.get("tuning"))


def without_target(config: Json) -> Json:
    """Return a configuration without the score whose time is asked for, unless training stops there."""
    train = config.get("train") or {}
    if train.get("stop_at_target"):
        return config
    return config | {"train": {key: value for key, value in train.items() if key != "target"}}
