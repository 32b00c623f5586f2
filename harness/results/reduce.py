"""How the metrics of a trial's ranks become the trial's, what they sent each other, and what else used their cores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from statistics import fmean, median
from typing import Any

import numpy as np

from harness.metrics import METRICS, STAT, SUMS, Metric
from harness.results.record import Json, epoch_rows
from harness.results.stats import ENOUGH, default_warmup, mean, median_interval


def reduce(ranks: Sequence[Json], declared: Mapping[str, Metric] | None = None) -> Json:
    """Return a trial's metrics from what its ranks reported; one that nobody reported is None.

    How each follows from ranks and epochs is said in the table of metrics; what takes more than its words is
    worked out here: epoch times (the median over the epochs after warm-up, those without barriers, of the
    slowest rank's time of that epoch), phases (those of *one* rank, the slowest, so that they add up to its
    mean epoch), bytes, and the memory model. `stats`: the method's own metrics of an epoch by name; `declared`: those
    that it adds to the table, by column.
    """
    summary: Json = next((r["summary"] for r in ranks if r.get("summary")), {})
    epochs = _Epochs(ranks, summary.get("warmup_epochs"))
    own = declared or {}
    result: Json = _setup(ranks) | {key: summary.get(key) for key in _FROM_SUMMARY}
    result |= _timing(epochs)
    for metric in (*METRICS.values(), *own.values()):
        if metric.key and not metric.key.startswith("stats."):
            result[metric.name] = _read(metric, ranks, summary, epochs)
    result["train_nodes_per_s"] = _per_second(_over_ranks(sum, ranks, "train_nodes"), result["epoch_time_s"])
    result |= traffic(ranks)
    result |= _memory(ranks)
    result |= _outside_epochs(ranks, result)
    wires = [rank.get("wire") or {} for rank in ranks]
    counted = _over_ranks(sum, wires, "counted_bytes")
    for what in ("socket", "interface"):
        sent = _over_ranks(sum, wires, f"{what}_bytes")
        result[f"{what}_ratio"] = sent / counted if counted and sent is not None else None
    result["stats"] = _stats(epochs, own)
    return result


_FROM_SUMMARY = ("best_epoch", "final_loss", "spmm", "tf32", "parameters", "checksum", "stopped")
_OVER: Mapping[str, Callable[[list[Any]], Any]] = {"sum": sum, "max": max, "mean": mean}


def _read(metric: Metric, ranks: Sequence[Json], summary: Json, epochs: _Epochs) -> Any:
    """Return a metric as its `key`, `ranks` and `epochs` say."""
    where, _, name = metric.key.rpartition(".")
    if where == "summary":
        return summary.get(name)
    if where == "epochs":
        return _over_epochs(metric, ranks, name, epochs)
    reports = [rank.get(where) or {} for rank in ranks] if where else ranks
    if metric.ranks == "largest known":
        return max(_known(report.get(name) for report in reports), default=None)
    return _over_ranks(_OVER[metric.ranks], reports, name)


def _over_epochs(metric: Metric, ranks: Sequence[Json], key: str, epochs: _Epochs) -> float | None:
    """Reduce a metric of epochs; None unless every rank has epochs.

    A device that ranks share is told of by one of them; a sum in which one is missing is no sum.
    """
    over = epochs.named[metric.epochs]
    if not over or not (epochs.plain or epochs.untimed):
        return None
    if metric.ranks == "slowest":
        return epochs.mean(epochs.slowest, key, over)
    if metric.ranks == "devices":
        told = [r for r, rank in enumerate(ranks) if key in (rank.get("meters") or {}).get("counts_for", ())]
        values = [epochs.mean(r, key, over) for r in told]
        return sum(_known(values)) if values and None not in values else None
    known = _known(epochs.mean(r, key, over) for r in range(len(ranks)))
    return _OVER[metric.ranks](known) if known else None


def _over_ranks(how: Callable[[list[Any]], Any], ranks: Sequence[Json], key: str) -> Any:
    """Reduce one value over the ranks; None unless every rank has it."""
    values = [rank.get(key) for rank in ranks]
    return how(values) if values and None not in values else None


def _per_second(count: float | None, seconds: float | None) -> float | None:
    return count / seconds if count is not None and seconds else None


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
        common = sorted(set.intersection(*(set(rows) for rows in self.by_rank))) if self.by_rank else []
        warmup = default_warmup(len(common)) if warmup is None else warmup
        self.warmup = min(warmup, len(common)) if common else None
        self.common, self.timed = common, common[warmup:]
        self.aligned = [e for e in self.timed if self.by_rank[0][e].get("timing") == "breakdown"]
        self.untimed = [e for e in self.timed if self.by_rank[0][e].get("timing") == "off"]
        self.plain = [e for e in self.timed if e not in {*self.aligned, *self.untimed}]
        self.phased = self.aligned or self.plain
        # by what a metric's `epochs` says
        self.named = {"all": self.common, "timed": self.timed, "plain": self.plain, "phased": self.phased}

    def times(self, epochs: Sequence[int]) -> np.ndarray:
        """Return the epoch times [ranks, epochs] in seconds."""
        return np.array([[rows[e]["epoch_time_s"] for e in epochs] for rows in self.by_rank], dtype=float)

    @cached_property
    def slowest(self) -> int:
        """The rank with the longest median epoch."""
        return int(np.argmax(np.median(self.times(self.plain), axis=1)))

    def mean(self, rank: int, key: str, epochs: Sequence[int]) -> float | None:
        """Return the mean of one of a rank's metrics; None if it has none."""
        return mean(_known(self.by_rank[rank][e].get(key) for e in epochs))


