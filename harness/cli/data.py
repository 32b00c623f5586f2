"""`harness list`, `data` and `partition`: what there is, what it is like, and getting it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

from harness.cli.command_options import (
    DataDir,
    DatasetOption,
    Plugin,
    SuiteOptions,
    dataset_options,
    node_count,
    option,
    suite_command,
    use_data_dir,
)
from harness.cli.terminal import bytes_text, table
from harness.errors import DataError, UserError, nearest, spelled

if TYPE_CHECKING:
    from harness.registry import Registry
    from harness.spec import DatasetSpec, PartitionSpec, PluginSource


Row = tuple[object, ...]
COLUMNS = ("option", "type", "default", "meaning")
list_app = typer.Typer(no_args_is_help=True, help="List what a suite can name.")


@list_app.command()
def datasets(data_dir: DataDir = None) -> None:
    """Published data sets and those of the data directory: sizes, and what is here or has to be downloaded."""
    from harness.data.registry import dataset_info, dataset_names
    from harness.spec import DatasetSpec

    place, rows, damaged = use_data_dir(data_dir), list[Row](), list[DataError]()
    for name in dataset_names(place):
        try:
            i = dataset_info(DatasetSpec(name=name))
        except DataError as error:  # it must not hide the others
            damaged.append(error)
            continue
        mode = "inductive" if i.inductive else "transductive"
        rows.append((name, _here(name, i.size_bytes), i.nodes, i.edges, i.features, i.classes, mode, i.summary))
    table(["name", "here", "nodes", "directed edges", "features", "classes", "mode", "what it is"], rows)
    for each in damaged:
        typer.echo(f"not listed: {each}")


def _here(name: str, size: int | None) -> str:
    """Return whether a set is on this machine, or else how it gets there; nothing is read."""
    from harness.data.registry import find_prepared, generators, prepared_name
    from harness.spec import DatasetSpec

    spec = DatasetSpec(name=name)
    if name in generators():
        return "made when needed"
    if prepared_name(spec) is not None or find_prepared(spec) is not None:
        return "yes"
    return f"no, {bytes_text(size)} to get" if size else "no, `data get` gets it"


@list_app.command()
def methods(plugin: Plugin = None) -> None:
    """Training methods with their options; installed ones that do not work with what is wrong."""
    from harness.runtime.method import METHODS

    for name, method, said, options in _all(METHODS, plugin):
        typer.echo(f"{name} ({method.family if method else 'broken'}): {said}")
        if options:
            table(COLUMNS, options)
        typer.echo("")
    for line in METHODS.hidden():
        typer.echo(f"not listed: {line}")


def _list_kind(command: str, about: str, section: str, number: int = 0) -> None:
    """Add the command that lists the `number`-th kind of what a section of a suite names."""

    @list_app.command(command, help=f"{about} with their options.")
    def list_kind(plugin: Plugin = None) -> None:
        from harness.suite.schema import named_in
        from harness.suite.suite_file import SECTIONS

        registry, *own = named_in(section)[number]
        found = list(_all(registry, plugin))
        table(["name", "what it is"], [(name, said if one else f"(broken) {said}") for name, one, said, _ in found])
        if section != "train":  # its other keys are no optimizer's or schedule's
            typer.echo("")
            table(COLUMNS, _options({k: f for k, f in SECTIONS[section].model_fields.items() if k not in own}))
        for name, _, _, options in found:
            if options:
                typer.echo("")
                table(COLUMNS, options, title=f"options of {name}")
        for line in registry.hidden():
            typer.echo(f"not listed: {line}")


_list_kind("models", "Models", "model")
_list_kind("partitioners", "Partitioners", "partition")
_list_kind("optimizers", "Optimizers", "train")
_list_kind("schedules", "Schedules of the learning rate", "train", 1)


def _all(registry: Registry[Any], plugin: list[str] | None) -> Iterator[tuple[str, Any, str, list[Row]]]:
    """Yield each name of a kind with its class, summary and options; of a broken one None and the error."""
    from harness.registry import find_plugins

    plugins = find_plugins(plugin or [])
    for name in registry.names(plugins):
        try:
            found = registry.find(name, plugins).value
            options = _options(found.Options.model_fields)
        except Exception as error:  # a broken package must not hide the others
            yield name, None, " ".join(str(error).split()), []
        else:
            yield name, found, found.summary(), options


def _options(fields: Mapping[str, Any]) -> list[Row]:
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
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_text(inner[0])
    if origin is Literal:
        return "|".join(map(str, inner))
    if origin in (Union, UnionType):
        return "|".join(map(type_text, inner))
    if origin is not None:
        return f"{origin.__name__}[{', '.join('...' if part is ... else type_text(part) for part in inner)}]"
    name = str(getattr(annotation, "__name__", annotation))
    return {"str": "text", "Path": "path", "None": "null", "NoneType": "null"}.get(name, name)


def default_text(value: Any) -> str:
    """Write a default as YAML would."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


