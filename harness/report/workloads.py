"""Data sets on which methods of one suite reach for a target, to be looked at together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from harness.report.sections import Section, told_suites
from harness.report.variants import Variant
from harness.results.stats import join_unique

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
    """Return the workloads of each suite that has two or more with a target; suites that share one are together."""
    groups: list[tuple[set[str], bool, list[Section]]] = []
    for section in sections:
        if "target" not in section.frame or section.frame["target"].isna().all() or section.ok.empty:
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
    return [_together(own) for _, _, own in groups if len(own) > 1]


def _together(own: Sequence[Section]) -> Workloads:
    suites = tuple(dict.fromkeys(suite for section in own for suite in section.suites))
    badge = join_unique([section.badge for section in own if section.badge])
    section = replace(
        own[0],
        anchor=f"all-{own[0].anchor}",
        dataset="All data sets",
        badge=badge,
        model=join_unique([each.model for each in own]),
        extra="",
        suites=suites,
        facts=(told_suites(suites), ("data sets", join_unique([each.dataset for each in own]))),
        frame=pd.concat([each.frame for each in own], ignore_index=True),
        repeats=None,
        epochs=own[0].epochs.iloc[:0],
        parts=tuple(sorted({parts for each in own for parts in each.parts})),
        variants=tuple(dict.fromkeys(variant for each in own for variant in each.variants)),
        tuning=None,
    )
    found = Workloads(section, tuple(own))
    return replace(found, section=replace(section, variants=tuple(found.series().values())))
