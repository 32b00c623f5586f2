"""What a rank uses: memory by each source that measured it, processors, energy."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from harness.report.numbers import byte_unit, common_places
from harness.report.tables.grid import by_parts
from harness.report.tables.table import Cell, Group, Table, missing
from harness.report.trials.aggregate import figures_of
from harness.report.trials.record_figures import WHY
from harness.report.trials.sections import Section, join_unique
from harness.report.trials.variants import Variant

CPU_MEMORY = {"peak_rss_bytes": "Peak RSS", "peak_pss_bytes": "Peak PSS"}
GPU_MEMORY = {"nvml_peak_bytes": "NVML", "allocator_peak_bytes": "CUDA allocator"}
CPU_USE = {"cpu_utilisation": "CPU (cores a rank)", "energy_cpu_j": "CPU energy (J)"}
GPU_USE = {"gpu_utilisation": "GPU utilisation (%)", "gpu_power_w": "GPU power (W)", "energy_gpu_j": "GPU energy (J)"}


def memory_sources_table(section: Section) -> Table | None:
    """Peak memory as each source saw it beside the model's total; None if there is neither."""
    sources = CPU_MEMORY | (GPU_MEMORY if _on_gpu(section) else {})
    columns = {**sources, "memory_model_bytes": "Model"}
    peaks = [stat.mean for name in columns for stat in figures_of(section, name).values()]
    size, unit = byte_unit(max(peaks, default=None))
    return _figures_table(
        section,
        columns,
        dict.fromkeys(columns, size),
        f"Peak memory of a rank by source, and the memory model ({unit})",
        f"Largest of the ranks, mean over seeds; 1 {unit} = {size:,.0f} bytes. RSS: the kernel's peak of "
        "the resident set. PSS: the same with shared pages divided among the processes that share them, "
        f"largest of samples{_every(section, 'pss_interval_s')}. {_gpu_sources(section)}Model: what tensors "
        "need by the method's memory model, components below; it leaves out the interpreter, its libraries "
        "and mapped files, which RSS and PSS hold.",
    )


def _gpu_sources(section: Section) -> str:
    if not _on_gpu(section):
        return ""
    return (
        "NVML: what the driver says the process holds on the GPU, CUDA's context included, the largest of "
        f"samples{_every(section, 'sample_interval_s')}. CUDA allocator: torch's max_memory_allocated. "
    )


def use_table(section: Section) -> Table | None:
    """Utilisation, power and energy; None if nothing of it was measured."""
    columns = CPU_USE | (GPU_USE if _on_gpu(section) else {})
    gpu = ""
    if _on_gpu(section):
        gpu = (
            " GPU utilisation: share of the time with a kernel running, mean of samples"
            f"{_every(section, 'sample_interval_s')} and of ranks. GPU power (mean of samples) and energy an "
            "epoch (the driver's counter): sums over GPUs, whoever uses them."
        )
    return _figures_table(
        section,
        columns,
        dict.fromkeys(columns, 1.0) | {"gpu_utilisation": 0.01},
        "Utilisation and energy",
        "Means over the epochs that epoch time is of, then over seeds. CPU: cores that a rank keeps busy "
        "(CPU seconds of all its threads, those beside the training too, / seconds), mean over ranks; a core "
        "is the 100 % of papers. Memory: see the tables of memory. CPU energy: joules an epoch of all "
        f"processor packages, whoever uses them.{gpu}",
    )


def _figures_table(
    section: Section, columns: dict[str, str], units: dict[str, float], title: str, caption: str
) -> Table | None:
    """Return a table of a column a figure (its name: its heading); None if no trial has any of them."""
    figures = {name: figures_of(section, name) for name in columns}
    if not any(figures.values()):
        return None
    places = {
        name: common_places(stat.mean / units[name] for stat in found.values()) for name, found in figures.items()
    }

    def cells(variant: Variant, parts: int) -> Sequence[Cell]:
        gap = missing(section, variant, parts)
        stats = {name: found.get((variant, parts)) for name, found in figures.items()}
        return [Cell(f"{stat.mean / units[name]:,.{places[name]}f}") if stat else gap for name, stat in stats.items()]

    heads = Group("", tuple(columns.values()))
    caption += _reasons(section, columns)
    return Table(title, caption, "Method", (heads,), by_parts(section, cells))


def _on_gpu(section: Section) -> bool:
    return bool(section.ok["device"].eq("cuda").any())


def _every(section: Section, name: str) -> str:
    """Say how often samples were taken, if that is known."""
    known: pd.Series[float] = section.ok[name].dropna() if name in section.ok else pd.Series(dtype=float)
    if known.empty:
        return ""
    low, high = f"{known.min():.2g}", f"{known.max():.2g}"
    return f" every {low if low == high else f'{low} to {high}'} s"


def _reasons(section: Section, columns: dict[str, str]) -> str:
    """Say why figures are not available that a trial lacks."""
    found = []
    for name, title in columns.items():
        lacking = section.ok[section.ok[name].isna()] if name in section.ok else section.ok
        column = f"{WHY}{name}"
        if column in lacking and (why := join_unique(lacking[column])):
            found.append(f"{title} ({why})")
    return f" Not available: {'; '.join(found)}." if found else ""
