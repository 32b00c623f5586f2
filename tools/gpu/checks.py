"""What records of trials say: rows of a table, and whether figures are within the bounds that the project claims."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.metrics import PHASES
from harness.results.record_store import record_places

Record = Mapping[str, Any]
Bounds = tuple[float, float]

# What docs and tests claim: parts add up (docs/measurements.md), the model beside what was measured
# (harness/launch/planner.py), the counter of energy beside the mean power (tests/gpu/test_meters.py).
RESIDUE: Bounds = (0.0, 0.02)
MODEL: Bounds = (0.5, 1.4)
# Of a batch the model knows bounds alone, as if no two draws met: of 1024 targets with fan-outs of 25 and 10 on
# Reddit's twin all 232,965 nodes, of which 122,000 are read.
MODEL_OF_BATCHES: Bounds = (0.5, 2.0)
ENERGY: Bounds = (0.7, 1.3)


def read_records(results: Path) -> list[dict[str, Any]]:
    """Return every record under a directory of results; none where it does not exist."""
    places = record_places(results) if results.is_dir() else []
    return [json.loads((place / "record.json").read_text(encoding="utf-8")) for place in places]


LEAST_BYTES = 256 * 2**20  # below, libraries' own workspaces are most of what is measured
# Between the phases of a step is the clock itself, and in records without the phase `check` what that has now: 0.15 to
# 0.36 ms on an idle core, whatever the step does.
BETWEEN_PHASES_S = 0.0005


def residue(record: Record) -> float | None:
    """Return the share of a mean epoch that no named phase covers, less half a millisecond a step; never below 0.

    As it is where phases cover more than the epoch. None where the record says that others used the cores: they took
    their part between any two phases.
    """
    result = record["result"]
    share, epoch = result.get("residue"), result.get("epoch_time_s")
    if share is None or not epoch or any(flag.startswith("load: noisy") for flag in record.get("flags", ())):
        return None
    return float(share if share < 0 else max(0.0, share - BETWEEN_PHASES_S * (result.get("steps") or 1) / epoch))


def model_ratio(record: Record) -> float | None:
    """Return the memory model's bytes over those measured: the allocator's peak, or the growth of a process.

    Mapped files are left out of the latter, as of the model. None where that says less than 256 MiB.
    """
    result = record["result"]
    grown = (result.get("peak_above_base_bytes") or 0) - (result.get("mapped_bytes") or 0)
    measured = result.get("allocator_peak_bytes") or grown
    model = result.get("memory_model_bytes") or 0
    return float(model / measured) if model >= LEAST_BYTES and measured else None


def model_ratio_of(family: str) -> Callable[[Record], float | None]:
    """Return what gives `model_ratio` of the methods of a family, None of others."""

    def ratio(record: Record) -> float | None:
        return model_ratio(record) if record["declared"]["family"] == family else None

    return ratio


def energy_ratio(record: Record) -> float | None:
    """Return the energy counter's joules an epoch over mean power times the epoch's seconds."""
    energy, power, seconds = (record["result"].get(key) for key in ("energy_gpu_j", "gpu_power_w", "epoch_time_s"))
    return float(energy / (power * seconds)) if energy and power and seconds else None


def transport(record: Record) -> float | None:
    """Return 1 if ranks talk through what their GPUs allow, 0 if not: NCCL where each has its own, else gloo."""
    backends = {rank.get("backend") for rank in record["ranks"]}
    parts = record["config"]["partition"]["parts"]
    if parts == 1:
        return None
    gpus = len(record["environment"].get("gpus") or ())
    own = record["config"]["device"] == "cuda" and gpus >= parts
    return float(backends == {"nccl" if own else "gloo"})


CHECKS: dict[str, tuple[str, Callable[[Record], float | None], Bounds]] = {
    "closure": ("share of an epoch in no named phase, beyond 0.5 ms a step", residue, RESIDUE),
    "memory": ("memory model / measured peak, full-graph", model_ratio_of("full-graph"), MODEL),
    "batches": ("the same of mini-batches, the most", model_ratio_of("mini-batch"), MODEL_OF_BATCHES),
    "energy": ("energy counter / power times time", energy_ratio, ENERGY),
    "transport": ("ranks that share a GPU use gloo, others NCCL", transport, (1.0, 1.0)),
}


def checks(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Return for each check its bounds, of how many trials, least and most, and which trials are outside."""
    fine = [record for record in records if record["status"] == "ok"]
    found = {}
    for name, (what, value_of, (low, high)) in CHECKS.items():
        values = {f"{record['suite']}: {record['label']}": value_of(record) for record in fine}
        known = {label: value for label, value in values.items() if value is not None}
        outside = [label for label, value in known.items() if not low <= value <= high]
        found[name] = {
            "what": what, "bounds": [low, high], "of": len(known), "wrong": len(outside),
            "least": min(known.values(), default=None), "most": max(known.values(), default=None), "outside": outside,
        }  # fmt: skip
    return found


KEPT = ("epoch_time_s", "time_sample_s", "time_comm_s", "time_wait_s", "residue", "memory_model_bytes",
        "allocator_peak_bytes", "energy_gpu_j", "gpu_utilisation")  # fmt: skip


def twin_rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return a row a trial: method, parts, status, and the figures that goals and the page read."""
    rows = []
    for record in records:
        config, result = record["config"], record["result"] or {}
        row = {"method": config["method"]["name"], "parts": config["partition"]["parts"], "status": record["status"]}
        phases = [result.get(f"time_{phase}_s") or 0.0 for phase in PHASES]
        figures = {key: result.get(key) for key in KEPT} | {"model_ratio": model_ratio(record) if result else None}
        sizes = {key: record["dataset"][key] for key in ("nodes", "edges", "features", "classes")}
        rows.append(row | figures | {"phases_s": sum(phases), "dataset": sizes, "model": config["model"]})
    return sorted(rows, key=lambda row: (row["parts"], row["method"]))
