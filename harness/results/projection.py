"""Projection: what a measured trial's epoch would take on another network.

The model (alpha-beta, one link a host) and what it assumes:

- An epoch is compute, then communication. Compute is what was measured: all phases but comm, wait and
  reduce, of the rank that computes most. Ranks of one host share its link, and use none among themselves.
- Where ranks share cores, their phases have the waits for a core in them: CPU seconds take their place, as if each
  rank had a core.
- Every exchange (one purpose, layer and direction) is a step that all ranks take together: the largest over
  hosts of max(bytes out, bytes in) / rate, plus one latency a call. A link is full duplex, the switch between
  hosts has no limit, and messages to several peers travel at once.
- An all-reduce of n bytes over P ranks is a ring: 2 (P-1) latencies, and 2 (P-1)/P n bytes through each link.
- Through sockets, 1448 bytes of payload make a frame of 1514 (IPv4, TCP with timestamps; as the kernel's
  shapers count it), and communication takes at least the time that software took for it where the trial was
  measured (copies, system calls; what its own network explains is taken off), because a socket fills while
  the network drains. NVLink, PCIe and RDMA pay neither.
- Overlapped exchanges (pipelined methods) run behind everything else: in the steady state an epoch is the
  larger of them and of compute plus the exchanges that are waited for.

See docs/design/networks.md for where this is too kind or too harsh.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.errors import UserError, nearest
from harness.metrics import WITHIN
from harness.results.record import Record, whole_config
from harness.results.reduce import ETHERNET, IP_AND_TCP
from harness.suite.sections import NetworkSpec, parse_rate

MTU = 1500
PAYLOAD, FRAME = MTU - IP_AND_TCP, MTU + ETHERNET  # bytes of a full segment, and of the frame around it
NOT_COMPUTE = ("comm", "wait", "reduce")
ALL_REDUCE = -1  # the peer of an all-reduce's channel


@dataclass(frozen=True)
class HostLink:
    """A host's link to the switch: bits a second each way, seconds a message, and the ranks in order that share it.

    `sockets`: whether the kernel's sockets carry its bytes: frames' headers and software's time count. `source`: where
    its rate is from, "" if a user gave it.
    """

    bits_s: float
    latency_s: float = 0.0
    ranks_per_host: int = 1
    sockets: bool = True
    name: str = ""
    source: str = ""

    @property
    def label(self) -> str:
        """Its name as a sentence has it: 10 Gbit/s, NVLink."""
        return "NVLink" if self.name == "nvlink" else rate_label(self.name)


def rate_label(text: str) -> str:
    """Return text with its rates as a sentence has them: of "1gbit+50us" "1 Gbit/s+50us"."""
    return re.sub(r"([\d.]+)([kmgt]?)bit", lambda rate: f"{rate[1]} {_UNITS.get(rate[2], '')}bit/s", text)


_UNITS = {"k": "k", "m": "M", "g": "G", "t": "T"}


@dataclass(frozen=True)
class Projection:
    """Seconds of an epoch on another network.

    `wait_s`: for slower ranks, where the trial's timing separates it (`breakdown`), else 0 and part of the
    software time. `exchange_s`, `reduce_s`: time in which a rank waits. `overlapped_s`: time behind the training.
    """

    compute_s: float
    wait_s: float
    exchange_s: float
    reduce_s: float
    overlapped_s: float

    @property
    def epoch_time_s(self) -> float:
        """The epoch: all that is not overlapped, or the overlapped exchanges if they take longer."""
        waited_for = self.compute_s + self.wait_s + self.exchange_s + self.reduce_s
        return max(waited_for, self.overlapped_s)

    @property
    def communication(self) -> float:
        """Share (0..1) of the epoch in which ranks wait for the network."""
        epoch = self.epoch_time_s
        return 1 - (self.compute_s + self.wait_s) / epoch if epoch else 0.0


def network_of(record: Record) -> NetworkSpec | None:
    """Return the network that a trial's ranks were put on; None is the loopback."""
    written = record.config.get("network")
    return NetworkSpec.model_validate(written) if isinstance(written, dict) else None


def why_not(record: Record) -> str | None:
    """Return in a few words why a trial cannot be projected, None if it can."""
    if record.status != "ok":
        return f"ended as {record.status}"
    if len(record.ranks) < 2:
        return "has one rank"
    if not record.result.get("epochs") or not record.result.get("epoch_time_s"):
        return "has no epoch time"
    if not any(sum(phases.values()) for phases in _rank_phases(record)):
        return "has no phases"
    if any("traffic" not in rank for rank in record.ranks):
        return "has no bytes by peer"
    if shares_cores(record) and not any(record.result.get("rank_cpu") or ()):
        return "shares cores among its ranks and has no CPU seconds by phase"
    if shares_cores(record) and record.environment["threads"] > 1:  # how far they worked at a time is not known
        return "shares cores among ranks of several threads"
    return None


