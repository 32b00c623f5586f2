"""Nodes that mini-batches read: how many, of each layer, and how many of them their owners had to send."""

from __future__ import annotations

from typing import Any

from harness.report.figure import Axis, Chart, Figure, Guide, Layer, amount_axis, lines, make_figure
from harness.report.sections import Section
from harness.report.sweeps import LAYERS
from harness.report.table import Cell, Key, Table, number_cells, variants_table
from harness.report.values import Values, numbered, values_of
from harness.report.variants import Variant
from harness.report.views import ReportView, SweptView, prose
from harness.report.views.sampling import full_of, score_figure
from harness.results.stats import percent, show_value


def communicated(section: Section) -> Values:
    """Return the nodes of an epoch whose features were sent, of mini-batch methods on several parts."""
    found = values_of(section, "communicated_nodes")
    return {(variant, parts): stat for (variant, parts), stat in found.items() if parts > 1}


class BatchesView(ReportView):
    """How many of the nodes that batches read have to be sent?"""

    name = "batches"
    title = "Nodes of mini-batches"
    place = 90
    shows = ("stat_input_nodes", "stat_remote_nodes", "stat_cached_nodes")

    def table(self) -> Table | None:
        section = self.section
        sent = communicated(section)
        inputs, remote, cached = (values_of(section, f"stat_{name}_nodes") for name in ("input", "remote", "cached"))
        score, trained = values_of(section, "test_at_best_val"), values_of(section, "train_nodes_per_s")
        rows = sent.keys() & inputs.keys()
        shares = {key: remote[key].mean / inputs[key].mean for key in rows if inputs[key].mean}
        saved: dict[Key, Cell] = {}
        for key in rows:
            base, own = sent[compared_with(section, sent, *key), key[1]].mean, sent[key].mean
            saved[key] = Cell(f"{base / own:.2f}" if own else "all" if base else "1.00")
        gaps = dict.fromkeys(rows, Cell())
        said = [f"{k}={show_value(o)}" for v in section.variants for k, o in v.plain.items() if o is not None]
        plain = f" ({', '.join(dict.fromkeys(said))})" if said else ""
        names = ", ".join(dict.fromkeys(v.method for v in section.variants if v.is_baseline("mini-batch")))
        baseline = f"the baseline ({names})" if names else "the baseline"
        return variants_table(
            section,
            "Nodes of mini-batches",
            prose("batches.table", plain_options=plain, baseline_name=baseline),
            {
                "Input nodes": number_cells(inputs, places=0),
                "Remote": number_cells(remote, places=0),
                "Remote (%)": gaps | {key: Cell(f"{100 * share:.1f}") for key, share in shares.items()},
                "Cached": gaps | number_cells(cached, places=0),
                "Communicated": number_cells(sent, places=0),
                "Saved (×)": saved,
                "Trained (1000/s)": gaps | number_cells({key: trained[key] for key in sent if key in trained}, 1000),
                f"Test {section.metric} (%)": {key: Cell(percent(stat)) for key, stat in score.items()},
            },
            rows,
            falling=sent,
        )

    def figure(self) -> Figure | None:
        section = self.section
        title, label = "Score and communicated nodes", "Communicated nodes per epoch"
        caption = prose("batches.figure")
        return score_figure(section, "batches", title, caption, communicated(section), 1.0, label, swept="distortion")


def compared_with(section: Section, sent: Values, variant: Variant, parts: int) -> Variant:
    """Return what a variant's saving is relative to."""

    def is_plain(other: Variant) -> bool:
        said = {name: value for name, value in other.plain.items() if value is not None}
        mine, yours = ({k: o for k, o in v.options.items() if k not in v.plain} for v in (variant, other))
        leaves_out = bool(said) and all(other.options.get(name) == value for name, value in said.items())
        return leaves_out and other.method == variant.method and mine == yours

    there = [other for other in section.variants if (other, parts) in sent]
    most = max(there, key=lambda other: sent[other, parts].mean)
    return next(filter(is_plain, there), None) or baseline_of(sent, variant, parts) or most


ALIKE = "of several variants of that method the one most like it in its options"


