"""`harness check`: whether a method keeps what it claims."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.options import Plugin, dataset_options


def check(
    method: Annotated[
        str, typer.Argument(metavar="METHOD", help="A name of `harness list methods`, or of a plugin's method.")
    ],
    plugin: Plugin = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            metavar="KEY=VALUE",
            help="Option of the method in place of its default; may be repeated.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        float, typer.Option("--limit", min=1, metavar="SECONDS", help="A run that takes longer hangs.")
    ] = 20.0,
) -> None:
    """Hold a method to what it claims, on tiny graphs with 2 and 3 ranks.

    It must train every model, repeat itself with a seed, end where a rank has no boundary or no training
    node, and tell its options. Where it claims so, it must equal full-graph training (`exact`), be right on
    average (`unbiased`) and send the bytes it says (`bytes_per_epoch`). Exit code 0: all of it holds; 1:
    something failed; 2: a mistake.
    """
    from harness.check import check_method

    report = check_method(method, plugin=plugin or [], options=dataset_options(option), limit_s=limit)
    for line in report.lines:
        typer.echo(line)
    if not report.ok:
        raise typer.Exit(1)