data_app = typer.Typer(no_args_is_help=True, help="List data sets, get or import one, or describe it.")
data_app.command("list")(datasets)
Name = Annotated[str, typer.Argument(metavar="NAME", help="A name of `harness list datasets`.")]


@data_app.command()
def get(name: Name, options: DatasetOption = None, data_dir: DataDir = None) -> None:
    """Download a data set if need be, check it and prepare it; print where it is."""
    from harness.data.registry import dataset_info, dataset_name, prepare
    from harness.spec import DatasetSpec

    place = use_data_dir(data_dir)
    spec = DatasetSpec(name=dataset_name(name), options=dataset_options(options))
    info = dataset_info(spec)
    size = f" ({bytes_text(info.size_bytes)} to download unless it is here)" if info.size_bytes else ""
    typer.echo(f"{spec.name}: {info.source}{size}", err=True)
    typer.echo(str(prepare(spec, data_dir=place, download=True)))


@data_app.command()
def info(name: Name, options: DatasetOption = None, data_dir: DataDir = None) -> None:
    """Print a data set's published sizes, its options, and whether it is on this machine."""
    from harness.data.registry import dataset_info, dataset_name
    from harness.launch.inputs import missing_data
    from harness.spec import DatasetSpec

    place = use_data_dir(data_dir)
    spec = DatasetSpec(name=dataset_name(name), options=dataset_options(options))
    known = dataset_info(spec)
    missing = missing_data(spec, place)
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
        ("on this machine", "yes, or made when it is needed" if missing is None else f"no: {missing}"),
    ]
    table(["", name], rows)
    if known.options:
        typer.echo("")
        table(COLUMNS, [(k, type_text(o.type), default_text(o.default), o.summary) for k, o in known.options.items()])


@data_app.command("import")
def import_(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="PyG's .pt, DGL's .bin, OGB's folder, edges as .csv, .tsv, .txt or .parquet, .mtx, scipy's .npz.",
        ),
    ],
    name: Annotated[str | None, option("--name NAME", "Its name in suites.", show_default="the file's")] = None,
    features: Annotated[
        Path | None, option("--features FILE", "Its features, [N, F]: .npy, .npz, .pt, .mtx or a table.")
    ] = None,
    labels: Annotated[Path | None, option("--labels FILE", "Its labels: classes [N], or 0/1 [N, C].")] = None,
    splits: Annotated[
        str | None,
        option("--splits FILE|SHARES", "train, val, test as .npz, .json or a word a node; or shares: 0.6,0.2,0.2."),
    ] = None,
    split: Annotated[int, typer.Option("--split", min=0, help="Which column of masks [N, K].")] = 0,
    data_dir: DataDir = None,
) -> None:
    """Keep a graph that another tool wrote under a name; print what was changed."""
    from harness.data.formats.imported import read
    from harness.data.imports import save

    place = use_data_dir(data_dir)
    own = name or path.name.partition(".")[0]
    given = {"features": features, "labels": labels, "splits": splits, "split": split}
    save(own, lambda work: read(path, own, work, **given), place, typer.echo)  # type: ignore[arg-type]


@data_app.command()
@suite_command("results", "retry", "fresh", "warm", "repeat", "interleave", "twin", "shard")
def shard(
    asked: SuiteOptions,
    directory: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where node0, node1, ... are written.")],
    nnodes: Annotated[str, option("--nnodes N", "Machines, as `harness run --nnodes N` lays ranks out over them.")],
) -> None:
    """Write for each machine what its ranks read of a suite's graphs: edges and labels, and features of their nodes.

    Copy DIR/node0 to the machine that keeps the results, node1 to the next, and so on, and run there with HARNESS_CACHE
    set to it. Graphs are prepared and partitioned here, as a run does.
    """
    from harness.data.partition.cached import PartitionPaths, ensure_rows
    from harness.data.shards import write_shard
    from harness.launch.hardware import blocks
    from harness.launch.inputs import InputCache

    count, (_, trials) = node_count(nnodes), asked.select(with_results=False)
    if directory.exists() and any(directory.iterdir()):
        raise UserError("is not empty", file=directory, key="--out", fix="name a new directory")
    cache = InputCache(asked.data_dir)
    for trial in trials:
        found = cache.get(trial, lambda line: typer.echo(line, err=True))
        views = PartitionPaths(found.train_view, found.full_view)
        rows = {ensure_rows(found.graph, views, "float32"), *filter(None, [found.rows])}
        for node, ranks in enumerate(blocks(trial.partition.parts, count)):
            write_shard(found.graph, views, sorted(rows), ranks, directory / f"node{node}")
    for place in sorted(directory.iterdir()):
        typer.echo(str(place))


PER_PART = ("part", "inner", "boundary", "ratio", "edges", "edges_cut", "train_nodes")
TOTALS = (
    "parts", "method", "imbalance", "edge imbalance", "cut edges", "cut share", "volume", "boundary imbalance",
    "seconds",
)  # fmt: skip


