"""Which method reaches its target fastest over all data sets, and whether that depends on one of them."""

from __future__ import annotations

import math
from functools import cached_property

from harness.report.figure import Axis, Chart, Figure, Layer, lines, make_figure
from harness.report.sections import Section
from harness.report.table import Cell, Group, Row, Table, bold_best
from harness.report.variants import Variant
from harness.report.views import WorkloadsView, prose
from harness.report.views.answer import AnswerView
from harness.report.views.targets import NEVER
from harness.results.censored import R_MAX, Profile, profiles


class ProfileView(WorkloadsView):
    """Which method reaches its target fastest over all data sets, and does that depend on one of them?"""

    name = "profile"
    title = "Over all data sets"
    place = 1
    first = True

    @cached_property
    def medians(self) -> dict[str, dict[str, float | None]]:
        """The median time to the target of each method, by workload; None where it is not reached."""
        found: dict[str, dict[str, float | None]] = {name: {} for name in self.series}
        for section in self.workloads.sections:
            for (variant, parts), middle in AnswerView(section).medians.items():
                found[self.workloads.name_of(variant)][self._named(section, parts)] = middle.centre if middle else None
        return found

    def _named(self, section: Section, parts: int) -> str:
        return f"{section.name}, P = {parts}" if len(self.section.parts) > 1 else section.name

    @cached_property
    def series(self) -> dict[str, Variant]:
        """The methods by name."""
        return self.workloads.series()

    @cached_property
    def profiles(self) -> dict[str, Profile]:
        """The performance profile of each method."""
        return profiles(self.medians)

    def table(self) -> Table | None:
        names = list(dict.fromkeys(name for own in self.medians.values() for name in own))
        best = {
            name: min((t for own in self.medians.values() if (t := own.get(name)) is not None), default=None)
            for name in names
        }
        if not any(best.values()):
            return None
        order = sorted(self.profiles, key=lambda name: -self.profiles[name].score)
        scores = [self.profiles[name].score for name in order]
        cells = bold_best([Cell(f"{score:.2f}") for score in scores], list(scores), highest=True)

        def ratio(method: str, name: str) -> Cell:
            if name not in self.medians[method]:
                return Cell(number=False)
            own, first = self.medians[method][name], best[name]
            if own is None or first is None:
                return Cell(NEVER, number=False)
            return Cell(f"{own / first:.2f}", value=own)

        def without(method: str) -> Cell:
            found = [score for score in self.profiles[method].without.values() if not math.isnan(score)]
            return Cell(f"{min(found):.2f} to {max(found):.2f}" if found else "–")

        of = {self._named(each, parts): (parts, each.name) for each in self.workloads.sections for parts in each.parts}
        parts, datasets = zip(*(of[name] for name in names), strict=True)
        rows = [
            Row(name, (cell, without(name), *(ratio(name, each) for each in names)), self.series[name])
            for name, cell in zip(order, cells, strict=True)
        ]
        return Table(
            "Fastest to target over all data sets",
            prose("profile.table", r_max=R_MAX),
            "Method",
            (
                Group("", ("Score", "Without one")),
                Group("Relative to the fastest's time", tuple(names), parts, datasets),
            ),
            tuple(rows),
            profile_to=R_MAX,
        )

    def figure(self) -> Figure | None:
        found: dict[tuple[Variant, None], dict[float, float]] = {}
        for name, own in self.profiles.items():
            if own.taus:
                pairs = zip(own.taus, own.shares, strict=True)
                at = {1.0: 0.0} | {tau: 100 * share for tau, share in pairs if tau <= R_MAX}
                found[self.series[name], None] = at | {R_MAX: max(at.values())}
        if not found:
            return None
        x = Axis("tau", "τ: time relative to the fastest's", low=0.97, high=R_MAX)
        y = Axis("data_sets_percent", "Data sets with the target within τ (%)", zero=True, high=105)
        caption = prose("profile.figure")
        chart = Chart((Layer(lines(found, x, y), "steps"),), x, y, "")
        series = [variant for variant, _ in found]
        return make_figure(self.section, "profile", "Fastest to target", caption, [chart], 3.4, series=series)
