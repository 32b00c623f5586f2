"""A suite of fast trials: a small graph in a data directory, and the fake worker."""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest

from harness.launch import machines
from harness.launch.runner import TrialProgress, run_suite
from harness.launch.slots import RunOptions
from harness.results.record_store import ResultStore
from harness.suite.expand import expand
from harness.suite.suite_file import load_suite

SLOW = ("harness.results.frames", "harness.results.environment", "harness.data.partition.cached", "pyarrow.parquet")
TESTS = Path(__file__).resolve().parents[1]
FAKE = "launch.fake_worker"

SUITE = """\
name: tiny
datasets: [ring]
model: {name: sage, layers: 2, hidden: 4}
train: {epochs: 10, threads: 1}
partition: {parts: [1, 2], method: chunk}
methods: [full]
seeds: [0, 1, 2]
interleave: false
device: cpu
timeouts: {trial_s: 20}
"""


class Silent(TrialProgress):
    """Shows nothing."""


def write_ring(data_dir: Path, name: str = "ring", nodes: int = 12) -> None:
    """Write a cycle as a data set in the neutral format."""
    _write(data_dir / f"{name}.npz", [sorted([(i - 1) % nodes, (i + 1) % nodes]) for i in range(nodes)])


def write_star(data_dir: Path, nodes: int = 12) -> None:
    """Write a star around node 0 as the data set `star`."""
    _write(data_dir / "star.npz", [list(range(1, nodes)), *[[0]] * (nodes - 1)])


def _write(path: Path, neighbours: list[list[int]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nodes = len(neighbours)
    around = np.arange(nodes)
    rng = np.random.default_rng(0)
    np.savez(
        path,
        indptr=np.cumsum([0, *map(len, neighbours)]),
        indices=np.concatenate(neighbours).astype(np.int32),
        feat=rng.normal(size=(nodes, 3)).astype(np.float32),
        label=(around % 2).astype(np.int64),
        train_mask=around % 3 == 0,
        val_mask=around % 3 == 1,
        test_mask=around % 3 == 2,
    )


def write_suite(directory: Path, text: str = SUITE, *, shared: bool = False) -> Path:
    """Write the suite file, and the graph beside it in `data`.

    `shared`: the graph is a link to one that all tests of the cache have in common: it is prepared once for all.
    """
    if shared:
        common = Path(os.environ["HARNESS_CACHE"]).with_name("rings")
        if not (common / "ring.npz").exists():
            write_ring(common)
        (directory / "data").mkdir(parents=True, exist_ok=True)
        (directory / "data" / "ring.npz").symlink_to(common / "ring.npz")
    else:
        write_ring(directory / "data")
    path = directory / "tiny.yaml"
    path.write_text(text)
    return path


def fake_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the fake worker be what ranks of this process run, and what their servers are started for."""
    group, server = machines.run_group, machines.fork_server
    monkeypatch.setattr(machines, "run_group", lambda *args, **options: group(*args, **options | {"worker": FAKE}))
    monkeypatch.setattr(machines, "fork_server", lambda worker, env: server(FAKE, env))


def run_tiny(directory: Path, variables: dict[str, str]) -> None:
    """Run the suite of `directory` with fake ranks, in a process of its own, and exit with its code."""
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    os.environ.update(variables, PYTHONPATH=path, HARNESS_DATA=str(directory / "data"))
    suite = load_suite(directory / "tiny.yaml")
    options = RunOptions(worker=FAKE, jobs=int(variables.get("JOBS", "1")))
    store = ResultStore(directory / "results", suite.name)
    sys.exit(run_suite(suite, expand(suite), store, options, Silent()))


def start_runner(directory: Path, **variables: str) -> BaseProcess:
    """Start `run_tiny` from a server that imports everything once; imports take longer than the suite."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "harness_methods.full", *SLOW])
    variables = {"HARNESS_CACHE": os.environ["HARNESS_CACHE"]} | variables
    process = context.Process(target=run_tiny, args=(directory, variables))
    process.start()
    return process
