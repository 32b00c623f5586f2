"""What every generator has: options with a type, a default and a line of help, and what it makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar, get_type_hints

from harness.data.catalog import DatasetInfo, Option
from harness.data.graph import GraphData
from harness.errors import UserError, nearest

T = TypeVar("T")


@dataclass(frozen=True)
class Generator:
    """A data set that is made, not read.

    `make(**options)` returns the graph, the same for equal options, and raises UserError for an option
    that is unknown, ill-typed or out of range; every generator also takes `work: Path`, a directory in which
    it may keep a feature matrix that it then returns memory-mapped. `info(options)` says what
    `make` would return, without making it.
    """

    make: Callable[..., GraphData]
    options: dict[str, Option]
    info: Callable[[Mapping[str, Any]], DatasetInfo]


def option(default: Any, summary: str, low: float | None = None, high: float | None = None) -> Any:
    """Return a dataclass field with help and a closed range."""
    return field(default=default, metadata={"summary": summary, "low": low, "high": high})


def options_of(settings: type) -> dict[str, Option]:
    """Read the options off a dataclass whose fields are made by `option`."""
    hints = get_type_hints(settings)
    return {f.name: Option(hints[f.name], f.default, f.metadata["summary"]) for f in fields(settings)}


def resolve(settings: type[T], name: str, options: Mapping[str, Any]) -> T:
    """Return `settings(**options)`; UserError names the option of data set `name` that does not fit."""
    hints = get_type_hints(settings)
    known = {f.name: f for f in fields(settings)}  # type: ignore[arg-type]
    values = {}
    for key, value in options.items():
        if key not in known:
            raise UserError(f"unknown option '{key}'", key=f"dataset {name}", fix=nearest(key, known))
        values[key] = _checked(f"dataset {name}: {key}", value, hints[key], known[key])
    return settings(**values)


def _checked(key: str, value: Any, kind: type, about: Field[Any]) -> Any:
    fits = isinstance(value, (int, float) if kind is float else kind) and (
        kind is bool or not isinstance(value, bool)
    )
    if not fits:
        raise UserError(f"{value!r} is not of type {kind.__name__}", key=key, fix=f"e.g. {about.default!r}")
    low, high = about.metadata["low"], about.metadata["high"]
    if (low is not None and not value >= low) or (high is not None and not value <= high):
        span = f"{'...' if low is None else low} to {'...' if high is None else high}"
        raise UserError(f"{value!r} is out of range", key=key, fix=span)
    return kind(value)
