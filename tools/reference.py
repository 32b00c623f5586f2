"""Write the reference pages into a directory; `--check` only says which of them are out of date."""

from __future__ import annotations

import inspect
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo
from ruamel.yaml import YAML
from typer.testing import CliRunner

import harness
import harness.plugin
from harness.cli import app
from harness.cli.data import default_text, type_text
from harness.data.catalog import DatasetInfo, published
from harness.data.partition import PARTITIONERS
from harness.data.registry import dataset_info, generators
from harness.deferred import Deferred, Kernel
from harness.metrics import METRICS, PHASES, Metric
from harness.models.layer import MODELS, ModelSpec
from harness.registry import Registry
from harness.runtime.method import METHODS, Method
from harness.runtime.minibatch import MiniBatchMethod
from harness.runtime.optimizers import OPTIMIZERS, SCHEDULES
from harness.runtime.pipelined import PipelinedMethod
from harness.runtime.run_config import FullGraphOptions, MethodOptions, MiniBatchOptions, TrainSpec
from harness.spec import DatasetSpec, PartitionSpec
from harness.suite.schema import DatasetSettings, MethodSettings, OwnModel, Suite, Timeouts
from harness.suite.sections import Budget, Claim, Expect, NetworkSpec, Range, RelativeTarget, TuningSpec

GENERATED = "<!-- Made from the code by `make reference`; do not edit. -->"


# fmt: off
def _metrics_of_epochs() -> Iterable[Metric]:
    """Yield the metrics that only `load_epochs` has."""
    yield Metric("epoch", epoch_doc="`epoch` from 0")
    yield Metric("rank", epoch_doc="`epoch` from 0")
    yield Metric("barriers", epoch_doc="how this epoch was timed; barriers waited at")
    seen = ("in the same windows: cores busy with anything, with this rank, and taken by the host; share of the time "
        "in which a quota stopped it; times that heat slowed a core; mean clock")
    units = {"busy_cores": "cores", "own_cores": "cores", "steal_cores": "cores", "throttled": "fraction",
        "thermal_throttles": "", "cpu_mhz": "MHz"}
    for name, unit in units.items():
        yield Metric(name, unit=unit, epoch_doc=seen)
    cpu = "CPU time of this process, all threads; the same by the phase the trainer was in"
    yield Metric("cpu_s", unit="s", epoch_doc=cpu)
    for phase in PHASES:
        yield Metric(f"cpu_{phase}_s", unit="s", epoch_doc=cpu, family="cpu_PHASE_s")
    yield Metric("loss", epoch_doc="cross-entropy, or binary cross-entropy summed over classes: mean over the training "
        "rows of all ranks (mini-batches: over the steps, weighted by rows)")
    yield Metric("lr", epoch_doc="learning rate")
    for split in ("train", "val", "test"):
        doc = "exact evaluation; NaN where not evaluated"
        yield Metric(f"{split}_score", unit="fraction", better="more", epoch_doc=doc)
    for split in ("val", "test"):
        yield Metric(f"sampled_{split}_score", unit="fraction", better="more", epoch_doc="with `train.sampled_eval`: "
            "the same nodes scored on blocks that the method draws for them, the same draws each time; NaN for methods "
            "that draw for no node in particular. Never used to choose the best epoch")
# fmt: on


EPOCH_METRICS = {each.name: each for each in (*METRICS.values(), *_metrics_of_epochs()) if each.epoch_doc}


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; bars in cells are escaped."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def options_table(fields: Mapping[str, FieldInfo]) -> str:
    """Return the table of a section's keys or a method's options."""
    return table(HEADS, _rows(fields))


HEADS = ("key", "type", "default", "meaning")


def _rows(fields: Mapping[str, FieldInfo]) -> list[tuple[str, str, str, str]]:
    return [
        (f"`{key}`", f"`{type_text(field.annotation)}`", _default(field), _limits(field))
        for key, field in fields.items()
    ]


