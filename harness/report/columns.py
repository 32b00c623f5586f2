"""What a record has besides the columns of `load_results`: columns of a section, and learning curves of its trials."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.metrics import WITHIN, Metric
from harness.results.frames import trained_s
from harness.results.projection import shares_cores
from harness.results.record import Record, is_baseline
from harness.results.reduce import between_ranks

DERIVED = (
    Metric("counted_bytes", "sent by all ranks, whatever for", "B/epoch", "Sent per epoch", "less", exact=True),
    Metric("halo_bytes", "sent, without the all-reduce", "B/epoch", "Halo bytes", "less", exact=True),
)
"""What is known of columns that are metrics."""
SHARED = ("energy_gpu_j", "energy_cpu_j", "gpu_power_w")  # counters that one rank reads for several
RANK, RANK_SUFFIX = "rank_", "_epoch_s"
MODEL, MODEL_SUFFIX = "model_", "_bytes"
WHY = "why_"
SAMPLED_SHARES = ("asked_share", "expected_share", "edge_share")


def record_values(record: Record | None) -> dict[str, Any]:
    """Return the columns of one trial; none of what its record does not hold.

    `rank_<r>_epoch_s`: a rank's median epoch, and the slowest, mean and fastest of them as
    `rank_time_<which>_s`; `model_<component>_bytes`: the memory model's; `counted_bytes`: sent in an
    epoch, all ranks; `wire_seen_by`: the interface that `traffic: verify` compared them with;
    `sample_interval_s`, `pss_interval_s`: of the meters; `why_<metric>`: why it is not available; those of
    `_sampling`; `subgraphs_per_s`: drawn while they were counted, before the training; `pooled_per_s`: batches
    that a `pool` was filled with, a second of filling; `target`: the score whose time the suite asks for;
    `crowded`: whether more ranks, times threads, were on a machine than it had cores; the objects `peer_bytes` and
    `part_sizes`.
    """
    if record is None:
        return {}
    meters = [rank["meters"] for rank in record.ranks if rank.get("meters")]
    drawn, seconds = record.result.get("presampled"), record.result.get("presample_s")
    pooled = record.result.get("steps") if record.config["method"]["options"].get("pool") else None
    filling = record.result.get("time_sample_s")
    return {
        **_ranks(record.result.get("rank_epoch_time_s") or []),
        **{f"{MODEL}{name}{MODEL_SUFFIX}": size for name, size in (record.result.get("memory_model") or {}).items()},
        **_network_traffic(record),
        **_sampling(record),
        **({"subgraphs_per_s": drawn / seconds} if drawn and seconds else {}),
        **({"pooled_per_s": pooled / filling} if pooled and filling else {}),
        "target": (record.config.get("train") or {}).get("target"),
        "crowded": shares_cores(record),
        "peer_bytes": peer_bytes(record),
        "part_sizes": part_sizes(record),
        **_largest(meters, "sample_interval_s", "interval_s"),
        **_largest(meters, "pss_interval_s", "pss_interval_s"),
        **{f"{WHY}{figure}": why for figure, why in _unavailable(meters).items()},
    }


def _ranks(times: Sequence[float]) -> dict[str, float]:
    if not times:
        return {}
    return {
        **{f"{RANK}{rank}{RANK_SUFFIX}": seconds for rank, seconds in enumerate(times)},
        "rank_time_slowest_s": max(times),
        "rank_time_mean_s": sum(times) / len(times),
        "rank_time_fastest_s": min(times),
    }


def _sampling(record: Record) -> dict[str, float]:
    """Return what a method asks its peers for in an epoch, all ranks; a baseline for all that there is.

    `halo_bytes`: sent, but for the purpose model, the all-reduce; `asked_boundary`: rows of an exchange, as
    of the method's stats; `asked_share`, `expected_share`: of the boundary, asked for and by the inclusion
    probabilities; `edge_share`: of the edges, drawn; `cache_asked`, `cache_found`, `hit_rate`: rows asked
    for (of a mini-batch method remote nodes; with `storage: host` all), those of them found in the cache, and
    found / asked for; `communicated_nodes`: of a mini-batch method, nodes whose features came from their owners.
    """
    result = record.result
    found: dict[str, float] = {}
    if any(key.startswith("bytes_") for key in result):
        found["halo_bytes"] = between_ranks(result) - (result.get("bytes_model") or 0)
    stats, boundary, edges = result.get("stats") or {}, result.get("boundary_nodes"), result.get("edges")
    options = (record.config.get("method") or {}).get("options") or {}
    if boundary and is_baseline(record.declared, options, "full-graph"):
        return found | {"asked_boundary": boundary} | dict.fromkeys(SAMPLED_SHARES, 1.0)
    if (remote := stats.get("remote_nodes")) is not None:
        if options.get("storage") == "host":
            return found | _caching(stats["input_nodes"], stats.get("cached_nodes")) | {"communicated_nodes": 0}
        cached = _caching(remote, stats.get("cached_nodes"))
        return found | cached | {"communicated_nodes": remote - stats.get("cached_nodes", 0)}
    asked = stats.get("sampled_boundary", stats.get("kept_boundary"))
    if asked is not None:
        found["asked_boundary"] = asked
    ratios = (asked, boundary), (stats.get("expected_boundary"), boundary), (stats.get("drawn_edges"), edges)
    shares = zip(SAMPLED_SHARES, ratios, strict=True)
    found |= {name: part / whole for name, (part, whole) in shares if part is not None and whole}
    return found | _caching(asked, stats.get("cached_boundary"))


def _caching(asked: float | None, cached: float | None) -> dict[str, float]:
    if not asked or cached is None:
        return {}
    return {"cache_asked": asked, "cache_found": cached, "hit_rate": cached / asked}


def _network_traffic(record: Record) -> dict[str, Any]:
    """Return what the ranks sent in a mean epoch, and by which interface, if it was compared with that."""
    counts = any(key.startswith("bytes_") for key in record.result)
    counted = {"counted_bytes": between_ranks(record.result)} if counts else {}
    checks = [rank["traffic_check"] for rank in record.ranks if rank.get("traffic_check")]
    if not checks or any(check.get("why_not") for check in checks):
        return counted
    links = {(check.get("network"), check["interface"]) for check in checks}
    whose = "one rank each" if len(links) == len(checks) else "several ranks together"
    if all(check.get("loopback") for check in checks):
        whose = "all ranks and other programs"
    return counted | {"wire_seen_by": f"{', '.join(dict.fromkeys(check['interface'] for check in checks))} ({whose})"}


def _largest(meters: Iterable[Mapping[str, Any]], name: str, key: str) -> dict[str, float]:
    known = [meter[key] for meter in meters if meter.get(key) is not None]
    return {name: max(known)} if known else {}


def _unavailable(meters: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the reasons by metric; of a shared counter's those of the ranks that should have read it."""
    found: dict[str, dict[str, None]] = {}
    for meter in meters:
        for metric, reason in (meter.get("unavailable") or {}).items():
            if metric not in SHARED or metric in meter.get("counts_for", SHARED):
                found.setdefault(metric, {})[reason] = None
    return {metric: "; ".join(reasons) for metric, reasons in found.items()}


