"""Small graphs on disk, and their dense twins for oracles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.data.graph import GraphData
from harness.data.partition_store import PartitionPaths, ensure_partitioned
from harness.data.spec import PartitionSpec
from harness.data.store import write_graph


def random_graph(
    seed: int,
    nodes: int = 60,
    degree: float = 5,
    features: int = 7,
    classes: int = 4,
    *,
    multilabel: bool = False,
    weighted: bool = False,
    train_only: range | None = None,
) -> GraphData:
    """Return a symmetric random graph with an isolated node, unlabelled nodes and random features.

    `train_only` limits the training nodes to a range, so that a rank can be left without any.
    """
    rng = np.random.default_rng(seed)
    dense = np.triu(rng.random((nodes, nodes)) < degree / nodes, 1)
    dense[nodes // 2] = dense[:, nodes // 2] = False
    dense = dense | dense.T
    labels = (
        rng.integers(0, 2, (nodes, classes)).astype(np.uint8)
        if multilabel
        else rng.integers(0, classes, nodes)
    )
    if not multilabel:
        labels[rng.choice(nodes, 3, replace=False)] = -1
    split = rng.integers(0, 3, nodes)
    if not multilabel:
        split[labels < 0] = 3
    train = split == 0
    weight = np.random.default_rng(seed + 1).random((nodes, nodes)) + 0.1
    if train_only is not None:
        train &= np.isin(np.arange(nodes), train_only)
    return GraphData(
        name=f"random{seed}",
        indptr=np.concatenate([[0], np.cumsum(dense.sum(1))]).astype(np.int64),
        indices=np.nonzero(dense)[1].astype(np.int32),
        features=rng.normal(size=(nodes, features)).astype(np.float32),
        labels=labels,
        train_mask=train,
        val_mask=split == 1,
        test_mask=split == 2,
        num_classes=classes,
        multilabel=multilabel,
        origin="generated",
        note="random graph",
        weights=(weight + weight.T)[dense].astype(np.float32) if weighted else None,
    )


def dense_adjacency(graph: GraphData) -> np.ndarray:
    """Return the matrix float64 [N, N] of 0 and 1, or of weights; row i the in-neighbours of i."""
    nodes = graph.indptr.size - 1
    dense = np.zeros((nodes, nodes))
    for i in range(nodes):
        entries = slice(graph.indptr[i], graph.indptr[i + 1])
        dense[i, graph.indices[entries]] = 1 if graph.weights is None else graph.weights[entries]
    return dense


@dataclass(frozen=True)
class OnDisk:
    """A graph written and partitioned, as the ranks of a trial find it."""

    graph: Path
    parts: PartitionPaths
    inductive: bool


def on_disk(graph: GraphData, parts: np.ndarray, count: int, inductive: bool, folder: Path) -> OnDisk:
    """Write `graph` and its partition by the vector `parts` int [N] into `folder`."""
    directory = folder / "graph"
    if not directory.exists():
        write_graph(graph, directory)
    vector = folder / f"parts{count}.npy"
    np.save(vector, parts)
    spec = PartitionSpec(parts=count, method="file", file=vector)
    return OnDisk(
        directory, ensure_partitioned(directory, spec, inductive=inductive, cache=folder), inductive
    )
