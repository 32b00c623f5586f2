"""How the figures of a trial's ranks become the trial's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from harness.results.record import Json
from harness.results.stats import ENOUGH, default_warmup, median_interval
from harness.results.wire import traffic

# What BNS-GCN and the papers after it report, as sums of phases.
SUMS = {
    "compute": ("sample", "fetch", "forward", "backward", "optimize", "explain", "other"),
    "communication": ("comm", "swap"),
    "wait": ("wait",),
    "reduce": ("reduce",),
}


def reduce(ranks: Sequence[Json]) -> Json:
    """Return a trial's figures from what its ranks reported; a figure nobody reported is None.

    Epoch time in seconds: median over the epochs after warm-up, those without barriers, of the slowest
    rank's time of that epoch, step time that of its time / steps; `train_nodes_per_s`: training nodes of all
    ranks / epoch time. Phases in seconds: means over the epochs with barriers, if there are any, of *one*
    rank, the slowest, so that they add up to its mean epoch. Bytes an epoch: mean over all epochs of the sum
    over ranks. Memory in bytes: largest of the ranks. Energy in joules an epoch: sum over devices. `stats`:
    the method's own figures of an epoch, see `_stats`; those of its set-up by their names, see `_setup`.
    """
    summary: Json = next((r["summary"] for r in ranks if r.get("summary")), {})
    result: Json = _setup(ranks) | {key: summary.get(key) for key in _FROM_SUMMARY}
    result |= _timing(ranks, summary)
    result["train_nodes_per_s"] = _per_second(_over_ranks(sum, ranks, "train_nodes"), result["epoch_time_s"])
    result |= traffic(ranks)
    result |= _memory(ranks)
    result["stats"] = _stats(ranks, summary)
    result["inner_nodes"] = _over_ranks(sum, ranks, "inner")
    result["boundary_nodes"] = _over_ranks(sum, ranks, "boundary")
    result["edges"] = _over_ranks(sum, ranks, "edges")
    result["setup_s"] = _over_ranks(max, ranks, "setup_s")
    result["eval_s"] = _over_ranks(max, ranks, "eval_s")
    return result


_FROM_SUMMARY = (
    "epochs",
    "best_val",
    "test_at_best_val",
    "sampled_test_at_best_val",
    "best_epoch",
    "final_val",
    "final_test",
    "final_loss",
    "time_to_target_s",
    "spmm",
    "parameters",
    "checksum",
    "stopped",
)


def _over_ranks(how: Callable[[list[Any]], Any], ranks: Sequence[Json], key: str) -> Any:
    """Reduce one figure over the ranks; None unless every rank has it."""
    values = [rank.get(key) for rank in ranks]
    return how(values) if values and None not in values else None


def _per_second(count: float | None, seconds: float | None) -> float | None:
    return count / seconds if count is not None and seconds else None


def _known(values: Iterable[Any]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Iterable[Any]) -> float | None:
    """Return the mean of the figures that are there, None if there are none."""
    known = _known(values)
    return float(np.mean(known)) if known else None


class _Epochs:
    """The epochs after warm-up that every rank finished, `timed`: `plain` for times, `phased` for phases."""

    def __init__(self, ranks: Sequence[Json], warmup: int | None) -> None:
        self.by_rank: list[dict[int, Json]] = [
            {row["epoch"]: row for row in rank.get("epochs") or []} for rank in ranks
        ]
        common = sorted(set.intersection(*(set(rows) for rows in self.by_rank))) if self.by_rank else []
        warmup = default_warmup(len(common)) if warmup is None else warmup
        self.warmup = min(warmup, len(common)) if common else None
        self.timed = common[warmup:]
        with_barriers = [e for e in self.timed if self.by_rank[0][e].get("timing") == "breakdown"]
        self.plain = [e for e in self.timed if e not in set(with_barriers)]
        self.aligned = with_barriers
        self.phased = with_barriers or self.plain

    def times(self, epochs: Sequence[int]) -> np.ndarray:
        """Return the epoch times [ranks, epochs] in seconds."""
        return np.array([[rows[e]["epoch_time_s"] for e in epochs] for rows in self.by_rank], dtype=float)

    def mean(self, rank: int, key: str, epochs: Sequence[int]) -> float | None:
        """Return the mean of one of a rank's figures; None if it has none."""
        return _mean(self.by_rank[rank][e].get(key) for e in epochs)


