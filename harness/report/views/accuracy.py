"""What score each method reaches."""

from __future__ import annotations

from harness.report.sections import values_of
from harness.report.table import Table, column, grid, seeds_note, usual_seeds
from harness.report.views import ReportView
from harness.results.text import percent


class AccuracyView(ReportView):
    """What score each method reaches."""

    name = "accuracy"
    title = "Accuracy"
    question = "Which method reaches the best score?"
    place = 10

    @property
    def heading(self) -> str:
        """The name of the score."""
        return self.section.score

    def table(self) -> Table | None:
        """Test score at the best validation, and that validation score, by parts; None if nothing was scored."""
        section = self.section
        test, val = (values_of(section, column) for column in ("test_at_best_val", "best_val"))
        if not (test or val) and len(section.ok):
            return None
        seeds = usual_seeds(test | val)
        columns = {
            f"Test {section.metric} (%)": column(section, test, lambda _: percent, seeds, highest=True),
            f"Validation {section.metric} (%)": column(section, val, lambda _: percent, seeds, highest=True),
        }
        what = "Test score at the epoch of the best validation score, and that validation score"
        if sampled := values_of(section, "sampled_test_at_best_val"):
            columns["Test, sampled (%)"] = column(section, sampled, lambda _: percent, seeds, highest=True)
            what += (
                ", both with all neighbours; sampled: the test score of that epoch by the method's own sampler, "
                "where it has one and was asked to (train.sampled_eval)"
            )
        return grid(
            section,
            f"{section.score} by method and number of parts P",
            f"{what}. {seeds_note(seeds)} Bold: best of the column, underlined: second best.",
            columns,
        )
