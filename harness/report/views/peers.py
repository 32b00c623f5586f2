"""Who sends how much to whom: bytes between each two ranks."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm, Normalize
from matplotlib.ticker import FuncFormatter, NullFormatter

from harness.report.columns import Matrix
from harness.report.drawing import WIDE, Picture, current_style, mark, new_figure, panel, save
from harness.report.sections import Section, Variant
from harness.report.table import Cell, Table
from harness.report.views import ReportView, variants_table
from harness.results.text import byte_unit, common_places, fixed, significant

SQUARE = 0.8  # a row's height in print, of that on a screen
ACROSS = 5  # panels side by side
FEW = 3  # ranks, up to which squares are small
WRITTEN = 8  # ranks, up to which a square has its number
VECTOR = 32  # ranks, beyond which a panel is one image in place of a square a pair
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

    def figure(self) -> Picture | None:
        """Draw a heat map of bytes from rank to rank, a panel a method at its largest number of parts."""
        section = self.section
        found = peers(section)
        if not found:
            return None
        largest = {variant: max(p for v, p in found if v == variant) for variant, _ in found}
        shown = [(v, largest[v]) for v in section.variants if v in largest][:MOST]
        size, unit = byte_unit(max(float(found[key].max()) for key in shown))
        across = min(ACROSS, len(shown))
        down = -(-len(shown) // across)
        high = 2.6 if max(parts for _, parts in shown) > FEW else 2.0
        scale = max(1.0, SQUARE / current_style().height)  # a matrix does not get flatter in print
        figure = new_figure((0.7 + high * down) * scale, section, "Bytes from rank to rank")
        axes = figure.subplots(down, across, squeeze=False)
        colours = _colours([found[key] / size for key in shown])
        for ax in axes.flat[len(shown) :]:
            ax.set_visible(False)
        for ax, key in zip(axes.flat, shown, strict=False):
            image = _heat(ax, key, found[key] / size, colours, unit)
        bar = figure.colorbar(image, ax=axes, label=f"{unit} per epoch", location="bottom", aspect=50)
        bar.ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        bar.ax.xaxis.set_minor_formatter(NullFormatter())
        for ax in axes[:, 0]:
            ax.set_ylabel("from rank")
        left_out = len(largest) - len(shown)
        caption = (
            "Bytes that the rank of a row sends the rank of a column in an epoch, mean over seeds; all panels "
            "have one scale of colours. Each method at the largest number of parts that it was run on."
            + (f" {left_out} more methods are in the table alone." if left_out else "")
        )
        return save(figure, section, "peers", "Bytes from rank to rank", caption)


def _between(sent: Matrix) -> Matrix:
    """Return the entries of pairs: all off the diagonal."""
    return sent[~np.eye(len(sent), dtype=bool)]


def _colours(shown: Sequence[Matrix]) -> Normalize:
    """Return the scale of colours, logarithmic where amounts span far."""
    sent = np.concatenate([_between(each) for each in shown])
    least, most = float(sent[sent > 0].min()), float(sent.max())
    return LogNorm(least, most) if most > WIDE * least else Normalize(0, most)


def _heat(ax: Axes, key: tuple[Variant, int], sent: Matrix, colours: Normalize, unit: str) -> QuadMesh:
    """Draw one matrix; its numbers too, where they fit."""
    variant, parts = key
    shown = np.where(np.eye(parts, dtype=bool) | (sent == 0), np.nan, sent)
    edges = np.arange(parts + 1) - 0.5
    image = ax.pcolormesh(
        *(edges, edges, shown),
        cmap=mpl.colormaps["cividis"].with_extremes(bad="none"),
        norm=colours,
        edgecolor="white",
        lw=0.3,
        rasterized=parts > VECTOR,
    )
    ax.set_aspect("equal")
    ax.invert_yaxis()
    pairs = [(i, j) for i in range(parts) for j in range(parts) if i != j]
    source, target = zip(*pairs, strict=True)
    amounts = [float(sent[pair]) for pair in pairs]
    mark(image, variant, parts, {"source": source, "target": target, f"{unit}_per_epoch": amounts})
    if parts <= WRITTEN:
        for (i, j), amount in zip(pairs, amounts, strict=True):
            dark = not amount or colours(amount) < 0.55
            ink = "#555555" if not amount else "white" if dark else "black"
            ax.text(j, i, significant(amount, 2), ha="center", va="center", fontsize=7, color=ink)
    ticks = list(range(0, parts, math.ceil(parts / WRITTEN)))
    ax.set(xticks=ticks, yticks=ticks)
    ax.grid(visible=False)
    ax.set_xlabel("to rank", labelpad=1)
    name = textwrap.fill(variant.label, 24, max_lines=2, placeholder=" …")
    panel(ax, parts, f"{name}\nP = {parts}")
    mark(ax.title, variant, parts)
    ax.title.set_fontsize(8)
    return image
