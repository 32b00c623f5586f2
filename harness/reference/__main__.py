"""Write the reference pages into a directory; `--check` only says which of them are out of date."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.reference.pages import pages, stale, write


def main(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the pages are, docs/reference.")],
    check: Annotated[bool, typer.Option(help="Write nothing; exit 1 if a page is out of date.")] = False,
) -> None:
    """Write the pages of suites, methods and commands."""
    named = pages()
    old = stale(directory, named)
    if not check:
        write(directory, named)
    for path in old:
        typer.echo(f"{'out of date' if check else 'written'}: {path}")
    raise typer.Exit(1 if check and old else 0)


if __name__ == "__main__":
    typer.run(main)