def _timing(ranks: Sequence[Json], summary: Json) -> Json:
    """Epoch time, its interval, imbalance, and what the slowest rank's epoch is made of."""
    epochs = _Epochs(ranks, summary.get("warmup_epochs"))
    result: Json = dict.fromkeys(_TIMING) | {"warmup_epochs": epochs.warmup}
    if not epochs.plain:
        return result
    times = epochs.times(epochs.plain)
    medians = np.median(times, axis=1)
    interval = median_interval(times.max(axis=0))
    assert interval is not None  # there are plain epochs
    result |= {
        "epoch_time_s": interval.centre,
        "epoch_time_low_s": interval.low,
        "epoch_time_high_s": interval.high,
        "timed_epochs": len(epochs.plain),
        "too_short": len(epochs.plain) < ENOUGH,
        "noisy": interval.noisy,
        "throughput_epochs_s": _per_second(1, interval.centre),
        **_steps(epochs, times.max(axis=0)),
        "imbalance": float(medians.max() / medians.mean()) if medians.mean() > 0 else None,
        "rank_epoch_time_s": medians.tolist(),
        "cpu_utilisation": _cpu_utilisation(epochs),
    }
    if any(rows[e]["barriers"] for rows in epochs.by_rank for e in epochs.aligned):
        aligned = float(np.median(epochs.times(epochs.aligned).max(axis=0)))
        result["barrier_cost"] = aligned / interval.centre - 1 if interval.centre > 0 else None
    return result | _phases(epochs, int(np.argmax(medians))) | _metered(ranks, epochs)


_TIMING = (
    *("epoch_time_s", "epoch_time_low_s", "epoch_time_high_s", "timed_epochs", "too_short", "noisy"),
    *("steps", "step_time_s"),
    *("throughput_epochs_s", "imbalance", "rank_epoch_time_s", "rank_phases", "residue", "barrier_cost"),
    *("comm_busy_s", "comm_exposed_s", "cpu_utilisation", "gpu_utilisation", "gpu_power_w"),
    *("energy_gpu_j", "energy_cpu_j"),
)


def _steps(epochs: _Epochs, slowest: np.ndarray) -> Json:
    """Updates of an epoch (mean), and seconds of one of them: the median over epochs, of the slowest rank."""
    steps = np.array([epochs.mean(0, "steps", [epoch]) or 0.0 for epoch in epochs.plain])
    if not steps.all():
        return {}
    return {"steps": float(steps.mean()), "step_time_s": float(np.median(slowest / steps))}


def _cpu_utilisation(epochs: _Epochs) -> float | None:
    """Cores that a rank keeps busy: CPU seconds a second, mean over ranks."""
    ratios = []
    for rank in range(len(epochs.by_rank)):
        cpu, wall = (epochs.mean(rank, key, epochs.plain) for key in ("cpu_s", "epoch_time_s"))
        ratios.append(cpu / wall if cpu is not None and wall else None)
    return _mean(ratios)


