"""The report as one HTML page, and as Markdown."""

from __future__ import annotations

import base64
import re

import jinja2

from harness.report.figures.drawing import Picture
from harness.report.page.build import Report


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
