"""The tables of one section: method by number of parts."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from harness.report.chapters.counting import counting_table
from harness.report.chapters.layers import layer_table
from harness.report.chapters.options import options_table
from harness.report.chapters.overlap import overlap_table
from harness.report.chapters.pareto import pareto_table
from harness.report.chapters.parts import parts_table
from harness.report.chapters.peers import peer_table
from harness.report.chapters.scaling import scaling_table
from harness.report.chapters.targets import target_table
from harness.report.numbers import byte_unit, percent
from harness.report.tables.batches import batch_table
from harness.report.tables.components import breakdown_table, memory_model_table, sums_table, traffic_table
from harness.report.tables.explanations import explanation_table
from harness.report.tables.grid import Columns, column, grid, measured, ratios, seeds_note, usual_seeds
from harness.report.tables.ranks import rank_table
from harness.report.tables.resources import memory_sources_table, use_table
from harness.report.tables.sampling import cache_table, sampling_table
from harness.report.tables.table import Cell, Group, Row, Table
from harness.report.tables.wire import wire_table
from harness.report.trials import flags
from harness.report.trials.aggregate import figures_of
from harness.report.trials.sections import Section, join_unique


def section_tables(section: Section) -> dict[str, Table]:
    """Return the tables of a section by name; one that has nothing to show is left out."""
    tables = {
        "accuracy": accuracy_table(section),
        "time": time_table(section),
        "ranks": rank_table(section),
        "scaling": scaling_table(section),
        "breakdown": breakdown_table(section),
        "sums": sums_table(section),
        "overlap": overlap_table(section),
        "traffic": traffic_table(section),
        "wire": wire_table(section),
        "peers": peer_table(section),
        "sampling": sampling_table(section),
        "batches": batch_table(section),
        "layers": layer_table(section),
        "cache": cache_table(section),
        "counting": counting_table(section),
        "explanations": explanation_table(section),
        "memory": memory_table(section),
        "memory_sources": memory_sources_table(section),
        "memory_model": memory_model_table(section),
        "use": use_table(section),
        "targets": target_table(section),
        "pareto": pareto_table(section),
        "options": options_table(section),
        "partition": partition_table(section),
        "parts": parts_table(section),
    }
    return {name: table for name, table in tables.items() if table}


def accuracy_table(section: Section) -> Table | None:
    """Test score at the best validation, and that validation score, by parts; None if nothing was scored."""
    test, val = (figures_of(section, column) for column in ("test_at_best_val", "best_val"))
    if not (test or val) and len(section.ok):
        return None
    seeds = usual_seeds(test | val)
    columns = {
        f"Test {section.metric} (%)": column(section, test, lambda _: percent, seeds, highest=True),
        f"Validation {section.metric} (%)": column(section, val, lambda _: percent, seeds, highest=True),
    }
    what = "Test score at the epoch of the best validation score, and that validation score"
    if sampled := figures_of(section, "sampled_test_at_best_val"):
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


def time_table(section: Section) -> Table:
    """Epoch time and speed-up over `full`, method by parts; flagged trials are marked."""
    times = figures_of(section, "epoch_time_s")
    seeds = usual_seeds(times)
    shown = column(section, times, measured(1.0), seeds, highest=False)
    columns = {"Epoch time (s)": _marked(section, shown)}
    baseline = next((v for v in section.variants if v.method == "full"), None)
    rule = "No trials of “full”, hence no speed-up."
    if baseline:
        rule = f"Speed-up: mean epoch time of {baseline.label} / that of the method, at equal P."
        columns["Speed-up (×)"] = ratios(section, times, baseline, lambda base, own: base / own, 2)
    timing = join_unique(section.ok["timing"])
    which = {
        "breakdown": " The epochs are those without barriers (timing: breakdown).",
        "wall": " Only whole epochs were timed (timing: wall), hence there are no phases.",
    }.get(timing, "")
    return grid(
        section,
        "Epoch time",
        "Seconds per training epoch, evaluation excluded: of each trial the median over the epochs after "
        f"warm-up of the slowest rank's time.{which} {seeds_note(seeds)} {rule} Bold: fastest of the column, "
        f"underlined: second fastest.{flags.explain(section)}",
        columns,
    )


def _marked(section: Section, columns: Columns) -> Columns:
    """Put the marks of flagged trials beside their figures."""
    marked = []
    for parts, cells in zip(section.parts, columns, strict=True):
        marks = [flags.marks(section, variant, parts) for variant in section.variants]
        marked.append([replace(cell, mark=mark) for cell, mark in zip(cells, marks, strict=True)])
    return marked


def memory_table(section: Section) -> Table:
    """Peak memory and its ratio to that of `full`, method by parts."""
    peaks = figures_of(section, "peak_memory_bytes")
    size, unit = byte_unit(max((s.mean for s in peaks.values()), default=None))
    seeds = usual_seeds(peaks)
    columns = {f"Peak memory ({unit})": column(section, peaks, measured(size), seeds, highest=False)}
    baseline = next((v for v in section.variants if v.method == "full"), None)
    rule = ""
    if baseline:
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


def partition_table(section: Section) -> Table:
    """Inner and boundary nodes of the partitions (BNS-GCN, Table 1)."""
    rows = []
    for parts in section.parts:
        frame = section.frame[section.frame["parts"] == parts]
        inner, boundary = (_range(frame[c]) for c in ("inner_nodes", "boundary_nodes"))
        ratio = (frame["boundary_nodes"] / frame["inner_nodes"]).dropna()
        shown = Cell(f"{ratio.mean():.2f}") if len(ratio) else Cell()
        rows.append(Row(f"P = {parts}", (inner, boundary, shown), parts=parts))
    groups = (Group("", ("Inner nodes", "Boundary nodes", "Boundary / inner")),)
    return Table(
        "Partition",
        "Nodes of the training graph summed over ranks. A boundary node is counted once for each rank that "
        "has an edge from it, so their number is the communication volume of one exchange, in rows.",
        "Parts",
        groups,
        tuple(rows),
    )


def _range(values: pd.Series[float]) -> Cell:
    known = values.dropna()
    if known.empty:
        return Cell()
    low, high = int(known.min()), int(known.max())
    return Cell(f"{low:,}" if low == high else f"{low:,} to {high:,}")
