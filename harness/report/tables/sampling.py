"""What sampling saves, and what a cache saves on top of it."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report.numbers import Stat, byte_unit, common_places, fixed, percent
from harness.report.tables.grid import by_parts
from harness.report.tables.table import Cell, Group, Table, missing
from harness.report.trials.aggregate import Figures, figures_of
from harness.report.trials.curves import hit_curve
from harness.report.trials.sections import Section
from harness.report.trials.variants import Variant

NOT_TOLD = Cell("none")
SHARES = {  # column of record_figures: heading
    "edge_share": "Edges drawn (%)",
    "asked_share": "Boundary asked for (%)",
    "expected_share": "Predicted (%)",
}


def exchanged(section: Section) -> Figures:
    """Return the bytes of exchanges; none unless a method tells how much of the boundary it asks for."""
    asked = figures_of(section, "asked_boundary")
    if not any(variant.method != "full" and parts > 1 for variant, parts in asked):
        return {}
    sent = figures_of(section, "exchanged_bytes")
    return {(variant, parts): stat for (variant, parts), stat in sent.items() if parts > 1}


def full_of(section: Section, figures: Figures, parts: int) -> Stat | None:
    """Return the figure of `full` at a number of parts; None if there is none, or it is 0."""
    own = (figures.get((variant, parts)) for variant in section.variants if variant.method == "full")
    stat = next(own, None)
    return stat if stat and stat.mean > 0 else None


def sampling_table(section: Section) -> Table | None:
    """Edges drawn, boundary rows asked for and bytes sent, by falling bytes; None if no method samples."""
    sent, asked = exchanged(section), figures_of(section, "asked_boundary")
    score = figures_of(section, "test_at_best_val")
    shares = {heading: figures_of(section, column) for column, heading in SHARES.items()}
    size, unit = byte_unit(max((stat.mean for stat in sent.values()), default=None))
    places = max(1, min(3, common_places(stat.mean / size for stat in sent.values() if stat.mean)))

    def cells(variant: Variant, parts: int) -> Sequence[Cell]:
        key, full = (variant, parts), full_of(section, sent, parts)
        if key not in sent:
            return ()
        return [
            Cell(f"{asked[key].mean:,.0f}") if key in asked else NOT_TOLD,
            *(Cell(f"{100 * found[key].mean:.1f}") if key in found else NOT_TOLD for found in shares.values()),
            Cell(fixed(sent[key].mean / size, places)),
            Cell(f"{100 * sent[key].mean / full.mean:.1f}") if full else Cell(),
            Cell(percent(score[key])) if key in score else missing(section, variant, parts),
        ]

    rows = by_parts(section, cells, falling=sent)
    if not rows:
        return None
    heads = (*("Boundary rows", *shares), *(f"Sent ({unit})", "Share of full (%)", f"Test {section.metric} (%)"))
    return Table(
        "What sampling saves",
        "Of an epoch, all ranks, by falling bytes: what stands next to each other costs the network the "
        "same. A boundary node is asked for as soon as one of its edges is drawn, so on a dense graph "
        "drawing a tenth of the edges saves far less than nine tenths of the bytes. Edges drawn: of all; "
        "boundary rows: asked for in one exchange, and their share of the boundary; predicted: that share by "
        "the probabilities of the draws; “none”: the method does not tell. Means over the epochs after "
        "warm-up. Sent: bytes of features, embeddings, their gradients and control (not those of the model, "
        f"which no sampling saves), mean over all epochs; 1 {unit} = {size:,.0f} bytes. Means over seeds.",
        "Method",
        (Group("", heads),),
        rows,
    )


def caching(section: Section) -> Figures:
    """Return the hit rates of the variants that have a cache, where there is a boundary."""
    rates = figures_of(section, "hit_rate")
    return {
        (variant, parts): stat
        for (variant, parts), stat in rates.items()
        if parts > 1 and variant.options.get("cache", "none") != "none"
    }


def cache_table(section: Section) -> Table | None:
    """Hit rate of the feature cache, and of its first and last epoch; None if nothing is cached."""
    rates, sent = caching(section), figures_of(section, "bytes_feature")
    asked, found = (figures_of(section, f"cache_{name}") for name in ("asked", "found"))
    size, unit = byte_unit(max((sent[key].mean for key in rates if key in sent), default=None))

    def cells(variant: Variant, parts: int) -> Sequence[Cell]:
        key = variant, parts
        if key not in rates:
            return ()
        curve = hit_curve(section, variant, parts)
        ends = [f"{100 * value:.1f}" for value in (curve.iloc[0], curve.iloc[-1])] if len(curve) else []
        return [
            Cell(f"{asked[key].mean:,.0f}"),
            Cell(f"{found[key].mean:,.0f}"),
            Cell(percent(rates[key])),
            *([Cell(end) for end in ends] or [Cell(), Cell()]),
            Cell(fixed(sent[key].mean / size, 2)) if key in sent else Cell(),
        ]

    rows = by_parts(section, cells)
    if not rows:
        return None
    heads = ("Rows asked for", "Found", "Hit rate (%)", "First epoch (%)", "Last epoch (%)", f"Features ({unit})")
    return Table(
        "Feature cache",
        "Of an epoch, all ranks: boundary rows asked for (of mini-batches: remote nodes read), those of them "
        "found in the cache, and found / asked for: means over the epochs after warm-up, then over seeds; "
        "hit rate of the first and of the last epoch, mean over seeds. Features: bytes of input "
        f"features sent, refills of the cache included, mean over all epochs; 1 {unit} = {size:,.0f} bytes.",
        "Method",
        (Group("", heads),),
        rows,
    )
