"""How ranks join their group, and how they are scheduled from then on."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch.distributed as dist
from support.ranks import run_ranks
from support.wire import schedulers

from harness.errors import UserError
from harness.runtime.job import Job, backend_for, join_group, patient_threads
from harness.runtime.run_config import RunConfig

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="SCHED_BATCH is Linux's")


def test_no_thread_of_gloo_preempts_another() -> None:
    for found in run_ranks(schedulers, 2):
        assert any("gloo" in name for name, _ in found)
        assert {policy for name, policy in found if "gloo" in name} == {os.SCHED_BATCH}


def test_a_rank_of_a_trial_joins_scheduled_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joined = []
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: joined.append(os.sched_getscheduler(0)))
    config = RunConfig.model_construct(device="cpu")
    job = Job.model_construct(config=config, store=tmp_path / "store", collective_timeout_s=1, rendezvous=None)
    with ThreadPoolExecutor(1) as pool:  # a policy is a thread's own
        pool.submit(join_group, job, 0, 2).result()
        after = pool.submit(os.sched_getscheduler, 0).result()
    assert (joined, after) == ([os.SCHED_BATCH], os.SCHED_OTHER)


@pytest.mark.parametrize(
    ("device", "ranks", "gpus", "backend"),
    [("cuda", 2, 2, "nccl"), ("cuda", 2, 1, "gloo"), ("cuda", 9, 8, "gloo"), ("cpu", 2, 8, "gloo")],
)
def test_ranks_that_share_a_gpu_talk_through_gloo(
    device: str, ranks: int, gpus: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    assert backend_for(device, ranks, gpus) == backend


def test_without_gloo_ranks_that_share_a_gpu_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_gloo_available", lambda: False)
    with pytest.raises(UserError) as refused:
        backend_for("cuda", 2, 1)
    assert str(refused.value) == (
        "partition.parts: 2 ranks share 1 GPU(s), which NCCL refuses, and this torch has no gloo"
        " (one part, or a torch with gloo)"
    )


def test_a_torch_without_nccl_has_its_gpus_talk_through_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    assert backend_for("cuda", 2, 2) == "gloo"


def test_the_users_own_policy_stays() -> None:
    def idle() -> int:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        with patient_threads():
            return os.sched_getscheduler(0)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(idle).result() == os.SCHED_IDLE
