"""What is found by name: the tool's own, installed packages', and plugins'.

Methods, models, partitioners, optimizers, schedules, metrics and views of the report are registered alike. A
kind is a base class that is `Registered`; a `Registry` finds what there is of it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import operator
import os
import pkgutil
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

from harness.errors import UserError, nearest
from harness.files import CODE, read_bytes
from harness.spec import PluginSource
from harness.version import DISTRIBUTION

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # in tables, labels and on command lines
T = TypeVar("T")
THREADS: list[threading.Thread] = []
"""Those that plugins started in this process when they were imported, daemons left out."""


class Registered:
    """Base of the kinds; what has a `name` of its own can be named by suites and options."""

    # Set by the base class of a kind:
    kind: ClassVar[str]  # what messages call one of them, e.g. "method"
    group: ClassVar[str]  # entry points of installed packages
    registry: ClassVar[Registry[Any]]  # finds them

    @classmethod
    def check_class(cls, where: str) -> None:
        """Raise a UserError that names `where` if the class lacks what its kind needs."""
        if inspect.isabstract(cls):
            missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
            raise UserError(f"'{where}' has no {missing}", fix="define it in the class")

    @classmethod
    def summary(cls) -> str:
        """First line of the class's docstring."""
        return (cls.__doc__ or "").strip().split("\n")[0]


PluginKey = tuple[str, str]
"""Kind and name of what a plugin brings."""
Plugins = Mapping[PluginKey, PluginSource]


@dataclass(frozen=True)
class Found(Generic[T]):
    """What has a name, and where its code is; None for the tool's own."""

    value: T
    source: PluginSource | None


class Registry(Generic[T]):
    """All of one kind by name.

    `own` is the module, or package of modules, that holds the tool's own; None if entry points name them. `others` are
    modules of the package that define none, and are not imported to look for some.
    """

    def __init__(self, base: type[Registered], own: str | None = None, others: Sequence[str] = ()) -> None:
        self.base, self._package, self._others, self.kind = base, own, others, base.kind
        base.registry = self

    def names(self, plugins: Plugins | None = None) -> list[str]:
        """Return the names of what is installed, and of what plugins bring, sorted."""
        return sorted({*self._own, *self._points(), *(name for kind, name in plugins or {} if kind == self.kind)})

    def load_own(self) -> None:
        """Import those of the tool itself, not other packages'."""
        for name, point in self._points().items():
            if point.package == DISTRIBUTION:
                self.load(name)

    def hidden(self) -> list[str]:
        """Return a line for each installed one whose name another package's has."""
        first, every = self._points(), _installed(self.base.group, tuple(sys.path))
        packages = {name: DISTRIBUTION if name in self._own else point.package for name, point in first.items()}
        return [
            f"{point.name} of package {point.package}: package {packages[point.name]} has a {self.kind} of that name"
            for point in every
            if point.name in self._own or first[point.name] != point
        ]

    def find(self, name: str, plugins: Plugins | None = None) -> Found[T]:
        """Return what a suite names: an installed one, a plugin's (see `find_plugins`), or `package.module:Name`.

        Raises UserError if there is none of that name, or it does not import.
        """
        plugins = plugins or {}
        if (self.kind, name) in plugins:
            source = plugins[self.kind, name]
            return Found(self.load(name, source), source)
        if name in self._own:
            return Found(self._own[name], None)
        point = _Point(name, name, "") if ":" in name else self._points().get(name)
        if point is None:
            of_file = f"its name, and the file by --plugin {name}" if name.endswith(".py") else None
            raise UserError(f"unknown {self.kind} '{name}'", fix=of_file or nearest(name, self.names(plugins)))
        value = self._import(point.value, name)
        return Found(value, None if point.package == DISTRIBUTION else source_of(value, point.value))

    def load(self, name: str, source: PluginSource | None = None) -> T:
        """Return what `find` does, from where that found its code; UserError also if the file is not what it was."""
        if source is None:
            return self.find(name).value
        if source.module is None:
            module = import_file(source.file, source.sha256)
            return self._of_module(module, source.cls, f"{source.file}: {source.cls}")
        _unchanged(source.file, source.sha256)
        return self._import(f"{source.module}:{source.cls}", name)

    def loaded(self, name: str, source: PluginSource | None = None) -> T | None:
        """Return what is installed, or was imported by this process before; else None."""
        # Names and sources may come from a record: nothing is run that only a record names.
        module = name.partition(":")[0] if ":" in name else ""
        if source is not None:
            module = source.module or module_name(source.file, source.sha256)
        try:
            return self.load(name, source) if not module or module in sys.modules else None
        except UserError:
            return None

    @cached_property
    def _own(self) -> dict[str, T]:
        """What the modules of the own package define, in their order."""
        if self._package is None:
            return {}
        package = importlib.import_module(self._package)
        inside = {each.name for each in pkgutil.iter_modules(getattr(package, "__path__", ()))} - {*self._others}
        modules = [package, *(importlib.import_module(f"{self._package}.{name}") for name in sorted(inside))]
        defined = (cast(Any, value) for module in modules for _, value in registered_in(module))
        return {value.name: value for value in defined if value.kind == self.kind}

    def _points(self) -> dict[str, _Point]:
        # The tool's own come last here, so that another package's does not take their place.
        return {point.name: point for point in reversed(_installed(self.base.group, tuple(sys.path)))}

    def _import(self, path: str, name: str) -> T:
        """Return what is at `package.module:Name`; messages call it `name`."""
        module, _, attribute = path.partition(":")
        try:
            return self._of_module(_import_module(module), attribute, path)
        except (UserError, KeyboardInterrupt):
            raise
        except BaseException as error:  # whatever a plugin does when it is imported
            what = f"{self.kind} '{name}' does not import: {_said(error)}"
            raise UserError(what, **_place_in(module, error), fix=f"check {path}") from error

    def _of_module(self, module: ModuleType, attribute: str, where: str) -> T:
        """Return what is at a dotted name of a module; UserError, naming `where`, if it is no whole one of the kind."""
        found: Any = operator.attrgetter(attribute)(module)
        if not (isinstance(found, self.base) or (isinstance(found, type) and issubclass(found, self.base))):
            base = self.base.__name__
            raise UserError(f"'{where}' is not a subclass of harness.{base}", fix=f"name a {base} class")
        if isinstance(found, type):
            found.check_class(where)
        return cast(T, found)


