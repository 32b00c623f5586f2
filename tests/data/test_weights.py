"""Edge weights from the file to the ranks' partitions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.check.graphs import dense_adjacency, on_disk, random_graph
from harness.data.formats import neutral
from harness.data.graph import check_graph
from harness.data.prepared import open_graph, write_graph
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


def test_weights_whose_sum_no_float32_holds_are_refused_by_row() -> None:
    degrees = np.diff(GRAPH.indptr)
    row = int(degrees.argmax())
    start, end = GRAPH.indptr[row : row + 2]
    large = 0.9 * np.finfo(np.float32).max
    weights = np.full_like(GRAPH.weights, large / degrees[row])
    check_graph(replace(GRAPH, weights=weights), "w", symmetric=False)
    weights[start:end] *= 2
    with pytest.raises(DataError, match=f"edge weights of row {row} add up to more than float32 holds"):
        check_graph(replace(GRAPH, weights=weights), "w", symmetric=False)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_weights_must_be_positive_and_finite(tmp_path: Path, bad: float) -> None:
    (tmp_path / "work").mkdir()
    weights = GRAPH.weights.copy()
    weights[3] = bad
    graph = neutral.read(npz(tmp_path, weight=weights), "w", tmp_path / "work")
    with pytest.raises(DataError, match="edge weights must be positive and finite"):
        write_graph(graph, tmp_path / "graph")


def test_weights_must_be_the_same_both_ways(tmp_path: Path) -> None:
    """As edges must; the last bit may differ, as both directions may have been computed."""
    (tmp_path / "work").mkdir()
    lower = np.tril(DENSE)
    weights = (lower + lower.T)[DENSE > 0].astype(np.float32)
    graph = neutral.read(npz(tmp_path, weight=weights), "w", tmp_path / "work")
    check_graph(graph, "w.npz", symmetric=True)
    rounded = weights.copy()
    rounded[5] = np.nextafter(rounded[5], np.float32(9))
    check_graph(replace(graph, weights=rounded), "w.npz", symmetric=True)
    weights[5] *= 1.01
    row, column = (int(each[5]) for each in np.nonzero(DENSE))
    pair = rf"({row}, {column}|{column}, {row})"
    with pytest.raises(DataError, match=rf"w\.npz: edge weights are not symmetric: that of {pair} is not that of"):
        check_graph(replace(graph, weights=weights), "w.npz", symmetric=True)


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
