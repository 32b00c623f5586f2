"""Values of a section over seeds, by variant and number of parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeVar

from harness.metrics import SUMS
from harness.report.columns import MODEL, MODEL_SUFFIX
from harness.report.palette import PHASES, PURPOSES
from harness.report.sections import Section
from harness.report.variants import Variant
from harness.results.stats import Stat, numbers, over_seeds

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