class Catalogue:
    """What a suite can name: what its plugins bring (`sources`) and installed ones."""

    def __init__(self, sources: Plugins) -> None:
        self.sources = sources
        self._find = cache(lambda registry, name: registry.find(name, sources))

    def find(self, registry: Registry[T], name: str) -> Found[T]:
        """Return what a name stands for, resolved once; raises as `Registry.find`."""
        return cast(Found[T], self._find(registry, name))


class _Point(NamedTuple):
    name: str
    value: str
    package: str


@cache
def _installed(group: str, path: tuple[str, ...]) -> tuple[_Point, ...]:
    """Return the entry points of a group of what is installed on `path`, the tool's own first."""
    packages: dict[int, str] = {}  # a distribution reads its metadata each time that it is asked for its name
    found = []
    for point in entry_points(group=group):
        if id(point.dist) not in packages:
            packages[id(point.dist)] = "" if point.dist is None else point.dist.name
        found.append(_Point(point.name, point.value, packages[id(point.dist)]))
    return tuple(sorted(found, key=lambda point: (point.package != DISTRIBUTION, point.package, point.value)))


def registered_in(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield what a module defines, and not only imports, with a name of its own: classes and instances."""
    for attribute, value in list(vars(module).items()):
        if isinstance(value, type) and issubclass(value, Registered):
            if value.__module__ == module.__name__ and "name" in vars(value):
                yield attribute, value
        elif isinstance(value, Registered):
            yield attribute, value


def find_plugins(
    entries: Iterable[str], directory: Path | None = None, known: Plugins | None = None
) -> dict[PluginKey, PluginSource]:
    """Return where what plugins bring is, by kind and name, and what is `known` of other plugins.

    An entry is `file.py`, relative to `directory` (default: the working directory), or `package.module`. Raises
    UserError for a file that is not there, a plugin that does not import or brings nothing, a name twice.
    """
    found = dict(known or {})
    for entry in entries:
        for key, source in _brought_by(entry, directory).items():
            if found.setdefault(key, source) != source:
                what = f"{key[0]} '{key[1]}' is in {found[key].file} too"
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


def _brought_by(entry: str, directory: Path | None) -> dict[PluginKey, PluginSource]:
    file, brought = _file(entry, directory), dict[PluginKey, PluginSource]()
    where = str(file or entry)
    try:
        module = import_file(file, sha256_of(file)) if file else _import_module(entry)
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:  # whatever a plugin does when it is imported
        raise UserError(f"module '{entry}' does not import: {_said(error)}", **_place_in(entry, error)) from error
    for attribute, value in registered_in(module):
        if isinstance(value, type) and issubclass(value, Registered):
            value.check_class(f"{where}: {attribute}")
        source = source_of(value, f"{module.__name__}:{attribute}")
        if source is None:
            raise UserError(f"{attribute} is in no file", file=where)
        if file:
            source = source.model_copy(update={"module": None})
        _check_name(value, source)
        key = value.kind, value.name
        if key in brought:
            what = f"{brought[key].cls} and {attribute} are both named '{value.name}'"
            raise UserError(what, file=where, fix="give one of them another name")
        brought[key] = source
    if not brought:
        fix = "define a subclass of harness.Method, or of another kind, with a `name`"
        raise UserError("has nothing that could be named", file=where, fix=fix)
    return brought


def _check_name(value: Any, source: PluginSource) -> None:
    """Refuse a name that cannot be one, or is that of something else that is installed."""
    name, registry = value.name, value.registry
    if not isinstance(name, str) or not NAME.fullmatch(name):
        fix = "letters, digits, '.', '_' or '-', a letter or digit first"
        raise UserError(f"bad name {name!r} of {source.cls}", file=source.file, fix=fix)
    if name not in registry.names():
        return
    installed = registry.find(name).source
    if installed is None or (installed.file, installed.cls) != (source.file, source.cls):
        what = f"{value.kind} '{name}' is installed already"
        raise UserError(what, file=source.file, fix="give it another name, or leave the plugin out")


@contextmanager
def _undone() -> Iterator[None]:
    """Undo what a plugin does to this process when it is imported: ranks of other methods would inherit it.

    That is its environment, working directory and handlers of signals. In a rank, which is the plugin's own, they stay.
    Threads cannot be undone: THREADS has those that would keep this process from ending.
    """
    if "RANK" in os.environ:
        yield
        return
    environment, here, threads = dict(os.environ), os.open(".", os.O_RDONLY), {*threading.enumerate()}
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        os.fchdir(here)
        os.close(here)
        for each, handler in handlers.items():
            if signal.getsignal(each) != handler:
                signal.signal(each, handler)
        THREADS.extend(each for each in threading.enumerate() if each not in threads and not each.daemon)


def _import_module(name: str) -> ModuleType:
    own = name.partition(".")[0] in ("harness", "harness_methods")
    with nullcontext() if own or name in sys.modules else _undone():
        return importlib.import_module(name)


def import_file(file: Path, sha256: str) -> ModuleType:
    """Return a plugin file with content of this hash as a module; UserError if it cannot be read or imported."""
    name = module_name(file, sha256)
    if name in sys.modules:
        return sys.modules[name]
    content, module = _unchanged(file, sha256), ModuleType(name)
    module.__file__ = str(file)
    sys.modules[name] = module  # pydantic looks up there what the annotations of a class mean
    try:
        # Without a loader: bytecode kept on disk may be of an edit in the same second before.
        with _undone():
            exec(compile(content, str(file), "exec", dont_inherit=True), vars(module))
    except KeyboardInterrupt:
        del sys.modules[name]
        raise
    except BaseException as error:  # whatever a plugin does when it is imported
        del sys.modules[name]
        raise UserError(f"does not import: {_said(error)}", file=file, line=line_in(file, error)) from error
    return module


def line_in(file: Path, error: BaseException) -> int | None:
    """Return the line of a plugin's file that an error came from, the innermost; None if none is."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == str(file)), None)


def _place_in(module: str, error: BaseException) -> dict[str, Any]:
    """Return file and line of a module from which an error came when it was imported."""
    with suppress(BaseException):  # a package above it may be what does not import
        origin = getattr(importlib.util.find_spec(module), "origin", None)
        if origin and (line := line_in(Path(origin), error)):
            return {"file": Path(origin), "line": line}
    return {}


def source_of(value: Any, path: str) -> PluginSource | None:
    """Return where the code is of what was imported as `path`; None if it is in no file."""
    module, _, attribute = path.partition(":")
    file = getattr(sys.modules.get(value.__module__ if isinstance(value, type) else module), "__file__", None)
    if file is None or not Path(file).is_file():
        return None
    whole = Path(file).resolve()
    return PluginSource(file=whole, module=module, cls=attribute, sha256=sha256_of(whole))


def sha256_of(file: Path) -> str:
    """Return the hash of a file's content; UserError if it cannot be read, or is larger than code is."""
    return hashlib.sha256(_code(file)).hexdigest()


def _code(file: Path) -> bytes:
    try:
        return read_bytes(file, CODE)
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", file=file) from error


def _unchanged(file: Path, sha256: str) -> bytes:
    """Return a file's content, if it has this hash."""
    content = _code(file)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise UserError("changed since the run began", file=file, fix="start the run again")
    return content


def module_name(file: Path, sha256: str) -> str:
    """Return the name by which a plugin file of this content is imported."""
    return "harness_plugin_" + hashlib.sha256(f"{file}\n{sha256}".encode()).hexdigest()[:16]


def _said(error: BaseException) -> str:
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
    except BaseException as worse:
        text = f"its text raises {type(worse).__name__}"
    return ": ".join(filter(None, [type(error).__name__, " ".join(text.split())]))
