"""What a rank uses: memory by each source that measured it, processors, energy, the network's interface."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from harness.report.aggregate import figures_of
from harness.report.grid import Columns, Format, by_parts, column, grid, measured, seeds_note, usual_seeds
from harness.report.numbers import byte_unit, common_places, scaled
from harness.report.record_figures import WHY
from harness.report.sections import Section, join_unique
from harness.report.table import Cell, Group, Table, missing
from harness.report.variants import Variant

CPU_MEMORY = {"peak_rss_bytes": "Peak RSS", "peak_pss_bytes": "Peak PSS"}
GPU_MEMORY = {"nvml_peak_bytes": "NVML", "allocator_peak_bytes": "CUDA allocator"}
CPU_USE = {"cpu_utilisation": "CPU (cores a rank)", "energy_cpu_j": "CPU energy (J)"}
GPU_USE = {
    "gpu_utilisation": "GPU utilisation (%)",
    "gpu_power_w": "GPU power (W)",
    "energy_gpu_j": "GPU energy (J)",
}


def memory_sources_table(section: Section) -> Table | None:
    """Peak memory as each source saw it beside the model's total; None if there is neither."""
    sources = CPU_MEMORY | (GPU_MEMORY if _on_gpu(section) else {})
    columns = {**sources, "memory_model_bytes": "Model"}
    figures = {name: figures_of(section, name) for name in columns}
    if not any(figures.values()):
        return None
    size, unit = byte_unit(max(stat.mean for found in figures.values() for stat in found.values()))
    seeds = max(usual_seeds(found) for found in figures.values())
    places = common_places(stat.mean / size for found in figures.values() for stat in found.values())

    def cells(variant: Variant, parts: int) -> Sequence[Cell]:
        found = [own.get((variant, parts)) for own in figures.values()]
        gap = missing(section, variant, parts)
        return [Cell(scaled(stat, size, places)) if stat else gap for stat in found]

    return Table(
        f"Peak memory of a rank by source, and the memory model ({unit})",
        f"Largest of the ranks; 1 {unit} = {size:,.0f} bytes. {seeds_note(seeds)} RSS: the kernel's peak of "
        "the resident set. PSS: the same with shared pages divided among the processes that share them, "
        f"largest of samples{_every(section, 'pss_interval_s')}. {_gpu_sources(section)}Model: what tensors "
        "need by the method's memory model, components below; it leaves out the interpreter, its libraries "
        f"and mapped files, which RSS and PSS hold.{_reasons(section, columns)}",
        "Method",
        (Group("", tuple(columns.values())),),
        by_parts(section, cells),
    )


def _gpu_sources(section: Section) -> str:
    if not _on_gpu(section):
        return ""
    return (
        "NVML: what the driver says the process holds on the GPU, CUDA's context included, the largest of "
        f"samples{_every(section, 'sample_interval_s')}. CUDA allocator: torch's max_memory_allocated. "
    )


def use_table(section: Section) -> Table | None:
    """Utilisation, power and energy, method by parts; None if nothing of it was measured."""
    columns = CPU_USE | (GPU_USE if _on_gpu(section) else {})
    figures = {name: figures_of(section, name) for name in columns}
    if not any(figures.values()):
        return None
    seeds = max(usual_seeds(found) for found in figures.values())
    shown: dict[str, Columns] = {}
    for name, title in columns.items():
        format: Format = measured(0.01 if name == "gpu_utilisation" else 1.0)
        shown[title] = column(section, figures[name], format, seeds, highest=None)
    gpu = ""
    if _on_gpu(section):
        gpu = (
            " GPU utilisation: share of the time with a kernel running, mean of samples"
            f"{_every(section, 'sample_interval_s')} and of ranks. GPU power (mean of samples) and energy an "
            "epoch (the driver's counter): sums over GPUs, whoever uses them."
        )
    return grid(
        section,
        "Utilisation and energy",
        "Means over the epochs that epoch time is of. CPU: cores that a rank keeps busy (CPU seconds of all "
        "threads / seconds), mean over ranks. CPU energy: joules an epoch of all processor packages, whoever "
        f"uses them.{gpu} {seeds_note(seeds)}{_reasons(section, columns)}",
        shown,
    )


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
