"""Settings that a suite varies: the trials that differ in one of them only, as points of a sweep."""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from harness.report.numbers import Stat, over_seeds
from harness.report.trials.inputs import Inputs
from harness.report.trials.sections import Section, make_sections
from harness.report.trials.variants import Variant, show_value
from harness.results.record import flatten

AT = "swept_value"  # column of a swept section: the setting's value
OPTION = "dataset.options."


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

    def figures(self, column: str) -> dict[tuple[Variant, int, float], Stat]:
        """Return the statistics over seeds of a column, by variant, number of parts and value."""
        frame = self.section.ok
        if column not in frame:
            return {}
        cells = dict(iter(frame.groupby(["variant", "parts", AT])[column]))
        section = self.section
        places = itertools.product(section.variants, section.parts, self.values)
        found = {
            (variant, parts, value): over_seeds(cells[variant.key, parts, value])
            for variant, parts, value in places
            if (variant.key, parts, value) in cells
        }
        return {place: stat for place, stat in found.items() if stat}

    @property
    def unfolded(self) -> Section:
        """The section with a variant for each value of the setting, which its label names."""
        return self._unfold(self.values)

    def at(self, value: float) -> Section:
        """Return the section of the trials at one value of the setting, which the variants' labels name."""
        return self._unfold((value,))

    def _unfold(self, chosen: Sequence[float]) -> Section:
        section = self.section
        pairs = zip(section.frame["variant"], section.frame[AT], strict=True)
        frame = section.frame.assign(variant=[_point_key(key, value) for key, value in pairs])
        variants = tuple(
            replace(v, key=key, label=f"{v.label}, {self.axis.name}={show_value(value)}")
            for v in section.variants
            for value in chosen
            if (key := _point_key(v.key, value)) in set(frame["variant"])
        )
        return replace(section, frame=frame, variants=variants)


def _point_key(variant: str, value: float) -> str:
    """Return the key of a variant at a value: still JSON that begins with method and options."""
    return json.dumps([*json.loads(variant), value])


def sweeps(inputs: Inputs) -> Iterator[Swept]:
    """Yield the trials that differ in threads, layers or a number of the data set, where one was varied."""
    for axis in _axes(inputs):
        merged = replace(inputs, results=_merge_lists(inputs.results)) if axis is LAYERS else inputs
        for section in make_sections(merged, ignoring=axis.key):
            if swept := _swept(inputs, section, axis):
                yield swept


def _axes(inputs: Inputs) -> list[Axis]:
    values: defaultdict[str, set[float]] = defaultdict(set)
    for row in inputs.results.to_dict("records"):
        for key, value in _setting_numbers(inputs.config(row)).items():
            values[key].add(value)
    known = {axis.key: axis for axis in (THREADS, LAYERS)}
    varied = [key for key, found in values.items() if len(found) > 1]
    names = {key: key.removeprefix(OPTION) for key in sorted(varied)}
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
    merged = [
        {
            name: whole.get((method, name), value) if isinstance(value, list) else value
            for name, value in (options or {}).items()
        }
        for method, options in zip(results["method"], results["options"], strict=True)
    ]
    return results.assign(options=pd.Series(merged, results.index, dtype=object))


def _swept(inputs: Inputs, section: Section, axis: Axis) -> Swept | None:
    """Return a section as a sweep; None unless a variant has two values that ended well."""
    rows = section.frame.to_dict("records")
    values = [float(_setting_numbers(inputs.config(row)).get(axis.key, math.nan)) for row in rows]
    frame = section.frame.assign(**{AT: values})
    there = frame[(frame["status"] == "ok") & frame[AT].notna()]
    values_of: defaultdict[tuple[str, int], set[float]] = defaultdict(set)
    for row in there.to_dict("records"):
        values_of[row["variant"], row["parts"]].add(row[AT])
    several = {variant for (variant, _), found in values_of.items() if len(found) > 1}
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
