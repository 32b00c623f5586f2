"""Small prepared graphs from Python sets of edges."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from harness.data.graph import GraphData
from harness.data.prepared import write_graph

Edges = set[tuple[int, int]]


def prepared(directory: Path, n: int, edges: Edges, train: list[int] | None = None) -> Path:
    pairs = sorted(edges)
    mask = np.zeros(n, bool)
    mask[range(n) if train is None else train] = True
    indptr = np.cumsum([0, *(sum(i == a for a, _ in pairs) for i in range(n))])
    graph = GraphData(
        name="small",
        indptr=indptr.astype(np.int64),
        indices=np.array([j for _, j in pairs], np.int32),
        features=np.zeros((n, 1), np.float32),
        labels=np.zeros(n, np.int64),
        train_mask=mask,
        val_mask=np.zeros(n, bool),
        test_mask=~mask,
        num_classes=2,
        multilabel=False,
        origin="generated",
        note="",
    )
    write_graph(graph, directory)
    return directory


def random_edges(n: int, count: int, seed: int, *, directed: bool) -> Edges:
    rng = np.random.default_rng(seed)
    edges = {(int(i), int(j)) for i, j in rng.integers(0, n, (count, 2)) if i != j}
    return edges if directed else edges | {(j, i) for i, j in edges}
