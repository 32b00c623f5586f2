"""The goals on a GPU, and the summary: each goal with what was measured, or why nothing was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.models.architecture import Architecture, eq3_values
from harness.models.layer import BlockSize, ModelSpec
from tools.gpu.evidence import Evidence
from tools.gpu.steps import STEPS

ITEM = 4  # bytes of a value, and of a column's number
Found = Mapping[str, Any]
"""What the steps found, by their names."""


@dataclass(frozen=True)
class Goal:
    """Says what is to be reached: `value` of what was found is to be `word` (at most, at least) `bound`.

    `value` returns None and why where it cannot be told.
    """

    name: str
    what: str
    word: str
    bound: float
    value: Callable[[Found], tuple[float | None, str]]

    def judged(self, found: Found, of_gpu: bool) -> dict[str, Any]:
        """Return the goal as the summary has it; figures that are no GPU's at full size judge nothing."""
        value, why = self.value(found) if found else (None, "no run yet")
        state = "not measured"
        if value is not None and of_gpu:
            state = "met" if (value <= self.bound if self.word == "at most" else value >= self.bound) else "missed"
        elif value is not None:
            why = "not on a GPU at full size"
        told = {"name": self.name, "what": self.what, "goal": f"{self.word} {self.bound:g}"}
        return told | {"measured": value, "state": state, "why": why if state == "not measured" else ""}


def moved_bytes(model: Mapping[str, Any], nodes: int, edges: int, features: int, classes: int) -> int:
    """Return the bytes that an epoch of `full` on one rank moves in memory, if caches help nowhere.

    - a sparse product of width w reads a row of w values and a column's number for each entry, and a pointer for and
      writes a row for each node. Each layer has one forward, and one backward, but for a first layer that aggregates
      first; w is that of the order of products that `transforms_first` takes;
    - what the memory model has of the layers (Eq. 3 of BNS-GCN) is written once and read in both passes;
    - weights, gradients and Adam's two moments are read and written.
    """
    network = Architecture(ModelSpec(**model), features, classes)
    block, moved = BlockSize(nodes, nodes, edges), 0
    for index in range(network.spec.layers):
        layer, _ = network.layer_of(index * network.hops)
        inner = index > 0
        early = layer.transforms_first(edges, nodes, nodes, weights=True, inputs=inner)
        width = int(layer.outputs if early else layer.inputs)
        product = edges * (width + 1) * ITEM + nodes * (8 + width * ITEM)
        moved += product * (2 if early or inner else 1)
    moved += 3 * ITEM * eq3_values(network, [block] * network.depth)
    return moved + 2 * 4 * ITEM * network.num_weights


def _row(found: Found, method: str, parts: int) -> Mapping[str, Any] | None:
    rows = found.get("twin", {}).get("rows", ())
    own = (row for row in rows if (row["method"], row["parts"], row["status"]) == (method, parts, "ok"))
    return next(own, None)


def of_roofline(found: Found) -> tuple[float | None, str]:
    """Return the epoch of `full` on one rank over what its bytes take at the bandwidth of a copy."""
    row, copy = _row(found, "full", 1), found.get("machine", {}).get("copy_bytes_s")
    if row is None or not copy:
        return None, "needs the steps `machine` and `twin`"
    return float(row["epoch_time_s"] * copy / moved_bytes(row["model"], **row["dataset"])), ""


def sampling_share(found: Found) -> tuple[float | None, str]:
    """Return the share of an epoch of `bns-gcn` on two ranks in which it draws."""
    row = _row(found, "bns-gcn", 2)
    if row is None or not row["phases_s"]:
        return None, "needs the step `twin`"
    return float(row["time_sample_s"] / row["phases_s"]), ""


def beside_full(found: Found) -> tuple[float | None, str]:
    """Return the epoch of `bns-gcn` over that of `full`, both on two ranks, what it draws left out of neither."""
    own, full = _row(found, "bns-gcn", 2), _row(found, "full", 2)
    if own is None or full is None:
        return None, "needs the step `twin`"
    return float(own["epoch_time_s"] / full["epoch_time_s"]), ""


def device_sampler(found: Found) -> tuple[float | None, str]:
    """Return the batches a second of a sampler on the device over the host's."""
    kernels = found.get("kernels", {})
    if not kernels.get("device_batches_s"):
        return None, "batches were not drawn on a device"
    return float(kernels["device_batches_s"] / kernels["host_batches_s"]), ""


GOALS = (
    Goal("roofline", "Reddit's twin at full size, `full`, one rank: an epoch's seconds over those that the bytes moved "
         "take at the bandwidth of a copy", "at most", 1.5, of_roofline),
    Goal("sampling", "the same, `bns-gcn` with p = 0.1, two ranks: share of an epoch in which it samples", "at most",
         0.05, sampling_share),
    Goal("bns-gcn", "the same: its epoch over that of `full` on two ranks", "at most", 1.0, beside_full),
    Goal("sampler", "neighbour sampling with fan-outs [25, 10], batches of 1024: batches a second on the device over "
         "those of one thread of the host", "at least", 5.0, device_sampler),
)  # fmt: skip

MACHINE = ("gpus", "driver", "cuda", "nccl", "python", "cpu", "usable_cores", "memory_bytes", "commit", "dirty",
           "copy_bytes_s", "to_device_pinned_bytes_s", "to_device_pageable_bytes_s", "to_host_pinned_bytes_s",
           "to_host_pageable_bytes_s", "device_memory_bytes", "sm_clock_mhz", "memory_clock_mhz", "most_sm_clock_mhz",
           "most_memory_clock_mhz", "power_limit_w")  # fmt: skip


def summary(evidence: Evidence | None) -> dict[str, Any]:
    """Return what the page is made from; without evidence every goal is not measured."""
    ended = {step.name: evidence.ended(step.name) for step in STEPS} if evidence else {}
    found = {name: each["found"] for name, each in ended.items() if each}
    of_gpu = evidence is not None and evidence.setting.device == "cuda" and not evidence.setting.quick
    machine = found.get("machine", {})
    kept = {key: machine[key] for key in MACHINE if machine.get(key) is not None}
    versions = machine.get("packages", {})
    return {
        "setting": evidence.setting.words if evidence else None,
        "machine": kept | ({"torch": versions["torch"]} if "torch" in versions else {}),
        "goals": [goal.judged(found, of_gpu) for goal in GOALS],
        "steps": [_told(step.name, step.title, ended.get(step.name)) for step in STEPS],
        "tests": found.get("tests", {}),
        "checks": found.get("checks", {}),
        "products": found.get("kernels", {}).get("products", []),
        "trials": _trials(found.get("twin", {}).get("rows", ())),
    }


def _told(name: str, title: str, ended: Mapping[str, Any] | None) -> dict[str, Any]:
    told = {"name": name, "title": title}
    if not ended:
        return told | {"state": "left"}
    return told | {key: ended[key] for key in ("state", "reason", "seconds")} | {"commits": ended.get("commits", [])}


def _trials(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in ("dataset", "model")} for row in rows]