def partition(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="A name of `harness list datasets`.")],
    parts: Annotated[str, option("--parts P,...", "Numbers of parts.")] = "2,4,8",
    method: Annotated[
        str, option("--method NAME,...", "Partitioners (`harness list partitioners`).")
    ] = "metis,random,chunk",
    objective: Annotated[str, option("--objective volume|cut", "What METIS minimises.")] = "cut",
    balance: Annotated[
        str,
        option(
            "--balance WHAT", "What parts have equally much of: nodes or edges; by METIS also train, nodes+train, ..."
        ),
    ] = "nodes",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the partitioner.")] = 0,
    inductive: Annotated[
        bool | None,
        typer.Option(
            "--inductive/--transductive",
            help="Partition the training subgraph only, or the whole graph.",
            show_default="the data set's",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        option("--out DIR", "Keep the partition there: parts.npy (for `method: file`), DGL's partition_meta.json."),
    ] = None,
    options: DatasetOption = None,
    plugin: Plugin = None,
    data_dir: DataDir = None,
) -> None:
    """Show how well a graph splits.

    Each part's inner and boundary nodes, then each partition's quality: ratio = boundary / inner; volume =
    sum of boundary nodes = rows sent per layer and direction; a cut edge counts once; imbalance, edge imbalance,
    boundary imbalance = largest / mean part, by inner nodes, edges and boundary nodes. A synchronous epoch waits for
    the part with the largest boundary: above 2 a note says so. Partitions are cached, so a later run finds them, with
    the seconds that their making took.
    """
    from pydantic import ValidationError

    from harness.data.partition import PARTITIONERS, boundary_warning
    from harness.data.registry import dataset_info, dataset_name, prepare
    from harness.registry import find_plugins
    from harness.spec import DatasetSpec, PartitionSpec

    directory, plugins = use_data_dir(data_dir), find_plugins(plugin or [])
    counts = [part.strip() for part in parts.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in counts):
        raise UserError(f"'{parts}' is not a list of positive numbers", key="--parts", fix="e.g. 2,4,8")
    known = {*PARTITIONERS.names(plugins)} - {"file"}
    names = [spelled(part.strip(), known) for part in method.split(",") if part.strip()]
    if unknown := [name for name in names if name not in known]:
        raise UserError(f"unknown partitioner '{unknown[0]}'", key="--method", fix=nearest(unknown[0], known))
    if out is not None and len(names) * len(counts) > 1:
        raise UserError(f"{len(names) * len(counts)} partitions", key="--out", fix="one --method and one of --parts")
    fixed = {"objective": objective, "balance": balance, "seed": seed}
    try:
        specs = [
            PartitionSpec.model_validate({"parts": int(count), "method": name, **fixed})
            for name, count in product(names, counts)
        ]
    except ValidationError as error:
        first = error.errors()[0]
        what = str(first.get("ctx", {}).get("error") or f"'{first['input']}': {first['msg']}")
        raise UserError(what, key=f"--{first['loc'][0]}") from error
    dataset_spec = DatasetSpec(name=dataset_name(dataset), options=dataset_options(options))
    mode = dataset_info(dataset_spec).inductive if inductive is None else inductive
    graph = prepare(dataset_spec, data_dir=directory)
    sources = {name: plugins.get(("partitioner", name)) for name in names}
    totals = [_show(graph, dataset_spec, spec, mode, sources[spec.method], out) for spec in specs]
    table(TOTALS, totals, title=f"{dataset_spec.name}: partitions")
    for spec, row in zip(specs, totals, strict=True):
        if line := boundary_warning(dataset_spec.name, spec, row[-2]):
            typer.echo(f"note: {line}")


def _show(
    graph: Path,
    dataset: DatasetSpec,
    spec: PartitionSpec,
    inductive: bool,
    source: PluginSource | None,
    out: Path | None,
) -> list[Any]:
    """Print the table of one partition, keep it in `out`; return its row of the last table."""
    from harness.data.partition.cached import ensure_partitioned, export_parts, partition_seconds, partition_table
    from harness.data.partition.view import imbalance
    from harness.launch.hardware import capacity

    views = ensure_partitioned(graph, spec, inductive=inductive, source=source, room=capacity().machine)
    if out is not None:
        export_parts(views, dataset.name, spec, out)
    *rows, total = partition_table(views.train)
    rows = [row | {"ratio": row["boundary"] / row["inner"] if row["inner"] else None} for row in rows]
    title = f"{dataset.name}, {spec.method}, {spec.parts} parts" + (", training subgraph" if inductive else "")
    table(PER_PART, [[row[key] for key in PER_PART] for row in rows], title=title)
    typer.echo("")
    cut, share = total["edges_cut"], total["edges_cut"] / total["edges"] if total["edges"] else 0.0
    boundary = total["volume"], imbalance([row["boundary"] for row in rows])
    seconds = partition_seconds(views.train)
    # A graph is symmetric: both directions of a cut edge are entries.
    return [spec.parts, spec.method, total["imbalance"], total["edge_imbalance"], cut // 2, share, *boundary, seconds]