def _shares(method: type[Method[Any]]) -> bool:
    """Return whether a method has the options of its family; `sign` draws no batches, and has options of its own."""
    base = {"full-graph": FullGraphOptions, "mini-batch": MiniBatchOptions}.get(method.family, MethodOptions)
    return issubclass(method.Options, base)


def _shared(family: str) -> list[tuple[str, str, str, str]]:
    """Return the options that all methods of a family have alike, but for those that have none of them."""
    sharing = (method for method in shipped_methods() if method.family == family and _shares(method))
    first, *others = (_rows(method.Options.model_fields) for method in sharing)
    return [row for row in first if all(row in own for own in others)]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return f"`{default_text(field.get_default(call_default_factory=True))}`"


def _limits(field: FieldInfo) -> str:
    """Return the description with the bounds of the value."""
    names = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    bounds = [
        f"{word} {getattr(rule, name):g}"
        for rule in field.metadata
        for name, word in names.items()
        if getattr(rule, name, None) is not None
    ]
    return (field.description or "") + (f" ({', '.join(bounds)})" if bounds else "")


def text_of(documented: Any) -> str:
    """Return a docstring without its first line, as Markdown paragraphs."""
    _, _, rest = (inspect.getdoc(documented) or "").partition("\n")
    return rest.strip()


OWN = "harness_methods."  # the package that comes with the tool


def shipped_methods() -> list[type[Method[Any]]]:
    """Return the methods that come with the tool, by name; not those of other packages."""
    loaded = [METHODS.load(name) for name in METHODS.names()]
    return [method for method in loaded if method.__module__.startswith(OWN)]


def index_page() -> str:
    """Return the list of all methods."""
    rows = [(f"[`{m.name}`]({m.name}.md)", m.family, m.summary()) for m in shipped_methods()]
    return f"""{GENERATED}
# Methods

{table(["method", "family", "what it does"], rows)}

The same on the command line, with methods of your own: `harness list methods`.
{"".join(_family(family) for family in dict.fromkeys(method.family for method in shipped_methods()))}"""


def _family(family: str) -> str:
    """Return the section of what all methods of a family have; empty where that is nothing."""
    shared = _shared(family)
    apart = [f"`{m.name}`" for m in shipped_methods() if m.family == family and not _shares(m)]
    but = f"\n{', '.join(apart)} has none of them.\n" if apart else ""
    return f"\n## Options of all {family} methods\n\n{table(HEADS, shared)}\n{but}" if shared else ""


def method_page(method: type[Method[Any]]) -> str:
    """Return the page of a method."""
    module, file = method.__module__.removeprefix(OWN), Path(inspect.getfile(method))
    source = f"methods/{module}/" if file.name == "__init__.py" else f"methods/{module}.py"
    shared = _shared(method.family) if _shares(method) else []
    own = [row for row in _rows(method.Options.model_fields) if row not in shared]
    rows = [
        ("family", method.family),
        ("is full-graph training at", _setting(method.exact)),
        ("aggregates without bias at", _setting(method.unbiased)),
        ("source", f"`{source}`"),
    ]
    return f"""{GENERATED}
# {method.name}

{method.summary()}

{table(["", ""], rows)}

{text_of(method)}

## Options

{_as_all(method.family) if shared else ""}{table(HEADS, own) if own else "No others."}
{_presets(method)}
In a suite:

```yaml
methods:
{_example(method)}
```
"""


def _as_all(family: str) -> str:
    return f"Besides [those of all {family} methods](index.md#options-of-all-{family}-methods):\n\n"


def _presets(method: type[Method[Any]]) -> str:
    """Return a line for each preset of a method's options but the one that their defaults are."""
    lines = [
        f"`{key}: {name}` stands for `{_flow(dict(values))}`, where these are not given."
        for key, sets in method.Options.presets.items()
        for name, values in sets.items()
    ]
    return "".join(f"\n{line}\n" for line in lines)


