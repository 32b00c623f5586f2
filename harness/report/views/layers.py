"""Distinct nodes that each layer of a mini-batch reads."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report.plot import Axis, Mark, Plot, amount_axis, guide, line_row, make_plot
from harness.report.sections import Section
from harness.report.sweeps import LAYERS
from harness.report.table import Cell, Table
from harness.report.values import numbered, values_of
from harness.report.variants import Variant
from harness.report.views import ReportView, SweptView, variants_table


def nodes_by_layer(section: Section) -> dict[tuple[Variant, int], list[float]]:
    """Return a step's distinct nodes of a rank, from the outputs back to the inputs; of mini-batches only."""
    layers = numbered(section, "stat_nodes_layer")
    steps = values_of(section, "steps")
    found = {
        key: [stats[key].mean / stat.mean / key[1] for stats in layers if key in stats]
        for key, stat in steps.items()
        if stat.mean
    }
    return {key: nodes[::-1] for key, nodes in found.items() if nodes}


class LayersView(ReportView):
    """Distinct nodes that each layer of a mini-batch reads."""

    name = "layers"
    title = "Nodes by layer"
    question = "How does the neighbourhood of a batch grow from layer to layer?"
    place = 100
    shows = ("stat_nodes_layer*",)

    def table(self) -> Table | None:
        """Distinct nodes of each layer in a step, and inputs for an output; None without mini-batches."""
        section = self.section
        found = nodes_by_layer(section)
        if not found:
            return None
        deepest = max(len(nodes) for nodes in found.values())

        def cells(variant: Variant, parts: int) -> Sequence[Cell]:
            nodes = found[variant, parts]
            shown = [Cell(f"{count:,.0f}") for count in nodes] + [Cell("")] * (deepest - len(nodes))
            return [*shown, Cell(f"{nodes[-1] / nodes[0]:.1f}") if nodes[0] else Cell()]

        heads = ("Outputs", *(f"{i} back" for i in range(1, deepest)), "Inputs / outputs")
        return variants_table(
            section,
            "Nodes of a step by layer",
            "Distinct nodes of a mini-batch, from the outputs back to the nodes whose input features are read: "
            "what each layer reads of the one before. Of a rank and step: means over steps, ranks, epochs after "
            "warm-up and seeds. Inputs / outputs: how the neighbourhood grows; a subgraph does not.",
            heads,
            cells,
            found,
        )

    def figure(self) -> Plot | None:
        """Return the distinct nodes of each layer, a panel a number of parts; None without mini-batches."""
        section = self.section
        found = nodes_by_layer(section)
        if not found:
            return None
        lines = {key: dict(enumerate(nodes)) for key, nodes in found.items()}
        size = float(section.ok["inner_nodes"].max())
        whole = [Mark("across", y=("", [size]), style=guide())] if size == size else []
        layers = range(max(map(len, found.values())))
        across = Axis("Layers back from the outputs", ticks={float(layer): str(layer) for layer in layers})
        up = amount_axis("Nodes", [count for nodes in found.values() for count in nodes])
        panels = line_row(lines, ("layers_back", across), ("nodes", up), beside=whole)
        caption = (
            "The numbers of the table above: distinct nodes of a rank's step, from the outputs (0) back to the "
            "nodes whose features are read. Dashed: all nodes of the graph that is trained on."
        )
        title = "Nodes of a step by layer"
        return make_plot(section, "layers", title, caption, [panels], 3.6, share=("none", "all"))


class SweptLayersView(SweptView):
    """Distinct nodes of each layer, by the number of layers."""

    name = "swept-layers"
    anchor = "nodes"
    title = "Nodes of a step by layer"
    question = "How does the neighbourhood of a batch grow in deeper models?"
    place = 30

    def table(self) -> Table | None:
        """Return a row a variant and depth; None without mini-batches."""
        return LayersView(self.swept.unfolded()).table() if self.swept.axis is LAYERS else None

    def figure(self) -> Plot | None:
        """Return the deepest models; None without mini-batches."""
        return LayersView(self.swept.unfolded(self.swept.values[-1])).figure() if self.swept.axis is LAYERS else None
