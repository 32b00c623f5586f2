"""Distinct nodes that each layer of a mini-batch reads."""

from __future__ import annotations

from collections.abc import Sequence

import seaborn as sns
from matplotlib.ticker import FixedLocator

from harness.report.figures.axes import amount_axis
from harness.report.figures.drawing import Picture, draw_line, legend, legend_rows, line_handle, new_figure, panel, save
from harness.report.tables.grid import by_parts
from harness.report.tables.table import Cell, Group, Table
from harness.report.trials.aggregate import figures_of, named_columns
from harness.report.trials.sections import Section
from harness.report.trials.variants import Variant


def nodes_by_layer(section: Section) -> dict[tuple[Variant, int], list[float]]:
    """Return a step's distinct nodes of a rank, from the outputs back to the inputs; of mini-batches only."""
    columns = named_columns(section, "stat_nodes_layer", "")
    layers = [figures_of(section, columns[layer]) for layer in sorted(columns, key=int)]
    steps = figures_of(section, "steps")
    found = {
        key: [stats[key].mean / stat.mean / key[1] for stats in layers if key in stats]
        for key, stat in steps.items()
        if stat.mean
    }
    return {key: nodes[::-1] for key, nodes in found.items() if nodes}


def layer_table(section: Section) -> Table | None:
    """Distinct nodes of each layer in a step, and inputs for an output; None without mini-batches."""
    found = nodes_by_layer(section)
    if not found:
        return None
    deepest = max(len(nodes) for nodes in found.values())

    def cells(variant: Variant, parts: int) -> Sequence[Cell]:
        nodes = found.get((variant, parts))
        if not nodes:
            return ()
        shown = [Cell(f"{count:,.0f}") for count in nodes] + [Cell("")] * (deepest - len(nodes))
        return [*shown, Cell(f"{nodes[-1] / nodes[0]:.1f}") if nodes[0] else Cell()]

    heads = ("Outputs", *(f"{i} back" for i in range(1, deepest)), "Inputs / outputs")
    return Table(
        "Nodes of a step by layer",
        "Distinct nodes of a mini-batch, from the outputs back to the nodes whose input features are read: "
        "what each layer reads of the one before. Of a rank and step: means over steps, ranks, epochs after "
        "warm-up and seeds. Inputs / outputs: how the neighbourhood grows; a subgraph does not.",
        "Method",
        (Group("", heads),),
        by_parts(section, cells),
    )


def layer_figure(section: Section) -> Picture | None:
    """Draw the distinct nodes of each layer, a panel a number of parts; None without mini-batches."""
    found = nodes_by_layer(section)
    if not found:
        return None
    panels = sorted({parts for _, parts in found})
    shown = [v for v in section.variants if any(key[0] == v for key in found)]
    figure = new_figure(3.6 + 0.2 * legend_rows(section), section, "Nodes of a step by layer")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    size = float(section.ok["inner_nodes"].max())
    for ax, parts in zip(axes, panels, strict=True):
        for variant in shown:
            if nodes := found.get((variant, parts)):
                x = ("layers_back", list(range(len(nodes))))
                draw_line(ax, variant, parts, x, ("nodes", nodes), style=variant.style)
        if size == size:
            ax.axhline(size, color="#999999", lw=1, ls="--", zorder=1)
        ax.xaxis.set_major_locator(FixedLocator(list(range(max(map(len, found.values()))))))
        ax.set_xlabel("Layers back from the outputs")
        panel(ax, parts)
        sns.despine(ax=ax)
    amount_axis(axes[0], "Nodes", [count for nodes in found.values() for count in nodes])
    legend(figure, [line_handle(v.style) for v in shown], [v.label for v in shown], shown)
    caption = (
        "The numbers of the table above: distinct nodes of a rank's step, from the outputs (0) back to the "
        "nodes whose features are read. Dashed: all nodes of the graph that is trained on."
    )
    return save(figure, section, "layers", "Nodes of a step by layer", caption)
