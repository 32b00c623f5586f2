"""Flickr from its publishers' files: the graph that is trained on is the one of the neutral file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from real.runs import Runs

from harness.data.prepared import open_graph
from harness.data.registry import prepare
from harness.spec import DatasetSpec

pytestmark = [pytest.mark.data, pytest.mark.slow, pytest.mark.timeout(300)]

SUITE = """\
name: flickr
datasets: [flickr]
model: {name: sage, layers: 2, hidden: 32, norm: layer, dropout: 0.1}
train: {epochs: 8, lr: 0.01, eval_every: 0, threads: 1}
partition: {parts: 2}
methods: [full]
device: cpu
timing: 'off'
"""


@pytest.fixture(scope="module")
def raw(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with the raw files only, the features beside them taken from the neutral file."""
    folder = tmp_path_factory.mktemp("raw")
    (folder / "flickr").mkdir()
    for name in ("adj_full.npz", "adj_train.npz", "class_map.json", "role.json"):
        (folder / "flickr" / name).symlink_to(data_dir / "raw" / "graphsaint_flickr" / name)
    with np.load(data_dir / "flickr.npz") as graph:
        np.save(folder / "flickr" / "feats.npy", graph["feat"])
    return folder


def test_raw_and_neutral_files_are_one_graph(raw: Path, runs: Runs) -> None:
    spec = DatasetSpec(name="flickr")
    ours, neutral = (open_graph(prepare(spec, data_dir=d, cache=runs.cache)) for d in (raw, runs.data_dir))
    assert ours.features.shape == (89_250, 128)
    assert len(ours.indices) == 899_756
    for array in ("indptr", "indices", "features", "labels", "train_mask", "val_mask", "test_mask"):
        assert np.array_equal(getattr(ours, array), getattr(neutral, array)), array


def test_trains_inductively_from_raw_files(raw: Path, runs: Runs, tmp_path: Path) -> None:
    results = Runs(raw, runs.cache, tmp_path / "results").run_text(SUITE, tmp_path)
    (trial,) = results.itertuples()
    with np.load(runs.data_dir / "flickr.npz") as graph:
        labels, train, test = graph["label"], graph["train_mask"], graph["test_mask"]
    # Inductive by default: the ranks' inner nodes are the training nodes.
    assert trial.inner_nodes == train.sum()
    record = json.loads((tmp_path / "results" / "flickr" / trial.trial / "record.json").read_text())
    assert record["dataset"]["nodes"] == 89_250
    assert trial.test_at_best_val > np.bincount(labels[test]).max() / test.sum() + 0.01
