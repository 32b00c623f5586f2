"""Nodes that mini-batches read: how many, of each layer, and how many of them their owners had to send."""

from __future__ import annotations

from collections.abc import Callable
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
        return variants_table(
            section,
            "Nodes of mini-batches",
            prose("batches.table", plain_options=plain_options(section), baseline_name=baseline_name(section)),
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
    there = [other for other in section.variants if (other, parts) in sent]
    plain = [other for other in there if _is_plain(other) and _alike(other, variant)]
    most = max(there, key=lambda other: sent[other, parts].mean)
    return plain[0] if plain else baseline_of(sent, variant, parts) or most


def _is_plain(variant: Variant) -> bool:
    """Whether a variant leaves out what is its method's own."""
    said = {name: value for name, value in variant.plain.items() if value is not None}
    return bool(said) and all(variant.options.get(name) == value for name, value in said.items())


def _alike(one: Variant, other: Variant) -> bool:
    """Whether two variants differ in nothing but in what is their method's own."""
    mine, yours = ({k: o for k, o in v.options.items() if k not in one.plain} for v in (one, other))
    return one.method == other.method and mine == yours


def plain_options(section: Section) -> str:
    """Return the options of plain variants as text, with brackets; "" if no method has any."""
    said = [f"{k}={show_value(o)}" for v in section.variants for k, o in v.plain.items() if o is not None]
    return f" ({', '.join(dict.fromkeys(said))})" if said else ""


def baseline_name(section: Section) -> str:
    """Name the baseline of mini-batches."""
    names = dict.fromkeys(v.method for v in section.variants if v.is_baseline("mini-batch"))
    return f"the baseline{f' ({chr(44).join(names)})' if names else ''}"


Saving = Callable[[Variant, int], float | None]
"""1 - own bytes / a baseline's, by variant and number of parts; None where nothing is to be compared."""

ALIKE = "of several variants of that method the one most like it in its options"


def exchanges(section: Section) -> Values:
    """Return the bytes of exchanges, where there is a baseline to hold those of others against."""
    sent = values_of(section, "exchanged_bytes")
    batches = communicated(section).keys() & sent.keys()
    baselines = (key for key in batches if key[0].is_baseline("mini-batch"))
    compared = {parts for _, parts in baselines if len(_of(batches, parts)) > 1}
    compared |= {parts for _, parts in sent if full_of(section, sent, parts) and len(_of(set(sent), parts)) > 1}
    return {key: stat for key, stat in sent.items() if key[1] in compared}


def savings_of(section: Section, sent: Values) -> dict[str, Saving]:
    """Return by the baseline's name what of its exchanged bytes others save: of all methods, and of mini-batches."""

    def of_full(variant: Variant, parts: int) -> float | None:
        base, own = full_of(section, sent, parts), sent.get((variant, parts))
        return 1 - own.mean / base.mean if base and own else None

    def of_batches(variant: Variant, parts: int) -> float | None:
        base, own = baseline_of(sent, variant, parts), sent.get((variant, parts))
        if variant.family != "mini-batch" or base is None or own is None or not sent[base, parts].mean:
            return None
        return 1 - own.mean / sent[base, parts].mean

    batches = dict.fromkeys(v.method for v, _ in sent if v.is_baseline("mini-batch"))
    several = len({variant for variant, _ in sent if variant.family == "mini-batch"}) > 1
    found: dict[str, Saving] = {}
    if section.baseline and any(full_of(section, sent, parts) for _, parts in sent):
        found[section.baseline.method] = of_full
    if batches and several:
        found[", ".join(batches)] = of_batches
    return found


def baseline_of(sent: Values, variant: Variant, parts: int) -> Variant | None:
    """Return the variant of the baseline of mini-batches that is most like another in its options."""
    found = [other for other in _of(sent, parts) if other.is_baseline("mini-batch")]
    return max(found, key=lambda other: (_shared(variant, other), sent[other, parts].mean), default=None)


def _of(keys: Values | set[tuple[Variant, int]], parts: int) -> list[Variant]:
    return [variant for variant, count in keys if count == parts]


def _shared(one: Variant, other: Variant) -> int:
    """Return how many options two variants have alike."""
    mine, yours = one.options, other.options
    return sum(_each(mine[name]) == _each(yours[name]) for name in mine.keys() & yours.keys())


def _each(value: Any) -> Any:
    """Return an option's value; a list that says the same of every layer is that."""
    same = isinstance(value, list) and value and all(item == value[0] for item in value)
    return value[0] if same else value


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
