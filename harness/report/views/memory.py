"""Peak memory of a rank, by each source that measured it, and by the memory model."""

from __future__ import annotations

from harness.report.bars import MEANS, BarRow, against_baseline, grouped_bars
from harness.report.drawing import Picture, save
from harness.report.sections import Section, largest_total, model_columns, values_of
from harness.report.table import (
    Cell,
    Table,
    column,
    components_table,
    grid,
    heading,
    measured,
    metrics_table,
    ratios,
    seeds_note,
    usual_seeds,
)
from harness.report.views import ReportView
from harness.report.views.use import every, on_gpu
from harness.results.text import byte_unit, join_unique


class MemoryView(ReportView):
    """Peak memory of a rank, by each source that measured it, and by the memory model."""

    name = "memory"
    title = "Memory"
    question = "How much memory does a rank need, and what for?"
    place = 140

    def table(self) -> Table:
        """Peak memory and its ratio to the baseline's, method by parts."""
        section = self.section
        peaks = values_of(section, "peak_memory_bytes")
        size, unit = byte_unit(max((s.mean for s in peaks.values()), default=None))
        seeds = usual_seeds(peaks)
        name = heading(section.metric_of("peak_memory_bytes"), unit)
        columns = {name: column(section, peaks, measured(size), seeds, highest=False)}
        rule = ""
        if baseline := section.baseline:
            rule = f" Relative: mean / that of {baseline.label} at equal P."
            columns["Relative (%)"] = ratios(section, peaks, baseline, lambda base, own: 100 * own / base, 1)
        source = join_unique(section.ok["peak_memory_source"]) or "not recorded"
        return grid(
            section,
            "Peak memory of a rank",
            f"Largest of the ranks over the whole trial; 1 {unit} = {size:,.0f} bytes. Source: {source}. "
            f"{seeds_note(seeds)}{rule} Bold: smallest of the column, underlined: second smallest.",
            columns,
        )

    def figure(self) -> Picture | None:
        """Draw peak memory, and below it how much less it is than the baseline's, grouped by number of parts."""
        section = self.section
        peaks = values_of(section, "peak_memory_bytes")
        if not peaks:
            return None
        size, unit = byte_unit(max(stat.mean for stat in peaks.values()))
        shown = [BarRow(f"Peak memory of a rank ({unit})", peaks, size)]
        caption = f"The numbers of the table above; {MEANS}. Lower is better."
        if section.baseline and (less := against_baseline(section, peaks, lambda own, base: 100 * (1 - own / base))):
            name = section.baseline.method
            shown.append(BarRow(f"Reduction against {name} (%)", less, base=0.0))
            caption += f" Below: 1 - mean / that of {name} at equal P; higher is better, below 0 it takes more."
        return save(grouped_bars(section, shown, "Peak memory"), section, "memory", "Peak memory", caption)

    def details(self) -> dict[str, Table | None]:
        """See `ReportView`."""
        return {"memory_sources": memory_sources_table(self.section), "memory_model": memory_model_table(self.section)}


CPU_MEMORY = ("peak_rss_bytes", "peak_pss_bytes")
GPU_MEMORY = ("nvml_peak_bytes", "allocator_peak_bytes")


def memory_sources_table(section: Section) -> Table | None:
    """Peak memory as each source saw it beside the model's total; None if there is neither."""
    columns = *CPU_MEMORY, *(GPU_MEMORY if on_gpu(section) else ()), "memory_model_bytes"
    peaks = [stat.mean for name in columns for stat in values_of(section, name).values()]
    size, unit = byte_unit(max(peaks, default=None))
    return metrics_table(
        section,
        columns,
        f"Peak memory of a rank by source, and the memory model ({unit})",
        f"Largest of the ranks, mean over seeds; 1 {unit} = {size:,.0f} bytes. RSS: the kernel's peak of "
        "the resident set. PSS: the same with shared pages divided among the processes that share them, "
        f"largest of samples{every(section, 'pss_interval_s')}. {_gpu_sources(section)}Memory model: what tensors "
        "need by the method's memory model, components below; it leaves out the interpreter, its libraries "
        "and mapped files, which RSS and PSS hold.",
        (size, unit),
    )


def _gpu_sources(section: Section) -> str:
    if not on_gpu(section):
        return ""
    return (
        "NVML: what the driver says the process holds on the GPU, CUDA's context included, the largest of "
        f"samples{every(section, 'sample_interval_s')}. CUDA allocator: torch's max_memory_allocated. "
    )


def memory_model_table(section: Section) -> Table | None:
    """The memory model's bytes by component; None if no method has a model."""
    columns = model_columns(section)
    size, unit = byte_unit(largest_total({name: values_of(section, c) for name, c in columns.items()}))
    return components_table(
        section,
        columns,
        size,
        f"Memory model ({unit})",
        "What the rank that needs most needs by the method's memory model, by component; mean over seeds; "
        f"1 {unit} = {size:,.0f} bytes. “none”: the method has no such component. A component that corrects "
        "another, as one beside Eq. 3 (of BNS-GCN) does, can be negative.",
        absent=Cell("none"),
    )
