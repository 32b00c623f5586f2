"""Grids of options: which lists are alternatives, and which are values."""

from __future__ import annotations

import itertools
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from typing import Any


def takes_list(annotation: Any) -> bool:
    """Return whether a field's type admits a list, e.g. `int | list[int]`."""
    if members := typing.get_args(annotation):
        origin = typing.get_origin(annotation)
        if origin in (typing.Union, types.UnionType, typing.Annotated):
            return any(takes_list(member) for member in members)
        annotation = origin
    return isinstance(annotation, type) and issubclass(annotation, _LISTS)


_LISTS = (list, tuple, set, frozenset)


def grid(options: Mapping[str, Any], list_valued: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield every combination of options, the first-named (alphabetically) varying slowest.

    A list stands for its items; for the options named in `list_valued` it is one value, and a list that
    holds lists stands for its items.
    """
    keys = sorted(options)  # the order of keys in the file must not change the order of trials
    axes = [_axis(options[key], key in list_valued) for key in keys]
    for values in itertools.product(*axes):
        yield dict(zip(keys, values, strict=True))


def _axis(value: Any, list_valued: bool) -> list[Any]:
    """Return the alternatives that a written value stands for."""
    if not isinstance(value, list):
        return [value]
    if list_valued and not any(isinstance(item, list) for item in value):
        return [value]
    return value
