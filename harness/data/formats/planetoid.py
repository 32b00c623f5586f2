"""Planetoid's sets (Cora, CiteSeer, PubMed): `ind.NAME.{x,y,tx,ty,allx,ally,graph,test.index}`.

Split: Planetoid's public one. The first `len(y)` nodes (20 a class) train, the next 500 validate, those of
`test.index` test. CiteSeer's test range has gaps: nodes without features, label and edges, which stay as
isolated nodes of label -1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from harness.data.csr import csr_from_edges
from harness.data.formats import pickles
from harness.data.formats.common import as_labels, built, mask, reading, spool_features
from harness.data.graph import GraphData
from harness.data.npy import Array, chunk_rows
from harness.errors import DataError

PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
_VALIDATION = 500


def read(source: Path, name: str, work: Path) -> GraphData:
    """Read the set `name` from the directory `source`."""
    files = {part: source / f"ind.{name}.{part}" for part in PARTS}
    y, ally, ty = (_matrix(files[part], dense=True) for part in ("y", "ally", "ty"))
    allx, tx = (_matrix(files[part], dense=False) for part in ("allx", "tx"))
    test = _test_index(files["test.index"], allx.shape[0], tx.shape[0])
    nodes = int(test.max()) + 1
    if allx.shape[0] != ally.shape[0] or tx.shape[0] != ty.shape[0] or allx.shape[1] != tx.shape[1]:
        raise DataError(
            f"x {allx.shape}, {tx.shape} and y {ally.shape}, {ty.shape} do not fit", file=files["tx"]
        )
    if ally.shape[1] != ty.shape[1] or y.shape[1] != ty.shape[1] or not 0 < len(y) <= len(ally):
        raise DataError(f"y {y.shape}, ally {ally.shape} and ty {ty.shape} do not fit", file=files["y"])

    gap = sp.csr_matrix((nodes - allx.shape[0], allx.shape[1]), dtype=np.float32).tolil()
    gap[test - allx.shape[0]] = tx
    features = sp.vstack([allx, gap.tocsr()], format="csr", dtype=np.float32)
    one_hot = np.zeros((nodes, ty.shape[1]), dtype=np.int64)
    one_hot[: len(ally)], one_hot[test] = ally, ty
    labels, classes, _ = as_labels(
        np.where(one_hot.any(1), one_hot.argmax(1), -1), files["ally"], classes=ty.shape[1]
    )
    pairs = _edges(files["graph"], nodes)
    indptr, indices = built(
        files["graph"],
        "neighbour lists",
        lambda: csr_from_edges(lambda: iter([(pairs[:, 0], pairs[:, 1])]), nodes, symmetrise=True),
    )
    step = chunk_rows(features.shape, 4)
    dense = (features[k : k + step].toarray() for k in range(0, nodes, step))
    last = min(len(y) + _VALIDATION, allx.shape[0])
    return GraphData(
        name=name,
        indptr=indptr,
        indices=indices,
        features=spool_features(dense, features.shape, work, files["allx"]),
        labels=labels,
        train_mask=mask(np.arange(len(y)), nodes, files["y"], "training"),
        val_mask=mask(np.arange(len(y), last), nodes, files["ally"], "validation"),
        test_mask=mask(test, nodes, files["test.index"], "test"),
        num_classes=classes,
        multilabel=False,
    )


def _matrix(file: Path, *, dense: bool) -> Any:
    value = pickles.load(file)
    wanted, what = (np.ndarray, "one-hot labels") if dense else (sp.csr_matrix, "a sparse feature matrix")
    if not isinstance(value, wanted) or value.ndim != 2 or 0 in value.shape:
        raise DataError(f"expected {what}", file=file)
    if dense and not (((value == 0) | (value == 1)).all() and (value.sum(1) <= 1).all()):
        raise DataError("expected one-hot labels", file=file)
    return value


def _test_index(file: Path, before: int, count: int) -> Array:
    with reading(file, "one node id a line"):
        index = np.array([int(line) for line in file.read_text(encoding="ascii").split()], dtype=np.int64)
    if len(index) != count or len(np.unique(index)) != count:
        raise DataError(f"{len(index)} node ids, expected {count} different ones", file=file)
    # CiteSeer's gaps are 15 of 1,015; a damaged digit must not ask for a graph of any size.
    if index.min() != before or index.max() >= before + 2 * count:
        raise DataError(
            f"test nodes span {index.min()}..{index.max()}, expected {before}.. without gaps", file=file
        )
    return index


def _edges(file: Path, nodes: int) -> Array:
    graph = pickles.load(file)
    if not isinstance(graph, dict) or len(graph) != nodes:
        raise DataError(f"expected the neighbour lists of {nodes} nodes", file=file)
    with reading(file, "a dict of lists of node ids"):
        pairs = [(int(j), int(i)) for i, neighbours in graph.items() for j in neighbours]
        return np.array(pairs, dtype=np.int64).reshape(-1, 2)
