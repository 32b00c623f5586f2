"""How many trials a suite stands for, counted before any of them is made, and what of a suite is no number."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

MOST_TRIALS = 100_000
_BITS = 63


def axis(value: Any, list_valued: bool) -> Sequence[Any]:
    """Return the alternatives that a written value stands for: a list stands for its items.

    Of an option that takes a list only a list that holds lists does.
    """
    if not isinstance(value, list):
        return [value]
    if list_valued and not any(isinstance(item, list) for item in value):
        return [value]
    return value


def grid_size(options: Mapping[str, Any], list_valued: Collection[str] = ()) -> int:
    """Return how many combinations of options there are; see `schema.grid`."""
    return math.prod(len(axis(value, key in list_valued)) for key, value in options.items())


def variants_size(written: Any) -> int:
    """Return how many variants a section stands for: a grid, several of them, or what is no grid."""
    entries = written if isinstance(written, list | tuple) else [written]
    return sum(grid_size(entry) if isinstance(entry, dict) else 1 for entry in entries)


def too_many(factors: Mapping[str, int]) -> tuple[str, str] | None:
    """Return the key that most is listed under, and what to say, if the factors make too many trials; else None."""
    total = math.prod(factors.values())
    if total <= MOST_TRIALS:
        return None
    said = " x ".join(f"{count:,} {key}" for key, count in factors.items() if count > 1)
    return max(factors, key=factors.__getitem__), f"{total:,} trials ({said}), a suite has at most {MOST_TRIALS:,}"


def least_factors(data: Mapping[str, Any]) -> dict[str, int]:
    """Return how much a suite's data, as they are written, multiply in any case; methods may be more.

    What is not of the right kind counts as one: it is refused by and by.
    """
    found = {"datasets": _entries(data.get("datasets"), of_options=True)}
    found |= {key: variants_size(data[key]) for key in ("model", "train", "partition", "network") if data.get(key)}
    found["methods"] = _entries(data.get("methods"), of_options=False)
    seeds, repeat = data.get("seeds"), data.get("repeat")
    found["seeds"] = max(1, len(seeds)) if isinstance(seeds, list | tuple) else 1
    found["repeat"] = max(1, repeat) if isinstance(repeat, int) else 1
    return found


def _entries(written: Any, *, of_options: bool) -> int:
    """Return how many data sets or methods are written, with the grids of their options or without."""
    entries = written if isinstance(written, list | tuple) else [written]
    return max(1, sum(_grid_of(each) for each in entries) if of_options else len(entries))


def _grid_of(entry: Any) -> int:
    """Return how many combinations the options of one entry stand for, `name: {option: value}`."""
    options = [own for own in entry.values() if isinstance(own, dict)] if isinstance(entry, dict) else []
    return math.prod(map(grid_size, options))


def unstorable(value: Any) -> str | None:
    """Return what is wrong with a plain value that neither JSON nor a table of numbers can hold; None of others."""
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number"
    if isinstance(value, int) and value.bit_length() > _BITS:
        return f"a number has at most {_BITS} bits"
    if isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
        return "is no text: it holds half a character"
    return None


def all_values(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield every plain value of nested mappings and lists, and every key, with where it is."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield path, key
            yield from all_values(item, (*path, key))
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from all_values(item, (*path, i))
    else:
        yield path, value
