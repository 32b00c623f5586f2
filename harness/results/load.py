"""Load: what else the trial's cores did in its epochs, from what its ranks saw of them (`harness.runtime.counters`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from statistics import fmean, median

from harness.results.record import Json

LOADED = 0.1  # share of the trial's cores that others may take before an epoch is marked


def mark_load(ranks: Sequence[Json]) -> None:
    """Write into each epoch's row the share of the rank's cores that others took, `foreign_share`.

    Others are other processes, ranks of other trials among them, and the machine's host. Ranks that have the same
    cores are counted together. None where a counter was not read, or ranks share some of their cores only.
    """
    groups: dict[tuple[str, tuple[int, ...]], list[Json]] = defaultdict(list)
    for rank in ranks:
        if load := (rank.get("meters") or {}).get("load"):
            groups[load["machine"], tuple(load["cores"])].append(rank)
    for (machine, cores), group in groups.items():
        others = [set(more) for where, more in groups if where == machine and more != cores]
        known = bool(cores) and not any(more & set(cores) for more in others)
        by_epoch: dict[int, list[Json]] = defaultdict(list)
        for row in (row for rank in group for row in rank.get("epochs") or ()):
            by_epoch[row["epoch"]].append(row)
        for rows in by_epoch.values():
            share = _share(rows, len(cores)) if known and len(rows) == len(group) else None
            for row in rows:
                row["foreign_share"] = share


def _share(rows: Sequence[Json], cores: int) -> float | None:
    """Return the share of `cores` that others took, of an epoch's rows of all ranks on them; None if not known."""
    if any(row.get(name) is None for row in rows for name in ("busy_cores", "own_cores")):
        return None
    seen = fmean(float(row["busy_cores"]) + float(row.get("steal_cores") or 0.0) for row in rows)
    return max(0.0, seen - sum(float(row["own_cores"]) for row in rows)) / cores


def load_flag(ranks: Sequence[Json], timed: Collection[int]) -> str | None:
    """Return the flag of a trial most of whose `timed` epochs were under load, of others or of a quota; or None."""
    shares: dict[int, float] = {}
    for row in (row for rank in ranks for row in rank.get("epochs") or () if row["epoch"] in timed):
        seen = [row.get("foreign_share"), row.get("throttled")]
        shares[row["epoch"]] = max(shares.get(row["epoch"], 0.0), *(share or 0.0 for share in seen))
    loaded = [share for share in shares.values() if share > LOADED]
    if 2 * len(loaded) <= len(shares):
        return None
    return (
        f"load: noisy, others took {median(loaded):.0%} of the trial's cores (median) "
        f"in {len(loaded)} of {len(shares)} timed epochs"
    )


def slowed_flag(ranks: Sequence[Json]) -> str | None:
    """Return the flag of a trial whose GPU's clock was held down in more than `LOADED` of its samples; or None."""
    slowed = [m for rank in ranks if (m := rank.get("meters")) and (m.get("gpu_slowed_share") or 0.0) > LOADED]
    if not slowed:
        return None
    worst = max(slowed, key=lambda meters: float(meters["gpu_slowed_share"]))
    why = ", ".join(sorted(worst.get("gpu_slowed") or {}, key=lambda reason: -worst["gpu_slowed"][reason]))
    return f"throttle: noisy, the GPU's clock was held down in {worst['gpu_slowed_share']:.0%} of the samples: {why}"
