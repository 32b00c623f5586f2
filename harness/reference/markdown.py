"""Markdown from what the code says of itself."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic.fields import FieldInfo

from harness.cli.list import default_text, type_text

GENERATED = "<!-- Made from the code by `make reference`; do not edit. -->"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; bars in cells are escaped."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def options_table(fields: Mapping[str, FieldInfo]) -> str:
    """Return the table of a section's keys or a method's options."""
    rows = [
        (f"`{key}`", f"`{type_text(field.annotation)}`", _default(field), _limits(field))
        for key, field in fields.items()
    ]
    return table(["key", "type", "default", "meaning"], rows)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return f"`{default_text(field.get_default(call_default_factory=True))}`"


def _limits(field: FieldInfo) -> str:
    """Return the description with the bounds of the value."""
    names = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    bounds = [
        f"{word} {getattr(rule, name):g}"
        for rule in field.metadata
        for name, word in names.items()
        if getattr(rule, name, None) is not None
    ]
    return (field.description or "") + (f" ({', '.join(bounds)})" if bounds else "")


def text_of(documented: Any) -> str:
    """Return a docstring without its first line, as Markdown paragraphs."""
    _, _, rest = (inspect.getdoc(documented) or "").partition("\n")
    return rest.strip()
