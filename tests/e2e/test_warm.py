"""`harness warm`: after it, trials find all that they call compiled; and ranks start warm or cold alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from e2e.cli import CommandLine, records

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SUITE = """\
name: small
datasets: [digits]
model: {name: sage, layers: 2, hidden: 8}
train: {epochs: 3, eval_every: 2, threads: 1}
partition: {parts: 2}
methods:
  - bns-gcn: {rate: 0.5}
  - graphsage: {fanouts: 5, batch_size: 600}
device: cpu
timeouts: {trial_s: 60, collective_s: 30}
"""


def compiled(folder: Path) -> dict[str, bytes]:
    """Return numba's index of each kernel: it is written again when another version is compiled."""
    return {str(path): path.read_bytes() for path in folder.rglob("*.nbi")}


def test_a_run_compiles_nothing_that_warm_has_not(command: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SUITE)
    own = {"NUMBA_CACHE_DIR": str(tmp_path / "numba"), "HARNESS_CACHE": str(tmp_path / "cache")}
    warm = command.run("warm", "small.yaml", **own)
    assert warm.returncode == 0, warm.stderr
    lines = warm.stdout.splitlines()
    assert [line.rpartition(" ")[2] for line in lines[:-2]] == ["bns-gcn", "graphsage"]
    assert lines[-2] == "kernels are compiled for 2 of 2 shapes of trials"
    assert lines[-1] == "2 shapes of trials run; all that this machine needs is compiled"
    before = compiled(tmp_path / "numba")
    notes = [json.loads(path.read_text()) for path in (tmp_path / "numba").rglob("harness-ahead/*")]
    assert len(notes) == 2
    assert all("harness.graph." in str(note) for note in notes)
    # Preparing and partitioning a graph are not a trial's.
    kernels = {path for path in before if not any(part in path for part in ("/data/", "/data_"))}
    assert len(kernels) > 20
    again = command.run("warm", "small.yaml", **own)
    assert again.stdout.startswith("0 shapes")
    run = command.run("run", "small.yaml", "--results", "results", **own)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "compiling" not in run.stdout
    after = compiled(tmp_path / "numba")
    assert {path for path in kernels if after[path] != before[path]} == set()
    assert {path for path in after.keys() - before.keys() if "/data" not in path} == set()


def test_cold_and_warm_trials_have_the_same_bits(command: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SUITE)
    found = {}
    for start in ("--warm", "--cold"):
        done = command.run("run", "small.yaml", "--results", start[2:], start, timeout_s=200)
        assert done.returncode == 0, done.stdout + done.stderr
        found[start] = records(tmp_path / start[2:] / "small")
    assert len(found["--warm"]) == 2  # the second one's ranks come from the process that forked the first one's
    for id_, warm in found["--warm"].items():
        cold = found["--cold"][id_]
        assert (warm["environment"]["warm"], cold["environment"]["warm"]) == (True, False)
        assert min(warm["environment"]["reference_s"], cold["environment"]["reference_s"]) > 0
        for key in ("final_val", "final_test", "bytes_embedding", "boundary_nodes"):
            assert warm["result"][key] == cold["result"][key]
        for ours, theirs in zip(warm["ranks"], cold["ranks"], strict=True):
            assert ours["traffic"] == theirs["traffic"]
            assert ours["summary"]["checksum"] == theirs["summary"]["checksum"]
