"""Putting a report together."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from harness.claims.evaluate import judge
from harness.errors import UserError
from harness.registry import PluginKey
from harness.report.claims import claims_tables
from harness.report.drawing import Picture
from harness.report.notes import Note, environment_rows, failure_table, make_notes, unclaimed_notes
from harness.report.sections import Section, make_sections
from harness.report.summary import Summary, make_summaries, overview_table
from harness.report.sweeps import Networks, Swept, find_networks, sweeps
from harness.report.table import Table
from harness.report.view import VIEWS, ReportView, ShownView, show
from harness.results.frames import ResultInputs
from harness.results.suite_file import KeptSuite, kept_suites
from harness.results.text import join_unique
from harness.spec import PluginSource

Plugins = Mapping[PluginKey, PluginSource]


@dataclass(frozen=True)
class Choice:
    """One value of a filter; `under`: its variants, of a method with several, each with its colour."""

    value: str
    colour: str = ""
    under: tuple[Choice, ...] = ()


@dataclass(frozen=True)
class Filter:
    """A menu: `key` is the attribute (`data-<key>`) of what it shows and hides."""

    key: str
    title: str
    choices: tuple[Choice, ...]


def make_filters(sections: Sequence[Section]) -> list[Filter]:
    """Return the filters in which there is something to choose."""
    datasets = dict.fromkeys(section.name for section in sections)
    parts = sorted({parts for section in sections for parts in section.parts})
    networks = dict.fromkeys(name for section in sections for name in networks_of(section))
    filters = [
        Filter("dataset", "Data set", tuple(map(Choice, datasets))),
        Filter("method", "Method", _methods(sections)),
        Filter("parts", "Parts", tuple(Choice(str(count)) for count in parts)),
        Filter("network", "Network", tuple(map(Choice, networks))),
    ]
    return [each for each in filters if len(each.choices) > 1 or any(own.under for own in each.choices)]


def _methods(sections: Sequence[Section]) -> tuple[Choice, ...]:
    variants = {variant.key: variant for section in sections for variant in section.variants}
    own: dict[str, dict[str, str]] = {}
    for variant in variants.values():
        own.setdefault(variant.method, {})[variant.label] = variant.style.colour
    return tuple(
        Choice(method, under=tuple(Choice(label, colour) for label, colour in labels.items()))
        if len(labels) > 1
        else Choice(method, next(iter(labels.values())))
        for method, labels in own.items()
    )


def networks_of(section: Section) -> list[str]:
    """Return the networks of a section's trials; of one part there is none, unless all are."""
    several = section.frame[section.frame["parts"] > 1]
    frame = section.frame if several.empty else several
    return [str(name) for name in frame["network"].dropna().unique()]


def network_list(section: Section) -> str:
    """Return a section's networks as a JSON list, for its attribute."""
    return json.dumps(networks_of(section))


@dataclass(frozen=True)
class ShownSection:
    """A section with what the views show of it."""

    section: Section
    views: tuple[ShownView, ...]


@dataclass(frozen=True)
class Report:
    """Everything that is written, whatever the format; `claims`: the tables of the claims summary."""

    title: str
    summaries: list[Summary]
    filters: list[Filter]
    environment: list[tuple[str, str]]
    notes: list[Note]
    failures: Table | None
    overview: Table
    shown: list[ShownSection]
    networks: list[Networks]
    claims: tuple[Table, ...] = ()

    @property
    def pictures(self) -> list[Picture]:
        """All figures, as they come."""
        views = (view for shown in self.shown for view in shown.views)
        return [view.picture for view in views if view.picture]


def make_report(
    inputs: ResultInputs, suites: Sequence[KeptSuite] = (), plugins: Plugins = MappingProxyType({})
) -> Report:
    """Compute the tables and draw the figures.

    `suites`: whose claims to hold the results against, beside those that are kept with the results;
    `plugins`: that bring views, beside those that are installed.
    """
    sections, networks = make_sections(inputs), find_networks(inputs)
    known = kept_suites(inputs.directories) | {suite.name: suite for suite in suites}
    views = _Views(plugins)
    return Report(
        title=join_unique(sorted(inputs.results["suite"].dropna().unique())),
        summaries=make_summaries(sections),
        filters=make_filters(sections),
        environment=environment_rows(inputs),
        notes=[*make_notes(inputs, sections), *unclaimed_notes(inputs, known), *views.notes],
        failures=failure_table(sections),
        overview=overview_table(sections),
        shown=[
            *(ShownSection(section, tuple(views.of(section)) if len(section.ok) else ()) for section in sections),
            *(ShownSection(swept.section, tuple(views.of(swept))) for swept in sweeps(inputs)),
            *(ShownSection(each.section, tuple(views.of(each))) for each in networks),
        ],
        networks=networks,
        claims=tuple(claims_tables(judge(inputs.results, inputs.epochs, known, inputs.declared))),
    )


class _Views:
    """The views that are installed and those of plugins, in their places; `notes`: which do not import."""

    def __init__(self, plugins: Plugins) -> None:
        self.notes: list[Note] = []
        self._found: list[tuple[type[ReportView], bool]] = []
        for name in [*VIEWS.names(), *(name for kind, name in plugins if kind == ReportView.kind)]:
            try:
                found = VIEWS.find(name, plugins)
            except UserError as error:
                self.notes.append(Note("A view does not import:", str(error)))
                continue
            self._found.append((found.value, found.source is None))
        self._found.sort(key=lambda each: (each[0].place, each[0].name))

    def of(self, subject: Section | Swept | Networks) -> Iterator[ShownView]:
        """Yield what they show of a section, a sweep or networks."""
        kind = "sweep" if isinstance(subject, Swept) else "networks" if isinstance(subject, Networks) else "section"
        for view, own in self._found:
            if view.of == kind and (found := show(view, subject, own=own)):
                yield found
