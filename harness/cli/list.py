"""`harness list`: the names a suite file can use, and their options."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, get_args

import typer

from harness.cli.options import DataDir, Plugin, table, use_data_dir

if TYPE_CHECKING:
    from harness.registry import PluginKey, Registry
    from harness.spec import PluginSource, Spec

COLUMNS = ("option", "type", "default", "meaning")
app = typer.Typer(no_args_is_help=True, help="List what a suite can name.")


@app.command()
def datasets(data_dir: DataDir = None) -> None:
    """Data sets with their published sizes, and the graphs of the data directory."""
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
    from harness.registry import find_plugins
    from harness.runtime.method import METHODS

    plugins = find_plugins(plugin or [])
    for name in sorted({*METHODS.names(), *(name for kind, name in plugins if kind == METHODS.kind)}):
        try:
            title, rows = _method(name, plugins)
        except Exception as error:  # a package of somebody else's must not hide the others
            title, rows = f"{name} (broken): {' '.join(str(error).split())}", []
        typer.echo(title)
        if rows:
            table(COLUMNS, rows)
        typer.echo("")
    for line in METHODS.hidden():
        typer.echo(f"not listed: {line}")


def _method(name: str, plugins: Mapping[PluginKey, PluginSource]) -> tuple[str, list[tuple[object, ...]]]:
    """Return a method's line, and a row for each of its options."""
    from harness.runtime.method import METHODS

    method = METHODS.find(name, plugins).value
    return f"{name} ({method.family}): {method.summary()}", _options(method.Options.model_fields)


@app.command()
def models(plugin: Plugin = None) -> None:
    """Models with their options."""
    from harness.models.layer import MODELS
    from harness.models.spec import ModelSpec

    _kind(MODELS, plugin, ModelSpec, ("name", "options"))


@app.command()
def partitioners(plugin: Plugin = None) -> None:
    """Partitioners with their options."""
    from harness.data.partition.partitioner import PARTITIONERS
    from harness.data.spec import PartitionSpec

    _kind(PARTITIONERS, plugin, PartitionSpec, ("method", "options"))


@app.command()
def optimizers(plugin: Plugin = None) -> None:
    """Optimizers with their options."""
    from harness.runtime.optimizers import OPTIMIZERS

    _kind(OPTIMIZERS, plugin)


@app.command()
def schedules(plugin: Plugin = None) -> None:
    """Schedules of the learning rate with their options."""
    from harness.runtime.optimizers import SCHEDULES

    _kind(SCHEDULES, plugin)


def _kind(
    registry: Registry[Any], plugin: list[str] | None, spec: type[Spec] | None = None, without: Collection[str] = ()
) -> None:
    """Print what there is of a kind, the options that all share, `without` some, and those of each."""
    from harness.registry import find_plugins

    plugins = find_plugins(plugin or [])
    rows: list[tuple[object, ...]] = []
    own: dict[str, list[tuple[object, ...]]] = {}
    for name in sorted({*registry.names(), *(name for kind, name in plugins if kind == registry.kind)}):
        try:
            found = registry.find(name, plugins).value
            rows.append((name, found.summary()))
            own[name] = _options(found.Options.model_fields)
        except Exception as error:  # a package of somebody else's must not hide the others
            rows.append((name, f"(broken) {' '.join(str(error).split())}"))
    table(["name", "what it is"], rows)
    if spec is not None:
        typer.echo("")
        table(COLUMNS, _options({k: f for k, f in spec.model_fields.items() if k not in without}))
    for name, options in own.items():
        if options:
            typer.echo("")
            table(COLUMNS, options, title=f"options of {name}")
    for line in registry.hidden():
        typer.echo(f"not listed: {line}")


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