def _timing(epochs: _Epochs) -> Json:
    """Epoch time, its interval, imbalance, and what the slowest rank's epoch is made of."""
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
    return result | _phases(epochs)


_TIMING = (
    *("epoch_time_s", "epoch_time_low_s", "epoch_time_high_s", "timed_epochs", "too_short", "noisy"),
    *("steps", "step_time_s", "throughput_epochs_s", "imbalance", "rank_epoch_time_s", "rank_phases"),
    *("residue", "barrier_cost", "cpu_utilisation"),
)


def _steps(epochs: _Epochs, slowest: np.ndarray) -> Json:
    """Updates of an epoch (mean), and seconds of one of them: the median over epochs, of the slowest rank."""
    steps = np.array([epochs.mean(0, "steps", [epoch]) or 0.0 for epoch in epochs.plain])
    if not steps.all():
        return {}
    return {"steps": float(steps.mean()), "step_time_s": float(np.median(slowest / steps))}


def _cpu_utilisation(epochs: _Epochs) -> float | None:
    """Cores that a rank keeps busy: CPU seconds a second, mean over ranks."""
    ranks = range(len(epochs.by_rank))
    means = ([epochs.mean(rank, key, epochs.plain) for rank in ranks] for key in ("cpu_s", "epoch_time_s"))
    return mean(_known(map(_per_second, *means)))


def _phases(epochs: _Epochs) -> Json:
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
    own = by_rank[epochs.slowest]
    return {
        **{f"time_{phase}_s": seconds for phase, seconds in own.items()},
        **{f"sum_{name}_s": sum(own.get(phase, 0.0) for phase in parts) for name, parts in SUMS.items()},
        "rank_phases": by_rank,
        "residue": max(residues),
    }


def _stats(epochs: _Epochs, declared: Mapping[str, Metric]) -> Json:
    """Return the metrics that a method gives with its steps, by name.

    Of each epoch the sum over ranks, or what is declared, of those the mean over the epochs after warm-up, with and
    without barriers. Epochs in which a rank does not tell one are left out for it; what is no number is dropped.
    """
    means: Json = {}
    told = {e: [rows[e].get("stats") or {} for rows in epochs.by_rank] for e in epochs.common}
    for name in dict.fromkeys(name for e in epochs.timed for stats in told[e] for name in stats):
        metric = declared.get(STAT + name) or Metric.of_method(name, "")
        by_epoch = []
        for e in epochs.named[metric.epochs]:
            numbers = [value for stats in told[e] if isinstance(value := stats.get(name), int | float)]
            if len(numbers) == len(epochs.by_rank):
                by_epoch.append(_OVER[metric.ranks](numbers))
        if by_epoch:
            means[name] = mean(by_epoch)
    return means


def _setup(ranks: Sequence[Json]) -> Json:
    """Return the metrics of the method's set-up by name, the largest of the ranks that have them.

    One rank may have worked for the others.
    """
    told = [rank.get("setup") or {} for rank in ranks]
    names = dict.fromkeys(name for metrics in told for name in metrics)
    return {name: max(_known(metrics.get(name) for metrics in told), default=None) for name in names}


