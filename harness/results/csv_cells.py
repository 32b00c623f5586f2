"""What a CSV file has for a value: never a formula."""

from __future__ import annotations

from typing import Any


def in_csv(value: Any) -> Any:
    """Return what a CSV file has for a value: a text that a spreadsheet would take for a formula, behind a quote."""
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")) or len(value) == 1:
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
