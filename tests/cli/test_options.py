"""Which machines a run is on: options, torchrun's variables, Slurm's."""

from __future__ import annotations

import pytest
from launch.test_slurm import STEP

from harness.cli.command_options import cluster_of
from harness.errors import UserError
from harness.launch.rendezvous import Cluster


@pytest.mark.parametrize(
    ("nodes", "rdzv", "variables", "expected"),
    [
        (None, None, {}, None),
        ("1", None, {}, None),
        ("1", "a:1", {}, None),
        ("2", "a:1", {}, Cluster(2, "a", 1)),
        ("3:3", "job-worker-0", {}, Cluster(3, "job-worker-0", 29400)),
        ("2", "[fd00::1]:7000", {}, Cluster(2, "fd00::1", 7000)),
        (None, None, STEP, Cluster(2, "gpu09", 23456, coordinator=False)),
        ("2", None, STEP | {"SLURM_NODEID": "0"}, Cluster(2, "gpu09", 23456, coordinator=True)),
        ("2", "a:1", STEP, Cluster(2, "a", 1)),
        ("1", None, STEP, None),
    ],
)
def test_cluster(nodes: str | None, rdzv: str | None, variables: dict, expected: Cluster | None) -> None:
    assert cluster_of(nodes, rdzv, 300, 30, variables) == expected


@pytest.mark.parametrize(
    ("nodes", "rdzv", "variables", "message"),
    [
        ("2", None, {}, "add --rdzv HOST:PORT"),
        (None, "a:1", {}, "add --nnodes"),
        ("1:3", "a:1", {}, r"'1:3' is not a number of nodes"),
        ("0", "a:1", {}, "'0' is not a number"),
        ("two", "a:1", {}, "'two' is not a number"),
        ("2", "a:b", {}, "'a:b' is not HOST:PORT"),
        ("2", "a:99999", {}, "'a:99999' is not HOST:PORT"),
        ("2", "http://a:1/", {}, "is not HOST:PORT"),
        ("2", "", {}, "is not HOST:PORT"),
        ("3", None, STEP, "3, the Slurm step has 2 nodes"),
    ],
)
def test_mistakes(nodes: str | None, rdzv: str | None, variables: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        cluster_of(nodes, rdzv, 300, 30, variables)
