"""The report as one HTML page, and as Markdown."""

from __future__ import annotations

import base64
import hashlib
import re

import jinja2

from harness.report.figures.drawing import Picture
from harness.report.page.build import Report
from harness.report.page.colours import dark_rules
from harness.report.page.csv import to_csv
from harness.report.page.filters import network_list
from harness.report.page.inline import colours_of, inline_svg

_POLICY = (
    "default-src 'none'; img-src data:; style-src {style}; script-src {script}; base-uri 'none'; form-action 'none'"
)


def render_html(report: Report) -> str:
    """Return the page: one file that loads nothing from elsewhere; every text of a user's is escaped.

    Its policy allows the one script and the one style sheet that are in it, by their hashes.
    """
    environment = _environment(autoescape=True)
    drawn = {picture.name: inline_svg(picture) for picture in report.pictures}
    colours = set().union(*map(colours_of, drawn.values()))
    colours |= {variant.style.colour for chapter in report.chapters for variant in chapter.section.variants}
    css = f"{_source(environment, 'report.css')}{dark_rules(colours)}\n"
    script = _source(environment, "report.js")
    return environment.get_template("index.html.j2").render(
        report=report,
        css=css,
        script=script,
        policy=_POLICY.format(style=_hash(css), script=_hash(script)),
        inline=lambda picture: drawn[picture.name],
        data_uri=_data_uri,
        networks=network_list,
    )


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


def _source(environment: jinja2.Environment, name: str) -> str:
    assert environment.loader
    return environment.loader.get_source(environment, name)[0]


def _hash(text: str) -> str:
    """Return what a policy calls the content of an element."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _data_uri(picture: Picture) -> str:
    """Return a figure's numbers as a file in the page."""
    return "data:text/csv;charset=utf-8;base64," + base64.b64encode(to_csv(picture.data)).decode()
