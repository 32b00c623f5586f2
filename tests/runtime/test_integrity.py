"""Methods that cheat end as `invalid`, each with the line that names what it did; honest ones do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.training import run_to_the_end

from harness.check.graphs import on_disk, random_graph
from harness.check.training import Case
from harness.graph.partition import HIDDEN
from harness.models.spec import ModelSpec
from harness.runtime.spec import TrainSpec

MODEL = ModelSpec(name="sage", layers=2, hidden=8)
CAUGHT = {
    "AllNodes": "the loss reads rows that are no training nodes",
    "Narrower": "the model is not the suite's",
    "Ahead": "the method's set-up changed the weights",
    "WhileEvaluated": "an evaluation changed the weights",
    "WhenLookedAt": "an evaluation changed the weights",
    "Twice": "the weights changed between two steps",
    "BehindTheBack": "the weights changed between two steps",
    "OwnTensors": "a weight was replaced by another tensor",
}


def run(name: str, tmp_path: Path, *, multilabel: bool = False, **train: Any) -> dict[str, Any]:
    """Run a trial of one rank to its end; returns the rank's report."""
    graph = random_graph(3, multilabel=multilabel)
    data = on_disk(graph, np.zeros(graph.nodes, np.int32), 1, False, tmp_path)
    spec = TrainSpec(**{"epochs": 3, "threads": 1, "eval_every": 1, "sampled_eval": True} | train)
    options = {"fanouts": 3, "batch_size": 8} if name == "WhileEvaluated" else {}
    return run_to_the_end(0, 1, Case(data, f"support.cheats:{name}", options, MODEL, spec))


@pytest.mark.parametrize("name", CAUGHT)
def test_a_cheat_is_invalid_by_name(name: str, tmp_path: Path) -> None:
    found = run(name, tmp_path)
    assert found["status"] == "invalid", found["reason"]
    assert found["reason"].startswith(CAUGHT[name])


def test_labels_of_others_are_caught_where_nodes_have_several(tmp_path: Path) -> None:
    found = run("AllNodes", tmp_path, multilabel=True)
    assert found["status"] == "invalid", found["reason"]
    assert found["reason"].startswith(CAUGHT["AllNodes"])


def test_an_honest_method_is_not_caught(tmp_path: Path) -> None:
    found = run("Honest", tmp_path)
    assert (found["status"], found["reason"]) == ("ok", None)


@pytest.mark.parametrize("multilabel", [False, True])
def test_labels_that_are_handed_out_are_the_training_nodes(multilabel: bool, tmp_path: Path) -> None:
    graph = random_graph(3, multilabel=multilabel)
    data = on_disk(graph, np.zeros(graph.nodes, np.int32), 1, False, tmp_path)
    view = Case(data, "full", {}, MODEL).trainer(0, 1).worker.view
    labels = view.labels.numpy()
    known = ~np.isnan(labels[:, 0]) if multilabel else labels != HIDDEN
    np.testing.assert_array_equal(known, graph.train_mask)
    np.testing.assert_array_equal(labels[known], graph.labels[graph.train_mask])
    for split in ("train", "val", "test"):
        mask = getattr(graph, f"{split}_mask")
        np.testing.assert_array_equal(view.scored_labels[split].numpy(), graph.labels[mask])
        assert view.rows[split].tolist() == torch.from_numpy(mask).nonzero().squeeze(1).tolist()
