"""Tiny graphs to check methods on, written and dealt to ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.data.graph import GraphData
from harness.data.partition.cached import PartitionPaths, ensure_partitioned
from harness.data.prepared import write_graph
from harness.models.layer import ModelSpec
from harness.spec import PartitionSpec


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
    labels = rng.integers(0, 2, (nodes, classes)).astype(np.uint8) if multilabel else rng.integers(0, classes, nodes)
    if not multilabel:
        labels[rng.choice(nodes, 3, replace=False)] = -1
    split = rng.integers(0, 3, nodes)
    if not multilabel:
        split[labels < 0] = 3
    train = split == 0
    weight = np.random.default_rng(seed + 1).random((nodes, nodes)) + 0.1
    if train_only is not None:
        train &= np.isin(np.arange(nodes), train_only)
    return GraphData.of(
        f"random{seed}",
        csr=(np.concatenate([[0], np.cumsum(dense.sum(1))]).astype(np.int64), np.nonzero(dense)[1].astype(np.int32)),
        features=rng.normal(size=(nodes, features)).astype(np.float32),
        labels=(labels, classes, multilabel),
        split=(train, split == 1, split == 2),
        origin="generated",
        note="random graph",
        weights=(weight + weight.T)[dense].astype(np.float32) if weighted else None,
    )


def dense_adjacency(graph: GraphData) -> np.ndarray:
    """Return the matrix float64 [N, N] of 0 and 1, or of weights; row i the in-neighbours of i."""
    nodes, counts = graph.indptr.size - 1, np.diff(graph.indptr)
    dense = np.zeros((nodes, nodes))
    dense[np.repeat(np.arange(nodes), counts), graph.indices] = 1 if graph.weights is None else graph.weights
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
    return OnDisk(directory, ensure_partitioned(directory, spec, inductive=inductive, cache=folder), inductive)


NODES, FIRST = 60, 20

MODELS = {
    "sage": ModelSpec(name="sage", layers=3, hidden=6, dropout=0, norm="layer"),
    "gcn": ModelSpec(name="gcn", layers=2, hidden=6, dropout=0),
    "sage-tail-residual": ModelSpec(name="sage", layers=2, linear_layers=2, hidden=7, dropout=0, residual=True),
    "gcn-narrow-input": ModelSpec(name="gcn", layers=2, hidden=3, dropout=0, norm="layer"),
    "gat": ModelSpec(name="gat", layers=3, hidden=6, heads=2, dropout=0, norm="layer", residual=True),
    "gat-tail": ModelSpec(name="gat", layers=2, linear_layers=1, hidden=3, heads=3, dropout=0),
    "mixhop": ModelSpec(name="mixhop", layers=2, hidden=6, order=2, dropout=0, norm="layer"),
    "mixhop-tail-residual": ModelSpec(
        name="mixhop", layers=2, linear_layers=1, hidden=8, order=3, dropout=0, residual=True
    ),
}
# Limit equivalence: a pair of models for each graph, in turn.
PAIRS = [
    ["sage", "gcn"],
    ["gat", "sage-tail-residual"],
    ["gcn-narrow-input", "gat-tail"],
    ["mixhop", "mixhop-tail-residual"],
]
LIMITS = ("transductive", "inductive", "multilabel", "weighted", "weighted-inductive", "one-trainer", "no-boundary")
TROUBLES = {
    "no-boundary": "no rank with a boundary",
    "one-alone": "rank 0 without a boundary",
    "one-trainer": "training nodes at rank 0 only",
}


@dataclass(frozen=True, eq=False)
class Tiny:
    """A graph, and how its nodes are dealt to ranks: `parts` int64 [N] of so many ranks."""

    name: str
    graph: GraphData
    inductive: bool
    stored: OnDisk
    parts: NDArray[np.int64]

    def seen(self) -> NDArray[np.int64]:
        """Return the nodes that are trained on."""
        nodes = np.arange(self.graph.indptr.size - 1)
        return np.flatnonzero(self.graph.train_mask) if self.inductive else nodes

    def adjacency(self) -> NDArray[np.float64]:
        """Return the dense matrix of the graph that is trained on."""
        nodes = self.seen()
        return dense_adjacency(self.graph)[np.ix_(nodes, nodes)]

    def boundary(self) -> int:
        """Return the sum over ranks of |B_i|, by its definition."""
        edge, owner = self.adjacency() != 0, self.parts[self.seen()]
        return sum(int((edge[owner == r].any(0) & (owner != r)).sum()) for r in np.unique(owner))


class TinyGraphs:
    """The graphs by name, written to a folder when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[tuple[str, int], Tiny] = {}

    def get(self, name: str, world: int) -> Tiny:
        """Return a graph dealt to `world` ranks."""
        if made := self._made.get((name, world)):
            return made
        graph, inductive = tiny_graph(name), is_inductive(name)
        node = np.arange(NODES)
        parts = np.minimum(node * world // NODES, world - 1)
        if name == "one-alone":
            parts = np.where(node < FIRST, 0, 1 + node % max(world - 1, 1))
        if name.startswith("drawn"):
            parts = np.random.default_rng(1).integers(0, world, NODES)
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        stored = on_disk(graph, parts, world, inductive, folder)
        self._made[name, world] = Tiny(name, graph, inductive, stored, parts)
        return self._made[name, world]


def is_inductive(name: str) -> bool:
    """Return whether a graph of that name is trained on its training nodes alone."""
    return name.endswith("inductive")


def tiny_graph(name: str) -> GraphData:
    """Return a graph by name."""
    if name == "one-alone":
        return _cut(random_graph(51, NODES))
    made: dict[str, tuple[int, dict[str, Any]]] = {
        "transductive": (1, {}),
        "inductive": (2, {}),
        "multilabel": (3, {"multilabel": True}),
        "weighted": (6, {"weighted": True}),
        "weighted-inductive": (7, {"weighted": True}),
        # Nodes 0 to 19 are rank 0's: at P > 1 the others have no training node.
        "one-trainer": (4, {"train_only": range(FIRST)}),
        # No edges at all: no rank has a boundary.
        "no-boundary": (5, {"degree": 0}),
        "drawn": (21, {"degree": 8, "features": 3}),
        "drawn-weighted": (22, {"degree": 8, "features": 3, "weighted": True}),
    }
    seed, options = made[name]
    return random_graph(seed, NODES, **options)


def _cut(graph: GraphData) -> GraphData:
    """Return the graph without the edges between the nodes 0 to 19 and the others."""
    target = np.repeat(np.arange(NODES), np.diff(graph.indptr))
    inside = (graph.indices < FIRST) == (target < FIRST)
    starts = np.concatenate([[0], np.cumsum(np.bincount(target[inside], minlength=NODES))])
    return replace(graph, indptr=starts.astype(np.int64), indices=graph.indices[inside])