def shares_cores(record: Record) -> bool:
    """Return whether more ranks, times threads, were on a machine than it had cores."""
    where, partition = record.environment, record.config.get("partition") or {}
    cores, threads, ranks = where.get("usable_cores"), where.get("threads"), partition.get("parts")
    if record.config.get("device") == "cuda" or where.get("nodes") or not (cores and threads and ranks):
        return False
    return bool(ranks * threads > cores)


def project(record: Record, link: HostLink, *, worked: bool | None = None) -> Projection:
    """Predict a trial's epoch on another network; the module says how.

    Phases are means over epochs; they are scaled so that they add up to the trial's headline epoch time, CPU seconds
    (of ranks that share cores) are not.

    Args:
        record: a trial that ended well, of at least two ranks.
        link: that each host has there; its rate may be infinite.
        worked: count the seconds that cores worked, whether or not ranks shared them; None: where they did.

    Raises:
        UserError: the record has not what it takes (see `why_not`).
    """
    if reason := why_not(record):
        raise UserError(f"cannot be projected: it {reason}", key=f"trial {record.trial}")

    def compute(phases: Mapping[str, float]) -> float:
        return sum(seconds for phase, seconds in phases.items() if phase not in NOT_COMPUTE)

    sent = _transfers(record, link)
    shared = shares_cores(record) if worked is None else worked
    phases = max(record.result["rank_cpu"] if shared else _rank_phases(record), key=compute)
    scale = 1.0 if shared else float(record.result["epoch_time_s"]) / sum(phases.values())
    if link.sockets:
        spec = network_of(record)
        measured_on = HostLink(math.inf, ranks_per_host=len(record.ranks))  # the loopback is no link
        if spec is not None and not shared:  # no CPU waits for the wire
            measured_on = HostLink(spec.bits_s, spec.latency_s, spec.ranks_per_host)
        own = _transfers(record, measured_on)
        for kind, phase in (("exchange", "comm"), ("reduce", "reduce")):
            sent[kind] = max(sent[kind], scale * phases.get(phase, 0.0) - own[kind])
    wait_s = 0.0 if shared else scale * phases.get("wait", 0.0)
    return Projection(scale * compute(phases), wait_s, sent["exchange"], sent["reduce"], sent["overlapped"])


def _rank_phases(record: Record) -> list[dict[str, float]]:
    """Return each rank's mean seconds by phase."""
    found = record.result.get("rank_phases") or ()
    return [{phase: float(seconds or 0.0) for phase, seconds in phases.items()} for phases in found]


def _transfers(record: Record, link: HostLink) -> dict[str, float]:
    """Return the seconds an epoch's bytes take on a link, by how they are sent."""
    steps: defaultdict[tuple[Any, ...], list[tuple[int, Mapping[str, Any]]]] = defaultdict(list)
    for index, report in enumerate(record.ranks):
        for row in report["traffic"]:
            # What stays on the host is compute.
            if row["scope"] == "epoch" and row["purpose"] not in WITHIN:
                overlapped, reduced = bool(row.get("overlapped")), row["peer"] == ALL_REDUCE
                key = (overlapped, reduced, row["purpose"], row["layer"], row["direction"])
                steps[key].append((report.get("rank", index), row))
    seconds = {"exchange": 0.0, "reduce": 0.0, "overlapped": 0.0}
    for (overlapped, reduced, *_), rows in steps.items():
        size = calls = 0
        if not reduced:  # the busiest direction of the busiest link
            loads: defaultdict[tuple[int, str], int] = defaultdict(int)
            for rank, row in rows:
                host = rank // link.ranks_per_host
                if row["peer"] // link.ranks_per_host != host:
                    loads[host, "out"] += row["sent_bytes"]
                    loads[host, "in"] += row["received_bytes"]
                    calls = max(calls, row["calls"])
            size = max(loads.values(), default=0)
        elif len(record.ranks) > link.ranks_per_host:  # a ring that leaves each host once
            size, calls = max((row["sent_bytes"], row["calls"]) for _, row in rows)
            calls *= 2 * (len(record.ranks) - 1)
        kind = "overlapped" if overlapped else "reduce" if reduced else "exchange"
        framed = size * FRAME / PAYLOAD if link.sockets else size
        seconds[kind] += (8 * framed / link.bits_s + calls * link.latency_s) / record.result["epochs"]
    return seconds


PRESETS = {
    "nvlink": (8 * 450e9, "NVLink 4: 900 GB/s a GPU, both ways together (NVIDIA, H100 data sheet)"),
    "pcie4": (8 * 31.5e9, "PCIe 4.0 x16: 16 GT/s a lane, 128b/130b (PCI-SIG)"),
    "pcie5": (8 * 63e9, "PCIe 5.0 x16: 32 GT/s a lane, 128b/130b (PCI-SIG)"),
    "hdr": (200e9, "InfiniBand HDR, 4 lanes (IBTA roadmap)"),
    "ndr": (400e9, "InfiniBand NDR, 4 lanes (IBTA roadmap)"),
}
"""Links that move bytes without the kernel's sockets: bits a second each way, and who says so."""


