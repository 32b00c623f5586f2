"""Options that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.errors import UserError, nearest

SuiteFile = Annotated[Path, typer.Argument(metavar="SUITE", help="Suite file (YAML).", show_default=False)]
Results = Annotated[Path, typer.Option("--results", metavar="DIR", help="Where records are kept.")]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", metavar="DIR", envvar="HARNESS_DATA", help="Where graphs of your own are looked up."
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="cpu|cuda|auto", help="Overrides the suite's device.", show_default=False
    ),
]
Only = Annotated[
    str | None,
    typer.Option(
        "--only",
        metavar="EXPR",
        help="Only the trials that match, e.g. 'method=bns-gcn|full,parts=2,rate=0.1' (comma: and).",
        show_default=False,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key of the suite, e.g. train.epochs=10; may be repeated.",
        show_default=False,
    ),
]
Retry = Annotated[
    str,
    typer.Option("--retry", metavar="STATUS,...", help="Run trials again that ended so, e.g. error,timeout."),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Run all selected trials again.")]
DatasetOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="KEY=VALUE",
        help="Option of the data set, e.g. of=reddit; may be repeated.",
        show_default=False,
    ),
]

DEVICES = ("cpu", "cuda", "auto")


def device_of(text: str | None) -> str | None:
    """Check a device the user named."""
    if text is not None and text not in DEVICES:
        raise UserError(f"unknown device '{text}'", key="--device", fix=nearest(text, DEVICES))
    return text


def statuses_of(text: str) -> frozenset[str]:
    """Parse `--retry`."""
    from typing import get_args

    from harness.results.record import Status

    known = get_args(Status)
    asked = frozenset(part.strip() for part in text.split(",") if part.strip())
    for status in sorted(asked):
        if status not in known:
            raise UserError(f"unknown status '{status}'", key="--retry", fix=nearest(status, known))
    return asked


def dataset_options(pairs: list[str] | None) -> dict[str, Any]:
    """Parse `--option key=value`; values are read as YAML."""
    import yaml

    options: dict[str, Any] = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not (key and equals):
            raise UserError(f"'{pair}' is not KEY=VALUE", key="--option", fix="e.g. --option scale=0.02")
        try:
            options[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise UserError(f"'{value}' is not a YAML value", key=f"--option {key}") from error
    return options


def counts_of(text: str, key: str) -> list[int]:
    """Parse a list of positive numbers such as `2,4,8`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"'{text}' is not a list of positive numbers", key=key, fix="e.g. 2,4,8")
    return [int(part) for part in parts]


def use_data_dir(path: Path | None) -> Path | None:
    """Check a data directory and make it this process's and its ranks'; return it.

    Names of data sets, labels and identities of trials depend on it, so it is said once for all of them.
    """
    if path is None:
        return None
    if not path.is_dir():
        raise UserError(f"'{path}' is not a directory", key="--data-dir (or HARNESS_DATA)")
    os.environ["HARNESS_DATA"] = str(path.resolve())
    return path.resolve()
