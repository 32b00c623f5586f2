"""What commands print: tables that fit the terminal, CSV, and numbers for people."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from harness.errors import readable
from harness.results.stats import in_csv

GAP = 2  # blanks between columns
LONGEST_WORD = 36  # a longer one may be cut
# Where a line may end: not between a number and its unit.
BREAK = re.compile(r"(?<!\d) |(?<=\d) (?!(?:[KMGT]?i?B|ms|s|min|h|J|W|%)(?![a-z]))")


def is_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


class _Outliving(io.TextIOWrapper):
    # A reader may go away: from then on text is written to nowhere.

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError:
            self._to_nowhere()
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            self._to_nowhere()

    def _to_nowhere(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


_outliving: list[_Outliving] = []  # one that is collected would close what the interpreter's own stream writes to


def outlive_readers() -> None:
    """Have printing end nothing: a pipe or terminal that is gone, a full disk, a letter that it cannot show."""
    for name in "stdout", "stderr":
        stream = getattr(sys, name)
        if type(stream) is io.TextIOWrapper and stream is getattr(sys, f"__{name}__"):
            stream.flush()
            coding = stream.encoding, "backslashreplace" if stream.errors == "strict" else stream.errors
            buffering, through = stream.line_buffering, stream.write_through
            text = _Outliving(stream.buffer, *coding, line_buffering=buffering, write_through=through)
            setattr(sys, name, text)
            _outliving.append(text)


def table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None, spare: Sequence[str] = ()
) -> None:
    """Print a table: fitted to a terminal, as aligned text of any width elsewhere; numbers to the right.

    `spare`: columns that a narrow terminal is spared, the first first.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    right = [bool(rows) and all(_is_number(row[i]) for row in rows) for i in range(len(columns))]
    if title:
        print(title)
    room = shutil.get_terminal_size().columns if is_terminal() else None
    widths = fitted(columns, cells, right, spare, room)
    for number, texts in enumerate([columns, *cells]):
        style = "\033[1m{}\033[0m" if room and not number else "{}"
        for line in zip_longest(*(_wrapped(texts[i], width) for i, width in widths.items()), fillvalue=""):
            padded = (
                text.rjust(widths[i]) if right[i] else text.ljust(widths[i])
                for i, text in zip(widths, line, strict=True)
            )
            print(style.format((" " * GAP).join(padded).rstrip()))
    filled = [i for i in range(len(columns)) if any(line[i] not in "-" for line in cells)]
    if left_out := ", ".join(columns[i] for i in filled if i not in widths):
        print(f"left out, for want of room: {left_out}")


def fitted(
    columns: Sequence[str],
    cells: Sequence[Sequence[str]],
    right: Sequence[bool],
    spare: Sequence[str],
    room: int | None,
) -> dict[int, int]:
    """Return the width of each column that is shown, so that no number and no word is broken.

    Where a line of `room` characters (None: any number) is too short, first text is wrapped; then columns without
    content go, then those of `spare`, the first first, then the last ones. `right`: whether a column holds numbers.
    """
    texts = [[name, *(line[i] for line in cells)] for i, name in enumerate(columns)]
    natural = [max(map(len, column)) for column in texts]
    if room is None:
        return dict(enumerate(natural))
    words = [max((len(word) for text in column for word in BREAK.split(text)), default=1) for column in texts]
    least = [n if to_right else min(n, w, LONGEST_WORD) for n, w, to_right in zip(natural, words, right, strict=True)]
    shown = list(range(len(columns)))
    empty = [i for i in shown[1:] if all(text in ("", "-") for text in texts[i][1:])] if cells else []
    order = [*empty, *(columns.index(name) for name in spare), *reversed(shown[1:])]
    while sum(least[i] + GAP for i in shown) - GAP > room and len(shown) > 1:
        shown.remove(next(i for i in order if i in shown))
    widths = {i: natural[i] for i in shown}
    while sum(width + GAP for width in widths.values()) - GAP > room and (
        wide := [i for i in shown if widths[i] > least[i]]
    ):
        widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


def _wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text, none longer than `width`; a word that is longer ends in an ellipsis."""
    lines: list[str] = []
    for word in BREAK.split(text):
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word if len(word) <= width else f"{word[: width - 1]}…")
    return lines


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows as CSV."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([in_csv(value) for value in row] for row in rows)


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _cell(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(readable(" ".join(str(value).split())))


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


def beginning(parts: Sequence[str], room: int) -> str:
    """Join as many of the first parts as fit into a line of `room` characters, two blanks between them."""
    line = ""
    for part in filter(None, parts):
        longer = f"{line}  {part}" if line else part
        if len(longer) > room:
            break
        line = longer
    return line


def end_of(words: str, room: int) -> str:
    """Return words, the first of them left out where there is no room for all; `room`: characters."""
    if len(words) <= room:
        return words
    kept = ""
    for word in reversed(words.split()):
        longer = f"{word} {kept}".rstrip()
        if len(longer) + 2 > room:
            break
        kept = longer
    return f"… {kept}".rstrip()
