"""Importing a method's class: from a module, or from a file that is not installed."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, get_args

from harness.errors import UserError
from harness.runtime.method import Family, Method, MethodOptions
from harness.runtime.spec import PluginSource


class _Uncached(SourceFileLoader):
    """Compiles the file as it is: bytecode kept on disk may be of an edit in the same second before."""

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the file."""
        return self.source_to_code(self.get_data(self.path), self.path)


def import_file(file: Path, sha256: str) -> ModuleType:
    """Return a plugin file as a module; once imported it stays so for this process.

    Args:
        file: absolute path.
        sha256: of its content, `sha256_of`.

    Raises:
        UserError: it cannot be read, its content is another, or it does not import.
    """
    name = module_name(file, sha256)
    if name in sys.modules:
        return sys.modules[name]
    if sha256_of(file) != sha256:
        raise UserError("changed since the run began", file=file, fix="start the run again")
    spec = importlib.util.spec_from_file_location(name, file, loader=_Uncached(name, str(file)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pydantic looks up there what the annotations of a class mean
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever a plugin does when it is imported
        del sys.modules[name]
        raise _broken(error, file) from error
    return module


def import_module(name: str) -> ModuleType:
    """Return an installed module, as `import_file` does."""
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # whatever a plugin does when it is imported
        raise UserError(f"module '{name}' does not import: {_said(error)}") from error


def import_class(path: str, name: str) -> type[Method[Any]]:
    """Return the method at `package.module:Class`; messages call it `name`."""
    module, _, attribute = path.partition(":")
    try:
        return class_of(importlib.import_module(module), attribute, path)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # whatever a plugin does when it is imported
        raise UserError(f"method '{name}' does not import: {_said(error)}", fix=f"check {path}") from error


def class_of(module: ModuleType, attribute: str, where: str) -> type[Method[Any]]:
    """Return the method at a dotted name of a module; AttributeError if there is nothing.

    Raises UserError, naming `where`, if it is not a complete method.
    """
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UserError(f"'{where}' is not a subclass of harness.Method", fix="name a Method class")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise UserError(f"'{where}' has no {missing}", fix="define it in the class")
    if getattr(found, "family", None) not in get_args(Family):
        fix = " or ".join(f"`family = '{family}'`" for family in get_args(Family))
        raise UserError(f"'{where}' has no family", fix=f"write {fix}")
    if not (isinstance(found.Options, type) and issubclass(found.Options, MethodOptions)):
        raise UserError(f"'{where}' has wrong Options", fix="make them a subclass of harness.MethodOptions")
    return found


def source_of(method: type[Method[Any]], path: str) -> PluginSource | None:
    """Return where the code of the class is that was imported as `path`; None if it is in no file."""
    file = getattr(sys.modules.get(method.__module__), "__file__", None)
    if file is None or not Path(file).is_file():
        return None
    whole, (module, _, cls) = Path(file).resolve(), path.partition(":")
    return PluginSource(file=whole, module=module, cls=cls, sha256=sha256_of(whole))


def sha256_of(file: Path) -> str:
    """Return the hash of a file's content; UserError if it cannot be read."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", file=file) from error


def module_name(file: Path, sha256: str) -> str:
    """Return the name by which a plugin file of this content is imported."""
    return "harness_plugin_" + hashlib.sha256(f"{file}\n{sha256}".encode()).hexdigest()[:16]


def _broken(error: BaseException, file: Path) -> UserError:
    """Tell what went wrong in a file, and in which of its lines."""
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)
    ]
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == str(file) else None
    return UserError(f"does not import: {_said(error)}", file=file, line=line or (lines or [None])[-1])


def _said(error: BaseException) -> str:
    """Return the error's kind and text in one line."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return ": ".join(filter(None, [type(error).__name__, " ".join(text.split())]))
