"""Nodes that mini-batches read, and how many of them their owners had to send."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report.numbers import common_places, fixed, percent
from harness.report.tables.grid import by_parts
from harness.report.tables.table import Cell, Group, Table, missing
from harness.report.trials.aggregate import Figures, figures_of
from harness.report.trials.savings import uniform_of
from harness.report.trials.sections import Section
from harness.report.trials.variants import Variant

SKEWING = {"version", "distortion", "skew", "alpha"}  # options of `skewed` that its version `full` is free of


def communicated(section: Section) -> Figures:
    """Return the nodes of an epoch whose features were sent, of mini-batch methods on several parts."""
    found = figures_of(section, "communicated_nodes")
    return {(variant, parts): stat for (variant, parts), stat in found.items() if parts > 1}


def batch_table(section: Section) -> Table | None:
    """Nodes read, remote and communicated, by falling communication; None without mini-batch methods."""
    sent = communicated(section)
    inputs, remote, cached = (figures_of(section, f"stat_{name}_nodes") for name in ("input", "remote", "cached"))
    score = figures_of(section, "test_at_best_val")
    trained = figures_of(section, "train_nodes_per_s")
    places = common_places(stat.mean / 1000 for key, stat in trained.items() if key in sent)

    def cells(variant: Variant, parts: int) -> Sequence[Cell]:
        key = variant, parts
        if key not in sent or key not in inputs:
            return ()
        base = sent[baseline(section, sent, variant, parts), parts].mean
        own = sent[key].mean
        return [
            Cell(f"{inputs[key].mean:,.0f}"),
            Cell(f"{remote[key].mean:,.0f}"),
            Cell(f"{100 * remote[key].mean / inputs[key].mean:.1f}") if inputs[key].mean else Cell(),
            Cell(f"{cached[key].mean:,.0f}") if key in cached else Cell(),
            Cell(f"{own:,.0f}"),
            Cell(f"{base / own:.2f}" if own else "all" if base else "1.00"),
            Cell(fixed(trained[key].mean / 1000, places)) if key in trained else Cell(),
            Cell(percent(score[key])) if key in score else missing(section, variant, parts),
        ]

    rows = by_parts(section, cells, falling=sent)
    if not rows:
        return None
    heads = ("Input nodes", "Remote", "Remote (%)", "Cached", "Communicated", "Saved (×)", "Trained (1000/s)")
    return Table(
        "Nodes of mini-batches",
        "Of an epoch, all ranks, by falling communication; means over the epochs after warm-up, then over "
        "seeds. Input nodes: read by the first layers of all steps, once a step; remote: those of other "
        "ranks; cached: remote ones found in the cache; communicated: remote ones whose features their "
        "owners sent. Saved: communicated nodes of the same method that is not skewed (version=full) / own; "
        "where there is none, of graphsage with all features, of several variants the one most like it in "
        "its options; else of the method that communicates most; “all”: nothing is communicated (with "
        "storage=host features are copied from the host's memory instead, see traffic: swap). Trained: "
        "training nodes of all ranks / epoch time, in thousands a second.",
        "Method",
        (Group("", (*heads, f"Test {section.metric} (%)")),),
        rows,
    )


def baseline(section: Section, sent: Figures, variant: Variant, parts: int) -> Variant:
    """Return what a variant's saving is relative to."""
    there = [other for other in section.variants if (other, parts) in sent]
    plain = [other for other in there if other.options.get("version") == "full" and _alike(other, variant)]
    most = max(there, key=lambda other: sent[other, parts].mean)
    return plain[0] if plain else uniform_of(sent, variant, parts) or most


def _alike(one: Variant, other: Variant) -> bool:
    """Whether two variants differ in nothing but how they are skewed."""
    mine, yours = ({k: o for k, o in v.options.items() if k not in SKEWING} for v in (one, other))
    return one.method == other.method and mine == yours
