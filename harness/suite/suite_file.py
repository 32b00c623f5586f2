"""Suite files: found by path or name, read with the overrides of the command line, and written."""

from __future__ import annotations

import copy
import functools
import io
import json
import math
import reprlib
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML

from harness.errors import UserError, nearest, spelled
from harness.files import read_text, write_whole
from harness.models.layer import ModelSpec
from harness.registry import Registry, find_plugins, whole_entries
from harness.runtime.run_config import TrainSpec
from harness.spec import PartitionSpec, Spec
from harness.suite import document
from harness.suite.document import KeyPath, SuiteSource, all_values, dotted, explain, unstorable
from harness.suite.schema import (
    DatasetSettings,
    MethodSettings,
    OwnModel,
    OwnSettings,
    Suite,
    Timeouts,
    grid_size,
    named_in,
    too_many,
    variants_size,
)
from harness.suite.sections import Budget, Claim, Expect, NetworkSpec, Range, RelativeTarget, TuningSpec

V = TypeVar("V")
SECTIONS: dict[str, type[Spec]] = {
    "model": ModelSpec,
    "train": TrainSpec,
    "partition": PartitionSpec,
    "network": NetworkSpec,
    "timeouts": Timeouts,
    "per_dataset": DatasetSettings,
    "per_method": MethodSettings,
    "tuning": TuningSpec,
}
GRIDS = ("model", "train", "partition", "network")  # sections whose keys may hold lists
LISTS = ("datasets", "methods")
PLACED = ("model", "train", "partition", "timeouts")  # sections whose keys say by themselves where they belong
MOST_SHOWN = 200  # characters of a value that a fix repeats
PERCENT = 10  # from where on a number in place of a share is taken for a percentage
MOST_SEEDS = 20  # a larger number under `seeds` is rather one seed than their count
AMBIGUOUS = ("name", "options", "method", "seed")  # keys of these that mean something else elsewhere


@cache
def shipped() -> dict[str, Path]:
    """Return the files of the shipped suites by their names, e.g. "quickstart", "papers/bns-table2"."""
    top = Path(str(resources.files("harness_suites")))
    return {path.relative_to(top).with_suffix("").as_posix(): path for path in sorted(top.rglob("*.yaml"))}


def suite_file(asked: Path | None) -> Path | None:
    """Return the file at a path, or else the shipped suite of that name; None stays None.

    The last part of a name is enough where one suite has it: "bns-table2". A path with a suffix that is no file is
    returned as it is: reading it fails with a better message.

    Raises:
        UserError: neither a file nor a shipped suite.
    """
    if asked is None or asked.is_file():
        return asked
    name = asked.with_suffix("").as_posix().removeprefix("suites/")
    found = shipped().get(name)
    alike = [path for path in shipped().values() if path.stem == name]
    file = found or (alike[0] if len(alike) == 1 else None)
    if asked.suffix in (".yaml", ".yml"):
        if file is not None:
            raise UserError("no such file", file=asked, fix=f"the shipped suite is called {name}, without a suffix")
        return asked
    if file is None:
        close = nearest(name, {*shipped(), *(path.stem for path in shipped().values())})
        with_suffix = asked.with_name(f"{asked.name}.yaml")
        listed = "it is a directory: name a file" if asked.is_dir() else "`harness suites` lists those that are shipped"
        listed = close if close.startswith("did") else listed
        fix = f"did you mean {with_suffix}?" if with_suffix.is_file() else listed
        raise UserError(f"neither a file nor a shipped suite: '{asked}'", key="SUITE", fix=fix)
    return file