def _outside_epochs(ranks: Sequence[Json], result: Json) -> Json:
    """Return seconds and bytes of what is no epoch.

    `spans`: seconds by name, the largest of the ranks, of `setup`, `between` epochs, and `beside` the trainer (wall
    time and the thread's CPU time). `found`: what the set-up of every rank found ready-made, and the seconds that its
    making took; what one rank made itself is in its set-up. `sent_outside`: sent by all ranks, by scope and purpose.
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
    told = bool(ranks) and all("traffic" in rank for rank in ranks)
    threads = _known((rank.get("spans") or {}).get("beside") for rank in ranks)
    beside = [sum(cpu for _, cpu in work.values()) for work in threads]
    return {
        "spans": spans,
        "sent_outside": sent,
        **{f"{scope}_bytes": sum(sent.get(scope, {}).values()) if told else None for scope in ("setup", "eval")},
        "background_cpu_s": max(beside, default=None),
        **_prepared(ranks, result),
    }


def _prepared(ranks: Sequence[Json], result: Json) -> Json:
    """Return set-up with what it found ready-made, and the time to the target behind it."""
    finds: list[Json] = [rank["found"] for rank in ranks if rank.get("found") is not None]
    found = {name: seconds for name, seconds in (finds[0] if finds else {}).items() if all(name in f for f in finds)}
    prepared = with_setup = None
    if finds and result["setup_s"] is not None and None not in found.values():
        prepared = result["setup_s"] + sum(found.values())
        if result["time_to_target_s"] is not None:
            with_setup = prepared + result["time_to_target_s"]
    return {"found": found, "prepared_s": prepared, "time_to_target_with_setup_s": with_setup}


def _memory(ranks: Sequence[Json]) -> Json:
    """Peak of the rank that has most, and the memory model of the rank that it says needs most."""
    largest = max(
        (r for r in ranks if r.get("peak_memory_bytes")), key=lambda r: int(r["peak_memory_bytes"]), default={}
    )
    told = ("peak_memory_bytes", "peak_memory_source", "base_memory_bytes", "mapped_bytes")
    result: Json = {key: largest.get(key) for key in told}
    peak, base = result["peak_memory_bytes"], result["base_memory_bytes"]
    result["peak_above_base_bytes"] = None if peak is None or base is None else peak - base
    models: list[Json] = [rank["memory_model"] for rank in ranks if rank.get("memory_model")]
    model = max(models, key=lambda components: sum(components.values()), default=None)
    return result | {"memory_model": model, "memory_model_bytes": sum(model.values()) if model else None}


def flags(ranks: Sequence[Json]) -> list[str]:
    """Return what the ranks' reports flag, each text once with the ranks that say it: `KEY: what (ranks [0, 1])`.

    Of load and of a GPU that is held down, what is to be said of most of the timed epochs.
    """
    said: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in ranks:
        for key, text in rank.get("flags") or ():
            said[key, text].append(rank["rank"])
    summary: Json = next((r["summary"] for r in ranks if r.get("summary")), {})
    machine = load_flag(ranks, _Epochs(ranks, summary.get("warmup_epochs")).timed), slowed_flag(ranks)
    return [
        *(f"{key}: {text} (ranks {sorted(who)})" for (key, text), who in said.items()),
        *(flag for flag in machine if flag is not None),
    ]


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
    result["wire_estimate_bytes"] = _with_headers(ranks, between_ranks(result))
    return result | {"wire_bytes": None, "wire_ratio": None} | _seen_by_interfaces(ranks, len(epochs))


def between_ranks(result: Json) -> float:
    """Return the payload an epoch that a trial's ranks sent each other: all its bytes but the swaps."""
    return float(sum(size for key, size in result.items() if key.startswith("bytes_") and key != "bytes_swap"))


def _with_headers(ranks: Sequence[Json], payload: float) -> float | None:
    """Return the bytes an epoch with headers of full frames: Ethernet 14, IPv4 20, TCP 32 with time stamps.

    Acknowledgements, barriers and frames that are not full come on top. None on the loopback, and where the
    size of a frame is not known.
    """
    links = [rank.get("link") for rank in ranks]
    if not links or any(link is None or link["loopback"] or not link["mtu"] for link in links):
        return None
    mtu: int = min(link["mtu"] for link in links if link)
    return payload * (mtu + ETHERNET) / (mtu - IP_AND_TCP)


def _seen_by_interfaces(ranks: Sequence[Json], epochs: int) -> Json:
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
