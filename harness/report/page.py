"""The report: its parts put together, and rendered as HTML, Markdown and CSV."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from types import MappingProxyType
from typing import NamedTuple

import jinja2
import numpy as np
import pandas as pd

from harness.claims import judge
from harness.errors import UserError
from harness.registry import PluginKey
from harness.report.elsewhere import Elsewhere, find_elsewhere, networks_table, not_projected, unchanged
from harness.report.figure import Figure, Picture
from harness.report.page_data import embedded_figure, embedded_trials
from harness.report.palette import Style, on_dark
from harness.report.sections import Section, make_sections
from harness.report.summary import Summary, answer_sentences, claims_table, make_summaries, named_sections
from harness.report.sweeps import Networks, find_networks, find_partitioners, find_workloads, sweeps
from harness.report.table import Cell, Group, Row, Table, metrics_table
from harness.report.views import VIEWS, Given, Kind, ReportView, ShownView, Subject, prose, show
from harness.report.views.answer import AnswerView
from harness.report.warnings import FLAGS, Note, environment_rows, failure_table, make_notes, unclaimed_notes
from harness.results.frames import ResultInputs
from harness.results.record_store import KeptSuite, kept_suites
from harness.results.stats import MISSING, common_places, in_csv, join_unique, time_unit, trials
from harness.spec import PluginSource

Plugins = Mapping[PluginKey, PluginSource]


class Choice(NamedTuple):
    """One value of a filter; `under`: its variants, of a method with several, each with its mark."""

    value: str
    style: Style | None = None
    under: tuple[Choice, ...] = ()


class Filter(NamedTuple):
    """A menu: `key` is the attribute (`data-<key>`) of what it shows and hides."""

    key: str
    title: str
    choices: tuple[Choice, ...]


def make_filters(sections: Sequence[Section]) -> list[Filter]:
    """Return the filters in which there is something to choose."""
    own: dict[str, dict[str, Style]] = {}
    for variant in (variant for section in sections for variant in section.variants):
        own.setdefault(variant.method, {})[variant.label] = variant.style
    methods = [
        Choice(method, under=tuple(itertools.starmap(Choice, labels.items())))
        if len(labels) > 1
        else Choice(method, next(iter(labels.values())))
        for method, labels in own.items()
    ]
    filters = [
        Filter("dataset", "Data set", tuple(map(Choice, dict.fromkeys(section.name for section in sections)))),
        Filter("method", "Method", tuple(methods)),
        Filter("parts", "Parts", tuple(Choice(str(p)) for p in sorted({p for each in sections for p in each.parts}))),
        Filter("network", "Network", tuple(map(Choice, dict.fromkeys(n for s in sections for n in s.networks)))),
    ]
    return [each for each in filters if len(each.choices) > 1 or any(choice.under for choice in each.choices)]


OF_COMMANDS = ("epoch_time_s", "wall_s", "best_val", "test_at_best_val", "peak_memory_bytes")
LEFT_OUT = "Left out, as they have no value here, one value for all, or only what another table says:"


@dataclass(frozen=True)
class ShownSection:
    """A section with what the views show of it."""

    section: Section
    views: tuple[ShownView, ...]


class OnNetwork(NamedTuple):
    """What the page shows in place of what was measured: sentences by a section's anchor, tables by a view's."""

    elsewhere: Elsewhere
    sentences: dict[str, str]
    tables: dict[str, Table]

    @property
    def name(self) -> str:
        """The network's."""
        return self.elsewhere.link.name


