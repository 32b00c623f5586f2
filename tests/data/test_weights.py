"""Edge weights from the file to the ranks' partitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.check.graphs import dense_adjacency, on_disk, random_graph
from harness.data.formats import neutral
from harness.data.store import open_graph, write_graph
from harness.errors import DataError

GRAPH = random_graph(71, weighted=True)
DENSE = dense_adjacency(GRAPH)


def npz(folder: Path, **changes: np.ndarray) -> Path:
    arrays = {
        "indptr": GRAPH.indptr,
        "indices": GRAPH.indices,
        "weight": GRAPH.weights,
        "feat": GRAPH.features,
        "label": GRAPH.labels,
        **{f"{split}_mask": getattr(GRAPH, f"{split}_mask") for split in ("train", "val", "test")},
    }
    np.savez(folder / "w.npz", **{**arrays, **changes})
    return folder / "w.npz"


def test_weights_survive_the_neutral_file_and_the_store(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    graph = neutral.read(npz(tmp_path), "w", tmp_path / "work")
    write_graph(graph, tmp_path / "graph")
    np.testing.assert_array_equal(open_graph(tmp_path / "graph").weights, GRAPH.weights)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_weights_must_be_positive_and_finite(tmp_path: Path, bad: float) -> None:
    (tmp_path / "work").mkdir()
    weights = GRAPH.weights.copy()
    weights[3] = bad
    graph = neutral.read(npz(tmp_path, weight=weights), "w", tmp_path / "work")
    with pytest.raises(DataError, match="edge weights must be positive and finite"):
        write_graph(graph, tmp_path / "graph")


@pytest.mark.parametrize("inductive", [False, True])
def test_a_rank_has_the_weights_of_its_rows(tmp_path: Path, inductive: bool) -> None:
    parts = np.random.default_rng(0).integers(0, 3, 60)
    stored = on_disk(GRAPH, parts, 3, inductive, tmp_path)
    nodes = np.load(stored.parts.train / "nodes.npy")
    sub = DENSE[np.ix_(nodes, nodes)]
    for rank in range(3):
        files = {
            name: np.load(stored.parts.train / f"rank{rank}" / f"{name}.npy")
            for name in ("inner", "boundary", "indptr", "indices", "weights", "degree")
        }
        sources = np.concatenate([files["inner"], files["boundary"]])
        for row, node in enumerate(files["inner"]):
            entries = slice(files["indptr"][row], files["indptr"][row + 1])
            got = np.zeros(nodes.size)
            got[sources[files["indices"][entries]]] = files["weights"][entries]
            np.testing.assert_array_equal(got, sub[node])
        np.testing.assert_allclose(files["degree"], sub.sum(1)[sources])
