"""`harness data`: what a data set is, and getting it."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.list import default_text, type_text
from harness.cli.options import DataDir, DatasetOptions, dataset_options, use_data_dir
from harness.cli.show import bytes_text, table
from harness.errors import DataUnavailable

app = typer.Typer(no_args_is_help=True, help="Get a data set or describe it.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="A name of `harness list datasets`.")]


@app.command()
def get(name: Name, option: DatasetOptions = None, data_dir: DataDir = None) -> None:
    """Download a data set if need be, check it and prepare it; print where it is."""
    from harness.data.registry import dataset_info, prepare
    from harness.data.spec import DatasetSpec

    spec = DatasetSpec(name=name, options=dataset_options(option))
    info = dataset_info(spec)
    size = f" ({bytes_text(info.size_bytes)} to download unless it is here)" if info.size_bytes else ""
    typer.echo(f"{name}: {info.source}{size}", err=True)
    typer.echo(str(prepare(spec, data_dir=use_data_dir(data_dir), download=True)))


@app.command()
def info(name: Name, option: DatasetOptions = None, data_dir: DataDir = None) -> None:
    """Print a data set's published figures, its options, and whether it is on this machine."""
    from harness.data.registry import dataset_info
    from harness.data.spec import DatasetSpec
    from harness.launch.inputs import missing_data

    spec = DatasetSpec(name=name, options=dataset_options(option))
    known = dataset_info(spec)
    missing = missing_data(spec, use_data_dir(data_dir), None)
    rows: list[tuple[str, object]] = [
        ("what it is", known.summary),
        ("nodes", known.nodes),
        ("directed edges", known.edges),
        ("features", known.features),
        ("classes", f"{known.classes} ({'several' if known.multilabel else 'one'} a node)"),
        ("mode", "inductive" if known.inductive else "transductive"),
        ("origin", known.origin),
        ("normalize", known.normalize),
        ("source", known.source),
        ("download", bytes_text(known.size_bytes) if known.size_bytes else None),
        ("on this machine", _where(missing)),
    ]
    table(["", name], rows)
    if known.options:
        typer.echo("")
        options = [
            (key, type_text(kind), default_text(default), summary)
            for key, (kind, default, summary) in known.options.items()
        ]
        table(["option", "type", "default", "meaning"], options)


def _where(missing: DataUnavailable | None) -> str:
    return "yes, or made when it is needed" if missing is None else f"no: {missing}"
