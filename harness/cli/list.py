"""`harness list`: the names a suite file can use, and their options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

import typer

from harness.cli.options import DataDir, Plugin, use_data_dir
from harness.cli.show import table

if TYPE_CHECKING:
    from harness.runtime.spec import PluginSource

COLUMNS = ("option", "type", "default", "meaning")
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
def methods(plugin: Plugin = None) -> None:
    """Training methods with their options; installed ones that do not work with what is wrong."""
    from harness.runtime.plugins import find_plugins
    from harness.runtime.registry import hidden_methods, method_names

    plugins = find_plugins(plugin or [])
    for name in sorted({*method_names(), *plugins}):
        try:
            title, rows = _method(name, plugins)
        except Exception as error:  # a package of somebody else's must not hide the others
            title, rows = f"{name} (broken): {' '.join(str(error).split())}", []
        typer.echo(title)
        if rows:
            table(COLUMNS, rows)
        typer.echo("")
    for line in hidden_methods():
        typer.echo(f"not listed: {line}")


def _method(name: str, plugins: Mapping[str, PluginSource]) -> tuple[str, list[tuple[object, ...]]]:
    """Return a method's line, and a row for each of its options."""
    from harness.runtime.registry import find_method

    method = find_method(name, plugins).method
    return f"{name} ({method.family}): {method.summary()}", _options(method.Options.model_fields)


@app.command()
def models() -> None:
    """Models with their options."""
    from harness.models.spec import ModelSpec

    typer.echo("names: " + ", ".join(get_args(ModelSpec.model_fields["name"].annotation)))
    table(COLUMNS, _options({key: field for key, field in ModelSpec.model_fields.items() if key != "name"}))


@app.command()
def partitioners() -> None:
    """Partitioners with their options."""
    from harness.data.partitioning import PARTITIONERS
    from harness.data.spec import PartitionSpec

    table(["name", "what it does"], sorted(PARTITIONERS.items()))
    typer.echo("")
    fields = {key: field for key, field in PartitionSpec.model_fields.items() if key != "method"}
    table(COLUMNS, _options(fields))


def _options(fields: Mapping[str, Any]) -> list[tuple[object, ...]]:
    return [
        (
            key,
            type_text(field.annotation),
            "required" if field.is_required() else default_text(field.get_default(call_default_factory=True)),
            field.description or "",
        )
        for key, field in fields.items()
    ]


def type_text(annotation: Any) -> str:
    """Write a type as a user would: `a|b` for literals, `int` for a class."""
    from types import UnionType
    from typing import Annotated, Literal, Union, get_origin

    origin = get_origin(annotation)
    if origin is Annotated:
        return type_text(get_args(annotation)[0])
    if origin is Literal:
        return "|".join(str(value) for value in get_args(annotation))
    if origin in (Union, UnionType):
        return "|".join(type_text(part) for part in get_args(annotation))
    if annotation in (None, type(None)):
        return "null"
    if origin is not None:
        inner = ", ".join("..." if part is ... else type_text(part) for part in get_args(annotation))
        return f"{origin.__name__}[{inner}]"
    name = str(getattr(annotation, "__name__", annotation))
    return {"str": "text", "Path": "path"}.get(name, name)


def default_text(value: Any) -> str:
    """Write a default as YAML would."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
