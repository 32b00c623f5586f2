"""Method variants: a method with one choice of its options, its name and its colour."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from harness.report.palette import Style, variant_styles
from harness.suite.schema import method_defaults

MOST = 3  # options that a label shows also where they are the defaults


@dataclass(frozen=True)
class Variant:
    """A method with its options; `label` shows those that tell it from others, `common` what these share."""

    key: str
    method: str
    label: str
    style: Style
    common: str = ""

    @property
    def options(self) -> dict[str, Any]:
        """All of the method's options; its key holds them, so that a variant can be one."""
        return dict(json.loads(self.key)[1])


def text(value: object) -> str:
    """Return `value` as text, "" for None and NaN."""
    return "" if value is None or (isinstance(value, float) and value != value) else str(value)


def show_value(value: object) -> str:
    """Write an option's value as briefly as it can be read."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return f"[{','.join(show_value(item) for item in value)}]"
    return str(value)


def _mapping(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def variant_key(method: object, options: object) -> str:
    """Return what tells variants apart: its method and options as canonical JSON."""
    return json.dumps([str(method), _mapping(options)], sort_keys=True, default=str)


def _sort_key(value: object) -> tuple[int, tuple[float, ...], str]:
    numbers = value if isinstance(value, list | tuple) else (value,)
    if all(isinstance(number, int | float) for number in numbers):
        return 0, tuple(float(number) for number in numbers), ""
    return 1, (), str(value)


def find_variants(results: pd.DataFrame) -> dict[str, Variant]:
    """Name and colour every method variant of a report.

    `full` comes first, then the methods by name; of one method, false comes before true and smaller numbers
    before larger ones. See `variant_styles` for colours.
    Shown are the options that vary among a method's variants and those a trial's own label shows (what is
    not the default, and numbers). Of more than `MOST` not those that are everywhere the default, nor, where
    there are several variants, what these have in common: `common` has that.
    """
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    shown: dict[str, set[str]] = {}
    for row in results.to_dict("records"):
        method, options = str(row["method"]), _mapping(row["options"])
        found[variant_key(method, options)] = method, options
        shown.setdefault(method, set()).update(_labelled(row, options))
    common: dict[str, str] = {}
    for method, names in shown.items():
        mine = [options for own, options in found.values() if own == method]
        varying = {k for options in mine for k in options if any(o.get(k) != options[k] for o in mine)}
        if len(names | varying) > MOST:
            defaults = method_defaults(method)
            names -= {k for k in names if k in defaults and all(o.get(k) == defaults[k] for o in mine)}
            if varying:
                common[method] = _listed(mine[0], names - varying)
                names &= varying
        names |= varying

    def order(key: str) -> tuple[object, ...]:
        method, options = found[key]
        values = [_sort_key(options.get(name)) for name in sorted(shown[method])]
        return method != "full", method, values, key

    variants, keys = {}, sorted(found, key=order)
    styles = variant_styles([found[key][0] for key in keys])
    for key, style in zip(keys, styles, strict=True):
        method, options = found[key]
        label = variant_label(method, options, shown[method])
        variants[key] = Variant(key, method, label, style, common.get(method, ""))
    return variants


def _labelled(row: Mapping[Any, Any], options: Mapping[str, Any]) -> set[str]:
    found = re.search(re.escape(str(row["method"])) + r"\((.*?)\)", text(row.get("label")))
    inside = found.group(1) if found else ""
    return {name for name in options if re.search(rf"(^|[\s,]){re.escape(name)}=", inside)}


def variant_label(method: str, options: Mapping[str, Any], shown: set[str]) -> str:
    """Return a method's name with the options that are to be `shown`, of those it has."""
    inside = _listed(options, shown)
    return f"{method} ({inside})" if inside else method


def _listed(options: Mapping[str, Any], names: set[str]) -> str:
    return ", ".join(f"{name}={show_value(options[name])}" for name in sorted(names) if name in options)
