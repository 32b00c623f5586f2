"""What a rank uses: processors, GPU, energy."""

from __future__ import annotations

import pandas as pd

from harness.report.bars import MEANS, BarRow, grouped_bars
from harness.report.drawing import Picture, save
from harness.report.sections import Section, values_of
from harness.report.table import Table, heading, metrics_table, scale_of
from harness.report.views import ReportView

CPU_USE = ("cpu_utilisation", "energy_cpu_j")
GPU_USE = ("gpu_utilisation", "gpu_power_w", "energy_gpu_j")


class UseView(ReportView):
    """What a rank uses: processors, GPU, energy."""

    name = "use"
    title = "Utilisation and energy"
    question = "How busy are processors and GPUs, and what energy does an epoch take?"
    place = 150

    def table(self) -> Table | None:
        """Utilisation, power and energy; None if nothing of it was measured."""
        section = self.section
        columns = CPU_USE + (GPU_USE if on_gpu(section) else ())
        gpu = ""
        if on_gpu(section):
            gpu = (
                " GPU utilisation: share of the time with a kernel running, mean of samples"
                f"{every(section, 'sample_interval_s')} and of ranks. GPU power (mean of samples) and energy an "
                "epoch (the driver's counter): sums over GPUs, whoever uses them."
            )
        return metrics_table(
            section,
            columns,
            "Utilisation and energy",
            "Means over the epochs that epoch time is of, then over seeds. CPU: cores that a rank keeps busy "
            "(CPU seconds of all its threads, those beside the training too, / seconds), mean over ranks; a core "
            "is the 100 % of papers. Memory: see the tables of memory. CPU energy: joules an epoch of all "
            f"processor packages, whoever uses them.{gpu}",
        )

    def figure(self) -> Picture | None:
        """Draw what was measured of utilisation, power and energy, a row each; None if nothing was."""
        section = self.section
        shown = []
        for name in CPU_USE + GPU_USE:
            if own := values_of(section, name):
                size, unit = scale_of(metric := section.metric_of(name), own)
                shown.append(BarRow(heading(metric, unit), own, size))
        if not shown:
            return None
        caption = f"The numbers of the table above; {MEANS}. Energy is of an epoch: lower is better."
        title = "Utilisation and energy"
        return save(grouped_bars(section, shown, title), section, "use", title, caption)


def on_gpu(section: Section) -> bool:
    """Return whether trials ran on a GPU."""
    return bool(section.ok["device"].eq("cuda").any())


def every(section: Section, name: str) -> str:
    """Say how often samples were taken, if that is known."""
    known: pd.Series[float] = section.ok[name].dropna() if name in section.ok else pd.Series(dtype=float)
    if known.empty:
        return ""
    low, high = f"{known.min():.2g}", f"{known.max():.2g}"
    return f" every {low if low == high else f'{low} to {high}'} s"
