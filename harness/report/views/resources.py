"""What a rank uses: memory, by each source that measured it and by the memory model; processors, GPU, energy."""

from __future__ import annotations

import pandas as pd

from harness.report.figure import MEANS, BarRow, Figure, against_baseline, grouped_bars
from harness.report.sections import Section
from harness.report.table import (
    Cell,
    Table,
    column,
    components_table,
    grid,
    heading,
    metrics_table,
    ratios,
    scale_of,
    seeds_note,
)
from harness.report.values import components, largest_total, values_of
from harness.report.views import ReportView, prose
from harness.results.stats import byte_unit, join_unique

CPU_USE = ("cpu_utilisation", "energy_cpu_j")
GPU_USE = ("gpu_utilisation", "gpu_clock_mhz", "gpu_slowed_share", "gpu_power_w", "energy_gpu_j")


class UseView(ReportView):
    """How busy are processors and GPUs, and what energy does an epoch take?"""

    name = "use"
    title = "Utilisation and energy"
    place = 150

    def table(self) -> Table | None:
        section = self.section
        columns, gpu = [*CPU_USE], ""
        if section.ok["device"].eq("cuda").any():
            columns += GPU_USE
            gpu = " " + prose("use.gpu", every=every(section, "sample_interval_s"))
        return metrics_table(section, columns, "Utilisation and energy", prose("use.table", gpu=gpu))

    def figure(self) -> Figure | None:
        section = self.section
        shown = []
        for name in CPU_USE + GPU_USE:
            if own := values_of(section, name):
                size, unit = scale_of(metric := section.metric_of(name), own)
                shown.append(BarRow(heading(metric, unit), own, size))
        if not shown:
            return None
        caption = f"The numbers of the table above; {MEANS}. Energy is of an epoch: lower is better."
        return grouped_bars(section, "use", "Utilisation and energy", caption, shown)


def every(section: Section, name: str) -> str:
    """Say how often samples were taken, if that is known."""
    known: pd.Series[float] = section.ok[name].dropna() if name in section.ok else pd.Series(dtype=float)
    if known.empty:
        return ""
    low, high = f"{known.min():.2g}", f"{known.max():.2g}"
    return f" every {low if low == high else f'{low} to {high}'} s"


CPU_MEMORY = ("peak_rss_bytes", "peak_pss_bytes")
GPU_MEMORY = ("nvml_peak_bytes", "nvml_device_peak_bytes", "allocator_peak_bytes")
ABOVE = "peak_above_base_bytes"
WITHOUT_BASE = "without what interpreter and libraries held before any data was read"


class MemoryView(ReportView):
    """How much memory does a rank need, and what for?"""

    name = "memory"
    title = "Memory"
    place = 140

    def table(self) -> Table:
        section = self.section
        peaks = values_of(section, "peak_memory_bytes")
        size, unit = byte_unit(max((s.mean for s in peaks.values()), default=None))
        name = heading(section.metric_of("peak_memory_bytes"), unit)
        columns = {name: column(section, "peak_memory_bytes", size)}
        rule = ""
        if above := values_of(section, ABOVE):
            columns[heading(section.metric_of(ABOVE), unit)] = column(section, ABOVE, size)
            rule = f" Above base: {WITHOUT_BASE}."
        if baseline := section.baseline:
            rule += f" Relative: mean{' above base' if above else ''} / that of {baseline.label} at equal P."
            held = above or peaks
            columns["Relative (%)"] = ratios(held, baseline, lambda base, own: 100 * own / base, 1)
        source = join_unique(section.ok["peak_memory_source"]) or "not recorded"
        return grid(
            section,
            "Peak memory of a rank",
            prose("memory.table", unit=unit, size=size, source=source, seeds_note=seeds_note(peaks), rule=rule),
            columns,
        )

    def figure(self) -> Figure | None:
        section = self.section
        above = values_of(section, ABOVE)
        peaks = above or values_of(section, "peak_memory_bytes")
        if not peaks:
            return None
        size, unit = byte_unit(max(stat.mean for stat in peaks.values()))
        shown = [BarRow(f"Peak memory of a rank{' above base' if above else ''} ({unit})", peaks, size)]
        caption = f"The numbers of the table above; {MEANS}. Lower is better."
        if above:
            caption += f" Above base: {WITHOUT_BASE}."
        if section.baseline and (less := against_baseline(section, peaks, lambda own, base: 100 * (1 - own / base))):
            name = section.baseline.method
            shown.append(BarRow(f"Reduction against {name} (%)", less, base=0.0))
            caption += f" Below: 1 - mean / that of {name} at equal P; higher is better, below 0 it takes more."
        return grouped_bars(section, "memory", "Peak memory", caption, shown)

    def details(self) -> dict[str, Table | None]:
        """Return peak memory as each source measured it with the model's total, and the model's components."""
        section, sources, gpu = self.section, [*CPU_MEMORY], ""
        if section.ok["device"].eq("cuda").any():
            sources += GPU_MEMORY
            gpu = prose("memory.gpu", every=every(section, "sample_interval_s")) + " "
        columns = [*sources, "memory_model_bytes"]
        peaks = [stat.mean for name in columns for stat in values_of(section, name).values()]
        size, unit = byte_unit(max(peaks, default=None))
        title = f"Peak memory of a rank by source, and the memory model ({unit})"
        caption = prose("memory.sources", unit=unit, size=size, every=every(section, "pss_interval_s"), gpu=gpu)
        measured = metrics_table(section, columns, title, caption, (size, unit))
        model = components(section, "model")
        size, unit = byte_unit(largest_total(model))
        title, caption = f"Memory model ({unit})", prose("memory.model", unit=unit, size=size)
        modelled = components_table(section, model, size, title, caption, absent=Cell("none"))
        return {"memory_sources": measured, "memory_model": modelled}