def parse_link(text: str, key: str) -> HostLink:
    """Return the link that `text` names: a preset, or a rate such as "10gbit"; UserError naming `key` otherwise."""
    if text in PRESETS:
        bits_s, source = PRESETS[text]
        return HostLink(bits_s, sockets=False, name=text, source=source)
    try:
        bits_s = parse_rate(text)
    except ValueError:
        fix = f"{nearest(text, PRESETS)}; or a rate such as 10gbit"
        raise UserError(f"unknown network '{text}'", key=key, fix=fix) from None
    if not bits_s:
        raise UserError(f"'{text}' is no rate: it must be more than 0", key=key)
    return HostLink(bits_s, name=text)


LINKS = tuple(parse_link(name, "network") for name in ("1gbit", "10gbit", "25gbit", "100gbit", "nvlink"))
LOOPBACK = "none"


def network_label(record: Record) -> str:
    """Return the name of a trial's network, `none` for the loopback."""
    spec = network_of(record)
    return LOOPBACK if spec is None else spec.label


def counterparts(records: Iterable[Record]) -> list[list[Record]]:
    """Group the trials that can be projected by all of their configuration but the network."""
    groups: dict[str, dict[str, Record]] = {}
    for record in records:
        if why_not(record) is None:
            config = {key: v for key, v in whole_config(record.config).items() if key.partition(".")[0] != "network"}
            key = json.dumps(config, sort_keys=True)
            groups.setdefault(key, {})[network_label(record)] = record
    return [list(group.values()) for group in groups.values()]


def base_of(group: Sequence[Record], label: str | None = None) -> Record | None:
    """Return the trial of a group on the network `label` (None if it is not there).

    Without a label the one on the network that limits least: the loopback, else the highest rate.
    """
    if label is not None:
        return next((record for record in group if network_label(record) == label), None)

    def freedom(record: Record) -> tuple[float, float]:
        spec = network_of(record)
        return (math.inf, 1.0) if spec is None else (spec.bits_s, -spec.latency_s)

    return max(group, key=freedom)


@dataclass(frozen=True)
class Comparison:
    """A trial, its seconds an epoch, and what was projected for it from others: on its network, or in its parts."""

    trial: Record
    measured_s: float
    projection: Projection

    @property
    def error(self) -> float:
        """Projected / measured - 1."""
        return self.projection.epoch_time_s / self.measured_s - 1


def compare_counterparts(group: Sequence[Record], base: Record) -> list[Comparison]:
    """Hold the projection of `base` against every other trial of its group that has a network, and cores enough."""
    found = []
    for record in group:  # where ranks share cores, what is measured is not what is projected
        if record is not base and (spec := network_of(record)) and not shares_cores(record):
            projected = project(base, HostLink(spec.bits_s, spec.latency_s, spec.ranks_per_host))
            found.append(Comparison(record, float(record.result["epoch_time_s"]), projected))
    return found


OFF = {"breakdown": -0.103, "plain": -0.16, "shared": -0.36}
"""The worst errors of docs/design/networks.md, by how trials were timed, and of those whose ranks share cores."""


@dataclass(frozen=True)
class Checked:
    """The worst error, and the median, of projections that were held against measurements; in words where that was."""

    error: float
    where: str
    median: float | None = None

    @property
    def factor(self) -> float:
        """By which factor times are off at most, one way or the other."""
        return max(1 + self.error, 1 / (1 + self.error))

    def __str__(self) -> str:
        if self.median is not None:
            return f"off by {100 * self.median:.0f} % in the median and {100 * self.error:.0f} % at most, {self.where}"
        return f"off by at most {math.ceil(1000 * abs(self.error)) / 10:g} % where that was checked, {self.where}"


def checked(records: Iterable[Record]) -> Checked:
    """Return how far projections of records may be off.

    By the trials among them that were measured on several networks; where there are none, and where ranks share cores,
    by the design's checks (`OFF`).
    """
    kinds, pairs = set[str](), list[Comparison]()
    for group in counterparts(records):
        if base := base_of(group):
            kinds.add("shared" if shares_cores(base) else str(base.config.get("timing")))
            pairs += [] if shares_cores(base) else compare_counterparts(group, base)
    where = f"on {rate_label(' and '.join(sorted({network_label(each.trial) for each in pairs})))}"
    found = [Checked(each.error, where) for each in pairs]
    for kind in kinds & {"shared"} if found else kinds:
        found.append(Checked(OFF.get(kind, OFF["plain"]), "see docs/design/networks.md"))
    return max(found, key=lambda each: each.factor, default=Checked(0.0, ""))
