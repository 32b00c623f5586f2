"""Putting a report together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.claims.card import card_tables
from harness.claims.judge import judge
from harness.report.chapters.counting import counted_figure, counted_table
from harness.report.chapters.network import NetworkChapter, network_chapters
from harness.report.chapters.swept import nodes_figure, nodes_table, phase_table, step_figure, step_table
from harness.report.figures.by_section import section_figures
from harness.report.figures.drawing import Picture, style
from harness.report.figures.stacks import breakdown_figure
from harness.report.page.filters import Filter, make_filters
from harness.report.page.notes import Note, environment_rows, failure_table, make_notes, overview_table, unclaimed_notes
from harness.report.page.summary import Summary, make_summaries
from harness.report.tables.by_section import section_tables
from harness.report.tables.components import breakdown_table
from harness.report.tables.table import Table
from harness.report.trials.inputs import Inputs
from harness.report.trials.sections import Section, join_unique, make_sections
from harness.report.trials.swept import Swept, sweeps
from harness.results.suite_file import KeptSuite, kept_suites

HEADINGS = {  # "": the name of the score
    "accuracy": "",
    "time": "Epoch time",
    "scaling": "Scaling",
    "breakdown": "Time breakdown",
    "overlap": "Overlapped communication",
    "traffic": "Traffic",
    "peers": "Traffic from rank to rank",
    "sampling": "What sampling saves",
    "batches": "Nodes of mini-batches",
    "layers": "Nodes by layer",
    "cache": "Feature cache",
    "counting": "Subgraphs counted",
    "explanations": "Explanations",
    "memory": "Memory",
    "use": "Utilisation and energy",
    "convergence": "Convergence",
    "targets": "Time to accuracy",
    "pareto": "Accuracy and cost",
    "options": "Options swept",
    "partition": "Partition",
}
MORE = {  # tables under the same heading, after its figure
    "time": ("ranks",),
    "breakdown": ("sums",),
    "traffic": ("wire",),
    "memory": ("memory_sources", "memory_model"),
    "partition": ("parts",),
}


@dataclass(frozen=True)
class Block:
    """A subsection: its table and figure, if any, and what further tables go into details."""

    anchor: str
    title: str
    table: Table | None
    picture: Picture | None
    more: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Chapter:
    """A section with its subsections."""

    section: Section
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Report:
    """Everything that is written, whatever the format; `claims`: the reproduction card's tables."""

    title: str
    summaries: list[Summary]
    filters: list[Filter]
    environment: list[tuple[str, str]]
    notes: list[Note]
    failures: Table | None
    overview: Table
    chapters: list[Chapter]
    networks: list[NetworkChapter]
    claims: tuple[Table, ...] = ()

    @property
    def pictures(self) -> list[Picture]:
        """All figures, as they come."""
        blocks = (block for chapter in self.chapters for block in chapter.blocks)
        return [block.picture for block in blocks if block.picture]


def make_report(inputs: Inputs, suites: Sequence[KeptSuite] = ()) -> Report:
    """Compute the tables and draw the figures.

    `suites`: whose claims to hold the results against, beside those that are kept with the results.
    """
    sections, networks = make_sections(inputs), network_chapters(inputs)
    known = kept_suites(inputs.directories) | {suite.name: suite for suite in suites}
    return Report(
        title=join_unique(sorted(inputs.results["suite"].dropna().unique())),
        summaries=make_summaries(sections),
        filters=make_filters(sections),
        environment=environment_rows(inputs),
        notes=[*make_notes(inputs, sections), *unclaimed_notes(inputs, known)],
        failures=failure_table(sections),
        overview=overview_table(sections),
        chapters=[
            *(_chapter(section) for section in sections),
            *map(_swept_chapter, sweeps(inputs)),
            *map(_network_chapter, networks),
        ],
        networks=networks,
        claims=tuple(card_tables(judge(inputs.results, inputs.epochs, known))),
    )


def _chapter(section: Section) -> Chapter:
    if section.ok.empty:
        return Chapter(section, ())
    tables, pictures = section_tables(section), section_figures(section)
    blocks = [
        Block(
            f"{section.anchor}-{key}",
            title or section.score,
            tables.get(key),
            pictures.get(key),
            tuple(tables[name] for name in MORE.get(key, ()) if name in tables),
        )
        for key, title in HEADINGS.items()
        if key in tables or key in pictures
    ]
    return Chapter(section, tuple(blocks))


def _swept_chapter(swept: Swept) -> Chapter:
    with style():
        blocks = [
            ("step", "Time of a step", step_table(swept), step_figure(swept), phase_table(swept)),
            (
                *("breakdown", "Time breakdown"),
                *(breakdown_table(swept.unfolded), breakdown_figure(swept.unfolded), None),
            ),
            ("nodes", "Nodes of a step by layer", nodes_table(swept), nodes_figure(swept), None),
            ("counted", "Subgraphs counted a second", counted_table(swept), counted_figure(swept), None),
        ]
    anchor = swept.section.anchor
    shown = [
        Block(f"{anchor}-{key}", title, table, picture, (more,) if more else ())
        for key, title, table, picture, more in blocks
        if table
    ]
    return Chapter(swept.section, tuple(shown))


def _network_chapter(network: NetworkChapter) -> Chapter:
    anchor = network.section.anchor
    blocks = [Block(f"{anchor}-rate", "Network", network.table, network.picture)]
    if network.staleness:
        blocks.append(Block(f"{anchor}-staleness", "Staleness", None, network.staleness))
    return Chapter(network.section, tuple(blocks))
