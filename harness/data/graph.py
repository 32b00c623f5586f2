"""One graph as every part of the harness sees it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.data.csr import check_csr, is_symmetric
from harness.errors import DataError

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class GraphData:
    """A graph with features, labels and a split; N nodes, E directed edges, F features, C classes.

    Edges are stored in both directions. Arrays may be memory-mapped and must not be written to.
    """

    name: str
    indptr: Array
    """int64 [N+1], CSR; row i lists the in-neighbours of node i: ascending, no duplicates, no self-loop."""
    indices: Array
    """int32 [E] (int64 only when N >= 2**31)."""
    features: Array
    """float32 [N, F]."""
    labels: Array
    """int64 [N], -1 = unlabelled, or uint8 [N, C] of 0/1 when `multilabel`."""
    train_mask: Array
    """bool [N]; the three masks are disjoint."""
    val_mask: Array
    """bool [N]."""
    test_mask: Array
    """bool [N]."""
    num_classes: int
    multilabel: bool
    origin: str = "real"
    """"real", "generated" or "twin" (generated in the likeness of a published set)."""
    note: str = ""
    """What a table must say beside the name, e.g. "twin of reddit at scale 0.02"."""
    weights: Array | None = None
    """float32 [E] edge weights, positive and finite; None: every edge counts one."""

    @property
    def nodes(self) -> int:
        """N."""
        return len(self.indptr) - 1

    @property
    def edges(self) -> int:
        """E, directed: an undirected edge counts twice."""
        return len(self.indices)


def index_dtype(nodes: int) -> np.dtype[Any]:
    """Dtype of `indices` for a graph of `nodes` nodes: int32, int64 from 2**31 nodes on."""
    return np.dtype(np.int32 if nodes < 2**31 else np.int64)


def train_on_all_others(graph: GraphData) -> GraphData:
    """Return a single-label graph in which every labelled node that is neither validation nor test trains.

    Of Planetoid's sets this is the split of FastGCN and LADIES: all but 500 and 1,000 nodes.
    """
    train = (graph.labels >= 0) & ~(graph.val_mask | graph.test_mask)
    return replace(graph, train_mask=train)


def check_graph(graph: GraphData, source: Path | str, *, symmetric: bool = False) -> None:
    """Refuse a graph that breaks a promise of `GraphData` (features are not read, only their shape).

    Linear in nodes and edges; takes O(nodes) of memory.

    Raises:
        DataError: names `source` and the first broken promise.
    """
    problem = (
        _shape_problem(graph)
        or check_csr(graph.indptr, graph.indices)
        or _label_problem(graph)
        or _weight_problem(graph)
        or (None if not symmetric or is_symmetric(graph.indptr, graph.indices) else "edges are not symmetric")
    )
    if problem:
        raise DataError(problem, file=source)


def _shape_problem(graph: GraphData) -> str | None:
    n = graph.nodes
    expected: dict[str, tuple[Any, tuple[int | None, ...]]] = {
        "indptr": (np.int64, (n + 1,)),
        "indices": (index_dtype(n), (None,)),
        "features": (np.float32, (n, None)),
        "labels": (np.uint8, (n, graph.num_classes)) if graph.multilabel else (np.int64, (n,)),
        "train_mask": (np.bool_, (n,)),
        "val_mask": (np.bool_, (n,)),
        "test_mask": (np.bool_, (n,)),
    }
    if n < 1:
        return "the graph has no nodes"
    for name, (dtype, shape) in expected.items():
        array = getattr(graph, name)
        fits = array.ndim == len(shape) and all(
            want in (None, have) for want, have in zip(shape, array.shape, strict=True)
        )
        if array.dtype != dtype or not fits:
            want = f"{np.dtype(dtype).name} [{', '.join('any' if s is None else str(s) for s in shape)}]"
            return f"{name} is {array.dtype} {list(array.shape)}, expected {want}"
    return None


def _weight_problem(graph: GraphData) -> str | None:
    weights = graph.weights
    if weights is None:
        return None
    if weights.dtype != np.float32 or weights.shape != (graph.edges,):
        return f"weights is {weights.dtype} {list(weights.shape)}, expected float32 [{graph.edges}]"
    if weights.size and not 0 < weights.min() <= weights.max() < np.inf:
        return "edge weights must be positive and finite"
    return None


def _label_problem(graph: GraphData) -> str | None:
    low, high = (int(graph.labels.min()), int(graph.labels.max())) if graph.labels.size else (0, 0)
    if graph.multilabel and high > 1:
        return f"multi-label labels hold {high}, expected 0 or 1"
    if not graph.multilabel and not -1 <= low <= high < graph.num_classes:
        return f"labels span {low}..{high}, expected -1..{graph.num_classes - 1}"
    if np.any(graph.train_mask & graph.val_mask) or np.any(
        (graph.train_mask | graph.val_mask) & graph.test_mask
    ):
        return "train_mask, val_mask and test_mask overlap"
    if not graph.multilabel:
        split = graph.train_mask | graph.val_mask | graph.test_mask
        if np.any(graph.labels[split] < 0):
            return "a node of the split has no label"
    return None
