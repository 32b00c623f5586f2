"""Figures of single ranks: what each sends each other one, and what each part holds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.results.record import Record

Matrix = NDArray[np.float64]


def peer_bytes(record: Record) -> Matrix | None:
    """Return the bytes an epoch that rank i sends rank j, float64 [P, P]; None where peers are not told.

    Transfers between two ranks alone: an all-reduce has no peer, a swap stays on its rank.
    """
    epochs, ranks = record.result.get("epochs"), record.ranks
    if len(ranks) < 2 or not epochs or any("traffic" not in rank for rank in ranks):
        return None
    sent = np.zeros((len(ranks), len(ranks)))
    for index, rank in enumerate(ranks):
        for row in rank["traffic"]:
            if row["scope"] == "epoch" and row["peer"] >= 0 and row["purpose"] != "swap":
                sent[rank.get("rank", index), row["peer"]] += row["sent_bytes"]
    sent /= epochs
    return sent


def part_sizes(record: Record) -> tuple[tuple[int, int], ...] | None:
    """Return (inner, boundary) nodes of each part in the order of ranks; None if a rank does not tell."""
    if not record.ranks or any(rank.get(key) is None for rank in record.ranks for key in ("inner", "boundary")):
        return None
    return tuple((int(rank["inner"]), int(rank["boundary"])) for rank in record.ranks)
