"""Who sends how much to whom: bytes between each two ranks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from harness.report.columns import Matrix
from harness.report.plot import WIDE, Axis, Mark, Panel, Plot, make_plot
from harness.report.sections import Section
from harness.report.table import Cell, Table
from harness.report.variants import Variant
from harness.report.views import ReportView, variants_table
from harness.results.stats import byte_unit, common_places, fixed

ACROSS = 5  # panels side by side
FEW = 3  # ranks, up to which squares are small
TICKS = 8  # of an axis of ranks
MOST = 16  # panels of a figure
Peers = dict[tuple[Variant, int], Matrix]


def peers(section: Section) -> Peers:
    """Return the bytes an epoch from rank to rank [P, P], mean over seeds, where any were sent."""
    if "peer_bytes" not in section.ok:
        return {}
    places = itertools.product(section.variants, section.parts)
    told = {place: list(section.select(*place)["peer_bytes"].dropna()) for place in places}
    means = {place: np.mean(own, axis=0) for place, own in told.items() if own}
    return {place: sent for place, sent in means.items() if sent.any()}


class PeersView(ReportView):
    """Who sends how much to whom: bytes between each two ranks."""

    name = "peers"
    title = "Traffic from rank to rank"
    question = "Who sends how much to whom?"
    place = 70

    def table(self) -> Table | None:
        """Mean and largest bytes between two ranks, and of a rank; None if ranks sent each other nothing."""
        section = self.section
        found = peers(section)
        if not found:
            return None
        size, unit = byte_unit(max(float(sent.max()) for sent in found.values()))
        means = {key: _between(sent).mean() for key, sent in found.items()}
        places = min(3, common_places(mean / size for mean in means.values()))

        def cells(variant: Variant, parts: int) -> Sequence[Cell]:
            sent, mean = found[variant, parts], means[variant, parts]
            source, target = np.unravel_index(int(sent.argmax()), sent.shape)
            ranks = [sent.sum(axis=axis) for axis in (1, 0)]
            return [
                Cell(fixed(mean / size, places)),
                Cell(fixed(sent.max() / size, places), f"{source} to {target}"),
                Cell(f"{sent.max() / mean:.2f}"),
                *(Cell(f"{each.max() / each.mean():.2f}", f"rank {int(each.argmax())}") for each in ranks),
            ]

        heads = ["Mean of a pair", "Largest", "Largest / mean", "Most sent / mean rank", "Most received / mean rank"]
        return variants_table(
            section,
            f"Bytes from rank to rank ({unit} per epoch)",
            "Of an epoch, mean over seeds: bytes that one rank sends another, of all ordered pairs; the largest "
            "with the ranks it goes from and to; and what the busiest rank sends and receives / the mean of "
            "ranks: 1 is balanced. Only what goes from one rank to another: all-reduces (model) and swaps have "
            f"no peer. 1 {unit} = {size:,.0f} bytes.",
            heads,
            cells,
            found,
        )

    def figure(self) -> Plot | None:
        """Return a heat map of bytes from rank to rank, a panel a method at its largest number of parts."""
        section = self.section
        found = peers(section)
        if not found:
            return None
        largest = {variant: max(p for v, p in found if v == variant) for variant, _ in found}
        shown = [(v, largest[v]) for v in section.variants if v in largest][:MOST]
        size, unit = byte_unit(max(float(found[key].max()) for key in shown))
        across = min(ACROSS, len(shown))
        panels = [_panel(key, found[key] / size, unit) for key in shown]
        rows = [panels[i : i + across] for i in range(0, len(panels), across)]
        high = 2.6 if max(parts for _, parts in shown) > FEW else 2.0
        colour = _colours([found[key] / size for key in shown], f"{unit} per epoch")
        left_out = len(largest) - len(shown)
        caption = (
            "Bytes that the rank of a row sends the rank of a column in an epoch, mean over seeds; all panels "
            "have one scale of colours. Each method at the largest number of parts that it was run on."
            + (f" {left_out} more methods are in the table alone." if left_out else "")
        )
        title, height = "Bytes from rank to rank", 0.7 + high * len(rows)
        return make_plot(section, "peers", title, caption, rows, height, colour=colour, entries=())


def _between(sent: Matrix) -> Matrix:
    """Return the entries of pairs: all off the diagonal."""
    return sent[~np.eye(len(sent), dtype=bool)]


def _colours(shown: Sequence[Matrix], label: str) -> Axis:
    """Return the scale of colours, logarithmic where amounts span far."""
    sent = np.concatenate([_between(each) for each in shown])
    least, most = float(sent[sent > 0].min()), float(sent.max())
    return Axis(label, log=True, low=least, high=most) if most > WIDE * least else Axis(label, low=0.0, high=most)


def _panel(key: tuple[Variant, int], sent: Matrix, unit: str) -> Panel:
    """Return one matrix."""
    variant, parts = key
    pairs = [(i, j) for i in range(parts) for j in range(parts) if i != j]
    source, target = (list(each) for each in zip(*pairs, strict=True))
    amounts = [float(sent[pair]) for pair in pairs]
    more = {f"{unit}_per_epoch": amounts}
    cells = Mark("cells", variant, parts, ("target", target), ("source", source), value=amounts, more=more)
    ticks = {float(rank): str(rank) for rank in range(0, parts, math.ceil(parts / TICKS))}
    ends = -0.5, parts - 0.5
    across = Axis("to rank", low=ends[0], high=ends[1], ticks=ticks)
    down = Axis("from rank", low=ends[1], high=ends[0], ticks=ticks)
    return Panel(across, down, (cells,), parts, f"{variant.label}\nP = {parts}", "cells")
