"""Reading a suite file, with the overrides of the command line."""

from __future__ import annotations

import copy
import math
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.errors import UserError, nearest
from harness.files import read_text
from harness.models.layer import ModelSpec
from harness.runtime.run_config import TrainSpec
from harness.spec import PartitionSpec, Spec
from harness.suite import document
from harness.suite.claim import Claim, Expect
from harness.suite.document import KeyPath, SuiteSource, dotted, explain
from harness.suite.network import NetworkSpec
from harness.suite.schema import DatasetSettings, MethodSettings, OwnModel, OwnSettings, Suite, Timeouts
from harness.suite.size import all_values, least_factors, too_many, unstorable
from harness.suite.tuning import Budget, Range, RelativeTarget, TuningSpec

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


def load_suite(path: Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Suite:
    """Read and check a suite file.

    Args:
        path: the YAML file, or what one would hold.
        overrides: `section.key=value`, the value in YAML; an item of a list by its number from 0
            (`methods.1.bns-gcn.rate=0.5`).

    Raises:
        UserError: a line for each mistake, naming file, line (or override), key, value and what is allowed.
            Names and options of data sets and methods are checked by `expand`.
    """
    source, data = _read(path)
    for override in overrides:
        _override(data, source, override)
    for section in (*SECTIONS, *LISTS, "plugins"):
        if data.get(section, ...) is None:  # `train:` with nothing below it
            del data[section]
    if (many := too_many(least_factors(data))) is not None:
        raise source.error((many[0],), many[1], "list fewer values, or write several suites")
    try:
        suite = Suite.model_validate(data)
    except ValidationError as error:
        raise explain(
            error, lambda loc, message, fix: source.error(_written(loc, data), message, fix), _known
        ) from error
    _number_entries(data, source)
    for section in filter(data.__contains__, GRIDS):
        for number in range(len(getattr(suite, section))):
            source.variants[section, number] = _written((section, number), data)
    suite._source = source
    return suite


def _read(path: Path | Mapping[str, Any]) -> tuple[SuiteSource, dict[str, Any]]:
    """Return what a file, or a mapping, says, and where it is written."""
    if isinstance(path, Mapping):
        source, data = SuiteSource(), copy.deepcopy(dict(path))
        for where, value in all_values(data):
            if wrong := unstorable(value):
                raise source.error(where, f"bad value {reprlib.repr(value)}: {wrong}")
    else:
        read = document.parse(_text(path), str(path))
        if not isinstance(read.data, dict):
            fix = "write `name: ...`, `datasets: [...]`, `methods: [...]` lines"
            raise UserError("not a suite", file=path, fix=fix)
        source, data = SuiteSource(path, read.lines), read.data
    return source, data


def _text(path: Path) -> str:
    """Read the file, refusing what cannot be a suite before reading it whole."""
    try:
        return read_text(path, document.MAX_BYTES)
    except FileNotFoundError as error:
        there = [p.name for p in path.parent.glob("[!.]*.y*ml")] if path.parent.is_dir() else []
        raise UserError("no such file", file=path, fix=nearest(path.name, there) if there else None) from error
    except UnicodeDecodeError as error:
        raise UserError("not UTF-8 text", file=path) from error
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", file=path) from error


def _override(data: dict[str, Any], source: SuiteSource, text: str) -> None:
    """Put one `key.path=value` into the data."""
    said, separator, value = text.partition("=")
    if not separator or not said or "" in said.split("."):
        raise UserError("not of the form section.key=value", file=f"--set {text}")
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


def _known(loc: KeyPath) -> Mapping[str, Any]:
    """Return the keys of the section at a location of the model."""
    if loc[:1] == ("claims",):
        return (Expect if loc[2:] == ("expect",) else Claim).model_fields
    if loc[:1] == ("per_method",) and len(loc) > 2:
        return (OwnModel if loc[-1] == "model" else OwnSettings).model_fields
    if loc[:1] == ("tuning",) and len(loc) > 1:
        sections: dict[str, type[Spec]] = {"budget": Budget, "target": RelativeTarget}
        return sections.get(str(loc[1]), Range).model_fields
    return (SECTIONS[str(loc[0])] if loc else Suite).model_fields


def _written(loc: KeyPath, data: Mapping[str, Any]) -> KeyPath:
    """Return where the value at a location of the Suite was written in the data."""
    if len(loc) < 2 or not isinstance(loc[1], int):
        return loc
    section, number, rest = str(loc[0]), loc[1], loc[2:]
    value = data[section]
    if section in GRIDS:
        if not isinstance(value, list):
            return (section, *rest) if isinstance(value, dict) else (section,)
        return (section, _entry_of_variant(value, number), *rest)
    if section in LISTS and isinstance(value, str | dict):
        return (section,)
    return (section, number) if section in LISTS else loc


def _entry_of_variant(entries: Sequence[Any], variant: int) -> int:
    """Return which of several grids a variant came from."""
    for i, entry in enumerate(entries):
        axes = [v for v in entry.values() if isinstance(v, list)] if isinstance(entry, dict) else []
        variant -= math.prod(len(axis) for axis in axes)
        if variant < 0:
            return i
    return 0


def _number_entries(data: Mapping[str, Any], source: SuiteSource) -> None:
    """Number the only entry of a section (`methods: full`) 0, as the Suite does."""
    for section in LISTS:
        if not isinstance(data[section], list):
            source.lines |= {(section, 0, *p[1:]): line for p, line in source.lines.items() if p[0] == section}
            source.overrides |= {(section, 0, *p[1:]): text for p, text in source.overrides.items() if p[0] == section}
