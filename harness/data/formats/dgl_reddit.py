"""DGL's Reddit: `reddit_data.npz` (feature, label, node_types) and `reddit_graph.npz` (scipy COO)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from harness.data.catalog import Bounds
from harness.data.formats.files import Npz, as_labels, csr, spool_features
from harness.data.graph import Array, GraphData
from harness.errors import DataError

FILES = ("reddit_data.npz", "reddit_graph.npz")
_TRAIN, _VAL, _TEST = 1, 2, 3


def read(source: Path, name: str, work: Path) -> GraphData:
    """Read the two files of the directory `source`.

    Edges are streamed twice and features once, so that the peak is the finished `indices` and a few MB.
    """
    data, edges = (source / file for file in FILES)
    with Npz(data) as npz:
        (nodes,) = npz.shape("label", "i", (None,))
        bounds = Bounds.of(name)
        bounds.check(data, nodes=nodes)
        labels = as_labels(npz.array("label", "i", (nodes,)), data)
        types = npz.array("node_types", "i", (nodes,))
        if not np.isin(types, (_TRAIN, _VAL, _TEST)).all():
            raise DataError("node_types hold something other than 1 (train), 2 (val), 3 (test)", file=data)
        _, width = npz.shape("feature", "f", (nodes, None))
        bounds.check(data, features=width)
        features = spool_features(npz.chunks("feature", "f", (nodes, None)), (nodes, width), work, data)
    split = (types == part for part in (_TRAIN, _VAL, _TEST))
    return GraphData.of(name, csr=_edges(edges, nodes, bounds), features=features, labels=labels, split=split)


def _edges(path: Path, nodes: int, bounds: Bounds) -> tuple[Array, Array]:
    with Npz(path) as npz:
        shape = npz.array("shape", "i", (2,)).tolist()
        if shape != [nodes, nodes]:
            raise DataError(f"the adjacency is {shape}, expected {[nodes, nodes]}", file=path)
        (count,) = npz.shape("row", "i", (None,))
        bounds.check(path, edges=count)

        def stream() -> Iterator[tuple[Array, Array]]:
            # Row i of the adjacency aggregates its columns: the row is the edge's destination.
            return npz.paired_chunks("col", "row", count)

        return csr(stream, nodes, path, symmetrise=False)