@dataclass(frozen=True)
class Report:
    """Everything that is written, whatever the format.

    `sentences`: who reaches the target first, of each section; `line`: when, of what suites, what failed, flags;
    `left_out`: the views that say nothing, in one line; `claims`: the tables of the claims summary; `external`: of what
    commands trained; `answers`: the sections before everything else; `elsewhere`: what their tables and the sentences
    are on other networks; `not_projected`: which trials are not there; `renewed_s`: how often a browser loads the page
    anew (None: never).
    """

    title: str
    sentences: list[tuple[Section, str]]
    line: str
    summaries: list[Summary]
    filters: list[Filter]
    environment: list[tuple[str, str]]
    notes: list[Note]
    failures: Table | None
    shown: list[ShownSection]
    networks: list[Networks]
    left_out: str = ""
    claims: tuple[Table, ...] = ()
    external: tuple[Table, ...] = ()
    answers: tuple[ShownSection, ...] = ()
    elsewhere: tuple[OnNetwork, ...] = ()
    not_projected: str = ""
    renewed_s: int | None = None

    def on(self, section: Section, *tables: str) -> str:
        """Return where a section's sentence, or tables of some anchors, are shown: networks' names; "" everywhere."""
        if not self.elsewhere or unchanged(section):
            return ""
        there = (o.name for o in self.elsewhere if {section.anchor, *tables} & {*o.sentences, *o.tables})
        return " ".join(("measured", *there))

    @property
    def charted(self) -> list[Section]:
        """The sections of which the page draws charts itself, from their trials."""
        return [shown.section for shown in self.answers if any(view.chart and view.picture for view in shown.views)]

    @property
    def pictures(self) -> list[Figure | Picture]:
        """All figures, as they come."""
        return [view.picture for own in (*self.answers, *self.shown) for view in own.views if view.picture]


def make_report(
    inputs: ResultInputs, suites: Sequence[KeptSuite] = (), plugins: Plugins = MappingProxyType({})
) -> Report:
    """Compute the tables, and the figures as data.

    `suites`: whose claims to hold the results against, besides those that are kept with the results;
    `plugins`: that bring views, besides those that are installed.
    """
    sections, networks = make_sections(inputs), find_networks(inputs)
    whole = inputs.whole or inputs
    of_commands = [each for each in make_sections(whole) if each.commands] if inputs.whole else []
    views, not_imported = _find_views(plugins)
    answers, shown = [], []
    silent: dict[str, list[str]] = {view.title: [] for view, _ in views}  # by title: where they say nothing
    given: defaultdict[str, set[Given]] = defaultdict(set)  # by section
    elsewhere = _on_networks(inputs, sections, [view for view, own in views if own and view.first])
    subjects: list[tuple[Kind, Sequence[Subject]]] = [
        ("workloads", find_workloads(sections)),
        ("section", sections),
        ("sweep", list(sweeps(inputs))),
        ("networks", networks),
        ("partitioners", find_partitioners(inputs)),
    ]
    for of, subject in ((of, subject) for of, own in subjects for subject in own):
        section = subject if isinstance(subject, Section) else subject.section
        made = []
        for view, own in views if len(section.ok) else ():
            if view.of == of:
                made.append(show(view, subject, given[section.anchor], own=own))
                silent[view.title] += [] if made[-1] else [section.title]
        first, others = (tuple(each for each in made if each and each.first == place) for place in (True, False))
        answers += [ShownSection(section, first)] if first else []
        if of == "section" and others and (table := networks_table(section, [each.elsewhere for each in elsewhere])):
            its = next((v for v in others if v.anchor == f"{section.anchor}-{AnswerView.name}"), others[0])
            others = tuple(replace(v, more=(*v.more, table)) if v is its else v for v in others)
        if of != "workloads" and (others or not first):
            shown.append(ShownSection(section, others))
    seen = {each.title for own in (*answers, *shown) for each in own.views}
    named = (f"{name} ({'; '.join(own)})" if name in seen else name for name, own in silent.items() if own)
    known = kept_suites(inputs.directories) | {suite.name: suite for suite in suites}
    of_suites = {suite for suite, _ in inputs.records.keys() - inputs.stored}
    known = {name: suite for name, suite in known.items() if name in of_suites or not inputs.stored}
    return Report(
        title=join_unique(sorted(whole.results["suite"].dropna().unique())),
        sentences=answer_sentences(sections),
        line=_line(whole, known, sections),
        summaries=make_summaries(sections),
        filters=make_filters(sections),
        environment=environment_rows(inputs),
        notes=[*make_notes(inputs, sections), *unclaimed_notes(inputs, known), *not_imported],
        failures=failure_table(make_sections(whole) if inputs.whole else sections),
        external=tuple(filter(None, map(external_table, of_commands))),
        networks=networks,
        left_out=", ".join(named),
        claims=tuple(map(claims_table, judge(inputs.runs, known, inputs.declared))),
        answers=tuple(answers),
        elsewhere=elsewhere,
        not_projected=not_projected(inputs.records.values()),
        shown=shown,
    )


