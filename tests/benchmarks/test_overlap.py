"""Transfers at 1 Gbit/s that go on beside the computing: where it takes longer than they, they are hidden."""

from __future__ import annotations

from pathlib import Path

import pytest
from real.runs import Runs

SUITE = """
name: overlap
datasets: [{twin: {of: reddit, scale: 0.1}}]
model: {name: sage, layers: 2, hidden: 256, norm: layer, dropout: 0.3}
train: {epochs: 20, eval_every: 0, threads: 1}
partition: {parts: 2}
methods:
  - pipegcn: {staleness: [0, 1, 2], precompute: true}
  - psc-gcn: {staleness: [0, 1, 2], rate: 0.1}
network: 1gbit
device: cpu
"""
PREFETCHED = """
name: prefetched
datasets: [{twin: {of: reddit, scale: 0.1}}]
model: {name: sage, layers: 2, hidden: 256, norm: layer, dropout: 0.3}
train: {epochs: 6, eval_every: 0, threads: 1}
partition: {parts: 2}
methods:
  - graphsage: {fanouts: [[25, 10]], prefetch: [0, 1, 2]}
  - ladies: {prefetch: [0, 1, 2]}
network: 1gbit
device: cpu
"""
HIDDEN = 0.8
PREFETCHED_HIDDEN = 0.7  # an epoch's first batch has nothing to hide behind


@pytest.mark.root
@pytest.mark.timeout(600)
def test_transfers_are_hidden(tmp_path: Path) -> None:
    results = Runs(tmp_path, tmp_path / "cache", tmp_path / "results").run_text(SUITE, tmp_path)
    results["computing"] = results["epoch_time_s"] - results["comm_exposed_s"]
    results["tau"] = [options["staleness"] for options in results["options"]]
    shown = results.reset_index().sort_values(["method", "tau"])
    columns = ["method", "tau", "epoch_time_s", "computing", "comm_busy_s", "comm_exposed_s"]
    print("\n" + shown[columns].to_string(index=False, float_format="%.4f"))
    for trial in shown.itertuples():
        if trial.tau and trial.computing > trial.comm_busy_s:
            assert trial.comm_exposed_s < (1 - HIDDEN) * trial.comm_busy_s, trial.label


@pytest.mark.root
@pytest.mark.timeout(600)
def test_prefetched_batches_are_hidden(tmp_path: Path) -> None:
    results = Runs(tmp_path, tmp_path / "cache", tmp_path / "results").run_text(PREFETCHED, tmp_path)
    phases = ["time_sample_s", "time_fetch_s", "time_comm_s"]
    results["waiting"] = results[phases].sum(axis=1)
    results["computing"] = results["epoch_time_s"] - results["waiting"]
    results["prefetch"] = [options["prefetch"] for options in results["options"]]
    shown = results.reset_index().sort_values(["method", "prefetch"])
    columns = ["method", "prefetch", "epoch_time_s", "computing", "waiting", *phases]
    print("\n" + shown[columns].to_string(index=False, float_format="%.4f"))
    for _, trials in shown.groupby("method"):
        one_by_one, *ahead = trials.itertuples()
        for trial in ahead:
            if one_by_one.computing > one_by_one.waiting:
                assert trial.waiting < (1 - PREFETCHED_HIDDEN) * one_by_one.waiting, trial.label
