"""`harness new`, `check`, `suites` and `schema`: writing methods and suites of one's own."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from harness.cli.command_options import DataDir, Plugin, dataset_options, option, use_data_dir
from harness.cli.terminal import table
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.suite.schema import Suite
    from harness.suite.sections import NetworkSpec


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
    node, and describe its options. Where it claims so, it must equal full-graph training (`exact`), be right on
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


def suites(
    data_dir: DataDir = None,
    ready: Annotated[bool, typer.Option("--ready", help="Only those that lack nothing here.")] = False,
) -> None:
    """List the suites that are shipped, what each needs, and what of it is not here.

    Each is run by its name from any folder: `harness run quickstart`.
    """
    from harness.launch.network import why_not
    from harness.suite.suite_file import load_suite, shipped

    place, probe = use_data_dir(data_dir), cache(why_not)
    rows = []
    for name, file in shipped().items():
        suite = load_suite(file)
        lacking = list(_lacking(suite, place, probe))
        if not (ready and lacking):
            most = max(partition.parts for partition in suite.partition)
            rows.append((name, most, ", ".join(lacking) or "nothing", suite.description))
    table(["suite", "ranks", "not here", "what it shows"], rows)
    typer.echo("\nhow to get a data set: `harness data info NAME`; what a suite would run: `harness plan SUITE`")


def _lacking(suite: Suite, data_dir: Path | None, why_not: Callable[[NetworkSpec], str | None]) -> Iterator[str]:
    """Yield what a suite needs that is not here: data sets, the right to shape networks, a GPU."""
    from harness.data.registry import dataset_info
    from harness.launch.inputs import missing_data
    from harness.spec import DatasetSpec

    for name in dict.fromkeys(dataset.name for dataset in suite.datasets):
        try:
            dataset_info(DatasetSpec(name=name), data_dir)
        except UserError:
            yield name
            continue
        if missing_data(DatasetSpec(name=name), data_dir) is not None:
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
