"""Views of the report: the base class, and how they are found."""

from __future__ import annotations

import re
import sys
import tomllib
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar, Literal

from harness.errors import UserError
from harness.registry import Registered, Registry
from harness.report.figure import Figure, Picture
from harness.report.sections import Section
from harness.report.sweeps import Networks, Swept, Workloads
from harness.report.table import Table, metrics_table, narrowed

Kind = Literal["section", "sweep", "networks", "partitioners", "workloads"]


@cache
def captions() -> dict[str, dict[str, str]]:
    """Return the texts of `captions.toml`, by view and what they belong to."""
    return tomllib.loads(files("harness.report").joinpath("captions.toml").read_text(encoding="utf-8"))


def prose(key: str, **values: object) -> str:
    """Return the text `view.part` of `captions.toml` on one line, its fields filled with `values` and the rules."""
    view, _, part = key.partition(".")
    return " ".join(captions()[view][part].format(**captions()["rule"], **values).split())


class ReportView(Registered, ABC):
    """A heading of a report: a question, and the table and the figure that answer it.

    Each section of a report makes one object of it. A view without a table and a figure is left out there, and named at
    the page's end.
    The table shows `columns`, unless a view overrides `table`.

    Attributes:
        title: heading.
        question: question that it answers, for docs/views.md; default: the first line of the docstring.
        place: position; views come in rising order, those of plugins last.
        of: subject: a section's trials, a setting that was swept, networks, partitioners, or several data sets' trials.
        first: whether it comes before everything else, as the answer that a reader came for.
        chart: whether the page draws its trials in place of the figure, by what its reader chooses.
        anchor: its name in addresses and files; default: the name.
        columns: metrics of the table, columns of `load_results`.
        caption: caption of that table: the rule by which its values are computed.
        shows: metrics of methods' own that it shows, `*` for any; `own-metrics` has all the others.
    """

    kind = "view"
    group = "harness.views"
    name: ClassVar[str]
    title: ClassVar[str]
    question: ClassVar[str]
    place: ClassVar[int] = 1000
    of: ClassVar[Kind] = "section"
    first: ClassVar[bool] = False
    chart: ClassVar[bool] = False
    anchor: ClassVar[str] = ""
    columns: ClassVar[tuple[str, ...]] = ()
    caption: ClassVar[str] = "Means over seeds."
    shows: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        if "question" not in vars(cls):
            cls.question = cls.summary()

    def __init__(self, section: Section) -> None:
        self.section = section

    @property
    def heading(self) -> str:
        """The title, where it does not depend on the section."""
        return self.title

    def table(self) -> Table | None:
        """Return the table; None where no trial has what it needs."""
        if not self.columns:
            return None
        return metrics_table(self.section, self.columns, self.title, self.caption, sparse=True)

    def figure(self) -> Figure | Any:
        """Return the figure; None where no trial has what it needs.

        The page and print draw a `Figure`; a figure of matplotlib, or of a library on top of it, is shown as an image.
        """
        return None

    def details(self) -> Mapping[str, Table | None]:
        """Return further tables, which follow the figure, by name."""
        return {}

    @classmethod
    def check_class(cls, where: str) -> None:
        """See `Registered`: a view has a title and a question."""
        super().check_class(where)
        for key in ("title", "question"):
            if not getattr(cls, key, ""):
                raise UserError(f"'{where}' has no {key}", fix=f"write `{key} = '...'`")


VIEWS: Registry[type[ReportView]] = Registry(ReportView, "harness.report.views")


class SweptView(ReportView):
    """A view of trials that also differ in a setting, such as threads or layers."""

    of = "sweep"

    def __init__(self, swept: Swept) -> None:
        super().__init__(swept.section)
        self.swept = swept


class NetworksView(ReportView):
    """A view of trials that differ in their network only."""

    of = "networks"

    def __init__(self, networks: Networks) -> None:
        super().__init__(networks.section)
        self.networks = networks


