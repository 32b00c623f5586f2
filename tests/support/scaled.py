"""Made-up results of trials whose compute and bytes are round numbers."""

from __future__ import annotations

from typing import Any

EPOCHS = 4


def computed(computes: list[float], sent: int = 0, reduced: int = 0, boundary: int = 0) -> dict[str, Any]:
    """Return `result` and `ranks` of a record whose ranks compute these seconds an epoch.

    `sent`: bytes from each to every peer; `reduced`: those of its share of the all-reduce.
    """
    ranks, parts = [], len(computes)
    for rank in range(parts):
        row = {"scope": "epoch", "layer": 0, "direction": "forward", "calls": EPOCHS}
        one = {"purpose": "feature", "sent_bytes": sent * EPOCHS, "received_bytes": sent * EPOCHS}
        every = {"purpose": "model", "sent_bytes": reduced * EPOCHS, "received_bytes": reduced * EPOCHS}
        peers = [row | one | {"peer": peer} for peer in range(parts) if peer != rank]
        ranks.append({"rank": rank, "traffic": [*peers, row | every | {"peer": -1}] if parts > 1 else []})
    result = {
        "epochs": EPOCHS,
        "epoch_time_s": max(computes),
        "rank_phases": [{"forward": own, "comm": 0.0} for own in computes],
        "rank_cpu": [{"forward": own, "wait": 9.0} for own in computes],
        "boundary_nodes": boundary,
        "bytes_feature": sent * parts * (parts - 1),
        "bytes_model": reduced * parts,
    }
    return {"result": result, "ranks": ranks}
