"""Tables and numbers for people; aligned text where rich would cut columns off."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def is_terminal() -> bool:
    """Whether somebody watches standard output."""
    return sys.stdout.isatty()


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None) -> None:
    """Print a table: with rich on a terminal, as aligned text elsewhere; numbers to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    right = [bool(rows) and all(_is_number(row[i]) for row in rows) for i in range(len(columns))]
    if is_terminal():
        _rich_table(columns, cells, right, title)
        return
    if title:
        print(title)
    widths = [max(len(line[i]) for line in [list(columns), *cells]) for i in range(len(columns))]
    for line in [list(columns), *cells]:
        padded = [
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ]
        print("  ".join(padded).rstrip())


def _rich_table(
    columns: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool], title: str | None
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for name, to_right in zip(columns, right, strict=True):
        drawn.add_column(name, justify="right" if to_right else "left", overflow="fold")
    for line in cells:
        drawn.add_row(*[Text(text) for text in line])
    Console().print(drawn)


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return " ".join(str(value).split())


def bytes_text(count: float) -> str:
    """Write a number of bytes in binary units, e.g. "1.5 GiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def seconds_text(seconds: float) -> str:
    """Write a duration, e.g. "2 h 05 min", "3 min 20 s", "12.3 s"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
