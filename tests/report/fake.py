"""Made-up results, written by the project's own store so that reports read what runs write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.metrics import Metric, as_declared
from harness.models.layer import ModelSpec
from harness.results.record import Record, epoch_rows, without_epochs
from harness.results.record_store import ResultStore
from harness.results.reduce import reduce
from harness.runtime.method import METHODS as REGISTERED
from harness.runtime.run_config import MethodSpec, TrainSpec
from harness.spec import DatasetSpec, PartitionSpec
from harness.suite.schema import TrialConfig

Method = tuple[str, dict[str, Any]]
METHODS: tuple[Method, ...] = (
    ("bns-gcn", {"rate": 0.1, "sampler": "bernoulli"}),
    ("bns-gcn", {"rate": 0.01, "sampler": "bernoulli"}),
    ("graphsage", {"fanouts": [25, 10], "batch_size": 1000}),
    ("full", {"precompute": False}),
)
ENVIRONMENT: dict[str, Any] = {
    "harness": "0.1.0",
    "commit": "0123456789abcdef0123456789abcdef01234567",
    "dirty": True,
    "python": "3.11.2",
    "platform": "Linux-6.1-x86_64",
    "packages": {"torch": "2.13.0", "dgl": None, "numpy": "2.2.1"},
    "cpu": "Example CPU @ 2.4 GHz",
    "cores": 2,
    "memory_bytes": 16 * 2**30,
    "omp_num_threads": None,
    "gpus": None,
    "driver": None,
}
DEGREE = 12  # edges of a boundary node into a part
EDGES = 500_000  # of a rank
STEPS = 10  # of an epoch
NODES = 60_000  # a rank's mini-batches read in an epoch
HOLDS = {"none": 0.0, "random": 0.6, "degree": 0.8, "inclusion": 0.9}
Fails = Callable[[TrialConfig], tuple[str, str] | None]


def make_ranks(config: TrialConfig, epochs: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """What the ranks of a trial would have written."""
    parts, name = config.partition.parts, config.method.name
    rate = float(config.method.options.get("rate", 1.0))
    asked = 1 - (1 - rate) ** DEGREE if name == "psc-gcn" else rate
    speed = {"graphsage": 4.0, "full": 1.0}.get(name, 0.55 + 0.4 * rate) / parts**0.7
    speed *= config.model.layers / (config.train.threads or 1) ** 0.8 / 2
    sampled = config.train.sampled_eval and name == "skewed"
    top = 0.90 + 0.03 * rate - 0.004 * parts + rng.normal(0, 0.002)
    ranks = []
    for rank in range(parts):
        rows = []
        for epoch in range(epochs):
            timing = "plain" if config.timing == "breakdown" and not epoch % 2 else config.timing
            barriers = 6 * (timing == "breakdown" and parts > 1)
            phases = {
                "sample": 0.02 * (rate < 1) + 0.1 * (name == "graphsage"),
                "fetch": 0.3 * (name == "graphsage"),
                "forward": 0.3 / parts,
                "backward": 0.4 / parts,
                "compress": 0.02 * (name == "skewed"),
                "comm": 0.3 * rate * (parts > 1),
                "wait": 0.05 * (barriers > 0),
                "reduce": 0.02 * (parts > 1),
                "optimize": 0.01,
                "explain": 0.06 * (name == "skewed"),
                "swap": 0.04 * (name == "skewed"),
                "check": 0.001,
                "other": 0.003 + 0.05 * (name == "leaky"),
            }
            noise = speed * (1 + 0.04 * rng.standard_normal() ** 2 + 0.02 * rank) * (3 if epoch == 0 else 1)
            times = {f"time_{key}_s": value * noise for key, value in phases.items()}
            seconds = sum(times.values())
            timed = config.timing != "wall"
            busy = times["time_comm_s"] + 0.25 * seconds * _overlaps(config) * (parts > 1)
            boundary = 1000 * asked * (parts - 1)
            evaluated = (epoch + 1) % 5 == 0
            score = top - 0.6 * np.exp(-epoch / 6) + rng.normal(0, 0.003)
            rows.append(
                {
                    "epoch": epoch,
                    "rank": rank,
                    "timing": timing,
                    "barriers": barriers,
                    "epoch_time_s": seconds,
                    "steps": STEPS,
                    **{key: value if timed else None for key, value in times.items()},
                    "comm_busy_s": busy if timed else None,
                    "comm_exposed_s": times["time_comm_s"] if timed else None,
                    "cpu_s": (0.8 + 0.1 * rank) * seconds if timed else None,
                    **_counters(config, rank, seconds),
                    "bytes_feature": int(boundary * 602 * 4),
                    "bytes_embedding": int(boundary * 256 * 4),
                    "bytes_gradient": int(boundary * 256 * 4),
                    "bytes_model": 700_000 * (parts > 1),
                    "bytes_control": int(boundary * 8) if rate < 1 else 0,
                    "bytes_swap": 0,
                    "loss": float(np.exp(-epoch / 20)),
                    "lr": 0.01,
                    "train_score": None,
                    "val_score": float(score) if evaluated else None,
                    "test_score": float(score - 0.01) if evaluated else None,
                    "sampled_val_score": float(score - 0.02) if evaluated and sampled else None,
                    "sampled_test_score": float(score - 0.03) if evaluated and sampled else None,
                    "eval_s": 0.2 if evaluated else 0.0,
                    "stats": _stats(config, rank, epoch, asked),
                }
            )
        ranks.append(_rank(config, rank, rows, rate))
    return ranks


def _overlaps(config: TrialConfig) -> bool:
    return config.method.name == "pipelined" or config.method.options.get("staleness", 0) > 0


def _boundary(parts: int, rank: int) -> int:
    return 9_000 * (parts - 1) // parts + 17 * rank


def _stats(config: TrialConfig, rank: int, epoch: int, asked: float) -> dict[str, float]:
    """What the method tells of an epoch: the cache is empty before the second."""
    name, options = config.method.name, config.method.options
    boundary = _boundary(config.partition.parts, rank)
    if name == "bns-gcn":
        return {"kept_boundary": int(asked * boundary)}
    if "version" in options:
        saved = options["distortion"] ** 0.5 if options["version"] == "skewed" else 1.0
        drawn = NODES if options["base"] == "ladies" else NODES // 3
        remote = 0 if options["version"] == "local" else int(drawn / 2 / saved) + epoch % 3
        found = {"input_nodes": NODES + rank, "remote_nodes": remote, "drawn_edges": 9 * NODES}
        return found | {"cached_nodes": remote // 4 if options["cache"] != "none" else 0}
    if name == "graphsage":
        layers = config.model.layers
        nodes = {f"nodes_layer{i}": STEPS * 100 * 8 ** (layers - i) for i in range(1 + layers)}
        return nodes | {"drawn_edges": 9 * NODES}
    if name != "psc-gcn":
        return {}
    held = HOLDS[options["cache"]] * options["capacity"] ** 0.5
    return {
        "drawn_edges": int(options["rate"] * EDGES) + epoch % 2,
        "sampled_boundary": int(asked * boundary) + epoch % 3,
        "expected_boundary": asked * boundary,
        "cached_boundary": int(held * asked * boundary) if epoch else 0,
    }


def _counters(config: TrialConfig, rank: int, seconds: float) -> dict[str, Any]:
    """Energy and utilisation of an epoch: packages only with a GPU beside them (no RAPL without)."""
    gpu = config.device == "cuda"
    return {
        "energy_cpu_j": 40 * seconds if gpu and rank == 0 else None,
        "energy_gpu_j": (200 + 10 * rank) * seconds if gpu else None,
        "gpu_utilisation": 0.6 + 0.1 * rank if gpu else None,
        "gpu_power_w": 200.0 + 10 * rank if gpu else None,
    }


NO_RAPL = "/sys/class/powercap: no processor package (RAPL) is listed"


def _meters(config: TrialConfig, rank: int, peak: int) -> dict[str, Any]:
    gpu = config.device == "cuda"
    figures = ("nvml_peak_bytes", "allocator_peak_bytes", "gpu_utilisation", "gpu_power_w", "energy_gpu_j")
    why = {} if gpu else dict.fromkeys(figures, "the device is cpu")
    if rank:
        why["energy_cpu_j"] = "local rank 0 counts for this machine"
    elif not gpu:
        why["energy_cpu_j"] = NO_RAPL
    return {
        "nvml_device_peak_bytes": 6 * 2**30 if gpu else None,
        "gpu_clock_mhz": 1600.0 + 100 * rank if gpu else None,
        "gpu_slowed_share": 0.25 * rank if gpu else None,
        "interval_s": 0.1,
        "pss_interval_s": 2.0,
        "samples": 30,
        "peak_rss_bytes": peak,
        "peak_pss_bytes": peak - 100 * 2**20,
        "nvml_peak_bytes": 3 * 2**30 + rank * 2**29 if gpu else None,
        "allocator_peak_bytes": 2 * 2**30 + rank * 2**29 if gpu else None,
        "counts_for": [*(["energy_gpu_j", "gpu_power_w"] if gpu else []), *(["energy_cpu_j"] * (rank == 0))],
        "unavailable": why,
    }


def _model(config: TrialConfig, rank: int) -> dict[str, int]:
    """The memory model: its component of batches is that of a mini-batch method alone."""
    parts = config.partition.parts
    batches = {"sampled blocks": 30 * 2**20} if config.method.name == "graphsage" else {}
    layers = {"layers (Eq. 3)": (200 // parts + rank) * 2**20, "layers, beside Eq. 3": -8 * 2**20}
    return {"input features": 120 * 2**20 // parts, **layers, **batches}


def _link(config: TrialConfig, rank: int) -> dict[str, Any]:
    """The interface: the loopback, or with a network one in a namespace of each rank's own."""
    if config.network is None:
        return {"interface": "lo", "network": "00aa", "loopback": True, "mtu": 65536}
    return {"interface": "eth0", "network": f"00b{rank}", "loopback": False, "mtu": 1500}


