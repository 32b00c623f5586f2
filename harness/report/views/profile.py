"""Which method is soonest at its target over all data sets, and what of that hangs on one of them."""

from __future__ import annotations

import math
from functools import cached_property

from harness.report.plot import Axis, Mark, Panel, Plot, make_plot
from harness.report.sections import Section
from harness.report.table import Cell, Group, Row, Table, bold_best
from harness.report.variants import Variant
from harness.report.views import WorkloadsView
from harness.report.views.answer import AnswerView
from harness.report.views.targets import NEVER
from harness.results.censored import R_MAX, Profile, profiles


class ProfileView(WorkloadsView):
    """Which method is soonest at its target over all data sets, and what of that hangs on one of them."""

    name = "profile"
    title = "Over all data sets"
    question = "Which method reaches its target soonest over all data sets, and does that hang on one of them?"
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
        """Each method's profile as a number, what it is without each data set, and the times on each; None if none."""
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

        of = {self._named(each, parts): (parts, each.name) for each in self.workloads.sections for parts in each.parts}
        parts, datasets = zip(*(of[name] for name in names), strict=True)

        rows = [
            Row(name, (cell, Cell(self._without(name)), *(ratio(name, each) for each in names)), self.series[name])
            for name, cell in zip(order, cells, strict=True)
        ]
        return Table(
            "Soonest to the target over all data sets",
            f"Score: the performance profile (share of data sets on which a method takes at most τ times as long as "
            f"the soonest, by median time to the target; Dolan and Moré, 2002), its mean for τ from 1 to {R_MAX:g}: 1 "
            f"where it is the soonest everywhere, 0 where it nowhere arrives within {R_MAX:g} times the soonest's time "
            "(AlgoPerf, Dahl et al., 2023). Without one: the lowest and the highest score when any one data set is "
            "left out; where these overlap between methods, their order hangs on the choice of data. Then the "
            "median time on each, over the soonest's; medians have intervals, which each data set's own table has.",
            "Method",
            (Group("", ("Score", "Without one")), Group("Times the soonest's time", tuple(names), parts, datasets)),
            tuple(rows),
            profile_to=R_MAX,
        )

    def _without(self, name: str) -> str:
        found = [score for score in self.profiles[name].without.values() if not math.isnan(score)]
        return f"{min(found):.2f} to {max(found):.2f}" if found else "–"

    def figure(self) -> Plot | None:
        """Return the performance profiles."""
        drawn = {name: own for name, own in self.profiles.items() if own.taus}
        if not drawn:
            return None
        title = "Soonest to the target"
        marks = []
        for name, own in drawn.items():
            at = {1.0: 0.0} | {
                tau: 100 * share for tau, share in zip(own.taus, own.shares, strict=True) if tau <= R_MAX
            }
            at |= {R_MAX: max(at.values())}
            x, y = ("tau", list(at)), ("data_sets_percent", list(at.values()))
            marks.append(Mark("steps", self.series[name], None, x, y))
        across = Axis("τ: times the soonest's time", low=0.97, high=R_MAX)
        up = Axis("Data sets with the target within τ (%)", zero=True, high=105)
        caption = (
            "Share of data sets on which a method has reached the target within τ times the soonest method's median "
            "time. Up and to the left is better: where a line begins is how often it is the soonest."
        )
        return make_plot(self.section, "profile", title, caption, [[Panel(across, up, tuple(marks))]], 3.4)