def _on_networks(
    inputs: ResultInputs, sections: Sequence[Section], views: Sequence[type[ReportView]]
) -> tuple[OnNetwork, ...]:
    """Return what sections, and all data sets together, are on other networks, in the views before everything else."""
    found = []
    for there in find_elsewhere(sections, inputs.records):
        known = [own for each in sections if (own := there.sections.get(each.anchor) or unchanged(each))]
        together = find_workloads(known) if len(known) == len(sections) else []
        subjects: list[tuple[Kind, Subject]] = [("workloads", own) for own in together]
        subjects += [("section", own) for own in there.sections.values()]
        made = [show(view, own, set()) for kind, own in subjects for view in views if view.of == kind]
        tables = {view.anchor: there.marked(view.table) for view in made if view and view.table}
        named = {each.anchor: there.sentence(each, name) for each, name in named_sections(sections)
                 if each.anchor in there.sections}  # fmt: skip
        found.append(OnNetwork(there, named, tables))
    return tuple(found)


def _line(inputs: ResultInputs, known: Mapping[str, KeptSuite], sections: Sequence[Section]) -> str:
    """Return when trials ran, what their suites say of themselves, how many failed, and which flags there are."""
    days = sorted(str(each)[:10] for each in inputs.results["started"].dropna())
    said = [str(known[s].suite.get("description") or "") for s in sorted(set(inputs.results["suite"])) if s in known]
    bad = int((inputs.results["status"] != "ok").sum())
    count = trials(len(inputs.results))
    flags = [flag.lead.lower() for flag in FLAGS[:-1] if any(flag.where(section) for section in sections)]
    flags += sorted({each.partition(":")[0] for own in inputs.results["flags"] if own for each in own.split("; ")})
    return " · ".join(
        filter(
            None,
            (
                " to ".join(dict.fromkeys([*days[:1], *days[-1:]])),
                *dict.fromkeys(said),
                f"{bad} of {count} did not end well" if bad else f"{count}, all ended well",
                f"flags: {', '.join(flags)}" if flags else "no flags",
            ),
        )
    )


def _find_views(plugins: Plugins) -> tuple[list[tuple[type[ReportView], bool]], list[Note]]:
    """Return the views in their places, each with whether it is the tool's own; and which do not import."""
    views, notes = [], []
    for name in [*VIEWS.names(), *(name for kind, name in plugins if kind == ReportView.kind)]:
        try:
            found = VIEWS.find(name, plugins)
            views.append((found.value, found.source is None))
        except UserError as error:
            notes.append(Note("A view does not import:", str(error)))
    return sorted(views, key=lambda each: (each[0].place, each[0].name)), notes


def external_table(section: Section) -> Table | None:
    """Return what commands report of their training, and what was measured of the methods there."""
    return metrics_table(section, OF_COMMANDS, f"Trained by commands, {section.title}", prose("external.table"))


_POLICY = (
    "default-src 'none'; img-src data:; style-src {style}; script-src {script}; base-uri 'none'; form-action 'none'"
)


