"""What pydantic found wrong, told as a user wants to read it."""

from __future__ import annotations

import reprlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from harness.errors import UserError, nearest
from harness.suite.source import KeyPath, gather

ErrorAt = Callable[[KeyPath, str, str | None], UserError]
KnownKeys = Callable[[KeyPath], Mapping[str, Any]]


def explain(error: ValidationError, at: ErrorAt, known: KnownKeys, depth: int | None = None) -> UserError:
    """Return one UserError with a line for each thing pydantic found.

    Args:
        error: what `model_validate` raised.
        at: makes the UserError for a location in the model, a message and a fix.
        known: the keys that the section at a location has.
        depth: how much of pydantic's locations are keys; what is deeper names members of a union, whose
            complaints about one value are joined by "or".
    """
    places: defaultdict[KeyPath, list[ErrorDetails]] = defaultdict(list)
    found = error.errors(include_url=False)
    for details in found:
        if details["type"] == "too_short" and any(len(e["loc"]) > len(details["loc"]) for e in found):
            continue  # pydantic counts only the items that are right
        places[details["loc"][:depth]].append(details)
    return gather([_one(path, found, at, known) for path, found in places.items()])


def _one(path: KeyPath, found: list[ErrorDetails], at: ErrorAt, known: KnownKeys) -> UserError:
    """Tell what is wrong in one place."""
    first = found[0]
    kind, value = first["type"], first["input"]
    if kind == "extra_forbidden":
        return at(path, "unknown key", nearest(str(path[-1]), known(path[:-1])))
    if kind == "missing":
        return at(path, "missing", f"add `{path[-1]}: ...`")
    if kind == "literal_error":
        allowed = [part.strip("'") for part in first["ctx"]["expected"].replace(" or ", ", ").split(", ")]
        hint = nearest(value, allowed) if isinstance(value, str) and len(value) > 3 else ""  # gpu is not cpu
        fix = hint if hint.startswith("did you mean") else None
        return at(path, f"bad value {show(value)}, allowed: {', '.join(allowed)}", fix)
    if kind == "value_error":
        return at(path, str(first["ctx"]["error"]), None)
    wanted = " or ".join(dict.fromkeys(_wanted(details) for details in found))
    return at(path, f"bad value {show(value)}: {wanted}", None)


def _wanted(details: ErrorDetails) -> str:
    """Return what pydantic wants, in words of YAML."""
    message = _WORDS.get(details["type"], details["msg"])
    for start in ("Input should be ", "String should ", "Value should "):
        message = message.replace(start, "must be " if start.startswith("Input") else "must ")
    return message[:1].lower() + message[1:]


_WORDS = {
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be a section of `key: value` lines",
    "model_type": "must be a section of `key: value` lines",
    "model_attributes_type": "must be a section of `key: value` lines",
    "too_short": "must not be empty",
    "string_pattern_mismatch": "must be letters, digits, '.', '_' or '-', a letter or digit first",
}


def show(value: Any) -> str:
    """Return a value's text, shortened so that it fits a line."""
    return reprlib.repr(value)