class WorkloadsView(ReportView):
    """A view of the trials on several data sets, each with a target that methods are to reach."""

    of = "workloads"

    def __init__(self, workloads: Workloads) -> None:
        super().__init__(workloads.section)
        self.workloads = workloads


@dataclass(frozen=True)
class ShownView:
    """What a view shows of a section; `failure`: why a plugin's view shows nothing, in one line."""

    anchor: str
    title: str
    table: Table | None = None
    picture: Figure | Picture | None = None
    more: tuple[Table, ...] = ()
    failure: str = ""
    first: bool = False
    question: str = ""
    chart: bool = False


Subject = Section | Swept | Networks | Workloads
Given = tuple[str, int | None, str, str]
"""A value that a table has: of which row, at how many parts, its unit and its text."""


def show(view: type[ReportView], subject: Subject, given: set[Given], *, own: bool = True) -> ShownView | None:
    """Return what a view shows of its subject; None if that is nothing.

    What has no value or one for all says nothing, and a table without a figure nothing if all was `given` before; what
    is shown is added to that. `own`: whether it is the tool's own; any other shows what it wants, and is shown as a
    line that says so where it fails.
    """
    section = subject if isinstance(subject, Section) else subject.section
    anchor = f"{section.anchor}-{view.anchor or view.name}"
    make: Callable[[Any], ReportView] = view
    try:
        made = make(subject)
        table, picture = made.table(), _figure_of(made, anchor)
        more = tuple(each for each in made.details().values() if each)
        if not own:
            _check((*([table] if table else []), *more))
    except Exception as error:  # whatever a plugin's view does
        if own:
            raise
        said = " ".join(f"{type(error).__name__}: {error}".split())
        return ShownView(anchor, view.title, failure=f"The view “{view.name}” failed: {said}", question=view.question)
    if not (table or picture):
        return None
    if own and not view.first:
        picture = picture if table is None or narrowed(table) else None
        kept = [each and narrowed(each) for each in (table, *more)]
        table, *others = [each if each and _given(each) - given else None for each in kept]
        table, more = table or (kept[0] if picture else None), tuple(filter(None, others))
    given.update(*(map(_given, filter(None, (table, *more)))))
    if not (table or picture or more):
        return None
    return ShownView(
        anchor, made.heading, table, picture, more, first=view.first, question=view.question, chart=view.chart
    )


def _given(table: Table) -> set[Given]:
    """Return the values that a table has."""
    found: set[Given] = set()
    units = [(re.findall(r"\(([^()]*)\)", head) or [""])[-1] for head in table.columns]
    above: int | None = None
    for row in table.rows:
        above = above if row.cells else row.parts
        name = row.variant.label if row.variant else row.label
        for cell, parts, unit in zip(row.cells, table.column_parts, units, strict=False):
            found |= set() if cell.missing else {(name, row.parts or parts or above, unit, cell.text)}
    return found


def _figure_of(view: ReportView, anchor: str) -> Figure | Picture | None:
    """Return a view's figure; what matplotlib drew is drawn again in the style of each format."""
    found = view.figure()
    if found is None or isinstance(found, Figure):
        return found
    if not hasattr(found, "savefig"):
        raise TypeError(f"figure() returns a {type(found).__name__}, not a Figure or a figure of matplotlib")
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close(found)  # it keeps every figure that it has made
    alt = f"{view.title}, {view.section.title}"
    return Picture(anchor, view.title, view.caption if view.columns else "", alt, view.figure)


def _check(tables: Sequence[Table]) -> None:
    """Refuse tables that cannot be written."""
    for each in tables:
        if not isinstance(each, Table):
            raise TypeError(f"a table is a {type(each).__name__}, not a Table")
        if {len(row.cells) for row in each.rows if row.cells} != {len(each.columns)}:
            raise ValueError(f"rows of '{each.title}' have not {len(each.columns)} cells each")