def _setting(options: dict[str, Any] | None) -> str:
    """Return options as YAML; what the conformance suite holds a method to."""
    if options is None:
        return "not claimed"
    return f"`{_flow(options)}`" if options else "its defaults"


def _flow(value: Any) -> str:
    writer: Any = YAML(typ="safe", pure=True)
    text = io.StringIO()
    writer.default_flow_style, writer.width, writer.sort_base_mapping_type_on_output = True, 1000, False
    writer.dump(value, text)
    return text.getvalue().removesuffix("\n").removesuffix("\n...")


def _example(method: type[Method[Any]]) -> str:
    """Return an entry of a suite with the method's last options at their defaults."""
    fields = {k: f for k, f in method.Options.model_fields.items() if not f.is_required()}
    said = {key: field.get_default(call_default_factory=True) for key, field in list(fields.items())[-2:]}
    return f"  - {method.name}: {_flow(said)}" if said else f"  - {method.name}"


SECTIONS: dict[str, tuple[type[Any], str]] = {
    "model": (ModelSpec, "Architecture, shared by every trial. Lists as values, or a list of mappings: a grid."),
    "train": (TrainSpec, "Training, the same for every method. Lists as values, or of mappings: a grid."),
    "partition": (PartitionSpec, "How the nodes are given to ranks. Lists as values: a grid."),
    "network": (
        NetworkSpec,
        "The network between ranks, shaped by the kernel (needs user namespaces): `none`, a rate, or a mapping of "
        "these keys. A list: a grid.",
    ),
    "timeouts": (Timeouts, "Limits of wall time."),
    "per_dataset": (DatasetSettings, "By a data set's name: what it has other values of."),
    "per_method": (
        MethodSettings,
        "By a method's name: what it sets itself. Reports, claims and `harness compare` hold it beside methods that do "
        "not: it is the method's, as its options are.",
    ),
    "tuning": (TuningSpec, "How `harness tune` searches each method's settings, see [tuning](../tuning.md)."),
    "tuning.budget": (Budget, "The same for every method."),
    "tuning.target": (RelativeTarget, "In place of a number."),
    "tuning.space": (Range, "By a key: exactly one of these."),
    "per_method.model": (OwnModel, "Also below `per_dataset`."),
    "claims": (Claim, "Sentences that the results make true or false, see `harness check-claims`."),
    "claims.expect": (Expect, "What is expected of a claim's metric: exactly one of the first four."),
}


def suite_page() -> str:
    """Return the reference of suite files."""
    sections = "\n\n".join(
        f"## {name}\n\n{what}\n\n{options_table(spec.model_fields)}" for name, (spec, what) in SECTIONS.items()
    )
    return f"""{GENERATED}
# Suite files

A suite is a YAML file. Every combination of data set, model, training, partition, method, network and seed
is a trial; `harness plan FILE` lists them. Only `name`, `datasets` and `methods` are required; an unknown key
or a wrong value is refused with its line and the nearest known name. `harness schema` writes all this as a
JSON schema for editors.

{table(["key", "meaning"], _top())}

Methods and data sets are entries `name` or `name: {{option: value}}`. An option's list stands for a grid; of
an option that is a list itself (`fanouts`), a list of lists does. Options of methods:
[Methods](methods/index.md).

{sections}

## Data sets

{table(["name", "what it is", "options (default)"], [_dataset(info) for info in _shipped()])}
"""


