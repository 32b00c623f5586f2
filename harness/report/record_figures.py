"""Figures of a record that have no column of their own in `load_results`, as columns of a section."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.results.record import Record

SHARED = ("energy_gpu_j", "energy_cpu_j", "gpu_power_w")  # counters of which one rank tells for several
RANK, RANK_SUFFIX = "rank_", "_epoch_s"
MODEL, MODEL_SUFFIX = "model_", "_bytes"
WHY = "why_"


def record_figures(record: Record | None) -> dict[str, Any]:
    """Return the columns of one trial; none of what its record does not hold.

    `rank_<r>_epoch_s`: a rank's median epoch, and the slowest, mean and fastest of them as
    `rank_time_<which>_s`; `model_<component>_bytes`: the memory model's; `counted_bytes`: sent in an
    epoch, all ranks; `wire_seen_by`: the interface that `traffic: verify` compared them with;
    `sample_interval_s`, `pss_interval_s`: of the meters; `why_<figure>`: why it is not available.
    """
    if record is None:
        return {}
    meters = [rank["meters"] for rank in record.ranks if rank.get("meters")]
    return {
        **_ranks(record.result.get("rank_epoch_time_s") or []),
        **_model(record.result.get("memory_model") or {}),
        **_wire(record),
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


def _model(components: Mapping[str, float]) -> dict[str, float]:
    return {f"{MODEL}{name}{MODEL_SUFFIX}": size for name, size in components.items()}


def _wire(record: Record) -> dict[str, Any]:
    """Return what the ranks sent in a mean epoch, and by which interface, if it was compared with that."""
    sizes = [size for key, size in record.result.items() if key.startswith("bytes_")]
    counted = {"counted_bytes": sum(sizes)} if sizes else {}
    checks = [rank["traffic_check"] for rank in record.ranks if rank.get("traffic_check")]
    if not checks:
        return counted
    links = {(check.get("network"), check["interface"]) for check in checks}
    whose = "one rank each" if len(links) == len(checks) else "several ranks together"
    if all(check.get("loopback") for check in checks):
        whose = "all ranks and other programs"
    return counted | {
        "wire_seen_by": f"{', '.join(dict.fromkeys(check['interface'] for check in checks))} ({whose})"
    }


def _largest(meters: Iterable[Mapping[str, Any]], name: str, key: str) -> dict[str, float]:
    known = [meter[key] for meter in meters if meter.get(key) is not None]
    return {name: max(known)} if known else {}


def _unavailable(meters: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the reasons by figure; of a shared counter's those of the ranks that should have told it."""
    found: dict[str, dict[str, None]] = {}
    for meter in meters:
        for figure, reason in (meter.get("unavailable") or {}).items():
            if figure not in SHARED or figure in meter.get("counts_for", SHARED):
                found.setdefault(figure, {})[reason] = None
    return {figure: "; ".join(reasons) for figure, reasons in found.items()}
