"""What a trial's ranks sent each other, as they counted it and as the interfaces did."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from harness.results.record import Json, epoch_rows

ETHERNET, IP_AND_TCP = 14, 52  # bytes of headers


def traffic(ranks: Sequence[Json]) -> Json:
    """Bytes sent by all ranks in a mean epoch, by purpose, and what the interface saw of them."""
    epochs: set[int] = set()
    totals: defaultdict[str, int] = defaultdict(int)
    for row in epoch_rows(ranks):
        epochs.add(row["epoch"])
        for key, value in row.items():
            if key.startswith("bytes_") and value is not None:
                totals[key] += value
    result: Json = {key: total / len(epochs) for key, total in totals.items()}
    result["wire_estimate_bytes"] = _wire_estimate(ranks, between_ranks(result))
    return result | {"wire_bytes": None, "wire_ratio": None} | _wire(ranks, len(epochs))


def between_ranks(result: Json) -> float:
    """Return the payload an epoch that a trial's ranks sent each other: all its bytes but the swaps."""
    return float(sum(size for key, size in result.items() if key.startswith("bytes_") and key != "bytes_swap"))


def _wire_estimate(ranks: Sequence[Json], payload: float) -> float | None:
    """Return the bytes an epoch with headers of full frames: Ethernet 14, IPv4 20, TCP 32 with time stamps.

    Acknowledgements, barriers and frames that are not full come on top. None on the loopback, and where the
    size of a frame is not known.
    """
    links = [rank.get("link") for rank in ranks]
    if not links or any(link is None or link["loopback"] or not link["mtu"] for link in links):
        return None
    mtu: int = min(link["mtu"] for link in links if link)
    return payload * (mtu + ETHERNET) / (mtu - IP_AND_TCP)


def _wire(ranks: Sequence[Json], epochs: int) -> Json:
    """What the interfaces sent an epoch, and its ratio to what was counted; nothing unless verified.

    An interface is counted once: on the loopback it carries all ranks' traffic. Where several ranks share a
    host's link, what they send each other does not pass it, so the ratio is left out.
    """
    checks = [rank["traffic_check"] for rank in ranks if rank.get("traffic_check")]
    if not checks or not epochs or any(check["sent_bytes"] is None for check in checks):
        return {}
    links: dict[tuple[Any, Any], list[Json]] = defaultdict(list)
    for check in checks:
        links[check["network"], check["interface"]].append(check)
    sent = sum(max(check["sent_bytes"] for check in link) for link in links.values())
    counted = sum(check["counted_sent_bytes"] for check in checks)
    comparable = all(len(link) == 1 or link[0]["loopback"] for link in links.values())
    return {"wire_bytes": sent / epochs, "wire_ratio": sent / counted if comparable and counted else None}