def read_suite(
    file: Path | Mapping[str, Any], overrides: Sequence[str] = (), plugins: Sequence[str] = (), *, trusted: bool = False
) -> Suite:
    """Return a suite with overrides and plugins, every name spelled as it is known.

    Args:
        file: the suite's file, or a mapping with the content of one.
        overrides: see `load_suite`.
        plugins: files or modules that the user names; they are imported.
        trusted: import the suite's own plugins too. A suite from elsewhere is data until it is run.

    Raises:
        UserError: a line for each mistake in the file; a plugin that does not import or brings nothing; code that
            only the suite names, unless it is `trusted`.
    """
    suite, more = load_suite(file, overrides), whole_entries(plugins)
    if not trusted:
        _refuse_code(suite, more)
    if more:
        find_plugins(more)  # a mistake in them is none of the suite's
        suite = suite.model_copy(update={"plugins": tuple(dict.fromkeys([*suite.plugins, *more]))})
    return with_known_names(suite)


def load_suite(path: Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Suite:
    """Read and check a suite file.

    Args:
        path: the YAML file, or a mapping with the content of one.
        overrides: `section.key=value`, the value in YAML; an item of a list by its number from 0
            (`methods.1.bns-gcn.rate=0.5`).

    Raises:
        UserError: a line for each mistake, naming file, line (or override), key, value and the allowed values.
            Names and options of data sets and methods are checked by `expand`.
    """
    source, data = _read(path)
    for override in overrides:
        _override(data, source, override)
    for section in (*SECTIONS, *LISTS, "plugins"):
        if data.get(section, ...) is None:  # `train:` with nothing below it
            del data[section]
    if (many := too_many(_least_factors(data))) is not None:
        raise source.error((many[0],), many[1], "list fewer values, or write several suites")
    suite = _validated(data, source)
    for section in LISTS:
        if not isinstance(data[section], list):  # the Suite numbers the only entry (`methods: full`) 0
            source.lines |= {(section, 0, *p[1:]): line for p, line in source.lines.items() if p[0] == section}
            source.overrides |= {(section, 0, *p[1:]): text for p, text in source.overrides.items() if p[0] == section}
    for section in filter(data.__contains__, GRIDS):
        for number in range(len(getattr(suite, section))):
            source.variants[section, number] = _written((section, number), data)
    suite._source = source
    return suite


def _validated(data: dict[str, Any], source: SuiteSource) -> Suite:
    def mend(loc: KeyPath, found: ErrorDetails, keys: Collection[str]) -> str | None:
        path = _written(loc, data)
        if found["type"] == "extra_forbidden" and loc[0] in GRIDS:  # pydantic saw one value of a grid's
            whole: Any = data
            found = {**found, "input": functools.reduce(lambda inner, key: inner[key], path, whole)}
        return mended(loc, found, keys, source.override_at(path) is not None)

    try:
        return Suite.model_validate(data)
    except ValidationError as error:
        raise explain(
            error, lambda loc, message, fix: source.error(_written(loc, data), message, fix), _known_keys, mend
        ) from error


def _read(path: Path | Mapping[str, Any]) -> tuple[SuiteSource, dict[str, Any]]:
    """Return the data of a file or mapping, and where each key is written."""
    if isinstance(path, Mapping):
        source, data = SuiteSource(), copy.deepcopy(dict(path))
        for where, value in all_values(data):
            if wrong := unstorable(value):
                raise source.error(where, f"bad value {reprlib.repr(value)}: {wrong}")
        return source, data
    try:
        text = read_text(path, document.MAX_BYTES)
    except FileNotFoundError as error:
        there = [p.name for p in path.parent.glob("[!.]*.y*ml")] if path.parent.is_dir() else []
        raise UserError("no such file", file=path, fix=nearest(path.name, there) if there else None) from error
    except UnicodeDecodeError as error:
        raise UserError("not UTF-8 text", file=path) from error
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", file=path) from error
    read = document.parse(text, str(path))
    if not isinstance(read.data, dict):
        raise UserError("not a suite", file=path, fix="write `name: ...`, `datasets: [...]`, `methods: [...]` lines")
    return SuiteSource(path, read.lines), read.data


def _least_factors(data: Mapping[str, Any]) -> dict[str, int]:
    """Return the least number of alternatives of each section of a suite's data, before they are checked.

    A value of the wrong kind counts as one: it is refused later. Methods may be more: which of their options take
    lists is not known yet.
    """

    def entries(key: str) -> list[Any] | tuple[Any, ...]:
        written = data.get(key)
        return written if isinstance(written, list | tuple) else [written]

    def grid_of(entry: Any) -> int:
        options = [own for own in entry.values() if isinstance(own, dict)] if isinstance(entry, dict) else []
        return math.prod(map(grid_size, options))

    found = {"datasets": max(1, sum(map(grid_of, entries("datasets"))))}
    found |= {key: variants_size(data[key]) for key in GRIDS if data.get(key)}
    found |= {key: max(1, len(entries(key))) for key in ("methods", "seeds")}
    repeat = data.get("repeat")
    found["repeat"] = max(1, repeat) if isinstance(repeat, int) else 1
    return found


def _override(data: dict[str, Any], source: SuiteSource, text: str) -> None:
    said, separator, value = text.partition("=")
    if not separator or not said or "" in said.split("."):
        raise UserError("not of the form section.key=value", file=f"--set {text}")
    if said.count(".") > document.MAX_DEPTH:
        raise UserError(f"nested deeper than {document.MAX_DEPTH} levels", file=f"--set {text}")
    parsed = document.parse(value, f"--set {text}").data
    inner: Any = data
    path: KeyPath = ()
    *above, last = said.split(".")
    for part in above:
        key = _key(inner, part, text, path)
        path = (*path, key)
        if isinstance(inner, dict) and inner.get(key) is None:  # a section that is not written
            inner[key] = {}
            source.override(path, text)
        elif isinstance(inner, list) and isinstance(inner[key], str):  # `- full` has no options yet
            inner[key] = {inner[key]: {}}
        inner = inner[key]
    key = _key(inner, last, text, path)
    inner[key] = parsed
    source.override((*path, key), text)


def _key(inner: Any, part: str, text: str, path: KeyPath) -> Any:
    """Return the key of a section, or the number of a list's item, that is written as `part`."""
    if isinstance(inner, dict):
        return part
    if not isinstance(inner, list):
        raise UserError(f"'{dotted(path)}' is not a section", file=f"--set {text}")
    if not part.isdecimal() or len(part) > 9 or int(part) >= len(inner):
        what = f"'{dotted(path)}' is a list; '{part}' is not one of its items"
        raise UserError(what, file=f"--set {text}", fix=f"number them 0 to {len(inner) - 1}")
    return int(part)


def _known_keys(loc: KeyPath) -> Mapping[str, Any]:
    """Return the keys of the section at a location of the model."""
    if loc[:1] == ("claims",):
        return (Expect if loc[2:] == ("expect",) else Claim).model_fields
    if loc[:1] == ("per_method",) and len(loc) > 2:
        return (OwnModel if loc[-1] == "model" else OwnSettings).model_fields
    if loc[:1] == ("tuning",) and len(loc) > 1:
        sections: dict[str, type[Spec]] = {"budget": Budget, "target": RelativeTarget}
        return sections.get(str(loc[1]), Range).model_fields
    return (SECTIONS[str(loc[0])] if loc else Suite).model_fields


@cache
def places() -> dict[str, KeyPath]:
    """Return where keys of a suite belong, by their last part: `epochs` at `train.epochs`."""
    found: dict[str, KeyPath] = {key: (key,) for key in Suite.model_fields}
    for section in PLACED:
        found |= {key: (section, key) for key in SECTIONS[section].model_fields if key not in found}
    return {key: path for key, path in found.items() if key not in AMBIGUOUS}


def place_of(key: str, others: Collection[str] = ()) -> KeyPath | None:
    """Return where a key of a suite, or one that is spelled almost alike, belongs; None where one of `others` is."""
    close = get_close_matches(key, [*places(), *others], 1, 0.85)
    return places().get(close[0]) if close and close[0] not in others else None


def put(path: KeyPath, value: Any, *, option: bool = False) -> str:
    """Write a value at its place in a suite, or as an option `--set`; in the form that it needs where that is plain."""
    data: dict[str, Any] = {"name": "x", "datasets": "x", "methods": "x"}
    try:
        Suite.model_validate(data | _nested(path, value))
    except ValidationError as error:
        for found in error.errors(include_url=False):
            if (fix := mended(found["loc"], found, (), option)) is not None:
                return fix
    return _put(path, value, option)


def mended(path: KeyPath, found: ErrorDetails, keys: Collection[str], option: bool) -> str | None:
    """Return how to write what pydantic refused at a path, if that is plain: in its place, or in its form.

    `keys` are those of the section, `option` says that the value came from `--set`.
    """
    kind, value, at = found["type"], found["input"], tuple(part for part in path if isinstance(part, str))
    if kind == "extra_forbidden":
        place = None if at[0] in ("claims", "tuning") else place_of(at[-1], keys)
        return None if place is None or place[:-1] == at[-2:-1] else put(place, value, option=option)
    if kind in ("list_type", "tuple_type"):
        seeds = at == ("seeds",) and isinstance(value, int) and 0 < value <= MOST_SEEDS
        return _put(at, [*range(value)] if seeds else [value], option)
    if kind in ("model_type", "model_attributes_type") and len(at) == 1 and at[0] in PLACED:
        key = _first_that_takes(value, SECTIONS[at[0]])
        return None if key is None else _put(at, {key: value}, option)
    most = found.get("ctx", {}).get("le", found.get("ctx", {}).get("lt"))
    percent = most == 1 and isinstance(value, int | float) and PERCENT <= value <= 100
    return _put(at, value / 100, option) if percent else None


def _first_that_takes(value: Any, section: type[Spec]) -> str | None:
    for key in section.model_fields:
        try:
            section.model_validate({key: value})
        except ValidationError:
            continue
        return key
    return None


def _nested(path: KeyPath, value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    return dict(value)


def _put(path: KeyPath, value: Any, option: bool) -> str:
    try:
        shown = len(json.dumps(value)) <= MOST_SHOWN
    except (TypeError, ValueError):  # of a suite that was made in Python
        shown = False
    value = value if shown else "VALUE"
    if not option:
        return f"write `{_yaml(_nested(path, value), flow=True)[1:-1]}`"
    while isinstance(value, dict) and len(value) == 1:
        [(key, value)] = value.items()
        path = (*path, key)
    return f"--set {shlex.quote(f'{dotted(path)}={_yaml([value], flow=True)[1:-1]}')}"


def _written(loc: KeyPath, data: Mapping[str, Any]) -> KeyPath:
    """Return where the value at a location of the Suite was written in the data."""
    if len(loc) < 2 or not isinstance(loc[1], int):
        return loc
    section, number, rest = str(loc[0]), loc[1], loc[2:]
    value = data[section]
    if section in GRIDS:
        if not isinstance(value, list):
            return (section, *rest) if isinstance(value, dict) else (section,)
        # One of several grids: that which the variant came from.
        of_entry = 0
        for i, entry in enumerate(value):
            number -= variants_size(entry)
            if number < 0:
                of_entry = i
                break
        return (section, of_entry, *rest)
    if section in LISTS and isinstance(value, str | dict):
        return (section,)
    return (section, number) if section in LISTS else loc


def _refuse_code(suite: Suite, named: Sequence[str]) -> None:
    """Raise UserError if the suite names code that the user has not `named`; none of it is run."""
    entries = zip(suite.plugins, whole_entries(suite.plugins, suite.directory), strict=True)
    found = [("plugins", given) for given, whole in entries if whole not in named]
    names = [("methods", entry.name) for entry in suite.methods]
    for section in ("model", "partition", "train"):
        names += [(section, getattr(spec, key)) for spec in getattr(suite, section) for _, key, _ in named_in(section)]
    found += [(key, name) for key, name in names if ":" in name and name.partition(":")[0] not in named]
    found = [(key, name) for key, name in found if not any(name in said for said in suite.source.overrides.values())]
    if found:
        what = ", ".join(dict.fromkeys(name for _, name in found))
        fix = "read it, then add --trust-plugins, or name it with --plugin"
        raise suite.source.error((found[0][0],), f"{what} is code, which is imported to run the suite alone", fix)


def with_known_names(suite: Suite) -> Suite:
    """Return a suite in which data sets, methods, models, partitioners and the like bear the names they are known by.

    Letters' case, `-` and `_` make no difference. A name that is known exactly as it is written stays: a plugin's
    method may be called `bns_gcn`. An unknown name stays, too.
    """
    from harness.data.registry import dataset_name
    from harness.runtime.method import METHODS

    datasets = {entry.name: dataset_name(entry.name) for entry in suite.datasets}
    methods = {entry.name: _known(METHODS, entry.name, suite) for entry in suite.methods}
    changed: dict[str, Any] = {
        "datasets": tuple(e.model_copy(update={"name": datasets[e.name]}) for e in suite.datasets),
        "methods": tuple(e.model_copy(update={"name": methods[e.name]}) for e in suite.methods),
        "per_dataset": _renamed(suite.per_dataset, datasets.values()),
        "per_method": {
            name: own.model_copy(update={"per_dataset": _renamed(own.per_dataset, datasets.values())})
            for name, own in _renamed(suite.per_method, methods.values()).items()
        },
    }
    for section in ("model", "partition", "train"):
        specs = []
        for spec in getattr(suite, section):
            for registry, key, _ in named_in(section):
                name = getattr(spec, key)
                if name != type(spec).model_fields[key].default and (known := _known(registry, name, suite)) != name:
                    spec = spec.model_copy(update={key: known})
            specs.append(spec)
        changed[section] = tuple(specs)
    if suite.tuning is not None:
        own = _renamed(suite.tuning.per_method, methods.values())
        changed["tuning"] = suite.tuning.model_copy(update={"per_method": own})
    return suite.model_copy(update=changed)


def _known(registry: Registry[Any], name: str, suite: Suite) -> str:
    # Plugins are imported only for a name that is not installed.
    installed = registry.names()
    if name in installed:
        return name
    with suppress(UserError):  # `expand` reports it with its line
        return spelled(name, registry.names(suite.catalogue().sources))
    return spelled(name, installed)


def _renamed(settings: dict[str, V], names: Iterable[str]) -> dict[str, V]:
    known = set(names)
    return {spelled(key, known): value for key, value in settings.items()}


def as_written(suite: Suite) -> dict[str, Any]:
    """Return the keys that a suite gives, as a file has them: plain values that `Suite` takes."""

    def entry(written: dict[str, Any]) -> Any:
        return {written["name"]: written["options"]} if written.get("options") else written["name"]

    data: dict[str, Any] = suite.model_dump(mode="json", exclude_unset=True)
    for section in LISTS:
        data[section] = [entry(each) for each in data[section]]
    for section in GRIDS:
        if section in data and len(data[section]) == 1:
            data[section] = data[section][0]
    return data


def write_suite_file(suite: Suite, path: Path) -> Path:
    """Write a suite as YAML that `load_suite` reads as the same suite, whole or not at all; returns the path."""
    write_whole(path, _yaml(as_written(suite)))
    return path


def _yaml(data: Any, *, flow: bool = False) -> str:
    """Write data as YAML; `flow`: in one line."""
    writer: Any = YAML(typ="safe", pure=True)
    writer.default_flow_style, writer.width, writer.sort_base_mapping_type_on_output = flow or None, 120, False
    if flow:
        writer.width = math.inf
    text = io.StringIO()
    writer.dump(data, text)
    return text.getvalue().rstrip("\n") if flow else text.getvalue()
