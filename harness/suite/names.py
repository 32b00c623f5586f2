"""A suite as a user writes it: plugins beside it, names in which letters' case, `-` and `_` make no difference."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from harness.errors import UserError, spelled
from harness.registry import PluginKey, find_plugins, whole_entries
from harness.suite.load import load_suite
from harness.suite.schema import Suite, named_in

V = TypeVar("V")


def read_suite(
    file: Path | Mapping[str, Any], overrides: Sequence[str] = (), plugins: Sequence[str] = (), *, trusted: bool = False
) -> Suite:
    """Return the suite of a file (or of what one would hold), with overrides and plugins, every name as it is known.

    `trusted`: the suite's own plugins are imported, too, as those are that a user names. A suite of somebody else's
    is data until it is run.

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
    """Return a suite whose data sets, methods, models, partitioners and the like bear the names they are known by.

    What is known exactly as it is written stays: a plugin's method may be called `bns_gcn`. An unknown name stays, too.
    """
    from harness.data.registry import dataset_name
    from harness.runtime.method import METHODS

    datasets = {entry.name: dataset_name(entry.name) for entry in suite.datasets}
    methods = _known(METHODS.names(), METHODS.kind, [entry.name for entry in suite.methods], suite)
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
        changed[section] = tuple(_section(section, spec, suite) for spec in getattr(suite, section))
    if suite.tuning is not None:
        changed["tuning"] = suite.tuning.model_copy(
            update={"per_method": _renamed(suite.tuning.per_method, methods.values())}
        )
    return suite.model_copy(update=changed)


def _section(section: str, spec: Any, suite: Suite) -> Any:
    """Return a variant of a section, what it names under its known name."""
    for registry, key, _ in named_in(section):
        name = getattr(spec, key)
        if name == type(spec).model_fields[key].default:
            continue
        known = _known(registry.names(), registry.kind, [name], suite)[name]
        if known != name:
            spec = spec.model_copy(update={key: known})
    return spec


def _known(installed: Collection[str], kind: str, names: Iterable[str], suite: Suite) -> dict[str, str]:
    """Return the known name of each; plugins are looked at only for what is not installed."""
    found = {}
    for name in names:
        plugins: dict[PluginKey, Any] = {}
        if name not in installed:
            with suppress(UserError):  # said where the suite's trials are made, with its line
                plugins = find_plugins(suite.plugins, suite.directory)
        found[name] = spelled(name, {*installed, *(own for of, own in plugins if of == kind)})
    return found


def _renamed(settings: dict[str, V], names: Iterable[str]) -> dict[str, V]:
    """Return settings by the name of the suite that their key means."""
    known = set(names)
    return {spelled(key, known): value for key, value in settings.items()}
