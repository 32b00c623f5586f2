"""A report's figures as a paper prints them."""

from __future__ import annotations

from harness.report.figures.drawing import Picture, style
from harness.report.figures.look import PRINT
from harness.report.page.build import make_report
from harness.report.trials.inputs import Inputs


def camera_ready(inputs: Inputs) -> list[Picture]:
    """Return the figures of a report as PDF and SVG, a column or two wide, without titles."""
    with style(PRINT):
        return make_report(inputs).pictures
