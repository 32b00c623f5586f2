"""Twins: trials that differ in their network only, and the projection of one held against the others."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.results.projection import Projection, network_of, project, why_not
from harness.results.record import Record
from harness.suite.schema import NetworkSpec

LOOPBACK = "none"


@dataclass(frozen=True)
class Comparison:
    """A trial on a network, and the projection of its twin `base` onto that network."""

    base: Record
    trial: Record
    network: NetworkSpec
    projection: Projection

    @property
    def measured_s(self) -> float:
        """Seconds of the trial's epoch."""
        return float(self.trial.result["epoch_time_s"])

    @property
    def error(self) -> float:
        """Projected / measured - 1."""
        return self.projection.epoch_time_s / self.measured_s - 1


def network_label(record: Record) -> str:
    """Return the name of a trial's network, `none` for the loopback."""
    spec = network_of(record)
    return LOOPBACK if spec is None else spec.label


def twin_groups(records: Iterable[Record]) -> list[list[Record]]:
    """Group the trials that can be projected by all of their configuration but the network."""
    groups: dict[str, dict[str, Record]] = {}
    for record in records:
        if why_not(record) is None:
            config = {key: value for key, value in record.config.items() if key != "network"}
            key = json.dumps(config, sort_keys=True)
            groups.setdefault(key, {})[network_label(record)] = record
    return [list(group.values()) for group in groups.values()]


def base_of(group: Sequence[Record], label: str | None = None) -> Record | None:
    """Return the trial of a group on the network `label` (None if it is not there).

    Without a label the one on the network that limits least: the loopback, else the highest rate.
    """
    if label is not None:
        return next((record for record in group if network_label(record) == label), None)
    return max(group, key=_freedom)


def _freedom(record: Record) -> tuple[float, float]:
    spec = network_of(record)
    return (math.inf, 1.0) if spec is None else (spec.bits_s, -spec.latency_s)


def compare(group: Sequence[Record], base: Record) -> list[Comparison]:
    """Hold the projection of `base` against every other trial of its group that has a network."""
    found = []
    for record in group:
        spec = network_of(record)
        if spec is not None and record is not base:
            onto = project(base, spec.bits_s, spec.latency_s, ranks_per_host=spec.ranks_per_host)
            found.append(Comparison(base, record, spec, onto))
    return found
