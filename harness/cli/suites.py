"""`harness suites`, `new suite` and `schema`: what is shipped, one of one's own, and help in writing it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import DataDir, option, use_data_dir
from harness.cli.terminal import table
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.suite.schema import Suite


def suites(
    data_dir: DataDir = None,
    ready: Annotated[bool, typer.Option("--ready", help="Only those that lack nothing here.")] = False,
) -> None:
    """List the suites that are shipped, what each needs, and what of it is not here.

    Each is run by its name from any folder: `harness run quickstart`.
    """
    from harness.suite.load import load_suite
    from harness.suite.shipped import shipped

    place = use_data_dir(data_dir)
    rows = []
    for name, file in shipped().items():
        suite = load_suite(file)
        lacking = list(_lacking(suite, place))
        if not (ready and lacking):
            most = max(partition.parts for partition in suite.partition)
            rows.append((name, most, ", ".join(lacking) or "nothing", suite.description))
    table(["suite", "ranks", "not here", "what it shows"], rows)
    typer.echo("\nhow to get a data set: `harness data info NAME`; what a suite would run: `harness plan SUITE`")


def _lacking(suite: Suite, data_dir: Path | None) -> Iterator[str]:
    """Yield what a suite needs that is not here: data sets, the right to shape networks, a GPU."""
    from harness.data.registry import dataset_info
    from harness.launch.inputs import missing_data
    from harness.launch.network import why_not
    from harness.spec import DatasetSpec

    for name in dict.fromkeys(dataset.name for dataset in suite.datasets):
        try:
            dataset_info(DatasetSpec(name=name), data_dir)
        except UserError:
            yield name
            continue
        if missing_data(DatasetSpec(name=name), data_dir, None) is not None:
            yield name
    if any(network is not None and why_not(network) for network in suite.network):
        yield "shaped networks (root, iproute2)"
    if suite.device == "cuda":
        from harness.gpus import gpu_is_usable

        if not gpu_is_usable():
            yield "a GPU"


def suite(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is called, e.g. my-suite.")],
    directory: Annotated[Path, option("--dir DIR", "Where NAME.yaml is written.")] = Path("."),
) -> None:
    """Write a suite to start from: small, commented, and it runs as it is."""
    from harness.scaffold import new_suite

    file = new_suite(name, directory)
    typer.echo(f"wrote {file}")
    typer.echo(f"what it would run: harness plan {file}")
    typer.echo(f"run it:            harness run {file} --report")


def schema(
    out: Annotated[Path | None, option("--out -o FILE", "Write it there instead of printing it.")] = None,
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
