"""Scaling: what an epoch would take in more parts than were trained, on machines that one does not have.

From trials that differ in the number of parts alone, by a model without a constant that is fitted to the answer:

- All ranks compute C(P) = a + b X(P), X the rows that an epoch brings from other ranks: boundary rows of full-graph
  methods, remote input nodes of mini-batch ones. Trials in the fewest and the most parts give a and b, where there is
  one number of parts b is 0. Where cut edges are left out b is below 0; half of what was measured is the least. Seconds
  are those that cores worked, so that ranks may have shared them.
- The busiest rank's share of C(P) / P is what it was in the most parts, or that of its edges where the partition is
  known.
- X(P) of a full-graph method grows like the boundary: of the partition where that is known, or published, else on a
  line through the last two that are known, in logarithms. Of a batch's input nodes a share 1 - (1 - c)^k is remote, c
  the share of edges that are cut; k is what trials in the most parts show.
- What a rank sends grows like X(P) / P, or as the method's closed form has it; ranks of one host send what leaves it
  through one link. What software took for it grows alike. An all-reduce is a ring: 2 (P - 1) / P times the
  weights, in each of the steps, of which batches leave a rank 1 / P.

It is blind to memory bandwidth that ranks of a host share, to caches that hold more of a smaller part, and to what a
call costs, as `harness.results.projection` is, which it builds on.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ByteSize, Field, TypeAdapter, ValidationError

from harness.data.partition.view import TOTAL, imbalance
from harness.errors import UserError
from harness.files import read_text
from harness.results.projection import (
    NOT_COMPUTE,
    Checked,
    Comparison,
    HostLink,
    Projection,
    parse_link,
    project,
    why_not,
)
from harness.results.record import Record
from harness.results.reduce import between_ranks
from harness.spec import Spec
from harness.suite.document import MAX_BYTES, KeyPath, dotted, explain, parse
from harness.suite.schema import TrialConfig


class MachinesFile(Spec):
    """What a file says of machines that one does not have."""

    ranks: int = Field(ge=2)
    ranks_per_host: int = Field(1, ge=1)
    network: str  # a preset or a rate
    latency_us: float = Field(0.0, ge=0)  # of a message
    memory: ByteSize | None = None  # of a host
    core_speed: float = Field(1.0, gt=0)  # in cores of this machine
    price: float | None = Field(None, ge=0)  # of a host, an hour


@dataclass(frozen=True)
class Machines:
    """Ranks on machines that one does not have, `each` of them on a host; `link` and `memory` (bytes): a host's."""

    ranks: int
    each: int
    link: HostLink
    memory: int | None = None  # not known
    speed: float = 1.0  # of a core, in those that trials here ran on
    price: float | None = None  # of a host, an hour

    @classmethod
    def read(cls, path: Path) -> Machines:
        """Read a YAML file with the keys of `MachinesFile`; UserError names file, line and key."""
        try:
            document = parse(read_text(path, MAX_BYTES), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(getattr(error, "strerror", "not UTF-8 text"), file=path, key="--on") from None

        def at(place: KeyPath, message: str, fix: str | None) -> UserError:
            return UserError(message, file=path, line=document.lines.get(place), key=dotted(place) or None, fix=fix)

        try:
            found = MachinesFile.model_validate(document.data)
        except ValidationError as error:
            raise explain(error, at, lambda _: MachinesFile.model_fields, lambda *_: None) from None
        if found.ranks % found.ranks_per_host:
            raise at(("ranks_per_host",), f"{found.ranks} ranks cannot be shared among hosts of it", "a divisor")
        link = replace(parse_link(found.network, f"{path}: network"), latency_s=found.latency_us / 1e6)
        return cls(found.ranks, found.ranks_per_host, link, found.memory, found.core_speed, found.price)

    @classmethod
    def parse(cls, text: str) -> Machines:
        """Read 16xcore,10gbit (a rank a host), 16xcore/8,10gbit,64GB (eight, and memory) or a file; else UserError."""
        if text.endswith((".yaml", ".yml")):
            return cls.read(Path(text))
        fix = "such as 16xcore,10gbit, or 16xcore/8,10gbit,64GB for eight ranks on a host of 64 GB; or a .yaml file"
        found = re.fullmatch(r"([1-9]\d*)xcore(?:/([1-9]\d*))?,([^\s,]+)(?:,(\d+(?:\.\d+)?[KMGT]i?B))?", text)
        if found is None:
            raise UserError(f"'{text}' are no machines", key="--on", fix=fix)
        ranks, each = int(found[1]), int(found[2] or 1)
        if ranks < 2 or ranks % each:
            raise UserError(f"{ranks} ranks cannot be shared among hosts of {each}", key="--on", fix=fix)
        memory = TypeAdapter(ByteSize).validate_python(found[4]) if found[4] else None
        return cls(ranks, each, parse_link(found[3], "--on"), memory)

    @property
    def hosts(self) -> int:
        """How many there are."""
        return self.ranks // self.each

    def __str__(self) -> str:
        hosts = f"{self.hosts} hosts" if self.hosts > 1 else "one host"
        cores = "" if self.speed == 1 else f", cores {self.speed:g} times as fast as here"
        return f"{self.ranks} ranks on {hosts} at {self.link.label}{cores}"


@dataclass(frozen=True)
class Measured:
    """Trials of some seeds in so many parts: medians of the cores' seconds and of the busiest rank's excess."""

    parts: int
    compute_s: float  # of all ranks together
    excess: float  # largest / mean of the ranks
    rows: float  # X: 0 in one part
    inputs: float | None  # that batches read, X among them; None of full-graph methods
    record: Record  # one of them

    @classmethod
    def of(cls, parts: int, records: Sequence[Record]) -> Measured:
        """Take the medians of trials in so many parts."""
        ranks = [_compute(record) for record in records]
        excess = statistics.median(map(imbalance, ranks))
        rows = statistics.median(_rows(record) for record in records)
        inputs = records[0].result["stats"]["input_nodes"] if _draws(records[0]) else None
        return cls(parts, statistics.median(map(sum, ranks)), excess, rows, inputs, records[0])


def alike(records: Iterable[Record]) -> dict[str, dict[int, list[Record]]]:
    """Group the trials that scale by all but parts, seed and network, then by number of parts."""
    groups: dict[str, dict[int, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record.status == "ok" and record.result.get("epoch_time_s") and any(record.result.get("rank_cpu") or ()):
            with suppress(ValueError):  # of another version
                trial = TrialConfig.model_validate(record.config)
                if trial.device == "cpu" and (trial.partition.parts == 1 or why_not(record) is None):
                    groups[key_of(trial)][trial.partition.parts].append(record)
    return groups


def key_of(trial: TrialConfig) -> str:
    """Return what trials have in common that differ in parts, seed and network alone."""
    spec = trial.partition.model_copy(update={"parts": 1})
    return trial.model_copy(update={"partition": spec, "network": None}).seedless


@dataclass(frozen=True)
class Shape:
    """What is known of a graph in parts, by their number.

    `boundary`: boundary nodes, or of mini-batch methods the share of edges that are cut. `sent`: bytes of an epoch's
    exchanges, as far as there is a closed form. `excess`: largest / mean edges of the parts that are asked for.
    """

    boundary: Mapping[int, float]
    sent: Mapping[int, float] = field(default_factory=dict)
    excess: float | None = None

    @classmethod
    def of(
        cls, known: Mapping[int, Sequence[Record]], parts: int, table: Sequence[Mapping[str, Any]] = (),
        published: int | None = None, sent: int | None = None,
    ) -> Shape:  # fmt: skip
        """Return what trials show, with more of `parts` parts.

        `table`: of the partition, as far as it is known (see `partition_table`), `published`: its boundary, `sent`: the
        bytes of an epoch, all-reduce included.
        """
        found = {each: statistics.median(map(_boundary, own)) for each, own in known.items()}
        batches = any(map(_draws, (record for own in known.values() for record in own)))
        if (split := _split(table, batches=batches)) is not None:
            found[parts] = split
        elif published is not None and not batches:
            found[parts] = float(published)
        first = {} if batches else {each: own[0].result for each, own in known.items() if each > 1}
        bytes_of = {each: between_ranks(of) - float(of.get("bytes_model") or 0) for each, of in first.items()}
        if bytes_of and sent is not None:
            of = max(bytes_of)
            bytes_of[parts] = sent - (first[of].get("bytes_model") or 0) * (parts - 1) / (of - 1)
        edges = [row["edges"] for row in table if row["part"] != TOTAL]
        return cls(found, bytes_of, imbalance(edges) if sum(edges) and not batches else None)

    def at(self, parts: int) -> float:
        """Return the boundary in so many parts: known, or on a line through the last two of fewer, in logarithms."""
        if parts in self.boundary:
            return self.boundary[parts]
        known = sorted(each for each in self.boundary if 1 < each < parts and self.boundary[each])
        if len(known) < 2:
            raise UserError(f"{parts} parts are not known", fix=f"run harness partition DATASET --parts {parts}")
        low, high = known[-2:]
        steps = math.log(parts / high) / math.log(high / low)
        return float(self.boundary[high] * (self.boundary[high] / self.boundary[low]) ** steps)


def scaled(known: Mapping[int, Sequence[Record]], machines: Machines, shape: Shape) -> Projection:
    """Predict an epoch of `machines.ranks` parts from trials in fewer.

    Args:
        known: trials of one group of `alike`, by number of parts.
        machines: where it would run.
        shape: of the graph in these parts.

    Raises:
        UserError: no trial had two parts or more, or the boundary in so many parts is not known.
    """
    points = [Measured.of(parts, known[parts]) for parts in sorted(known) if parts <= machines.ranks]
    if not points or points[-1].parts < 2:
        raise UserError(f"no trial in 2 to {machines.ranks} parts ran here")
    first, last, ranks = points[0], points[-1], machines.ranks
    rows = last.rows if ranks == last.parts else _grown(last, shape.at(last.parts), shape.at(ranks))
    slope = (last.compute_s - first.compute_s) / (last.rows - first.rows) if last.rows > first.rows else 0.0
    base = project(last.record, replace(machines.link, ranks_per_host=1), worked=True)
    sent = shape.sent if {ranks, last.parts} <= shape.sent.keys() else {ranks: rows, last.parts: last.rows}
    more = sent[ranks] / ranks / (sent[last.parts] / last.parts) if sent[last.parts] else 1.0
    # Of a rank's rows, to how many a host's link adds up: those that leave the host.
    more *= machines.each * (ranks - machines.each) / (ranks - 1)
    ring = (1 - 1 / ranks) / (1 - 1 / last.parts) if ranks > machines.each else 0.0
    ring *= 1.0 if last.inputs is None else last.parts / ranks  # of each step
    work = max(last.compute_s / 2, last.compute_s + slope * (rows - last.rows))
    compute = work / ranks * (shape.excess or last.excess) / machines.speed
    return Projection(compute, 0.0, base.exchange_s * more, base.reduce_s * ring, base.overlapped_s * more)


def _grown(last: Measured, was: float, now: float) -> float:
    """Return the rows that come where the boundary, or the share of cut edges, is `now` and not as it `was`."""
    if last.inputs is None:
        return last.rows * now / was if was else 0.0
    share = last.rows / last.inputs if last.inputs else 0.0
    if not 0 < share < 1 or not 0 < was < 1:
        return last.rows
    return float(last.inputs * (1 - (1 - share) ** (math.log(1 - min(now, 0.999)) / math.log(1 - was))))


DESIGN = Checked(0.61, "see docs/design/networks.md", 0.16)
"""Of the suite `scaling`, at 100 Gbit/s."""


def sure(found: Sequence[Comparison]) -> Checked:
    """Return how far predictions were off, of these trials or, where there are none, of the design's."""
    if not found:
        return DESIGN
    off = [max(1 + each.error, 1 / (1 + each.error)) - 1 for each in found]
    return Checked(max(off), f"in {len(off)} cases of this suite", statistics.median(off))


def held_out(groups: Iterable[Mapping[int, Sequence[Record]]], link: HostLink, most: int = 2) -> list[Comparison]:
    """Predict the trials in more than `most` parts from those in no more, each rank on a host of its own.

    What is measured is a trial's own projection onto the link by the seconds that its cores worked (see `project`).
    """
    found = []
    for group in groups:
        fewer = {parts: group[parts] for parts in group if parts <= most}
        shape = Shape.of(group, max(group))
        for parts in sorted(set(group) - set(fewer)) if any(each > 1 for each in fewer) else ():
            predicted = scaled(fewer, Machines(parts, 1, link), shape)
            measured = statistics.median(project(record, link, worked=True).epoch_time_s for record in group[parts])
            found.append(Comparison(group[parts][0], measured, predicted))
    return found


def _compute(record: Record) -> list[float]:
    """Return the seconds an epoch that each rank's cores compute."""
    return [
        sum(seconds or 0.0 for phase, seconds in phases.items() if phase not in NOT_COMPUTE)
        for phases in record.result["rank_cpu"]
    ]


def _draws(record: Record) -> bool:
    """Return whether a method's batches read rows of other ranks."""
    return "remote_nodes" in (record.result.get("stats") or {})


def _rows(record: Record) -> float:
    if _draws(record):
        return float(record.result["stats"]["remote_nodes"])
    return float(record.result.get("boundary_nodes") or 0)


def _boundary(record: Record) -> float:
    """Return what the rows from other ranks grow with; see `Shape`."""
    return _split(record.partition, batches=_draws(record)) or 0.0


def _split(table: Sequence[Mapping[str, Any]], *, batches: bool) -> float | None:
    """Return the boundary of a partition's table, or the share of cut edges; None where there is no table."""
    total = next((row for row in table if row["part"] == TOTAL), None)
    if total is None:
        return None
    return float(total["edges_cut"] / max(1, total["edges"]) if batches else total["boundary"])
