"""Nodes that mini-batches read, and how many of them their owners had to send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.report.drawing import Picture, save
from harness.report.sections import Section, Values, Variant, values_of
from harness.report.table import Cell, Group, Table, by_parts, missing
from harness.report.view import ReportView
from harness.report.views.sampling import score_against
from harness.results.text import common_places, fixed, percent

SKEWING = {"version", "distortion", "skew", "alpha"}  # options of `skewed` that its version `full` is free of


def communicated(section: Section) -> Values:
    """Return the nodes of an epoch whose features were sent, of mini-batch methods on several parts."""
    found = values_of(section, "communicated_nodes")
    return {(variant, parts): stat for (variant, parts), stat in found.items() if parts > 1}


class BatchesView(ReportView):
    """Nodes that mini-batches read, and how many of them their owners had to send."""

    name = "batches"
    title = "Nodes of mini-batches"
    question = "How many of the nodes that batches read have to be sent?"
    place = 90
    shows = ("stat_input_nodes", "stat_remote_nodes", "stat_cached_nodes")

    def table(self) -> Table | None:
        """Nodes read, remote and communicated, by falling communication; None without mini-batch methods."""
        section = self.section
        sent = communicated(section)
        inputs, remote, cached = (values_of(section, f"stat_{name}_nodes") for name in ("input", "remote", "cached"))
        score = values_of(section, "test_at_best_val")
        trained = values_of(section, "train_nodes_per_s")
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

    def figure(self) -> Picture | None:
        """Draw the test score against the nodes communicated in an epoch; None without mini-batch methods."""
        section = self.section
        title = "Score and communicated nodes"
        label = "Communicated nodes per epoch"
        figure = score_against(section, communicated(section), 1.0, label, title, swept="distortion")
        caption = (
            "Each mini-batch method by the nodes whose features are sent in an epoch and by what it reaches: the "
            "numbers of the table above, mean over seeds, whisker: ± sample standard deviation. A line joins "
            "what differs in the distortion D alone; dashed: a method that communicates nothing. Up and left is "
            "better."
        )
        return save(figure, section, "batches", title, caption) if figure else None


def baseline(section: Section, sent: Values, variant: Variant, parts: int) -> Variant:
    """Return what a variant's saving is relative to."""
    there = [other for other in section.variants if (other, parts) in sent]
    plain = [other for other in there if other.options.get("version") == "full" and _alike(other, variant)]
    most = max(there, key=lambda other: sent[other, parts].mean)
    return plain[0] if plain else uniform_of(sent, variant, parts) or most


def _alike(one: Variant, other: Variant) -> bool:
    """Whether two variants differ in nothing but how they are skewed."""
    mine, yours = ({k: o for k, o in v.options.items() if k not in SKEWING} for v in (one, other))
    return one.method == other.method and mine == yours


WHOLE: dict[str, Any] = {"feature_rate": 1.0, "feature_loss": 0.0}  # all that is read is there


def exchanges(section: Section) -> Values:
    """Return the bytes of exchanges, where mini-batches can be held against those of `graphsage`.

    None where no mini-batch method but one variant of `graphsage` sends anything.
    """
    sent = values_of(section, "exchanged_bytes")
    batches = {key for key in values_of(section, "communicated_nodes") if key[1] > 1 and key in sent}
    compared = {parts for variant, parts in batches if len(_of(batches, parts)) > 1 and _plain(variant)}
    return {key: stat for key, stat in sent.items() if key[1] in compared}


def uniform_of(sent: Values, variant: Variant, parts: int) -> Variant | None:
    """Return the variant of `graphsage` with all features that is most like another in its options."""
    found = [other for other in _of(sent, parts) if _plain(other)]
    return max(found, key=lambda other: (_shared(variant, other), sent[other, parts].mean), default=None)


def saving(sent: Values, variant: Variant, parts: int) -> float | None:
    """Return 1 - own bytes / those of `uniform_of`; None if one of them is not in `sent`."""
    base = uniform_of(sent, variant, parts)
    if base is None or (variant, parts) not in sent or not sent[base, parts].mean:
        return None
    return 1 - sent[variant, parts].mean / sent[base, parts].mean


def _of(keys: Values | set[tuple[Variant, int]], parts: int) -> list[Variant]:
    return [variant for variant, count in keys if count == parts]


def _plain(variant: Variant) -> bool:
    """Whether a variant is `graphsage` with all features."""
    return variant.method == "graphsage" and WHOLE.items() <= {**WHOLE, **variant.options}.items()


def _shared(one: Variant, other: Variant) -> int:
    """Return how many options two variants have alike."""
    mine, yours = one.options, other.options
    return sum(_each(mine[name]) == _each(yours[name]) for name in mine.keys() & yours.keys())


def _each(value: Any) -> Any:
    """Return an option's value; a list that says the same of every layer is that."""
    same = isinstance(value, list) and value and all(item == value[0] for item in value)
    return value[0] if same else value
