"""Plugins: methods of files and modules that a suite or an option names, without being installed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.errors import UserError
from harness.runtime.imports import class_of, import_file, import_module, sha256_of, source_of
from harness.runtime.method import Method
from harness.runtime.registry import find_method, method_names
from harness.runtime.spec import PluginSource

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # of a method: in tables, labels and on command lines


def find_plugins(
    entries: Iterable[str], directory: Path | None = None, known: Mapping[str, PluginSource] | None = None
) -> dict[str, PluginSource]:
    """Return where the methods of plugins are, by name.

    A method is a class that the plugin itself defines, with a `name` of its own.

    Args:
        entries: `file.py` or `package.module` each.
        directory: what relative files are relative to; default the working directory.
        known: methods of other plugins; they are returned too, and their names are taken.

    Raises:
        UserError: a file that is not there, a plugin that does not import or has no method, a name twice.
    """
    found = dict(known or {})
    for entry in entries:
        for name, source in _methods_of(entry, directory).items():
            if found.setdefault(name, source) != source:
                what = f"method '{name}' is in {found[name].file} too"
                raise UserError(what, file=source.file, fix="give one of them another name")
    return found


def whole_entries(entries: Iterable[str], directory: Path | None = None) -> list[str]:
    """Return plugins with the whole path where they are files, so that they can be found from anywhere."""
    return [str(_file(entry, directory) or entry) for entry in entries]


def _file(entry: str, directory: Path | None) -> Path | None:
    """Return the path of a plugin that is a file; None if it is a module."""
    if not (entry.endswith(".py") or "/" in entry):
        return None
    return ((directory or Path.cwd()) / Path(entry).expanduser()).resolve()


def _methods_of(entry: str, directory: Path | None) -> dict[str, PluginSource]:
    file = _file(entry, directory)
    module = import_file(file, sha256_of(file)) if file else import_module(entry)
    where = str(file or entry)
    methods: dict[str, PluginSource] = {}
    for cls, found in _own_methods(module, where):
        source = source_of(found, f"{module.__name__}:{cls}")
        if source is None:
            raise UserError(f"{cls} is in no file", file=where)
        if file:
            source = source.model_copy(update={"module": None})
        _check_name(found.name, source)
        if found.name in methods:
            what = f"{methods[found.name].cls} and {cls} are both named '{found.name}'"
            raise UserError(what, file=where, fix="give one of them another name")
        methods[found.name] = source
    if not methods:
        raise UserError("has no method", file=where, fix="define a subclass of harness.Method with a `name`")
    return methods


def _own_methods(module: ModuleType, where: str) -> Iterator[tuple[str, type[Method[Any]]]]:
    """Yield the classes that a module defines, and not only imports, with a name of their own."""
    for cls, found in vars(module).items():
        own = isinstance(found, type) and issubclass(found, Method) and found.__module__ == module.__name__
        if own and "name" in vars(found):
            yield cls, class_of(module, cls, f"{where}: {cls}")


def _check_name(name: object, source: PluginSource) -> None:
    """Refuse a name that cannot be one, or is another installed method's."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        fix = "letters, digits, '.', '_' or '-', a letter or digit first"
        raise UserError(f"bad name {name!r} of {source.cls}", file=source.file, fix=fix)
    if name not in method_names():
        return
    installed = find_method(name).source
    if installed is None or (installed.file, installed.cls) != (source.file, source.cls):
        what = f"method '{name}' is installed already"
        raise UserError(what, file=source.file, fix="give it another name, or leave the plugin out")
