"""Averages over seeds, and which components (phases, purposes) there are."""

from __future__ import annotations

from collections.abc import Sequence

from harness.metrics import SUMS
from harness.report.numbers import Stat, over_seeds
from harness.report.palette import PHASES, PURPOSES
from harness.report.trials.record_figures import MODEL, MODEL_SUFFIX, RANK, RANK_SUFFIX
from harness.report.trials.sections import Section
from harness.report.trials.variants import Variant

Figures = dict[tuple[Variant, int], Stat]


def figures_of(section: Section, column: str) -> Figures:
    """Return the statistics over seeds of a column, for each variant and number of parts that has any."""
    if column not in section.ok:
        return {}
    by_cell = dict(iter(section.ok.groupby(["variant", "parts"])[column]))
    cells = [(variant, parts) for variant in section.variants for parts in section.parts]
    stats = {(v, p): over_seeds(by_cell[v.key, p]) for v, p in cells if (v.key, p) in by_cell}
    return {cell: stat for cell, stat in stats.items() if stat}


def named_columns(section: Section, prefix: str, suffix: str) -> dict[str, str]:
    """Return the columns `prefix<name>suffix` with any figure, by name, as they come."""
    return {
        column[len(prefix) : len(column) - len(suffix)]: column
        for column in section.ok.columns
        if column.startswith(prefix) and column.endswith(suffix) and section.ok[column].notna().any()
    }


def components(section: Section, prefix: str, suffix: str, known: Sequence[str]) -> dict[str, str]:
    """Return the columns `prefix<name>suffix` with any figure, by name, in the usual order.

    Names not in `known` (of a method of a user's) come before the last known one.
    """
    there = named_columns(section, prefix, suffix)
    there.pop("to_target", None)  # a time, but no phase of an epoch
    names = [n for n in known[:-1] if n in there] + sorted(n for n in there if n not in known)
    return {n: there[n] for n in [*names, *(n for n in known[-1:] if n in there)]}


def phase_columns(section: Section) -> dict[str, str]:
    """Return the phases of an epoch that any trial spent time in, and their columns (seconds)."""
    return _used(section, components(section, "time_", "_s", list(PHASES)))


def purpose_columns(section: Section) -> dict[str, str]:
    """Return the purposes of traffic that any trial had bytes for, and their columns."""
    return _used(section, components(section, "bytes_", "", list(PURPOSES)))


def sum_columns(section: Section) -> dict[str, str]:
    """Return the papers' sums of phases that any trial spent time in, and their columns (seconds)."""
    return _used(section, components(section, "sum_", "_s", list(SUMS)))


def model_columns(section: Section) -> dict[str, str]:
    """Return the components of the memory model that any trial has, and their columns (bytes)."""
    return _used(section, named_columns(section, MODEL, MODEL_SUFFIX))


def rank_columns(section: Section) -> dict[int, str]:
    """Return the ranks that have an epoch time of their own, and its columns (seconds)."""
    found = named_columns(section, RANK, RANK_SUFFIX)
    return {int(rank): found[rank] for rank in sorted(found, key=int)}


def _used(section: Section, columns: dict[str, str]) -> dict[str, str]:
    return {name: column for name, column in columns.items() if (section.ok[column].fillna(0) != 0).any()}


def totals(figures: dict[str, Figures]) -> dict[tuple[Variant, int], float]:
    """Return the sum of the components that are there, for each variant and number of parts."""
    totals: dict[tuple[Variant, int], float] = {}
    for found in figures.values():
        for key, stat in found.items():
            totals[key] = totals.get(key, 0.0) + stat.mean
    return totals


def largest_total(figures: dict[str, Figures]) -> float | None:
    """Return the largest sum of components, None if there is none."""
    return max(totals(figures).values(), default=None)
