"""Made-up results of a suite of several networks, whose epoch times follow a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.models.layer import ModelSpec
from harness.results.record import Record
from harness.results.record_store import ResultStore
from harness.runtime.method import METHODS
from harness.runtime.run_config import MethodSpec, TrainSpec
from harness.spec import DatasetSpec, PartitionSpec
from harness.suite.schema import TrialConfig
from harness.suite.sections import NetworkSpec

EPOCHS = 10
COMPUTE_S, SOFTWARE_S = 0.3, 0.02
PAYLOAD = {"full": 1_448_000, "bns-gcn": 144_800}  # bytes an epoch from each rank to the other
UNSCORED = {"loss": 1.0, "lr": 0.01, "train_score": None, "val_score": None, "test_score": None, "eval_s": 0.0}
SLOWER = 1.1  # a shaped trial takes so much longer than compute and wire


def write_networks(
    root: Path,
    networks: Sequence[str | None] = (None, "100mbit", "12.112mbit"),
    seeds: Sequence[int] = (0,),
    *,
    compute: Mapping[str, float] | None = None,
    payload: int = 1,
    scored: bool = False,
) -> Path:
    """Write the suite `nets`: `full` and `bns-gcn` on two ranks on each network, and `full` on one rank.

    `compute`: seconds of a method's epoch on two ranks; `payload`: how many times the usual bytes are sent; `scored`:
    whether each epoch is evaluated, 0.6 after the first, 0.9 after the last, and the target is 0.75.
    """
    store = ResultStore(root, "nets")
    for seed in seeds:
        _write(store, "full", None, seed, parts=1, scored=scored)
        for method in PAYLOAD:
            for network in networks:
                own = (compute or {}).get(method, COMPUTE_S)
                _write(store, method, network, seed, parts=2, compute=own, payload=payload, scored=scored)
    return root / "nets"


def _write(
    store: ResultStore, method: str, network: str | None, seed: int, *, parts: int, compute: float = COMPUTE_S,
    payload: int = 1, scored: bool = False,
) -> None:  # fmt: skip
    config = TrialConfig(
        dataset=DatasetSpec(name="digits"),
        model=ModelSpec(),
        train=TrainSpec(epochs=EPOCHS, **({"target": 0.75} if scored else {})),
        partition=PartitionSpec(parts=parts),
        method=MethodSpec(name=method, options={"rate": 0.1} if method == "bns-gcn" else {}),
        network=NetworkSpec(rate=network) if network else None,
        seed=seed,
        device="cpu",
    )
    wire = payload * PAYLOAD[method] * 1514 / 1448 * 8 / config.network.bits_s if config.network else 0.0
    comm = max(wire, SOFTWARE_S) if parts > 1 else 0.0
    epoch = (compute + comm) * (SLOWER if network else 1)
    record = Record(
        trial=config.id,
        suite="nets",
        label=config.label,
        status="ok",
        started="2026-01-02T03:04:05+00:00",
        wall_s=1.0,
        config=config.model_dump(mode="json"),
        declared=METHODS.load(method).declared(),
        dataset={"name": "digits", "origin": "real", "note": "", "multilabel": False},
        result={
            "epochs": EPOCHS,
            **({"best_val": 0.9, "test_at_best_val": 0.89} if scored else {}),
            "epoch_time_s": epoch,
            "epoch_time_low_s": 0.95 * epoch,
            "epoch_time_high_s": 1.08 * epoch,
            "rank_phases": [{"forward": compute / 3, "backward": compute / 1.5, "comm": comm}] * parts,
        },
        ranks=[
            {"rank": rank, "traffic": _traffic(1 - rank, payload * PAYLOAD[method]) if parts > 1 else []}
            for rank in range(parts)
        ],
    )
    store.stage(config.id)
    rows = [{"epoch": e, "rank": r, "epoch_time_s": epoch} for e in range(EPOCHS) for r in range(parts)]
    scores = [0.6 + 0.3 * e / (EPOCHS - 1) if scored else None for e in range(EPOCHS)]
    store.commit(config.id, record, [row | UNSCORED | {"val_score": scores[int(row["epoch"])]} for row in rows], "")


def _traffic(peer: int, payload: int) -> list[dict[str, Any]]:
    row = {"scope": "epoch", "purpose": "feature", "layer": 0, "direction": "forward", "peer": peer}
    total = payload * EPOCHS
    return [row | {"sent_bytes": total, "received_bytes": total, "calls": EPOCHS}]
