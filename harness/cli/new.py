"""`harness new`: the start of something of one's own."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer(no_args_is_help=True, help="Start something of your own.")


@app.command()
def method(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is called, e.g. my-method.")],
    family: Annotated[
        Literal["full-graph", "mini-batch"],
        typer.Option("--family", metavar="full-graph|mini-batch", help="What kind of method to start from."),
    ] = "full-graph",
    directory: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Where the package's directory is made.")
    ] = Path("."),
) -> None:
    """Write a package with a method: one file, a test, a README.

    What is written works: it passes `harness check` before anything is changed.
    """
    from harness.scaffold import new_method

    files = new_method(name, family, directory)
    home = directory / name
    typer.echo(f"wrote {home}: " + ", ".join(str(path.relative_to(home)) for path in files))
    file, package = shlex.quote(str(files[0])), shlex.quote(str(home))
    typer.echo(f"check:   harness check {name} --plugin {file}")
    typer.echo(f"change:  {file}")
    typer.echo(f"install: pip install -e {package}")
