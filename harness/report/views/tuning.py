"""What it took to find the methods' settings, and what there was to find."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from statistics import median

from harness.report.plot import Axis, Plot, line_row, make_plot
from harness.report.table import Cell, Group, Row, Table
from harness.report.variants import Variant
from harness.report.views import ReportView
from harness.results.stats import show_value, significant
from harness.results.tuned import TunedMethod


class TuningView(ReportView):
    """What it took to find the methods' settings, and what there was to find."""

    name = "tuning"
    title = "Tuning"
    question = "What did it cost to find each method's settings, how much was there to gain, and is it easy to find?"
    place = 6

    @cached_property
    def tuned(self) -> dict[Variant, TunedMethod]:
        """The search of each variant's settings."""
        tuning = self.section.tuning
        of = {each.method: each for each in tuning.methods} if tuning else {}
        return {variant: of[variant.method] for variant in self.section.variants if variant.method in of}

    def table(self) -> Table | None:
        """Cost of each search, scores of the suite's own and of drawn settings, and what was chosen; None if none."""
        if not self.tuned:
            return None
        targets = {each.target for each in self.tuned.values()} - {None}
        heads = ["Trials", "Hours", "Trained (s)"]
        heads += ["Reach the target"] * bool(targets)
        heads += ["Own (%)", "Median (%)", "Best (%)", "Chosen settings"]
        target = f" Target: {100 * max(t for t in targets if t is not None):.1f} %." if targets else ""
        return Table(
            "Search of the settings",
            "Of one search of each method with the same budget: trials, hours of them from start to end, training "
            f"seconds among these; how many of the drawn settings reach the target; best validation "
            f"{self.section.metric} within the budget of the suite's own settings (mean over studies), of the median "
            "of those drawn, a failed trial's 0, and of the best (Probst et al., JMLR 2019: best less own is what "
            f"tuning gains); and what was chosen, trained again with fresh seeds for all other tables.{target}",
            "Method",
            (Group("", tuple(heads)),),
            tuple(Row(v.label, tuple(self._cells(each, bool(targets))), v) for v, each in self.tuned.items()),
        )

    @staticmethod
    def _cells(each: TunedMethod, target: bool) -> Sequence[Cell]:
        own, drawn, best = each.own_val, each.drawn_vals, each.best
        reaching, count = each.reaching
        scores = (own, median(drawn) if drawn else None, max(drawn + [t.best_val or 0.0 for t in each.tried]))
        point = ", ".join(f"{key} {_short(value)}" for key, value in best.point.items()) if best else ""
        return [
            Cell(str(len(each.tried))),
            Cell(significant(each.wall_s / 3600)),
            Cell(significant(each.trained_s)),
            *([Cell(f"{reaching} of {count}" if count else "–")] if target else []),
            *(Cell("–" if score is None else f"{100 * score:.2f}") for score in scores),
            Cell(point or ("the suite's own" if best else "all failed"), number=False, wrap=True),
        ]

    def figure(self) -> Plot | None:
        """Return the best validation score that a search of so many trials is expected to come to."""
        section, tuning = self.section, self.section.tuning
        if tuning is None:
            return None
        lines = {
            (variant, section.parts[0]): {k: 100 * score for k, score in enumerate(each.course(tuning.sampler), 1)}
            for variant, each in self.tuned.items()
            if each.drawn_in_a_study > 1
        }
        if not lines:
            return None
        across = "trials", Axis("Drawn settings tried", whole=True)
        up = "best_validation_percent", Axis(f"Best validation {section.metric} (%)")
        panels = line_row(lines, across, up)
        how = (
            "mean over studies of the best so far, of a sampler that learns from earlier trials"
            if tuning.sampler == "tpe"
            else "best of so many draws from all drawn settings' scores (Dodge et al., EMNLP 2019, Eq. 4)"
        )
        caption = (
            f"Expected best validation {section.metric} of a search of so many trials: {how}; failed trials count as "
            "0. A line that is high at once needs no search; one that still rises had too small a budget."
        )
        return make_plot(section, "tuning", "What tuning gains", caption, [panels], 3.6, share=("none", "all"))


def _short(value: object) -> str:
    return significant(value) if isinstance(value, float) and value else show_value(value)
