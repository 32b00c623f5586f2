"""Estimates of a trial and what they are compared with, against figures worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.data.registry import dataset_info
from harness.launch.hardware import Capacity, memory_limit
from harness.launch.planner import Shortage, estimate, shortage
from harness.models.gnn import GNN
from harness.models.layer import ModelSpec
from harness.runtime.cost_models import Components
from harness.spec import DatasetSpec
from harness.suite.schema import TrialConfig

MODEL = ModelSpec(layers=2, linear_layers=1, hidden=8)
REDDIT = dataset_info(DatasetSpec(name="reddit"))
TABLE = [
    {"part": 0, "inner": 25, "boundary": 5, "edges": 250, "edges_cut": 10, "train_nodes": 9},
    {"part": 1, "inner": 25, "boundary": 9, "edges": 250, "edges_cut": 10, "train_nodes": 9},
    {"part": "total", "inner": 50, "boundary": 14, "edges": 500, "edges_cut": 20, "train_nodes": 18},
]


def guess(
    parts: int = 2, *, inductive: bool = False, table=None, method: str = "full", model=MODEL, train=None, **options
) -> tuple[Components, ...]:
    trial = TrialConfig.model_validate(
        {"dataset": {"name": "reddit"}, "model": model, "train": {"inductive": inductive} | (train or {}),
         "partition": {"parts": parts}, "method": {"name": method, "options": options}, "seed": 0, "device": "cpu"}
    )  # fmt: skip
    gnn = GNN(model, REDDIT.features, REDDIT.classes, seed=0, dtype=torch.float32)
    return estimate(trial, REDDIT, gnn, train=table, full=None if inductive else table)[0]


def test_an_unknown_boundary_is_as_large_as_it_can_be() -> None:
    found = guess(4)
    inner = -(-REDDIT.nodes // 4)
    widths = REDDIT.features + 8
    # Reddit's part has more edges than there are nodes elsewhere.
    largest = 4 * 3 * inner * (widths + 8) + 4 * (REDDIT.nodes - inner) * widths
    assert [components["layers (Eq. 3)"] for components in found] == [largest] * 4


def test_one_part_has_no_boundary() -> None:
    (found,) = guess(1)
    assert found["layers (Eq. 3)"] == 4 * 3 * REDDIT.nodes * (REDDIT.features + 8 + 8)


def test_a_known_partition_is_one_figure_by_rank() -> None:
    first, second = guess(table=TABLE)
    assert second["layers (Eq. 3)"] - first["layers (Eq. 3)"] == 4 * 4 * (REDDIT.features + 8)


def test_an_unknown_training_subgraph_is_the_whole_graph() -> None:
    assert guess(inductive=True)[0]["layers (Eq. 3)"] == guess()[0]["layers (Eq. 3)"]


@pytest.mark.parametrize("table", [None, TABLE])
def test_no_evaluation_no_memory_for_it(table) -> None:
    batches = {"method": "graphsage", "fanouts": 5, "table": table}
    scored, unscored = guess(**batches), guess(**batches, train={"eval_every": 0, "final_eval": False})
    assert all(part.pop("evaluation") > 0 for part in scored)
    assert scored == unscored


MEMORY = ({"a": 60}, {"a": 20}, {"a": 40})


@pytest.mark.parametrize(
    ("device", "capacity", "expected"),
    [
        ("cpu", Capacity(120), None),
        ("cpu", Capacity(119), Shortage(120, 119, "this machine")),
        ("cuda", Capacity(0, (100, 20)), None),
        ("cuda", Capacity(0, (99, 20)), Shortage(100, 99, "GPU 0")),
        ("cuda", Capacity(0, (100, 19)), Shortage(20, 19, "GPU 1")),
        ("cuda", Capacity(0), None),
        # Two nodes have two ranks and one.
        ("cpu", Capacity(80, nodes=2), None),
        ("cpu", Capacity(79, where="a node", nodes=2), Shortage(80, 79, "a node")),
        ("cuda", Capacity(0, (60, 19), nodes=2), Shortage(20, 19, "GPU 1")),
    ],
)
def test_shortage(device: str, capacity: Capacity, expected: Shortage | None) -> None:
    """On two GPUs ranks 0 and 2 share the first."""
    assert shortage(MEMORY, device, capacity) == expected


def test_the_lowest_limit_of_the_cgroups_counts(tmp_path: Path) -> None:
    proc, mount = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/outer/inner\n")
    (mount / "outer" / "inner").mkdir(parents=True)
    assert memory_limit(proc, mount) is None
    (mount / "outer" / "inner" / "memory.max").write_text("max\n")
    assert memory_limit(proc, mount) is None
    (mount / "outer" / "memory.max").write_text("1000\n")
    assert memory_limit(proc, mount) == 1000
