"""A table, whatever it is written as."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.report.numbers import MISSING, UNAVAILABLE
from harness.report.trials.sections import Section, join_unique
from harness.report.trials.variants import Variant

WIDE = 8  # columns


@dataclass(frozen=True)
class Cell:
    """One cell; `note` is set small beside the text, `mark` flags it; `wrap` lets words break into lines.

    `best` and `second`: its place in the column, see `bold_best`.
    """

    text: str = MISSING
    note: str = ""
    mark: str = ""
    best: bool = False
    second: bool = False
    number: bool = True
    wrap: bool = False

    @property
    def missing(self) -> bool:
        """Whether there is no value."""
        return self.text in (MISSING, UNAVAILABLE)


@dataclass(frozen=True)
class Row:
    """Cells of a row, and the method variant that they are of, if it is one's.

    A row without cells is a subheading. `parts`: the number of parts that the row is of, or all that stand
    below a subheading; `network`, `dataset`: those which a row is of. None: of several.
    """

    label: str
    cells: tuple[Cell, ...] = ()
    variant: Variant | None = None
    parts: int | None = None
    network: str | None = None
    dataset: str | None = None

    @property
    def colour(self) -> str:
        """The variant's colour, "" without one."""
        return self.variant.style.colour if self.variant else ""


@dataclass(frozen=True)
class Group:
    """Columns under one common heading (may be ""); `parts`: of each column, if it is of one number."""

    title: str
    columns: tuple[str, ...]
    parts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Table:
    """A titled table; the caption states the rule by which its numbers were computed."""

    title: str
    caption: str
    stub: str
    groups: tuple[Group, ...]
    rows: tuple[Row, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Flat headings, the group's before the column's."""
        return tuple(" ".join(p for p in (g.title, c) if p) for g in self.groups for c in g.columns)

    @property
    def column_parts(self) -> tuple[int | None, ...]:
        """The number of parts of each column, None where it is of several."""
        return tuple(p for g in self.groups for p in g.parts or (None,) * len(g.columns))

    @property
    def wide(self) -> bool:
        """Whether it may not fit a page beside its contents."""
        return len(self.columns) > WIDE

    @property
    def grouped(self) -> bool:
        """Whether the heading has two lines."""
        return any(group.title for group in self.groups)


def bold_best(cells: list[Cell], values: list[float | None], *, highest: bool) -> list[Cell]:
    """Mark the best of a column and the second best, ties by the shown mean included.

    Nothing is marked where all are equally good; no second where two are best or none is behind it.
    """
    means = [None if cell.missing else cell.text.split(" ±")[0] for cell in cells]
    known = [(value, mean) for value, mean in zip(values, means, strict=True) if value is not None and mean]
    places = list(dict.fromkeys(mean for _, mean in sorted(known, reverse=highest)))
    if len(places) < 2:
        return cells
    best, second = places[0], places[1] if len(places) > 2 and means.count(places[0]) == 1 else ""
    return [replace(cell, best=mean == best, second=mean == second) for cell, mean in zip(cells, means, strict=True)]


def missing(section: Section, variant: Variant, parts: int) -> Cell:
    """Return the cell for a figure that is not there.

    "not available" if a trial ended well without it, else "n/a" with the status of those that failed.
    """
    trials = section.select(variant, parts, ok=False)
    if trials["status"].eq("ok").any():
        return Cell(UNAVAILABLE)
    return Cell(note=join_unique(trials["status"]))
