"""Putting a report together and writing it."""

from __future__ import annotations

import base64
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import jinja2
import pandas as pd

from harness.report.chapters.counting import counted_figure, counted_table
from harness.report.chapters.network import NetworkChapter, network_chapters
from harness.report.chapters.swept import (
    nodes_figure,
    nodes_table,
    phase_table,
    step_figure,
    step_table,
)
from harness.report.figures.by_section import section_figures
from harness.report.figures.drawing import Picture, style
from harness.report.figures.stacks import breakdown_figure
from harness.report.page.notes import Note, environment_rows, failure_table, make_notes, overview_table
from harness.report.tables.by_section import section_tables
from harness.report.tables.components import breakdown_table
from harness.report.tables.table import Table
from harness.report.trials.inputs import Inputs
from harness.report.trials.sections import Section, join_unique, make_sections
from harness.report.trials.swept import Swept, sweeps

HEADINGS = {  # "": the name of the score
    "accuracy": "",
    "time": "Epoch time",
    "breakdown": "Time breakdown",
    "overlap": "Overlapped communication",
    "traffic": "Traffic",
    "sampling": "What sampling saves",
    "batches": "Nodes of mini-batches",
    "cache": "Feature cache",
    "counting": "Subgraphs counted",
    "explanations": "Explanations",
    "memory": "Memory",
    "use": "Utilisation and energy",
    "convergence": "Convergence",
    "partition": "Partition",
}
MORE = {  # tables under the same heading, after its figure
    "time": ("ranks",),
    "breakdown": ("sums",),
    "traffic": ("wire",),
    "memory": ("memory_sources", "memory_model"),
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
    """Everything the templates read."""

    title: str
    environment: list[tuple[str, str]]
    notes: list[Note]
    failures: Table | None
    overview: Table
    chapters: list[Chapter]
    networks: list[NetworkChapter]


def build_report(inputs: Inputs, out: Path) -> Path:
    """Write the report of `inputs` into `out` (made if absent) and return the path of its page."""
    report = make_report(inputs)
    (out / "figures").mkdir(parents=True, exist_ok=True)
    for picture in (block.picture for chapter in report.chapters for block in chapter.blocks):
        if picture:
            _write(out / "figures" / f"{picture.name}.svg", picture.svg)
            _write(out / "figures" / f"{picture.name}.png", picture.png)
    _write(out / "results.csv", to_csv(inputs.results))
    _write(out / "epochs.csv", to_csv(inputs.epochs))
    if report.networks:
        compared = pd.concat([network.frame for network in report.networks], ignore_index=True)
        _write(out / "network.csv", to_csv(compared))
    _write(out / "report.md", render_markdown(report).encode())
    _write(out / "index.html", render_html(report).encode())
    return out / "index.html"


def make_report(inputs: Inputs) -> Report:
    """Compute the tables and draw the figures."""
    sections, networks = make_sections(inputs), network_chapters(inputs)
    return Report(
        title=join_unique(sorted(inputs.results["suite"].dropna().unique())),
        environment=environment_rows(inputs),
        notes=make_notes(inputs, sections),
        failures=failure_table(sections),
        overview=overview_table(sections),
        chapters=[
            *(_chapter(section) for section in sections),
            *map(_swept_chapter, sweeps(inputs)),
            *map(_network_chapter, networks),
        ],
        networks=networks,
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


def to_csv(frame: pd.DataFrame) -> bytes:
    """Return a frame as CSV; mappings and lists as JSON, missing values empty."""
    flat = frame.copy()
    for column in flat.columns:
        if flat[column].dtype == object:
            flat[column] = [json.dumps(v) if isinstance(v, dict | list) else v for v in flat[column]]
    return flat.to_csv(index=False).encode()


def render_html(report: Report) -> str:
    """Return the page: one file that loads nothing from elsewhere; every text of a user's is escaped."""
    environment = _environment(autoescape=True)
    css = environment.loader.get_source(environment, "report.css")[0] if environment.loader else ""
    return environment.get_template("index.html.j2").render(report=report, css=css, data_uri=_data_uri)


def render_markdown(report: Report) -> str:
    """Return the report as Markdown; its figures are the files under `figures/`."""
    environment = _environment(autoescape=False)
    environment.filters["md"] = escape_markdown
    return environment.get_template("report.md.j2").render(report=report)


def escape_markdown(value: object) -> str:
    """Return text that is shown as it is in a Markdown paragraph or table cell: no markup, no HTML."""
    line = " ".join(str(value).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", line)


def _environment(*, autoescape: bool) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("harness.report.page", ""),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _data_uri(picture: Picture) -> str:
    """Return a figure as part of the page; as an image, so that nothing in it can run."""
    return "data:image/svg+xml;base64," + base64.b64encode(picture.svg).decode()


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)