def names_page() -> str:
    """Return the reference of models, partitioners, optimizers and schedules that come with the tool."""
    registries: dict[str, tuple[Registry[Any], str]] = {
        "Models": (MODELS, "model: {name: NAME}"),
        "Partitioners": (PARTITIONERS, "partition: {method: NAME}"),
        "Optimizers": (OPTIMIZERS, "train: {optimizer: NAME}"),
        "Schedules of the learning rate": (SCHEDULES, "train: {schedule: NAME}"),
    }
    sections = []
    for heading, (registry, written) in registries.items():
        found = [each.value for each in map(registry.find, registry.names()) if each.source is None]
        rows = [(f"`{each.name}`", each.summary(), options_text(each.Options.model_fields)) for each in found]
        sections.append(f"## {heading}\n\n`{written}`\n\n{table(['name', 'what it is', 'its own options'], rows)}")
    return (
        f"""{GENERATED}
# Models, partitioners, optimizers, schedules

Options of its own go below the name: `model: {{name: {{NAME: {{option: value}}}}}}`. Plugins bring more of each
([plugins](../plugins.md)); `harness list models` and the like list them too.

"""
        + "\n\n".join(sections)
        + "\n"
    )


def plugin_page() -> str:
    """Return the list of the names that plugins import."""
    sections = []
    for module in (harness, harness.plugin):
        rows = []
        for name in sorted({*module.__all__} - {"__version__"}):
            value = getattr(module, name)
            if isinstance(value, Deferred):
                what = "the module, imported on first use"
            elif inspect.isclass(value) or inspect.isroutine(value) or isinstance(value, Kernel):
                what = (inspect.getdoc(value) or "").split("\n")[0]
            else:  # a constant; how another name of a type reads depends on what was imported first
                what = f"`{value}`" if isinstance(value, str | int | float) else ""
            rows.append((f"`{name}`", what))
        sections.append(f"## {module.__name__}\n\n{table(['name', 'what it is'], rows)}")
    return (
        f"""{GENERATED}
# Names for plugins

Plugins import these names ([plugins](../plugins.md)); everything else may change at any time.

"""
        + "\n\n".join(sections)
        + "\n"
    )


def options_text(fields: Mapping[str, FieldInfo]) -> str:
    """Return options in one cell of a table."""
    return "<br>".join(f"`{key}` ({_default(field)}): {_limits(field)}" for key, field in fields.items()) or "none"


def _top() -> list[tuple[str, str]]:
    """Return a row a key of the file; what has a section of its own links to it."""
    return [
        (f"[`{key}`](#{key})" if key in SECTIONS else f"`{key}`", field.description or "")
        for key, field in Suite.model_fields.items()
    ]


def _shipped() -> list[DatasetInfo]:
    return [dataset_info(DatasetSpec(name=name)) for name in [*published(), *generators()]]


def _dataset(info: DatasetInfo) -> tuple[str, str, str]:
    options = [f"`{key}` ({default_text(option.default)})" for key, option in info.options.items()]
    return f"`{info.name}`", info.summary, ", ".join(options)


WIDTH = 110  # columns


def commands_page() -> str:
    """Return the help of every command."""
    sections = [f"## harness {' '.join(words)}\n\n```text\n{_help(words)}\n```\n" for words in _commands(app)]
    return "\n".join([f"{GENERATED}\n# Commands\n", *sections])


def _commands(group: typer.Typer) -> list[tuple[str, ...]]:
    """Return the words of every command of a group and of those in it."""
    own = [(_name(command),) for command in group.registered_commands]
    nested = [
        (str(inner.name), *words)
        for inner in group.registered_groups
        if inner.typer_instance
        for words in _commands(inner.typer_instance)
    ]
    return [*own, *nested]


def _name(command: typer.models.CommandInfo) -> str:
    assert command.callback is not None
    return command.name or command.callback.__name__.replace("_", "-")


def _help(words: tuple[str, ...]) -> str:
    printed = CliRunner().invoke(
        app,
        [*words, "--help"],
        terminal_width=WIDTH,
        prog_name="harness",
        env={"COLUMNS": str(WIDTH), "NO_COLOR": "1", "HARNESS_DATA": None},
    )
    return "\n".join(line.rstrip() for line in printed.output.strip().splitlines())


