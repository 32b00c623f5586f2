"""`harness list`: the names a suite file can use, and their options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import typer

from harness.cli.options import DataDir, use_data_dir
from harness.cli.show import table

app = typer.Typer(no_args_is_help=True, help="List what a suite can name.")


@app.command()
def datasets(data_dir: DataDir = None) -> None:
    """Data sets with their published figures, and the graphs of the data directory."""
    from harness.data.registry import dataset_info, dataset_names
    from harness.data.spec import DatasetSpec

    rows: list[tuple[object, ...]] = []
    for name in dataset_names(use_data_dir(data_dir)):
        info = dataset_info(DatasetSpec(name=name))
        mode = "inductive" if info.inductive else "transductive"
        rows.append((name, info.nodes, info.edges, info.features, info.classes, mode, info.summary))
    table(["name", "nodes", "directed edges", "features", "classes", "mode", "what it is"], rows)


@app.command()
def methods() -> None:
    """Training methods with their options."""
    from harness.runtime.registry import load_method, method_names

    for name in method_names():
        method = load_method(name)
        typer.echo(f"{name} ({method.family}): {method.summary()}")
        _options(method.Options.model_fields)
        typer.echo("")


@app.command()
def models() -> None:
    """Models with their options."""
    from harness.models.spec import ModelSpec

    typer.echo("names: " + ", ".join(get_args(ModelSpec.model_fields["name"].annotation)))
    _options({key: field for key, field in ModelSpec.model_fields.items() if key != "name"})


@app.command()
def partitioners() -> None:
    """Partitioners with their options."""
    from harness.data.partitioning import PARTITIONERS
    from harness.data.spec import PartitionSpec

    table(["name", "what it does"], sorted(PARTITIONERS.items()))
    typer.echo("")
    _options({key: field for key, field in PartitionSpec.model_fields.items() if key != "method"})


def _options(fields: Mapping[str, Any]) -> None:
    rows = [
        (
            key,
            type_text(field.annotation),
            "required" if field.is_required() else default_text(field.get_default(call_default_factory=True)),
            field.description or "",
        )
        for key, field in fields.items()
    ]
    if rows:
        table(["option", "type", "default", "meaning"], rows)


def type_text(annotation: Any) -> str:
    """Write a type as a user would: `a|b` for literals, `int` for a class."""
    from types import UnionType
    from typing import Literal, Union, get_origin

    origin = get_origin(annotation)
    if origin is Literal:
        return "|".join(str(value) for value in get_args(annotation))
    if origin in (Union, UnionType):
        return "|".join(type_text(part) for part in get_args(annotation))
    if annotation in (None, type(None)):
        return "null"
    if origin is not None:
        inner = ", ".join("..." if part is ... else type_text(part) for part in get_args(annotation))
        return f"{origin.__name__}[{inner}]"
    name = str(annotation.__name__)
    return {"str": "text", "Path": "path"}.get(name, name)


def default_text(value: Any) -> str:
    """Write a default as YAML would."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
