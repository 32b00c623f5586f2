"""`harness merge`: results of several machines in one place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def merge(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Results directory that the others are added to.")],
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Results directories, suites' or trials'.")
    ],
    keep: Annotated[
        Literal["first", "latest"] | None,
        typer.Option(
            "--keep",
            metavar="first|latest",
            help="Of two records of a trial that differ: the first (OUT before all), or that started last.",
            show_default="refuse",
        ),
    ] = None,
) -> None:
    """Put results of several machines together.

    Copies every trial into OUT/SUITE/ID. What is there stays: a trial twice with equal content is there once,
    and one that differs ends the command, before anything is copied, unless --keep says which to take.
    """
    from harness.results.store import merge_results

    done = merge_results(out, directories, keep)
    typer.echo(f"{done.copied} trials copied, {done.same} were there, {done.dropped} gave way to another")
    typer.echo(f"results: {out}")
