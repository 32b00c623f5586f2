"""Methods by name: installed ones (entry-point group `harness.methods`), or `package.module:Class`."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Any

from harness.errors import UserError, nearest
from harness.runtime.method import Method

GROUP = "harness.methods"


def method_names() -> list[str]:
    """Names of the installed methods, sorted."""
    return sorted(point.name for point in entry_points(group=GROUP))


def load_method(name: str) -> type[Method[Any]]:
    """Return the class of a method.

    Args:
        name: an installed method's name, or `package.module:Class` for one that is not installed.

    Raises:
        UserError: there is none of that name, or it does not import.
    """
    if ":" in name:
        return _import(name, name)
    points = {point.name: point.value for point in entry_points(group=GROUP)}
    if name not in points:
        raise UserError(f"unknown method '{name}'", fix=nearest(name, points))
    return _import(name, points[name])


def _import(name: str, path: str) -> type[Method[Any]]:
    module, _, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"method '{name}' does not import: {error}", fix=f"check {path}") from error
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UserError(f"'{path}' is not a subclass of harness.Method", fix="name a Method class")
    return found
