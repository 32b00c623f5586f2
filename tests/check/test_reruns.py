"""The same trial has the same bits in another order, beside other work, and with other threads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.methods import SMALL
from support.ranks import run_ranks

from harness.check.graphs import on_disk, random_graph
from harness.check.training import Case
from harness.models.layer import ModelSpec
from harness.runtime.method import METHODS
from harness.runtime.run_config import TrainSpec

pytestmark = pytest.mark.slow

NODES, DEGREE, EPOCHS = 2000, 24, 2  # edges enough of a rank for two threads (LEAST_WORK)
OPTIONS: dict[str, dict[str, Any]] = SMALL | {
    "bns-gcn": {"rate": 0.5},
    "graphsage": {"fanouts": 5, "batch_size": 200},
    "cooperative": {"fanouts": 5, "batch_size": 200},
    "vrgcn": {"batch_size": 200},
    "fastgcn": {"sizes": 200, "batch_size": 200},
    "ladies": {"sizes": 200, "batch_size": 200},
    "skewed": {"sizes": 200, "batch_size": 200},
    "graphsaint": {"size": 300, "frontier": 50, "coverage": 5},
    "clustergcn": {"clusters": 20, "per_batch": 4},
    "gas": {"clusters": 20, "per_batch": 4},
    "dgs": {"fanouts": 5, "batch_size": 200, "period": 1, "explain": "inline", "explain_steps": 5},
}
TRIALS = [(name, OPTIONS.get(name, {})) for name in METHODS.names()]
TRIALS += [("graphsage", OPTIONS["graphsage"] | {"cache": "degree"})]
FEW_ROWS = {"batch_size": 9, "period": 40}  # of each product of the last layer: MKL rounded 5 to 11 by threads
TRIALS += [
    (name, {key: value for key, value in (OPTIONS[name] | FEW_ROWS).items() if name == "dgs" or key != "period"})
    for name in ("graphsage", "vrgcn", "ladies", "dgs")
]
MODELS = {norm: ModelSpec(name="sage", layers=2, hidden=48, dropout=0.5, norm=norm) for norm in ("none", "layer")}
THREADS = (1, 2)  # of the one run and the other


def trained(rank: int, world: int, cases: list[Case]) -> list[tuple[str, list[float], dict[str, float]]]:
    """Run each trial whole; returns the checksum of its weights, its losses and its last scores."""
    found = []
    for case in cases:
        torch.set_num_threads(case.train.threads or 1)  # as a rank does
        trainer = case.trainer(rank, world)
        trainer.report.setup(trainer.worker, trainer.method, {}, {})
        trainer.run()
        rows = trainer.report.epochs
        scores = {key: rows[-1][key] for key in ("train_score", "val_score", "test_score")}
        found.append((trainer.check_replicas(EPOCHS - 1), [row["loss"] for row in rows], scores))
    return found


@contextmanager
def busy() -> Iterator[None]:
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        other.kill()
        other.wait()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[Any, Any]]]:
    graph = random_graph(1, NODES, degree=DEGREE, features=40)
    data = on_disk(graph, np.arange(NODES) % 2, 2, False, Path(tmp_path_factory.mktemp("graph")))
    assert graph.edges // 2 > 20_000

    def cases(which: int) -> list[Case]:
        return [
            Case(data, name, options, model, TrainSpec(epochs=EPOCHS, threads=THREADS[which]), timing="off")
            for model in MODELS.values()
            for name, options in TRIALS
        ]

    alone, _ = run_ranks(trained, 2, cases(0), timeout_s=240)
    with busy():
        backwards, _ = run_ranks(trained, 2, cases(1)[::-1], timeout_s=240)
    pairs = list(zip(alone, backwards[::-1], strict=True))
    return {norm: pairs[k * len(TRIALS) : (k + 1) * len(TRIALS)] for k, norm in enumerate(MODELS)}


@pytest.mark.timeout(500)
@pytest.mark.parametrize("norm", MODELS)
@pytest.mark.parametrize("number", range(len(TRIALS)), ids=[f"{name}{k}" for k, (name, _) in enumerate(TRIALS)])
def test_bits_are_those_of_another_run(number: int, norm: str, outcomes: dict[str, list[tuple[Any, Any]]]) -> None:
    one, other = outcomes[norm][number]
    assert one == other
