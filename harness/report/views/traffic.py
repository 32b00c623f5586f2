"""Bytes by purpose, through the network, and from rank to rank."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from harness.metrics import WITHIN
from harness.report.columns import Matrix
from harness.report.figure import LOG_FROM, Axis, Chart, Figure, Layer, make_figure, stacked_bars, tidy
from harness.report.palette import PURPOSES
from harness.report.sections import Section
from harness.report.table import Cell, Key, Table, components_table, number_cells, variants_table
from harness.report.values import Values, components, largest_total, values_of
from harness.report.variants import Variant
from harness.report.views import ReportView, prose
from harness.report.views.batches import ALIKE, exchanges, savings_of
from harness.results.stats import byte_unit, common_places, fixed, join_unique


class TrafficView(ReportView):
    """How many bytes are sent, and what for?"""

    name = "traffic"
    title = "Traffic"
    place = 60

    def table(self) -> Table | None:
        section = self.section
        purposes = components(section, "purpose")
        within = {name: own for name in WITHIN if (own := purposes.pop(name, {}))}
        if within and not purposes:
            purposes = {"model": values_of(section, "bytes_model")}  # nothing is sent, and that is shown
        size, unit = byte_unit(largest_total(purposes))
        caption = prose("traffic.table", unit=unit, size=size)
        sent = exchanges(section)
        savings = savings_of(section, sent)
        if savings:
            caption += " Saved: 1 - own total / that of the method named, at equal P"
            caption += f"; {ALIKE}" if len(savings) > 1 or not section.baseline else ""
            caption += "; below 0: more is sent."

        def column(own: dict[Key, Cell]) -> Callable[[Variant, int, int], Cell]:
            return lambda variant, parts, _: own.get((variant, parts), Cell())

        def moved(own: Values) -> Callable[[Variant, int, int], Cell]:
            return lambda variant, parts, places: (
                Cell(fixed(found.mean / size, places)) if (found := own.get((variant, parts))) else Cell()
            )

        more = {
            f"Saved of {name} (%)": column({key: Cell(f"{100 * share:,.1f}") for key, share in own.items()})
            for name, own in savings.items()
        }
        more |= {f"{name}, not sent": moved(own) for name, own in within.items()}
        title = f"Traffic ({unit} per epoch, all ranks)"
        return components_table(section, purposes, size, title, caption, more=more)

    def figure(self) -> Figure | None:
        section = self.section
        purposes = components(section, "purpose")
        for name in WITHIN:
            purposes.pop(name, None)
        if not purposes:
            return None
        size, unit = byte_unit(largest_total(purposes))
        caption = prose("traffic.figure", unit=unit, size=size)
        title, scale = "Bytes per epoch by purpose", (size, f"Bytes per epoch ({unit})")
        return stacked_bars(section, "traffic", title, caption, purposes, PURPOSES, scale)

    def details(self) -> dict[str, Table | None]:
        """Return counted bytes, bytes through the network by estimate and by its interface, where not only counted."""
        section = self.section
        verified = "wire_seen_by" in section.ok and bool(section.ok["wire_seen_by"].notna().any())
        found = {"Counted": values_of(section, "counted_bytes")}
        rules = ["Counted: payload of the training epochs, as in the table above."]
        if estimated := values_of(section, "wire_estimate_bytes"):
            found["Estimated"] = estimated
            rules.append("Estimated: counted plus the headers of full frames.")
        if verified:
            found["Interface"] = values_of(section, "wire_bytes")
            rules.append(prose("traffic.network"))
        if len(found) == 1:
            return {"network_traffic": None}
        size, unit = byte_unit(max((s.mean for own in found.values() for s in own.values()), default=None))
        columns = {name: number_cells(own, size, 2) for name, own in found.items()}
        if verified:
            ratio = values_of(section, "wire_ratio")
            columns["Ratio"] = number_cells(ratio, places=3)
            whose = {key: join_unique(section.select(*key)["wire_seen_by"]) for key in found["Counted"]}
            columns["Seen at"] = {key: Cell(text, number=False) for key, text in whose.items() if text}
            if any(key not in ratio for key in found["Interface"] if key[1] > 1):
                rules.append("No ratio where ranks share a host's link: what they send each other does not pass it.")
        title = f"Bytes through the network ({unit} per epoch, all ranks)"
        caption = f"{' '.join(rules)} Means over seeds; 1 {unit} = {size:,.0f} bytes."
        among = [key for key in found["Counted"] if key[1] > 1]
        return {"network_traffic": variants_table(section, title, caption, columns, among)}


ACROSS = 5  # heat maps side by side
FEW = 3  # ranks, up to which squares are small
TICKS = 8  # of an axis of ranks
MOST = 16  # panels of a figure


def peers(section: Section) -> dict[Key, Matrix]:
    """Return the bytes an epoch from rank to rank [P, P], mean over seeds, where any were sent."""
    if "peer_bytes" not in section.ok:
        return {}
    keys = itertools.product(section.variants, section.parts)
    known = {key: list(section.select(*key)["peer_bytes"].dropna()) for key in keys}
    means = {key: np.mean(own, axis=0) for key, own in known.items() if own}
    return {key: sent for key, sent in means.items() if sent.any()}


class PeersView(ReportView):
    """How much does each rank send each other rank?"""

    name = "peers"
    title = "Traffic from rank to rank"
    place = 70

    def table(self) -> Table | None:
        section = self.section
        found = peers(section)
        if not found:
            return None
        size, unit = byte_unit(max(float(sent.max()) for sent in found.values()))
        means = {key: float(_between(sent).mean()) for key, sent in found.items()}
        places = min(3, common_places(mean / size for mean in means.values()))
        largest: dict[Key, Cell] = {}
        ratio: dict[Key, Cell] = {}
        busiest: dict[int, dict[Key, Cell]] = {0: {}, 1: {}}  # by axis: receiving, sending
        for key, sent in found.items():
            source, target = np.unravel_index(int(sent.argmax()), sent.shape)
            largest[key] = Cell(fixed(sent.max() / size, places), f"{source} to {target}")
            ratio[key] = Cell(f"{sent.max() / means[key]:.2f}")
            for axis, own in busiest.items():
                ranks = sent.sum(axis=axis)
                own[key] = Cell(f"{ranks.max() / ranks.mean():.2f}", f"rank {int(ranks.argmax())}")
        return variants_table(
            section,
            f"Bytes from rank to rank ({unit} per epoch)",
            prose("peers.table", unit=unit, size=size),
            {
                "Mean of a pair": number_cells(means, size, places),
                "Largest": largest,
                "Largest / mean": ratio,
                "Most sent / mean rank": busiest[1],
                "Most received / mean rank": busiest[0],
            },
            found,
        )

    def figure(self) -> Figure | None:
        section = self.section
        found = peers(section)
        if not found:
            return None
        largest = {variant: max(p for v, p in found if v == variant) for variant, _ in found}
        shown = [(v, largest[v]) for v in section.variants if v in largest][:MOST]
        size, unit = byte_unit(max(float(found[key].max()) for key in shown))
        most = max(parts for _, parts in shown)
        ticks = {float(rank): str(rank) for rank in range(0, most, math.ceil(most / TICKS))}
        x, y = Axis("target", "to rank", ticks=ticks), Axis("source", "from rank", ticks=ticks)
        charts = []
        for variant, parts in shown:
            sent = found[variant, parts] / size
            pairs = [(i, j) for i in range(parts) for j in range(parts) if i != j]
            source, target = (list(each) for each in zip(*pairs, strict=True))
            cells = {"target": target, "source": source, f"{unit}_per_epoch": [float(sent[pair]) for pair in pairs]}
            charts.append((variant, parts, cells))
        data = tidy(charts)
        columns = min(ACROSS, len(shown))
        left_out = len(largest) - len(shown)
        caption = prose("peers.figure") + (f" {left_out} more methods are in the table alone." if left_out else "")
        return make_figure(
            section,
            "peers",
            "Bytes from rank to rank",
            caption,
            [Chart((Layer(data, "cells"),), x, y, "series")],
            0.7 + (2.6 if most > FEW else 2.0) * -(-len(shown) // columns),
            colour=_colours([found[key] / size for key in shown], f"{unit}_per_epoch", f"{unit} per epoch"),
            wrap=columns,
        )


def _between(sent: Matrix) -> Matrix:
    """Return the entries of pairs: all off the diagonal."""
    return sent[~np.eye(len(sent), dtype=bool)]


def _colours(shown: Sequence[Matrix], column: str, label: str) -> Axis:
    """Return the scale of colours, logarithmic where amounts span far."""
    sent = np.concatenate([_between(each) for each in shown])
    least, most = float(sent[sent > 0].min()), float(sent.max())
    log = most > LOG_FROM * least
    return Axis(column, label, log=log, low=least if log else 0.0, high=most)
