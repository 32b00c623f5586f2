"""What nodes tell each other: shares of ranks, plans that differ, hashes, verdicts, and who lives."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from harness.data.partition.cached import PartitionPaths, partition_fingerprint
from harness.data.prepared import fingerprint
from harness.errors import UserError
from harness.launch.coordinator import NodeInfo, backend_of, check_plan, merged
from harness.launch.group import GroupResult, RankFailure
from harness.launch.hardware import blocks
from harness.launch.inputs import TrialInputs
from harness.launch.process import placements_of
from harness.suite.expand import expand
from harness.suite.schema import Suite

DOCS = Path(__file__).resolve().parents[2] / "docs" / "cluster"


@given(st.integers(1, 40), st.integers(1, 12))
def test_ranks_over_nodes(parts: int, nodes: int) -> None:
    shares = blocks(parts, nodes)
    assert [rank for share in shares for rank in share] == [*range(parts)]
    sizes = [len(share) for share in shares]
    assert len(sizes) == nodes
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


def test_placements() -> None:
    placements = placements_of(range(3, 5), 8, "eth1")
    assert [(p.rank, p.local_rank, p.world, p.local_world, p.interface, p.namespace) for p in placements] == [
        (3, 0, 8, 2, "eth1", None),
        (4, 1, 8, 2, "eth1", None),
    ]


PLAN: dict[str, Any] = {
    "nodes": 2,
    "versions": {"harness": "1", "commit": "abc", "torch": "2"},
    "plugins": {"mine": "0f"},
    "suite": "s",
    "timeouts": {"trial_s": 5},
    "trials": {"1": "digits full", "2": "digits bns"},
}


def test_plans_that_are_alike() -> None:
    check_plan(PLAN, PLAN | {"trials": dict(reversed(PLAN["trials"].items()))})


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"nodes": 3}, "--nnodes: 2 here, 3 on the coordinator"),
        ({"versions": PLAN["versions"] | {"torch": "3"}}, "versions: .*'torch': '2'.* here, .*'torch': '3'"),
        ({"plugins": {"mine": "1e"}}, "plugins: {'mine': '0f'} here, {'mine': '1e'} on the coordinator"),
        ({"timeouts": {"trial_s": 6}}, "timeouts: "),
        (
            {"trials": {"1": "digits full", "3": "digits dgs"}},
            "2 trials here, 2 on the coordinator, 1 alike; only here: digits bns; only on the coordinator: digits dgs",
        ),
        ({"trials": {"1": "digits full"}}, "2 trials here, 1 on the coordinator, 1 alike; only here: digits bns "),
    ],
)
def test_plans_that_differ(other: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_plan(PLAN, PLAN | other)


@pytest.mark.parametrize(
    ("device", "gpus", "expected"),
    [("cuda", (2, 1), "nccl"), ("cuda", (1, 1), "gloo"), ("cuda", (4, 0), "gloo"), ("cpu", (4, 4), "gloo")],
)
def test_one_backend_for_all_nodes(device: str, gpus: tuple[int, int], expected: str) -> None:
    """With 2 ranks on node 0 and 1 on node 1; each node by itself might choose another."""
    suite = Suite(name="s", datasets="digits", methods="full", device="cpu")
    trial = expand(suite)[0].model_copy(update={"device": device})
    infos = [NodeInfo("", f"10.0.0.{node}", count, {}) for node, count in enumerate(gpus)]
    assert backend_of(trial, infos, blocks(3, 2)) == expected
    one_machine = [NodeInfo("", "127.0.0.1", count, {}) for count in gpus]
    assert backend_of(trial, one_machine, blocks(3, 2)) == "gloo"


def test_fingerprint_sees_parts_and_features(tmp_path: Path) -> None:
    def write(name: str, part: int, feature: float) -> str:
        graph, view = tmp_path / name / "graph", tmp_path / name / "view"
        for directory in (graph, view):
            directory.mkdir(parents=True)
        np.save(graph / "features.npy", [1.0, feature])
        np.save(view / "parts.npy", [0, part])
        (graph / "meta.json").write_text(name)  # may name the directory it was made from
        parts = partition_fingerprint(PartitionPaths(view, view))
        return TrialInputs(graph, view, view, False, {"fingerprint": fingerprint(graph)}, [], parts).fingerprint

    assert write("a", 1, 2.0) == write("b", 1, 2.0)
    assert len({write("c", 1, 2.0), write("d", 0, 2.0), write("e", 1, 3.0)}) == 3


def test_one_result_from_all_nodes() -> None:
    own = GroupResult(
        [RankFailure(0, "error", "said: Connection closed by peer")], [{"rank": 1}, {"rank": 0}], "a", 3.0
    )
    lost = GroupResult([RankFailure(None, "error", "was lost: no heartbeat for 30 s (--node-timeout)")])
    killed = GroupResult([RankFailure(4, "error", "was killed by signal 9 (SIGKILL)")], [{"rank": 3}], "c")
    group = merged([own, lost], [{}, {}])
    assert (group.status, group.reason) == ("error", "node 1 was lost: no heartbeat for 30 s (--node-timeout)")
    group = merged([own, GroupResult(log="b"), killed], [{}, {}, {}])
    assert group.reason == "rank 4 (node 2) was killed by signal 9 (SIGKILL)"
    assert ([rank["rank"] for rank in group.ranks], group.log, group.wall_s) == ([0, 1, 3], "abc", 3.0)
    late = GroupResult(limit_s=9, reached="before the first epoch ended")
    group = merged([GroupResult(reached="after 3 of 4 epochs"), late], [{}, {}])
    assert (group.status, group.reason) == ("timeout", "time limit of 9 s reached after 3 of 4 epochs")


def test_a_plan_that_lacks_something_is_another_version() -> None:
    for plan in ({}, [], None, PLAN | {"trials": 3}):
        with pytest.raises(UserError, match="versions: the coordinator's plan"):
            check_plan(PLAN, plan)


def test_the_slurm_script_is_one() -> None:
    script = DOCS / "slurm.sh"
    subprocess.run(["bash", "-n", script], check=True)
    text = script.read_text()
    assert os.access(script, os.X_OK)
    assert "#SBATCH --ntasks-per-node=1" in text
    assert "srun" in text
    assert "harness run" in text


def test_the_manifest_names_a_command_that_exists() -> None:
    import typer

    from harness.cli import app

    job = YAML(typ="safe").load((DOCS / "pytorchjob.yaml").read_text())
    assert (job["kind"], job["apiVersion"]) == ("PyTorchJob", "kubeflow.org/v1")
    elastic, worker = job["spec"]["elasticPolicy"], job["spec"]["pytorchReplicaSpecs"]["Worker"]
    assert elastic["minReplicas"] == elastic["maxReplicas"] == worker["replicas"]
    assert elastic["rdzvBackend"] == "c10d"
    [container] = worker["template"]["spec"]["containers"]
    assert container["name"] == "pytorch"  # the operator sets its variables there
    program, command, *rest = container["command"] + container.get("args", [])
    assert program == "harness"
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    options = {option for parameter in commands[command].params for option in parameter.opts}
    assert {word for word in rest if word.startswith("--")} <= options
