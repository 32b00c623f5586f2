"""What an epoch is made of: its phases, and the sums of them that papers print."""

from __future__ import annotations

from harness.metrics import SUMS
from harness.report.bars import stacked_bars
from harness.report.palette import PHASES
from harness.report.plot import Plot
from harness.report.sections import Section
from harness.report.sweeps import Swept
from harness.report.table import Table, components_table
from harness.report.values import components, largest_total
from harness.report.views import ReportView
from harness.results.stats import time_unit


class BreakdownView(ReportView):
    """What an epoch is made of: its phases, and the sums of them that papers print."""

    name = "breakdown"
    title = "Time breakdown"
    question = "Which phases is an epoch made of?"
    place = 40

    def table(self) -> Table | None:
        """Seconds per epoch in each phase, a row a method and number of parts; None if there are no phases."""
        section = self.section
        phases = components(section, "phase")
        size, unit = time_unit(largest_total(phases))
        return components_table(
            section,
            phases,
            size,
            f"Time breakdown ({unit} per epoch)",
            "Mean over epochs after warm-up of the time that the slowest rank (largest median epoch time) spent in "
            "each phase, then mean over seeds. Phases exclude one another, “other” is what none of them covers, so "
            "that Total is that rank's mean epoch; it may differ from the median of the epoch-time table. "
            f"{_barriers(section)} Phases without any time are left out.",
        )

    def figure(self) -> Plot | None:
        """Return stacked bars of the phases of an epoch: seconds, and below them shares."""
        section = self.section
        if not (phases := components(section, "phase")):
            return None
        size, unit = time_unit(largest_total(phases))
        caption = (
            "The phases of the table above, stacked; upper row: absolute, each panel with a scale of its own, "
            "the total beside the bar; lower row: shares of the total."
        )
        title, scale = "Time breakdown of an epoch", (size, f"Time per epoch ({unit})")
        return stacked_bars(section, "breakdown", title, caption, phases, PHASES, scale)

    def details(self) -> dict[str, Table | None]:
        """See `ReportView`."""
        return {"sums": sums_table(self.section)}


def _barriers(section: Section) -> str:
    """Say in which epochs phases were measured, and what that costs."""
    if not section.ok["timing"].eq("breakdown").any():
        return "Without barriers (timing: plain) the time that a rank waits for slower ones is inside comm and reduce."
    cost = ""
    known = 100 * section.ok["barrier_cost"].dropna()
    if len(known):
        low, high = f"{known.min():+.1f} %", f"{known.max():+.1f} %"
        cost = f"; the barriers change its median by {low if low == high else f'{low} to {high}'}"
    return (
        "With timing: breakdown every second epoch has barriers, which tell waiting for slower ranks (wait) "
        "from transfers (comm, reduce): phases are means over the epochs with barriers, epoch time is of "
        f"those without{cost}."
    )


def sums_table(section: Section) -> Table | None:
    """The papers' sums of phases, in seconds per epoch; None if there are no phases."""
    size, unit = time_unit(largest_total(components(section, "phase")))
    parts = [f"{name} = {' + '.join(phases)}" for name, phases in SUMS.items() if phases != (name,)]
    return components_table(
        section,
        components(section, "sum"),
        size,
        f"Compute, communication, wait and reduce ({unit} per epoch)",
        "The phases of the time breakdown added up as BNS-GCN and later papers report them: "
        f"{'; '.join(parts)}. Sums without any time are left out.",
    )


class SweptBreakdownView(BreakdownView):
    """The phases of an epoch for each value of a setting."""

    name = "swept-breakdown"
    anchor = "breakdown"
    question = "Which phases does a setting change?"
    place = 20
    of = "sweep"

    def __init__(self, swept: Swept) -> None:
        super().__init__(swept.unfolded())

    def details(self) -> dict[str, Table | None]:
        """Leave out the sums."""
        return {}
