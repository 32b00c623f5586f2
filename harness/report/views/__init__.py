"""Views of the report: the base class, and how they are found."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from harness.errors import UserError
from harness.registry import Registered, Registry
from harness.report.plot import Picture, Plot
from harness.report.sections import Section
from harness.report.sweeps import Networks, Swept
from harness.report.table import Cell, Group, Table, by_parts, metrics_table
from harness.report.values import Values
from harness.report.variants import Variant
from harness.report.workloads import Workloads

Kind = Literal["section", "sweep", "networks", "workloads"]


class ReportView(Registered, ABC):
    """A heading of a report: a question, and the table and the figure that answer it.

    Each section of a report makes one object of it. A view without a table and a figure is left out there.
    The table shows `columns`, unless a view says more in `table`.

    Attributes:
        title: the heading.
        question: that it answers, for docs/views.md.
        place: views stand in rising order of it; those of plugins last.
        of: what it is about: a section's trials, a setting that was swept, networks, or several data sets' trials.
        first: it stands before everything else: it is the answer that a reader came for.
        chart: the page draws its trials in the place of the figure, by what its reader chooses.
        anchor: how addresses and files call it; the default is the name.
        columns: metrics of the table, columns of `load_results`.
        caption: of that table: the rule by which its values are computed.
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

    def __init__(self, section: Section) -> None:
        self.section = section

    @property
    def heading(self) -> str:
        """The title, where it does not depend on the section."""
        return self.title

    def table(self) -> Table | None:
        """Return the table; None where no trial tells what it needs."""
        if not self.columns:
            return None
        return metrics_table(self.section, self.columns, self.title, self.caption, sparse=True)

    def figure(self) -> Plot | Picture | None:
        """Return the figure; None where no trial tells what it needs.

        A `Plot` is drawn by the page and for print; a `Picture`, of `harness.report.drawing`, is shown as it is.
        """
        return None

    def details(self) -> Mapping[str, Table | None]:
        """Return further tables, which stand below the figure, by name."""
        return {}

    @classmethod
    def check_class(cls, where: str) -> None:
        """See `Registered`: a view has a title and a question."""
        super().check_class(where)
        for key in ("title", "question"):
            if not isinstance(getattr(cls, key, None), str):
                raise UserError(f"'{where}' has no {key}", fix=f"write `{key} = '...'`")


VIEWS: Registry[type[ReportView]] = Registry(ReportView, "harness.report.views")


def variants_table(
    section: Section,
    title: str,
    caption: str,
    heads: Sequence[str],
    cells: Callable[[Variant, int], Sequence[Cell]],
    among: Container[tuple[Variant, int]],
    falling: Values | None = None,
) -> Table | None:
    """Return a table of a row a variant and number of parts, as `by_parts` has them, of those in `among`; None if none.

    `heads`: of its columns.
    """
    rows = by_parts(section, lambda *key: cells(*key) if key in among else (), falling)
    return Table(title, caption, "Method", (Group("", tuple(heads)),), rows) if rows else None


class SweptView(ReportView):
    """A view of trials that differ in a setting, such as threads or layers, too."""

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
    """A view of the trials on several data sets, in each of which methods reach for a target."""

    of = "workloads"

    def __init__(self, workloads: Workloads) -> None:
        super().__init__(workloads.section)
        self.workloads = workloads


@dataclass(frozen=True)
class ShownView:
    """What a view shows of a section; `failure` says in one line why a plugin's view shows nothing.

    `first`: it stands before everything else; `question`: what it answers; `redraw`: draws a `Picture` again.
    """

    anchor: str
    title: str
    table: Table | None = None
    picture: Plot | Picture | None = None
    more: tuple[Table, ...] = ()
    failure: str = ""
    first: bool = False
    question: str = ""
    chart: bool = False
    redraw: Callable[[], Plot | Picture | None] = lambda: None


Subject = Section | Swept | Networks | Workloads


def show(view: type[ReportView], subject: Subject, *, own: bool = True) -> ShownView | None:
    """Return what a view shows of its subject; None if that is nothing.

    `own`: whether it is the tool's own; any other that fails is shown as a line that says so.
    """
    section = subject if isinstance(subject, Section) else subject.section
    anchor = f"{section.anchor}-{view.anchor or view.name}"
    make: Callable[[Any], ReportView] = view
    try:
        made = make(subject)
        table, picture = made.table(), _styled(made)
        more = tuple(each for each in made.details().values() if each)
        if not own:
            _check(picture, table, more)
    except Exception as error:  # whatever a plugin's view does
        if own:
            raise
        said = " ".join(f"{type(error).__name__}: {error}".split())
        return ShownView(anchor, view.title, failure=f"The view “{view.name}” failed: {said}", question=view.question)
    if not (table or picture):
        return None
    return ShownView(
        anchor,
        made.heading,
        table,
        picture,
        more,
        first=view.first,
        question=view.question,
        chart=view.chart,
        redraw=made.figure,
    )


def _styled(view: ReportView) -> Plot | Picture | None:
    """Return a view's figure, in the style of a page where it is drawn at once."""
    if type(view).__module__.startswith("harness."):
        return view.figure()
    from harness.report.drawing import style  # matplotlib takes half a second

    with style():
        return view.figure()


def _check(picture: object, table: Table | None, more: Sequence[Table]) -> None:
    """Refuse what cannot be written."""
    if not (picture is None or isinstance(picture, Plot | Picture)):
        raise TypeError(f"figure() returns a {type(picture).__name__}, not a Plot or a Picture")
    for each in (*([table] if table else []), *more):
        if not isinstance(each, Table):
            raise TypeError(f"a table is a {type(each).__name__}, not a Table")
        if {len(row.cells) for row in each.rows if row.cells} != {len(each.columns)}:
            raise ValueError(f"rows of '{each.title}' have not {len(each.columns)} cells each")