def _phases(epochs: _Epochs, slowest: int) -> Json:
    """Phases of every rank and of the slowest, their sums, and what no named phase covers."""
    first = epochs.by_rank[0][epochs.phased[0]]
    columns = [key for key in first if key.startswith("time_") and first[key] is not None]
    if not columns:
        return {}
    by_rank: list[Json] = []
    residues: list[float] = []
    for rank in range(len(epochs.by_rank)):
        means = {key: epochs.mean(rank, key, epochs.phased) or 0.0 for key in columns}
        wall = epochs.mean(rank, "epoch_time_s", epochs.phased) or 0.0
        named = sum(seconds for key, seconds in means.items() if key != "time_other_s")
        residues.append(abs(wall - named) / wall if wall else 0.0)
        by_rank.append({key[len("time_") : -len("_s")]: seconds for key, seconds in means.items()})
    own = by_rank[slowest]
    return {
        **{f"time_{phase}_s": seconds for phase, seconds in own.items()},
        **{f"sum_{name}_s": sum(own.get(phase, 0.0) for phase in parts) for name, parts in SUMS.items()},
        "rank_phases": by_rank,
        "residue": max(residues),
        "comm_busy_s": epochs.mean(slowest, "comm_busy_s", epochs.phased),
        "comm_exposed_s": epochs.mean(slowest, "comm_exposed_s", epochs.phased),
    }


def _metered(ranks: Sequence[Json], epochs: _Epochs) -> Json:
    """Utilisation: mean over ranks; power and energy: sums over devices.

    A device that ranks share is told of by one of them; a sum in which one is missing is no sum.
    """
    utilisation = [epochs.mean(r, "gpu_utilisation", epochs.plain) for r in range(len(ranks))]
    result: Json = {"gpu_utilisation": _mean(utilisation)}
    for key in ("gpu_power_w", "energy_gpu_j", "energy_cpu_j"):
        counting = [
            r for r, rank in enumerate(ranks) if key in (rank.get("meters") or {}).get("counts_for", ())
        ]
        values = [epochs.mean(r, key, epochs.plain) for r in counting]
        result[key] = sum(_known(values)) if values and None not in values else None
    return result


def _stats(ranks: Sequence[Json], summary: Json) -> Json:
    """Return the figures that a method gives with its steps, by name.

    Of each epoch the sum over ranks, of those the mean over the epochs after warm-up, with and without
    barriers. Epochs in which a rank does not tell a figure are left out for it; what is no number is dropped.
    """
    epochs = _Epochs(ranks, summary.get("warmup_epochs"))
    told = [[rows[e].get("stats") or {} for rows in epochs.by_rank] for e in epochs.timed]
    means: Json = {}
    for name in dict.fromkeys(name for by_rank in told for stats in by_rank for name in stats):
        numbers = [
            [value for stats in by_rank if isinstance(value := stats.get(name), int | float)]
            for by_rank in told
        ]
        sums = [sum(own) for own in numbers if len(own) == len(ranks)]
        if sums:
            means[name] = _mean(sums)
    return means


def _setup(ranks: Sequence[Json]) -> Json:
    """Return the figures of the method's set-up by name, the largest of the ranks that have them.

    One rank may have worked for the others.
    """
    told = [rank.get("setup") or {} for rank in ranks]
    names = dict.fromkeys(name for figures in told for name in figures)
    return {name: max(_known(figures.get(name) for figures in told), default=None) for name in names}


def _memory(ranks: Sequence[Json]) -> Json:
    """Peaks of the rank that has most, and the memory model of the rank that it says needs most."""
    largest = max(
        (r for r in ranks if r.get("peak_memory_bytes")),
        key=lambda r: int(r["peak_memory_bytes"]),
        default={},
    )
    result: Json = {key: largest.get(key) for key in ("peak_memory_bytes", "peak_memory_source")}
    for key in ("peak_rss_bytes", "peak_pss_bytes", "nvml_peak_bytes", "allocator_peak_bytes"):
        peaks = _known((rank.get("meters") or {}).get(key) for rank in ranks)
        result[key] = max(peaks) if peaks and len(peaks) == len(ranks) else None
    models: list[Json] = [rank["memory_model"] for rank in ranks if rank.get("memory_model")]
    model = max(models, key=lambda components: sum(components.values()), default=None)
    return result | {
        "memory_model": model,
        "memory_model_bytes": sum(model.values()) if model else None,
    }