def pages() -> dict[str, str]:
    """Return the text of every page by its path in the directory of the reference."""
    methods = {f"methods/{method.name}.md": method_page(method) for method in shipped_methods()}
    fixed = {"suite.md": suite_page(), "commands.md": commands_page(), "methods/index.md": index_page()}
    return fixed | {"names.md": names_page(), "plugin.md": plugin_page()} | methods


START, END = "<!-- columns: made from the code by `make reference` -->\n", "<!-- end of columns -->\n"


def with_columns(page: str) -> str:
    """Return docs/measurements.md with the tables of all columns where its marks are."""
    before, _, rest = page.partition(START)
    after = rest.partition(END)[2]
    of_methods = [
        (metric, f"`{method.name}`") for method in shipped_methods() for metric in vars(method).get("metrics", ())
    ]
    of_methods += [(metric, "mini-batches") for metric in vars(MiniBatchMethod)["metrics"]]
    of_methods += [(metric, "pipelined methods") for metric in vars(PipelinedMethod)["metrics"]]
    known = {metric.name: metric for metric, _ in of_methods}
    owners = {name: ", ".join(of for each, of in of_methods if each.name == name) for name in known}
    tables = [
        table(
            ["`load_results` column", "unit", "what it is"],
            _explained((m, m.doc, m.unit) for m in METRICS.values()),
        ),
        table(
            ["`load_epochs` column", "unit", "what it is"],
            _explained((m, m.epoch_doc, m.unit.removesuffix("/epoch")) for m in EPOCH_METRICS.values()),
        ),
        "Methods report more, in both frames: of an epoch and rank the sum over the epoch's steps, of a trial "
        "the sum over ranks, mean over the epochs after warm-up. What has no `stat_` is of the set-up.",
        table(
            ["column", "of", "unit", "what it is"],
            [
                (names, of, unit, doc)
                for of in dict.fromkeys(owners.values())
                for names, unit, doc in _explained((m, m.doc, m.unit) for m in known.values() if owners[m.name] == of)
            ],
        ),
    ]  # fmt: skip
    return before + START + "\n\n".join(tables) + "\n" + END + after


def _explained(rows: Iterable[tuple[Metric, str, str]]) -> list[tuple[str, str, str]]:
    """Return a row for each explanation, with all columns that it is of."""
    said: dict[str, dict[str, str]] = {}
    for metric, doc, unit in rows:
        said.setdefault(doc, {})[f"`{metric.family or metric.name}`"] = unit
    return [(", ".join(named), ", ".join(dict.fromkeys(named.values())).lstrip(), doc) for doc, named in said.items()]


def stale(directory: Path, named: Mapping[str, str]) -> list[Path]:
    """Return the pages that are missing, differ from `named`, or are of what is there no more."""
    wanted = {directory / path: text for path, text in named.items()}
    there = set(directory.rglob("*.md"))
    differing = [p for p, text in wanted.items() if p not in there or p.read_text(encoding="utf-8") != text]
    return sorted([*differing, *(there - set(wanted))])


def write(directory: Path, named: Mapping[str, str]) -> None:
    """Write all pages, and remove pages of what is there no more."""
    for path in set(directory.rglob("*.md")) - {directory / name for name in named}:
        path.unlink()
    for name, text in named.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def main(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the pages are, docs/reference.")],
    check: Annotated[bool, typer.Option(help="Write nothing; exit 1 if a page is out of date.")] = False,
) -> None:
    """Write the pages of suites, methods and commands."""
    named, measurements = pages(), directory.parent / "measurements.md"
    old, page = stale(directory, named), measurements.read_text(encoding="utf-8")
    if with_columns(page) != page:
        old.append(measurements)
    if not check:
        write(directory, named)
        measurements.write_text(with_columns(page), encoding="utf-8")
    for path in old:
        typer.echo(f"{'out of date' if check else 'written'}: {path}")
    raise typer.Exit(1 if check and old else 0)


if __name__ == "__main__":
    typer.run(main)
