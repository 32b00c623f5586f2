"""`harness schema`: the JSON schema of suite files, for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from harness.errors import UserError


def schema(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write it there instead of printing it.")
    ] = None,
) -> None:
    """Print the JSON schema of suite files, installed methods' options included.

    With `# yaml-language-server: $schema=FILE` as a suite's first line, editors complete and check its keys.
    """
    from harness.suite.json_schema import suite_schema

    text = json.dumps(suite_schema(), indent=2) + "\n"
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror}", file=out, key="--out") from error
    typer.echo(f"{out}: write `# yaml-language-server: $schema={out}` as a suite's first line")
