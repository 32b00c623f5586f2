"""How the metrics of a trial's ranks become the trial's, what they sent each other, and what else used their cores."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from statistics import fmean, median
from typing import Any

import numpy as np

from harness.data.partition.view import imbalance
from harness.metrics import METRICS, STAT, SUMS, WITHIN, Metric
from harness.results.record import Json, epoch_rows
from harness.results.stats import ENOUGH, default_warmup, mean, median_interval


def reduce(ranks: Sequence[Json], declared: Mapping[str, Metric] | None = None) -> Json:
    """Return a trial's metrics from its ranks' reports; one that no rank reported is None.

    The table of metrics says how each follows from ranks and epochs. Computed here is what takes more: epoch times (the
    median over the epochs after warm-up, those without barriers, of the slowest rank's time of that epoch), phases
    (those of *one* rank, the slowest, so that they add up to its mean epoch), bytes, and the memory model. `stats`: the
    method's own metrics of an epoch by name; `declared`: those that it adds to the table, by column.
    """
    summary: Json = next((r["summary"] for r in ranks if r.get("summary")), {})
    epochs = _Epochs(ranks, summary.get("warmup_epochs"))
    own = declared or {}
    # One rank may have worked for the others in the method's set-up: of its metrics the largest counts.
    set_ups = [rank.get("setup") or {} for rank in ranks]
    names = dict.fromkeys(name for metrics in set_ups for name in metrics)
    result: Json = {name: max(_known(metrics.get(name) for metrics in set_ups), default=None) for name in names}
    result |= {key: summary.get(key) for key in _FROM_SUMMARY} | _timing(epochs)
    for metric in (*METRICS.values(), *own.values()):
        if metric.key and not metric.key.startswith("stats."):
            result[metric.name] = _read(metric, ranks, summary, epochs)
    nodes, seconds = _over_ranks(sum, ranks, "train_nodes"), result["epoch_time_s"]
    result["train_nodes_per_s"] = nodes / seconds if nodes is not None and seconds else None
    result |= traffic(ranks)
    # The peak is of the rank that used most, the memory model of the rank that should need most.
    peaks = [rank for rank in ranks if rank.get("peak_memory_bytes")]
    largest = max(peaks, key=lambda rank: int(rank["peak_memory_bytes"]), default={})
    keys = ("peak_memory_bytes", "peak_memory_source", "base_memory_bytes", "mapped_bytes")
    result |= {key: largest.get(key) for key in keys}
    peak, base = result["peak_memory_bytes"], result["base_memory_bytes"]
    result["peak_above_base_bytes"] = None if peak is None or base is None else peak - base
    models: list[Json] = [rank["memory_model"] for rank in ranks if rank.get("memory_model")]
    model = max(models, key=lambda components: sum(components.values()), default=None)
    result |= {"memory_model": model, "memory_model_bytes": sum(model.values()) if model else None}
    result["time_to_target_s"] = epochs.until(summary.get("target_epoch"))
    result |= _outside_epochs(ranks, result)
    accounts = [rank.get("wire") or {} for rank in ranks]
    counted = _over_ranks(sum, accounts, "counted_bytes")
    for what in ("socket", "interface"):
        sent = _over_ranks(sum, accounts, f"{what}_bytes")
        result[f"{what}_ratio"] = sent / counted if counted and sent is not None else None
    result["stats"] = _stats(epochs, own)
    return result


_FROM_SUMMARY = ("best_epoch", "final_loss", "spmm", "tf32", "parameters", "checksum", "stopped", "rates")
_OVER: Mapping[str, Callable[[list[Any]], Any]] = {"sum": sum, "max": max, "mean": mean, "largest / mean": imbalance}


def _read(metric: Metric, ranks: Sequence[Json], summary: Json, epochs: _Epochs) -> Any:
    """Return a metric as its `key`, `ranks` and `epochs` say; one of epochs is None unless every rank has epochs."""
    where, _, name = metric.key.rpartition(".")
    if where == "summary":
        return summary.get(name)
    if where != "epochs":
        reports = [rank.get(where) or {} for rank in ranks] if where else ranks
        if metric.ranks == "largest known":
            return max(_known(report.get(name) for report in reports), default=None)
        return _over_ranks(_OVER[metric.ranks], reports, name)
    over = epochs.named[metric.epochs]
    if not over or not (epochs.plain or epochs.untimed):
        return None
    if metric.ranks == "slowest":
        return epochs.mean(epochs.slowest, name, over)
    if metric.ranks == "devices":
        # One of the ranks that share a device reports it; without each device's value there is no sum.
        reporting = [r for r, rank in enumerate(ranks) if name in (rank.get("meters") or {}).get("counts_for", ())]
        values = [epochs.mean(r, name, over) for r in reporting]
        return sum(_known(values)) if values and None not in values else None
    known = _known(epochs.mean(r, name, over) for r in range(len(ranks)))
    return _OVER[metric.ranks](known) if known else None


def _over_ranks(how: Callable[[list[Any]], Any], ranks: Sequence[Json], key: str) -> Any:
    """Reduce one value over the ranks; None unless every rank has it."""
    values = [rank.get(key) for rank in ranks]
    return how(values) if values and None not in values else None


def _known(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None]


class _Epochs:
    """The epochs after warm-up that every rank finished, `timed`: `plain` for times, `phased` for phases.

    With `timing: off` they are `untimed`.
    """

    def __init__(self, ranks: Sequence[Json], warmup: int | None) -> None:
        self.by_rank: list[dict[int, Json]] = [
            {row["epoch"]: row for row in rank.get("epochs") or []} for rank in ranks
        ]
        self.common = sorted(set.intersection(*map(set, self.by_rank))) if self.by_rank else []
        warmup = default_warmup(len(self.common)) if warmup is None else warmup
        self.warmup = min(warmup, len(self.common)) if self.common else None
        self.timed = self.common[warmup:]
        self.aligned = [e for e in self.timed if self.by_rank[0][e].get("timing") == "breakdown"]
        self.untimed = [e for e in self.timed if self.by_rank[0][e].get("timing") == "off"]
        self.plain = [e for e in self.timed if e not in {*self.aligned, *self.untimed}]
        self.phased = self.aligned or self.plain
        # by what a metric's `epochs` says
        self.named = {"all": self.common, "timed": self.timed, "plain": self.plain, "phased": self.phased}

    def times(self, epochs: Sequence[int]) -> np.ndarray:
        """Return the epoch times [ranks, epochs] in seconds."""
        return np.array([[rows[e]["epoch_time_s"] for e in epochs] for rows in self.by_rank], dtype=float)

    def until(self, last: int | None) -> float | None:
        """Return the seconds of all epochs up to `last`, of each its slowest rank's; None where they were not timed.

        With what was computed for them before the first.
        """
        if last is None:
            return None
        seconds = float(self.times([e for e in self.common if e <= last]).max(axis=0).sum())
        seconds += max(float(rows[e].get("precompute_s") or 0.0) for rows in self.by_rank for e in self.common)
        return None if np.isnan(seconds) else seconds

    @cached_property
    def slowest(self) -> int:
        """The rank with the longest median epoch."""
        return int(np.argmax(np.median(self.times(self.plain), axis=1)))

    def mean(self, rank: int, key: str, epochs: Sequence[int]) -> float | None:
        """Return the mean of one of a rank's metrics; None if it has none."""
        return mean(_known(self.by_rank[rank][e].get(key) for e in epochs))


def _timing(epochs: _Epochs) -> Json:
    """Epoch time, its interval, imbalance, and the phases of the slowest rank's epoch."""
    result: Json = dict.fromkeys(_TIMING) | {"warmup_epochs": epochs.warmup}
    if not epochs.plain:
        return result
    times = epochs.times(epochs.plain)
    slowest, medians = times.max(axis=0), np.median(times, axis=1)
    interval = median_interval(slowest)
    assert interval is not None  # there are plain epochs
    used = [[epochs.mean(r, key, epochs.plain) for key in ("cpu_s", "epoch_time_s")] for r in range(len(medians))]
    result |= {
        "epoch_time_s": interval.centre,
        "epoch_time_low_s": interval.low,
        "epoch_time_high_s": interval.high,
        "timed_epochs": len(epochs.plain),
        "too_short": len(epochs.plain) < ENOUGH,
        "noisy": interval.noisy,
        "throughput_epochs_s": 1 / interval.centre if interval.centre else None,
        "imbalance": float(medians.max() / medians.mean()) if medians.mean() > 0 else None,
        "rank_epoch_time_s": medians.tolist(),
        "cpu_utilisation": mean([cpu / wall for cpu, wall in used if cpu is not None and wall]),
    }
    steps = np.array([epochs.mean(0, "steps", [epoch]) or 0.0 for epoch in epochs.plain])
    if steps.all():
        result |= {"steps": float(steps.mean()), "step_time_s": float(np.median(slowest / steps))}
    if any(rows[e]["barriers"] for rows in epochs.by_rank for e in epochs.aligned):
        aligned = float(np.median(epochs.times(epochs.aligned).max(axis=0)))
        result["barrier_cost"] = aligned / interval.centre - 1 if interval.centre > 0 else None
    return result | _phases(epochs)


_TIMING = (
    *("epoch_time_s", "epoch_time_low_s", "epoch_time_high_s", "timed_epochs", "too_short", "noisy"),
    *("steps", "step_time_s", "throughput_epochs_s", "imbalance", "rank_epoch_time_s", "rank_phases", "rank_cpu"),
    *("residue", "barrier_cost", "cpu_utilisation"),
)


def _phases(epochs: _Epochs) -> Json:
    """Phases of every rank and of the slowest, their sums, and the share that no named phase covers.

    `rank_cpu`: the CPU seconds of every rank by phase, of all its threads.
    """
    first = epochs.by_rank[0][epochs.phased[0]]

    def means(rank: int, prefix: str) -> Json:
        phases = (key[len(prefix) : -len("_s")] for key in first if re.fullmatch(f"{prefix}.+_s", key))
        return {
            phase: epochs.mean(rank, f"{prefix}{phase}_s", epochs.phased) or 0.0
            for phase in phases
            if first[f"{prefix}{phase}_s"] is not None
        }

    ranks = range(len(epochs.by_rank))
    by_rank = [means(rank, "time_") for rank in ranks]
    if not by_rank[0]:
        return {}
    residues: list[float] = []
    for rank, own in enumerate(by_rank):
        wall = epochs.mean(rank, "epoch_time_s", epochs.phased) or 0.0
        named = sum(seconds for phase, seconds in own.items() if phase != "other")
        residues.append(abs(wall - named) / wall if wall else 0.0)
    own = by_rank[epochs.slowest]
    return {
        **{f"time_{phase}_s": seconds for phase, seconds in own.items()},
        **{f"sum_{name}_s": sum(own.get(phase, 0.0) for phase in parts) for name, parts in SUMS.items()},
        "rank_phases": by_rank,
        "rank_cpu": [means(rank, "cpu_") for rank in ranks],
        "residue": max(residues),
    }


def _stats(epochs: _Epochs, declared: Mapping[str, Metric]) -> Json:
    """Return the metrics that a method gives with its steps, by name.

    Of each epoch the sum over ranks, or as declared; of these the mean over the epochs after warm-up, with and without
    barriers. Epochs in which a rank lacks one are left out for it; what is no number is dropped.
    """
    means: Json = {}
    reported = {e: [rows[e].get("stats") or {} for rows in epochs.by_rank] for e in epochs.common}
    for name in dict.fromkeys(name for e in epochs.timed for stats in reported[e] for name in stats):
        metric = declared.get(STAT + name) or Metric.of_method(name, "")
        by_epoch = []
        for e in epochs.named[metric.epochs]:
            numbers = [value for stats in reported[e] if isinstance(value := stats.get(name), int | float)]
            if len(numbers) == len(epochs.by_rank):
                by_epoch.append(_OVER[metric.ranks](numbers))
        if by_epoch:
            means[name] = mean(by_epoch)
    return means


def _outside_epochs(ranks: Sequence[Json], result: Json) -> Json:
    """Return seconds and bytes outside of epochs.

    `spans`: seconds by name, the largest of the ranks, of `setup`, `between` epochs, and `beside` the trainer (wall
    time and the thread's CPU time). `found`: the preparations that the set-up of every rank found ready-made, and the
    seconds that their making took; `prepared_s`, `time_to_target_with_setup_s`: with these. `sent_outside`: bytes sent
    by all ranks, by scope and purpose.
    """
    spans: dict[str, dict[str, Any]] = {}
    for rank in ranks:
        for group, seconds in (rank.get("spans") or {}).items():
            kept = spans.setdefault(group, {})
            kept |= {name: max(kept.get(name, value), value) for name, value in seconds.items()}
    sent: dict[str, dict[str, int]] = {}
    for row in (row for rank in ranks for row in rank.get("traffic") or () if row["scope"] != "epoch"):
        purposes = sent.setdefault(row["scope"], {})
        purposes[row["purpose"]] = purposes.get(row["purpose"], 0) + row["sent_bytes"]
    counted = bool(ranks) and all("traffic" in rank for rank in ranks)
    threads = _known((rank.get("spans") or {}).get("beside") for rank in ranks)
    beside = [sum(cpu for _, cpu in work.values()) for work in threads]
    finds: list[Json] = [rank["found"] for rank in ranks if rank.get("found") is not None]
    # What one rank made itself is in its set-up.
    found = {name: seconds for name, seconds in (finds[0] if finds else {}).items() if all(name in f for f in finds)}
    prepared, with_setup, before = None, None, spans.get("setup", {}).get("precompute", 0.0)
    if finds and result["setup_s"] is not None and None not in found.values():
        prepared = result["setup_s"] + sum(found.values())
        if result["time_to_target_s"] is not None:
            with_setup = prepared + result["time_to_target_s"] - before  # which is in both
    return {
        "spans": spans,
        "sent_outside": sent,
        **{f"{scope}_bytes": sum(sent.get(scope, {}).values()) if counted else None for scope in ("setup", "eval")},
        "background_cpu_s": max(beside, default=None),
        "found": found,
        "precompute_s": before if spans else None,
        "prepared_s": prepared,
        "time_to_target_with_setup_s": with_setup,
    }


LOADED = 0.1  # share of the trial's cores that others may take before an epoch is marked


def flags(ranks: Sequence[Json]) -> list[str]:
    """Return the flags of the ranks' reports, each once with its ranks: `KEY: what (ranks [0, 1])`.

    Other processes, or a quota, that took cores are flagged if they did in most of the timed epochs; a GPU whose clock
    was held down, if it was in more than `LOADED` of its samples.
    """
    found: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in ranks:
        for key, text in rank.get("flags") or ():
            found[key, text].append(rank["rank"])
    lines = [f"{key}: {text} (ranks {sorted(who)})" for (key, text), who in found.items()]
    summary: Json = next((r["summary"] for r in ranks if r.get("summary")), {})
    timed = _Epochs(ranks, summary.get("warmup_epochs")).timed
    shares: dict[int, float] = {}
    for row in (row for row in epoch_rows(ranks) if row["epoch"] in timed):
        taken = [row.get("foreign_share"), row.get("throttled")]
        shares[row["epoch"]] = max(shares.get(row["epoch"], 0.0), *(share or 0.0 for share in taken))
    loaded = [share for share in shares.values() if share > LOADED]
    if 2 * len(loaded) > len(shares):
        took = f"others took {median(loaded):.0%} of the trial's cores (median)"
        lines.append(f"load: noisy, {took} in {len(loaded)} of {len(shares)} timed epochs")
    slowed = [m for rank in ranks if (m := rank.get("meters")) and (m.get("gpu_slowed_share") or 0.0) > LOADED]
    if slowed:
        worst = max(slowed, key=lambda meters: float(meters["gpu_slowed_share"]))
        why = ", ".join(sorted(worst.get("gpu_slowed") or {}, key=lambda reason: -worst["gpu_slowed"][reason]))
        held = f"the GPU's clock was held down in {worst['gpu_slowed_share']:.0%} of the samples"
        lines.append(f"throttle: noisy, {held}: {why}")
    return lines


ETHERNET, IP_AND_TCP = 14, 52  # bytes of headers


def traffic(ranks: Sequence[Json]) -> Json:
    """Bytes sent by all ranks in a mean epoch, by purpose, estimated with headers, and counted by the interfaces.

    The estimate is of full frames: Ethernet 14, IPv4 20, TCP 32 with time stamps. Acknowledgements, barriers and frames
    that are not full come on top. None on the loopback, and where the size of a frame is not known. Bytes of the
    interfaces are None unless all ranks counted them.
    """
    epochs: set[int] = set()
    totals: defaultdict[str, int] = defaultdict(int)
    for row in epoch_rows(ranks):
        epochs.add(row["epoch"])
        for key, value in row.items():
            if key.startswith("bytes_") and value is not None:
                totals[key] += value
    result: Json = {key: total / len(epochs) for key, total in totals.items()}
    links = [rank.get("link") for rank in ranks]
    result |= dict.fromkeys(("wire_estimate_bytes", "wire_bytes", "wire_ratio"))
    if links and all(link and not link["loopback"] and link["mtu"] for link in links):
        mtu: int = min(link["mtu"] for link in links if link)
        result["wire_estimate_bytes"] = between_ranks(result) * (mtu + ETHERNET) / (mtu - IP_AND_TCP)
    checks = [rank["traffic_check"] for rank in ranks if rank.get("traffic_check")]
    if checks and epochs and all(check["sent_bytes"] is not None for check in checks):
        by_link: dict[tuple[Any, Any], list[Json]] = defaultdict(list)
        for check in checks:
            by_link[check["network"], check["interface"]].append(check)
        # An interface counts once: on the loopback it carries all ranks' traffic.
        sent = sum(max(check["sent_bytes"] for check in own) for own in by_link.values())
        counted = sum(check["counted_sent_bytes"] for check in checks)
        # Where several ranks share a host's link, messages between them do not pass it.
        comparable = all(len(own) == 1 or own[0]["loopback"] for own in by_link.values())
        result["wire_bytes"] = sent / len(epochs)
        result["wire_ratio"] = sent / counted if comparable and counted else None
    return result


def between_ranks(result: Json) -> float:
    """Return the bytes of payload that ranks sent each other in an epoch, not `WITHIN` a machine; NaN if unknown."""
    sizes = (size for key, size in result.items() if key.startswith("bytes_") and key[6:] not in WITHIN)
    return float(sum(math.nan if size is None else size for size in sizes))


def mark_load(ranks: Sequence[Json]) -> None:
    """Write into each epoch's row the share of the rank's cores that other processes took, `foreign_share`.

    These are ranks of other trials, too, and the machine's host. Ranks that have the same cores are counted together.
    None where a counter was not read, or ranks share only some of their cores.
    """
    groups: dict[tuple[str, tuple[int, ...]], list[Json]] = defaultdict(list)
    for rank in ranks:
        if load := (rank.get("meters") or {}).get("load"):
            groups[load["machine"], tuple(load["cores"])].append(rank)
    for (machine, cores), group in groups.items():
        others = [set(more) for where, more in groups if where == machine and more != cores]
        known = bool(cores) and not any(more & set(cores) for more in others)
        by_epoch: dict[int, list[Json]] = defaultdict(list)
        for row in epoch_rows(group):
            by_epoch[row["epoch"]].append(row)
        for rows in by_epoch.values():
            share = None
            counted = all(row.get(name) is not None for row in rows for name in ("busy_cores", "own_cores"))
            if known and counted and len(rows) == len(group):
                busy = fmean(float(row["busy_cores"]) + float(row.get("steal_cores") or 0.0) for row in rows)
                share = max(0.0, busy - sum(float(row["own_cores"]) for row in rows)) / len(cores)
            for row in rows:
                row["foreign_share"] = share
