"""Methods by name: installed ones (entry-point group `harness.methods`), plugins', `package.module:Class`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from harness.errors import UserError, nearest
from harness.runtime.imports import (
    class_of,
    import_class,
    import_file,
    module_name,
    sha256_of,
    source_of,
)
from harness.runtime.method import Method
from harness.runtime.spec import PluginSource

GROUP = "harness.methods"
OWN = "harness"  # the distribution whose methods are the tool's own


@dataclass(frozen=True)
class FoundMethod:
    """A method's class, and where its code is; None for the tool's own."""

    method: type[Method[Any]]
    source: PluginSource | None


def method_names() -> list[str]:
    """Names of the installed methods, sorted."""
    return sorted(_points())


def hidden_methods() -> list[str]:
    """Return a line for each installed method whose name another package's method has."""
    first = _points()
    return [
        f"{point.name} of package {_package(point)}: package {_package(other)} has a method of that name"
        for point in sorted(entry_points(group=GROUP), key=_precedence)
        if (other := first[point.name]) != point
    ]


def find_method(name: str, plugins: Mapping[str, PluginSource] | None = None) -> FoundMethod:
    """Return the method that a suite names.

    Args:
        name: an installed method's, one of `plugins`, or `package.module:Class`.
        plugins: methods of the suite's plugins, from `find_plugins`.

    Raises:
        UserError: there is none of that name, or it does not import.
    """
    plugins = plugins or {}
    if name in plugins:
        return FoundMethod(load_method(name, plugins[name]), plugins[name])
    if ":" in name:
        found = import_class(name, name)
        return FoundMethod(found, source_of(found, name))
    points = _points()
    if name not in points:
        raise UserError(f"unknown method '{name}'", fix=nearest(name, {*points, *plugins}))
    point = points[name]
    found = import_class(point.value, name)
    return FoundMethod(found, None if _package(point) == OWN else source_of(found, point.value))


def load_method(name: str, source: PluginSource | None = None) -> type[Method[Any]]:
    """Return the class of a method.

    Args:
        name: an installed method's name, or `package.module:Class` for one that is not installed.
        source: where the code is, as `find_method` returned it, here or in another process.

    Raises:
        UserError: there is none of that name, it does not import, or its file is not what it was.
    """
    if source is None:
        return find_method(name).method
    if source.module is None:
        return class_of(import_file(source.file, source.sha256), source.cls, f"{source.file}: {source.cls}")
    if sha256_of(source.file) != source.sha256:
        raise UserError("changed since the run began", file=source.file, fix="start the run again")
    return import_class(f"{source.module}:{source.cls}", name)


def loaded_method(name: str, source: PluginSource | None = None) -> type[Method[Any]] | None:
    """Return the class of a method that is installed, or was imported by this process before; else None.

    For names and sources that come from a record: nothing is run that only a record names.
    """
    if source is not None:
        module = source.module or module_name(source.file, source.sha256)
    else:
        module = name.partition(":")[0] if ":" in name else ""
    if module and module not in sys.modules:
        return None
    try:
        return load_method(name, source)
    except UserError:
        return None


def _points() -> dict[str, EntryPoint]:
    """Return the entry points by name; another package's does not take the place of the tool's own."""
    points: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=GROUP), key=_precedence):
        points.setdefault(point.name, point)
    return points


def _precedence(point: EntryPoint) -> tuple[bool, str, str]:
    return _package(point) != OWN, _package(point), point.value


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else ""