def exchanges(section: Section) -> Values:
    """Return the bytes sent in an epoch, where there is a baseline to hold those of others against."""
    sent = values_of(section, "counted_bytes")
    batches = communicated(section).keys() & sent.keys()
    compared = {parts for variant, parts in batches if variant.is_baseline("mini-batch")}
    # A baseline alone is held against nothing.
    compared = {parts for parts in compared if sum(count == parts for _, count in batches) > 1}
    full = {parts for _, parts in sent if full_of(section, sent, parts)}
    compared |= {parts for parts in full if sum(count == parts for _, count in sent) > 1}
    return {key: stat for key, stat in sent.items() if key[1] in compared}


def savings_of(section: Section, sent: Values) -> dict[str, dict[Key, float]]:
    """Return 1 - own bytes sent / a baseline's by the baseline's name: of all methods, and of mini-batches."""
    full = {key: base.mean for key in sent if (base := full_of(section, sent, key[1]))}
    shares = {key: 1 - sent[key].mean / base for key, base in full.items()}
    found = {section.baseline.method: shares} if section.baseline and shares else {}
    names = dict.fromkeys(v.method for v, _ in sent if v.is_baseline("mini-batch"))
    batches = [key for key in sent if key[0].family == "mini-batch"]
    if names and len({variant for variant, _ in batches}) > 1:
        nearest = {key: sent[near, key[1]].mean for key in batches if (near := baseline_of(sent, *key))}
        found[", ".join(names)] = {key: 1 - sent[key].mean / base for key, base in nearest.items() if base}
    return found


def baseline_of(sent: Values, variant: Variant, parts: int) -> Variant | None:
    """Return the variant of the baseline of mini-batches that is most like another in its options."""

    def each(value: Any) -> Any:
        same = isinstance(value, list) and value and all(item == value[0] for item in value)
        return value[0] if same else value  # a list that says the same of every layer is that

    def rank(other: Variant) -> tuple[int, float]:
        mine, yours = variant.options, other.options
        shared = sum(each(mine[name]) == each(yours[name]) for name in mine.keys() & yours.keys())
        return shared, sent[other, parts].mean

    found = [other for other, count in sent if count == parts and other.is_baseline("mini-batch")]
    return max(found, key=rank, default=None)


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
    """How does the neighbourhood of a batch grow from layer to layer?"""

    name = "layers"
    title = "Nodes by layer"
    place = 100
    shows = ("stat_nodes_layer*",)

    def table(self) -> Table | None:
        section = self.section
        found = nodes_by_layer(section)
        deepest = max(map(len, found.values()), default=0)
        columns = {
            f"{i} back" if i else "Outputs": {
                key: Cell(f"{nodes[i]:,.0f}") if i < len(nodes) else Cell("") for key, nodes in found.items()
            }
            for i in range(deepest)
        }
        growth = {key: Cell(f"{nodes[-1] / nodes[0]:.1f}") for key, nodes in found.items() if nodes[0]}
        return variants_table(
            section,
            "Nodes of a step by layer",
            prose("layers.table"),
            columns | {"Inputs / outputs": growth},
            found,
            absent=Cell(),
        )

    def figure(self) -> Figure | None:
        section = self.section
        found = nodes_by_layer(section)
        if not found:
            return None
        size = float(section.ok["inner_nodes"].max())
        layers = range(max(map(len, found.values())))
        ticks = {float(layer): str(layer) for layer in layers}
        x = Axis("layers_back", "Layers back from the outputs", ticks=ticks)
        y = amount_axis("nodes", "Nodes", [count for nodes in found.values() for count in nodes])
        data = lines({key: dict(enumerate(nodes)) for key, nodes in found.items()}, x, y)
        chart = Chart((Layer(data),), x, y, guides=(Guide(y=[size]),) if size == size else ())
        caption = prose("layers.figure")
        return make_figure(section, "layers", "Nodes of a step by layer", caption, [chart], 3.6, share=("none", "all"))


class SweptLayersView(SweptView):
    """How does the neighbourhood of a batch grow in deeper models?"""

    name = "swept-layers"
    anchor = "nodes"
    title = "Nodes of a step by layer"
    place = 30

    def table(self) -> Table | None:
        return LayersView(self.swept.unfolded()).table() if self.swept.axis is LAYERS else None

    def figure(self) -> Figure | None:
        return LayersView(self.swept.unfolded(self.swept.values[-1])).figure() if self.swept.axis is LAYERS else None
