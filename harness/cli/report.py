"""`harness report`: tables and figures of what was run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.errors import UserError


def report(
    results: Annotated[
        Path, typer.Argument(metavar="DIR", help="Results directory, or one suite's directory in it.")
    ] = Path("results"),
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Where the report is written.", show_default="reports/NAME"
        ),
    ] = None,
) -> None:
    """Write tables and figures of results.

    HTML, Markdown and CSV of the trials under DIR; prints the path of the page.
    """
    from harness.report import write_report

    if not results.is_dir():
        raise UserError(f"'{results}' is not a directory", fix="name a directory that `harness run` wrote")
    typer.echo(str(write_report(results, out)))
