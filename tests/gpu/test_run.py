"""Whole runs with `--device cuda`: several ranks on one GPU, and NCCL where each has its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from e2e.cli import CommandLine
from e2e.cli import records as read_records

pytestmark = pytest.mark.gpu

SUITE = """\
name: gpu
datasets: digits
methods: [full, {bns-gcn: {rate: 0.5}}]
partition: {parts: [1, 2]}
train: {epochs: 20, eval_every: 10, threads: 1}
timing: breakdown
"""


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("gpu")
    (folder / "gpu.yaml").write_text(SUITE)
    command = CommandLine(folder, tmp_path_factory.getbasetemp() / "cache")
    done = command.run("run", "gpu.yaml", "--device", "cuda")
    assert done.returncode == 0, done.stdout + done.stderr
    return list(read_records(folder / "results" / "gpu").values())


def test_all_end_well_and_learn(records: list[dict[str, Any]]) -> None:
    assert len(records) == 4
    for record in records:
        assert record["status"] == "ok", record["reason"]
        assert record["config"]["device"] == "cuda"
        assert record["result"]["final_test"] > 0.9


def test_figures_of_the_gpu_are_there(records: list[dict[str, Any]]) -> None:
    for record in records:
        result = record["result"]
        assert result["peak_memory_source"] == "CUDA allocator"
        assert result["allocator_peak_bytes"] > 1 << 20
        assert record["environment"]["gpus"]
        assert result["time_forward_s"] > 0
        if record["config"]["partition"]["parts"] == 2:
            assert result["time_wait_s"] > 0
            assert result["barrier_cost"] is not None


def test_ranks_that_share_a_gpu_talk_through_gloo_and_others_through_nccl(records: list[dict[str, Any]]) -> None:
    own = torch.cuda.device_count() >= 2
    for record in records:
        if record["config"]["partition"]["parts"] == 2:
            assert {rank["backend"] for rank in record["ranks"]} == {"nccl" if own else "gloo"}
