"""`harness report`: tables and figures of what was run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.options import ClaimingSuite, DataDir, ResultDirs, use_data_dir
from harness.errors import UserError
from harness.report import FORMATS, write_report


def report(
    results: ResultDirs = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where the report is written.", show_default="reports/NAME"),
    ] = None,
    formats: Annotated[
        str, typer.Option("--format", metavar="LIST", help="Of html, md, csv, latex, pdf-figures.")
    ] = ",".join(FORMATS),
    suite: ClaimingSuite = None,
    data_dir: DataDir = None,
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            "--plugin",
            metavar="FILE",
            help="Show the views of a file (or of a module) that are not installed, too; may be repeated.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write tables and figures of results.

    HTML, Markdown and CSV of the trials under every DIR together; prints the path of the page.
    """
    from harness.registry import find_plugins

    places = results or [Path("results")]
    for place in places:
        if not place.is_dir():
            raise UserError(f"'{place}' is not a directory", fix="name a directory that `harness run` wrote")
    asked = [name.strip() for name in formats.split(",") if name.strip()]
    given = []
    if suite is not None:
        from harness.claims.evaluate import suite_of

        given.append(suite_of(suite, places, use_data_dir(data_dir)))
    typer.echo(str(write_report(places, out, asked, given, find_plugins(plugin or []))))