def _check(config: TrialConfig, rank: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The interface sees 5 % more than was counted; the loopback carries both ranks' bytes."""
    sent = sum(value for row in rows for key, value in row.items() if key.startswith("bytes_"))
    seen = round(1.05 * sent * (config.partition.parts if config.network is None else 1))
    return {
        **_link(config, rank),
        "sent_bytes": seen,
        "received_bytes": seen,
        "counted_sent_bytes": sent,
        "counted_received_bytes": sent,
    }


def _rank(config: TrialConfig, rank: int, rows: list[dict[str, Any]], rate: float) -> dict[str, Any]:
    parts = config.partition.parts
    peak = int((1.2 + 2.5 * (0.6 + 0.4 * rate) / parts) * 2**30) + rank * 2**20
    evaluated = [row for row in rows if row["val_score"] is not None]
    best = max(evaluated, default={}, key=lambda row: row["val_score"])
    return {
        "rank": rank,
        "status": "ok",
        "reason": None,
        "inner": 20_000 // parts,
        "boundary": _boundary(parts, rank),
        "edges": EDGES,
        "train_nodes": 100,
        "setup_s": 1.0,
        "found": {"partition": 3.0},
        "eval_s": 2.0,
        "peak_memory_bytes": peak,
        "peak_memory_source": "VmHWM",
        "base_memory_bytes": 300 * 2**20,
        "link": _link(config, rank) if parts > 1 else None,
        "meters": _meters(config, rank, peak),
        "memory_model": _model(config, rank),
        **({"traffic_check": _check(config, rank, rows)} if config.traffic == "verify" else {}),
        "summary": {
            "epochs": len(rows),
            "best_val": best.get("val_score"),
            "test_at_best_val": best.get("test_score"),
            "sampled_test_at_best_val": best.get("sampled_test_score"),
        },
        "epochs": rows,
    }


def write_results(
    root: Path,
    *,
    suite: str = "demo",
    datasets: Sequence[tuple[str, str, str]] = (("digits", "real", ""),),
    methods: Sequence[Method] = METHODS,
    parts: Sequence[int] = (1, 2),
    seeds: Sequence[int] = (0, 1, 2),
    partitioner: str = "metis",
    model: str = "sage",
    layers: int = 2,
    epochs: int = 30,
    fails: Fails = lambda config: None,
    environment: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    train: dict[str, Any] | None = None,
    figures: dict[str, Any] | None = None,
    metrics: Sequence[Metric] | None = None,
) -> Path:
    """Write a suite's trials below `root` and return `root`.

    `datasets`: (name, origin, note); `settings`: keys of TrialConfig (timing, traffic, network, device);
    `train`: those of TrainSpec; `figures`: what a record's result has beside what its ranks tell;
    `metrics`: what its method declares, None: as a record that says nothing of it.
    """
    store = ResultStore(root, suite)
    for name, origin, note in datasets:
        for method, options in methods:
            for count in parts:
                for seed in seeds:
                    config = TrialConfig(
                        dataset=DatasetSpec(name=name),
                        model=ModelSpec(name=model, layers=layers),
                        train=TrainSpec(epochs=epochs, **(train or {})),
                        partition=PartitionSpec(parts=count, method=partitioner),
                        method=MethodSpec(name=method, options=options),
                        seed=seed,
                        **{"device": "cpu"} | (settings or {}),
                    )
                    failure = fails(config)
                    rng = np.random.default_rng(int(config.id, 16))
                    ranks = [] if failure else make_ranks(config, epochs, rng)
                    record = Record(
                        declared=(REGISTERED.load(method).declared() if method in REGISTERED.names() else {})
                        | {
                            "defaults": config.method.options,  # labels name none of them
                            "numbers": [],
                            **({} if metrics is None else {"metrics": as_declared(metrics)}),
                        },
                        trial=config.id,
                        suite=suite,
                        label=f"{name} {model} {method} P={count} seed={seed}",
                        status=failure[0] if failure else "ok",
                        reason=failure[1] if failure else None,
                        started="2025-01-01T10:00:00+00:00",
                        wall_s=12.5,
                        config=config.model_dump(mode="json"),
                        environment=environment or ENVIRONMENT,
                        dataset={"name": name, "origin": origin, "note": note, "multilabel": False},
                        result=reduce(ranks) | (figures or {}) if ranks else {},
                        ranks=without_epochs(ranks),
                    )
                    store.stage(config.id)
                    store.commit(config.id, record, epoch_rows(ranks), "")
    return root