Matrix = NDArray[np.float64]


def peer_bytes(record: Record) -> Matrix | None:
    """Return the bytes an epoch that rank i sends rank j, float64 [P, P]; None where peers are not recorded.

    Transfers between two ranks alone: an all-reduce has no peer, and a swap or a read of a disk stays on its rank.
    """
    epochs, ranks = record.result.get("epochs"), record.ranks
    if len(ranks) < 2 or not epochs or any("traffic" not in rank for rank in ranks):
        return None
    sent = np.zeros((len(ranks), len(ranks)))
    for index, rank in enumerate(ranks):
        for row in rank["traffic"]:
            if row["scope"] == "epoch" and row["peer"] >= 0 and row["purpose"] not in WITHIN:
                if max(own := rank.get("rank", index), row["peer"]) >= len(ranks):
                    return None
                sent[own, row["peer"]] += row["sent_bytes"]
    sent /= epochs
    return sent


def part_sizes(record: Record) -> tuple[tuple[int, int], ...] | None:
    """Return (inner, boundary) nodes of each part in the order of ranks; None if a rank has not recorded them."""
    if not record.ranks or any(rank.get(key) is None for rank in record.ranks for key in ("inner", "boundary")):
        return None
    return tuple((int(rank["inner"]), int(rank["boundary"])) for rank in record.ranks)


def curve_of(sums: pd.DataFrame) -> pd.DataFrame:
    """Return a trial's learning curve from its `epoch_sums`: evaluated epochs (from 1), time_s, sent_bytes, score.

    Sums over the epochs so far, warm-up and precomputation included, evaluation not: `time_s` of `trained_s`,
    `sent_bytes` of the payload between ranks.
    """
    curve = sums.cumsum(skipna=False).assign(score=sums["score"]).dropna(subset=["score"]).reset_index()
    curve["epoch"] += 1
    return curve[["epoch", "time_s", "sent_bytes", "score"]]


def epoch_sums(epochs: pd.DataFrame) -> pd.DataFrame:
    """Return a row an epoch of a trial: time_s and sent_bytes of that epoch, score after it.

    `epochs`: its rows of `load_epochs`, one an epoch and rank. Units as for `curve_of`; NaN where nothing was counted
    or scored.
    """
    sizes = [name for name in map(str, epochs.columns) if name.startswith("bytes_") and name[6:] not in WITHIN]
    sent = epochs[sizes].sum(axis=1, min_count=1)
    by_epoch = epochs.assign(sent_bytes=sent).groupby("epoch", sort=True)
    return pd.DataFrame(
        {
            "time_s": trained_s(epochs),
            "sent_bytes": by_epoch["sent_bytes"].sum(min_count=1),
            "score": by_epoch["val_score"].first(),
        }
    )
