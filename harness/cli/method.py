"""`harness check` and `harness new`: a method of one's own, started and held to what it claims."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from harness.cli.options import Plugin, dataset_options, option


def check(
    method: Annotated[
        str, typer.Argument(metavar="METHOD", help="A name of `harness list methods`, or of a plugin's method.")
    ],
    plugin: Plugin = None,
    options: Annotated[
        list[str] | None,
        option("--option -o KEY=VALUE", "Option of the method in place of its default; may be repeated."),
    ] = None,
    limit: Annotated[float, option("--limit SECONDS", "A run that takes longer hangs.", min=1)] = 20.0,
) -> None:
    """Hold a method to what it claims, on tiny graphs with 2 and 3 ranks.

    It must train every model, repeat itself with a seed, end where a rank has no boundary or no training
    node, and tell its options. Where it claims so, it must equal full-graph training (`exact`), be right on
    average (`unbiased`) and send the bytes it says (`bytes_per_epoch`). Exit code 0: all of it holds; 1:
    something failed; 2: a mistake.
    """
    from harness.check import check_method

    report = check_method(method, plugin=plugin or [], options=dataset_options(options), limit_s=limit)
    for line in report.lines:
        typer.echo(line)
    if not report.ok:
        raise typer.Exit(1)


new_app = typer.Typer(no_args_is_help=True, help="Start something of your own.")


@new_app.command()
def method(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is called, e.g. my-method.")],
    family: Annotated[
        Literal["full-graph", "mini-batch"],
        option("--family full-graph|mini-batch", "What kind of method to start from."),
    ] = "full-graph",
    directory: Annotated[Path, option("--dir DIR", "Where the package's directory is made.")] = Path("."),
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