def render_html(report: Report, homes: Mapping[str, str]) -> str:
    """Return the page: one file that loads nothing from elsewhere; every text of a user's is escaped.

    `homes`: the addresses of trials' directories from the page, where they are known. Its policy allows the scripts
    and the style sheet that are in it, by their hashes.
    """
    images: dict[str, str] = {}  # what plugins draw with matplotlib
    for picture in report.pictures:
        if isinstance(picture, Picture):
            from harness.report.printing import draw  # matplotlib and seaborn take a second

            images[picture.name] = f"data:image/svg+xml;base64,{_base64(draw(picture)['svg'])}"
    files, names = resources.files("harness.report"), ["templates/report.css", "templates/report.js"]
    if len(report.pictures) > len(images):  # one script: between two a browser may call what waits for a figure
        names += ["static/vega.js", "templates/charts.js templates/plots.js templates/views.js"]
    css, *scripts = ("\n".join(files.joinpath(one).read_text("utf-8") for one in name.split()) for name in names)
    colours = sorted({variant.style.colour for shown in report.shown for variant in shown.section.variants})
    css += "\n".join(  # the swatches of methods where the page is dark
        f'.plot [{name}="{colour}"]{{{name}:light-dark({colour},{dark})}}'
        for colour in colours
        if (dark := on_dark(colour)) != colour
        for name in ("fill", "stroke")
    )
    css += "\n"
    style, *allowed = (f"'sha256-{_base64(hashlib.sha256(text.encode()).digest())}'" for text in (css, *scripts))
    template = templates(autoescape=True).get_template("index.html.j2")
    return template.render(
        report=report,
        css=css,
        scripts=scripts,
        trials=embedded_trials(report.charted),
        plotted=embedded_figure,
        trials_table=lambda section: trials_table(section, homes),
        policy=_POLICY.format(style=style, script=" ".join(allowed)),
        image=lambda picture: images.get(picture.name, ""),
        data_uri=lambda picture: f"data:text/csv;charset=utf-8;base64,{_base64(to_csv(picture.data))}",
        networks=lambda section: json.dumps(section.networks),
    )


def escape_markdown(value: object) -> str:
    """Return text that is shown as it is in a Markdown paragraph or table cell: no markup, no HTML."""
    line = " ".join(str(value).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", line)


def templates(*, autoescape: bool) -> jinja2.Environment:
    """Return the templates of the page and of Markdown."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("harness.report", "templates"),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["md"] = escape_markdown
    environment.globals["left_out"] = LEFT_OUT
    return environment


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def to_csv(frame: pd.DataFrame) -> bytes:
    """Return a frame as CSV; mappings and lists as JSON, missing values empty."""
    flat = frame.copy()
    for column in flat.columns:
        if flat[column].dtype == object or isinstance(flat[column].dtype, pd.StringDtype):
            flat[column] = [json.dumps(v) if isinstance(v, dict | list) else in_csv(v) for v in flat[column]]
    return flat.to_csv(index=False).encode()


def trials_table(section: Section, homes: Mapping[str, str]) -> Table:
    """Return a row a trial, whatever became of it: parts, seed, status, scores, epoch time, flags, and its files.

    `homes`: the addresses of trials' directories, where they are known.
    """
    frame = section.frame.sort_values(["parts", "variant", "seed"], kind="stable")
    figures = ["epoch_time_s", "best_val", "test_at_best_val"]
    frame = frame.assign(**frame.reindex(columns=figures).astype(float))
    variants = {variant.key: variant for variant in section.variants}
    size, unit = time_unit(frame["epoch_time_s"].max() if "epoch_time_s" in section.frame else None)
    places = common_places((frame["epoch_time_s"] / size).dropna())

    def number(value: float, digits: int) -> Cell:
        return Cell(f"{value:,.{digits}f}" if np.isfinite(value) else MISSING)

    rows = []
    for own in frame.to_dict("records"):
        reason, flags = (value if isinstance(value := own.get(key), str) else "" for key in ("reason", "flags"))
        trial, parts = str(own["trial"]), int(own["parts"])
        home = homes.get(trial, "")
        cells = (
            Cell(str(parts)),
            Cell(str(int(own["seed"]))),
            Cell(str(own["status"]), reason, number=False, wrap=bool(reason)),
            number(100 * own["best_val"], 2),
            number(100 * own["test_at_best_val"], 2),
            number(own["epoch_time_s"] / size, places),
            Cell(flags, number=False, wrap=True),
            Cell(trial, number=False, link=f"{home}/record.json" if home else ""),
            Cell("log" if home else "", number=False, link=f"{home}/log.txt" if home else ""),
        )
        rows.append(Row(variants[own["variant"]].label, cells, variants[own["variant"]], parts))
    heads = ("P", "Seed", "Status", "Val (%)", "Test (%)", f"Epoch ({unit})", "Flags", "Record", "Log")
    caption = "Every trial; a click on a heading sorts. Links lead to its files while the page is where it was written."
    return Table(f"Trials, {section.title}", caption, "Method", (Group("", heads),), tuple(rows))
