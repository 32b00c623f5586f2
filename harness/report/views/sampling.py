"""What sampling saves: score against bytes."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from harness.report.drawing import Drawing, Picture, cost_axis, legend, mark, new_figure, panel, save
from harness.report.sections import Section, Values, Variant, values_of
from harness.report.sweeps import sweep
from harness.report.table import Cell, Group, Table, by_parts, missing
from harness.report.views import ReportView
from harness.results.text import Stat, byte_unit, common_places, fixed, percent

NOT_TOLD = Cell("none")
SHARES = {  # column of record_values: heading
    "edge_share": "Edges drawn (%)",
    "asked_share": "Boundary asked for (%)",
    "expected_share": "Predicted (%)",
}


def exchanged(section: Section) -> Values:
    """Return the bytes of exchanges; none unless a method tells how much of the boundary it asks for."""
    asked = values_of(section, "asked_boundary")
    if not any(not variant.is_baseline("full-graph") and parts > 1 for variant, parts in asked):
        return {}
    sent = values_of(section, "exchanged_bytes")
    return {(variant, parts): stat for (variant, parts), stat in sent.items() if parts > 1}


def baseline_of(section: Section, values: Values, parts: int) -> Stat | None:
    """Return the value of the baseline at a number of parts; None if there is none, or it is 0."""
    stat = values.get((section.baseline, parts)) if section.baseline else None
    return stat if stat and stat.mean > 0 else None


class SamplingView(ReportView):
    """What sampling saves: score against bytes."""

    name = "sampling"
    title = "What sampling saves"
    question = "What do sampled edges save of the bytes, at what score?"
    place = 80
    shows = ("stat_kept_boundary", "stat_sampled_boundary", "stat_expected_boundary", "stat_drawn_edges")

    def table(self) -> Table | None:
        """Edges drawn, boundary rows asked for and bytes sent, by falling bytes; None if no method samples."""
        section = self.section
        sent, asked = exchanged(section), values_of(section, "asked_boundary")
        score = values_of(section, "test_at_best_val")
        shares = {heading: values_of(section, column) for column, heading in SHARES.items()}
        size, unit = byte_unit(max((stat.mean for stat in sent.values()), default=None))
        places = max(1, min(3, common_places(stat.mean / size for stat in sent.values() if stat.mean)))

        def cells(variant: Variant, parts: int) -> Sequence[Cell]:
            key, base = (variant, parts), baseline_of(section, sent, parts)
            if key not in sent:
                return ()
            return [
                Cell(f"{asked[key].mean:,.0f}") if key in asked else NOT_TOLD,
                *(Cell(f"{100 * found[key].mean:.1f}") if key in found else NOT_TOLD for found in shares.values()),
                Cell(fixed(sent[key].mean / size, places)),
                Cell(f"{100 * sent[key].mean / base.mean:.1f}") if base else Cell(),
                Cell(percent(score[key])) if key in score else missing(section, variant, parts),
            ]

        rows = by_parts(section, cells, falling=sent)
        if not rows:
            return None
        name = section.baseline.method if section.baseline else "the baseline"
        heads = (*("Boundary rows", *shares), *(f"Sent ({unit})", f"Share of {name} (%)", f"Test {section.metric} (%)"))
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

    def figure(self) -> Picture | None:
        """Draw the test score against the bytes of an epoch, a panel a number of parts; None without sampling."""
        section = self.section
        sent = {key: stat for key, stat in exchanged(section).items() if stat.mean > 0}
        size, unit = byte_unit(max((stat.mean for stat in sent.values()), default=None))
        figure = score_against(section, sent, size, f"Sent per epoch ({unit})", "Score and bytes", swept="")
        caption = (
            "Each method by what it sends in an epoch and what it reaches: the numbers of the table above, "
            "mean over seeds, whisker: ± sample standard deviation. Up and left is better; what stands one "
            "above the other costs the network the same."
        )
        return save(figure, section, "sampling", "Score and bytes", caption) if figure else None


def score_against(
    section: Section, amounts: Values, size: float, label: str, title: str, *, swept: str
) -> Drawing | None:
    """Draw the test score against amounts in units of `size`, a panel a number of parts.

    Variants that differ in the option `swept` alone are joined. None where nothing has both.
    """
    score = values_of(section, "test_at_best_val")
    cells = [key for key in score if key in amounts]
    if not any(amounts[key].mean for key in cells):
        return None
    shown = [variant for variant in section.variants if any(key[0] == variant for key in cells)]
    panels = sorted({parts for _, parts in cells})
    figure = new_figure(3.6 + 0.2 * (1 + len(shown) // 3), section, title)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for ax, parts in zip(axes, panels, strict=True):
        for line in sweep(shown, swept):
            there = [variant for _, variant in line.points if (variant, parts) in cells]
            ax.plot(
                [amounts[variant, parts].mean / size for variant in there],
                [100 * score[variant, parts].mean for variant in there],
                color="#999999",
                lw=1,
                zorder=1,
            )
        for variant in shown:
            if (key := (variant, parts)) in cells:
                _score_mark(ax, key, (label, amounts[key].mean / size), score[key])
        cost_axis(ax, label, [amounts[key].mean / size for key in cells if key[1] == parts])
        panel(ax, parts)
    axes[0].set_ylabel(f"Test {section.metric} (%)")
    handles = [Line2D([], [], color=v.style.colour, marker=v.style.marker, linestyle="", markersize=6.5) for v in shown]
    legend(figure, handles, [v.label for v in shown], shown)
    return figure


def _score_mark(ax: Axes, of: tuple[Variant, int], amount: tuple[str, float], score: Stat) -> None:
    """Draw a score with its deviation; a line across where the amount is 0, which a logarithm cannot show."""
    style, (label, x) = of[0].style, amount
    ends = None if score.std is None else 100 * score.std
    shown = {label: x, "score_percent": 100 * score.mean, "sd": ends}
    if not x:
        across = ax.axhline(100 * score.mean, color=style.colour, linestyle="--", lw=1)
        mark(across, *of, shown)
        return
    drawn = ax.errorbar(
        x, 100 * score.mean, ends, color=style.colour, marker=style.marker, markersize=6.5, capsize=2.5, lw=1
    )
    mark(drawn, *of, shown)
