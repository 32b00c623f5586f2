"""What sampling saves: score against bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.report.plot import DASHED, Axis, Mark, Panel, Plot, cost_axis, guide, line_entries, make_plot, whiskers
from harness.report.sections import Section
from harness.report.sweeps import sweep
from harness.report.table import Cell, Table, missing
from harness.report.values import Values, values_of
from harness.report.variants import Variant
from harness.report.views import ReportView, variants_table
from harness.results.stats import Stat, byte_unit, common_places, fixed, percent

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


def full_of(section: Section, values: Values, parts: int) -> Stat | None:
    """Return the value of full-graph methods' baseline at a number of parts; None if there is none, or it is 0."""
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
            key, base = (variant, parts), full_of(section, sent, parts)
            return [
                Cell(f"{asked[key].mean:,.0f}") if key in asked else NOT_TOLD,
                *(Cell(f"{100 * found[key].mean:.1f}") if key in found else NOT_TOLD for found in shares.values()),
                Cell(fixed(sent[key].mean / size, places)),
                Cell(f"{100 * sent[key].mean / base.mean:.1f}") if base else Cell(),
                Cell(percent(score[key])) if key in score else missing(section, variant, parts),
            ]

        name = section.baseline.method if section.baseline else "the baseline"
        heads = ("Boundary rows", *shares, f"Sent ({unit})", f"Share of {name} (%)", f"Test {section.metric} (%)")
        return variants_table(
            section,
            "What sampling saves",
            "Of an epoch, all ranks, by falling bytes: what stands next to each other costs the network the "
            "same. A boundary node is asked for as soon as one of its edges is drawn, so on a dense graph "
            "drawing a tenth of the edges saves far less than nine tenths of the bytes. Edges drawn: of all; "
            "boundary rows: asked for in one exchange, and their share of the boundary; predicted: that share by "
            "the probabilities of the draws; “none”: the method does not tell. Means over the epochs after "
            "warm-up. Sent: bytes of features, embeddings, their gradients and control (not those of the model, "
            f"which no sampling saves), mean over all epochs; 1 {unit} = {size:,.0f} bytes. Means over seeds.",
            heads,
            cells,
            sent,
            falling=sent,
        )

    def figure(self) -> Plot | None:
        """Return the test score against the bytes of an epoch, a panel a number of parts; None without sampling."""
        section = self.section
        sent = {key: stat for key, stat in exchanged(section).items() if stat.mean > 0}
        size, unit = byte_unit(max((stat.mean for stat in sent.values()), default=None))
        panels = score_against(section, sent, size, f"Sent per epoch ({unit})", swept="")
        caption = (
            "Each method by what it sends in an epoch and what it reaches: the numbers of the table above, "
            "mean over seeds, whisker: ± sample standard deviation. Up and left is better; what stands one "
            "above the other costs the network the same."
        )
        return score_plot(section, "sampling", "Score and bytes", caption, panels)


def score_against(section: Section, amounts: Values, size: float, label: str, *, swept: str) -> list[Panel]:
    """Return panels of the test score against amounts in units of `size`, one a number of parts.

    Variants that differ in the option `swept` alone are joined. None where nothing has both.
    """
    score = values_of(section, "test_at_best_val")
    cells = [key for key in score if key in amounts]
    if not any(amounts[key].mean for key in cells):
        return []
    shown = [variant for variant in section.variants if any(key[0] == variant for key in cells)]
    panels = []
    for parts in sorted({parts for _, parts in cells}):
        marks = []
        for line in sweep(shown, swept):
            there = [variant for _, variant in line.points if (variant, parts) in cells]
            x = [amounts[variant, parts].mean / size for variant in there]
            y = [100 * score[variant, parts].mean for variant in there]
            marks.append(
                Mark("line", line, parts, ("", x), ("", y), style=guide("-"), bare=True, who=there, told=False)
            )
        for variant in shown:
            if (key := (variant, parts)) in cells:
                marks.append(score_mark(key, (label, amounts[key].mean / size), score[key]))
        across = cost_axis(label, [amounts[key].mean / size for key in cells if key[1] == parts])
        panels.append(Panel(across, Axis(f"Test {section.metric} (%)"), tuple(marks), parts))
    return panels


def score_plot(section: Section, kind: str, title: str, caption: str, panels: list[Panel]) -> Plot | None:
    """Return the figure of `score_against`'s panels; None if there are none."""
    if not panels:
        return None
    shown = [mark.of for panel in panels for mark in panel.marks if mark.of and mark.told]
    entries = line_entries(shown, "point")
    return make_plot(section, kind, title, caption, [panels], 3.6, entries=entries, share=("none", "all"))


def score_mark(of: tuple[Variant, int], amount: tuple[str, float], score: Stat, *, on: bool | None = None) -> Mark:
    """Return a score with its deviation; `on`: whether it is on a front, if there is one: hollow if not.

    Of no amount it is a line across, for a logarithm cannot show 0.
    """
    (label, x), spread = amount, None if score.std is None else 100 * score.std
    y, more = ("score_percent", [100 * score.mean]), {"sd": spread}
    if not x and on is None:
        style = replace(of[0].style, dash=DASHED)
        return Mark("across", *of, y=y, seeds=[score.n], style=style, more={label: x, **more})
    told = more if on is None else more | {"front": on}
    return Mark("points", *of, (label, [x]), y, **whiskers(score, 0.01), more=told, hollow=on is False)
