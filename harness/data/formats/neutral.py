"""The neutral format: one `.npz` a graph.

`indptr` and `indices` (CSR, symmetric, rows ascending, no self-loops or duplicates); `feat` [N, F], or sparse as
`feat_indptr, feat_indices, feat_data, feat_shape`; `label` [N] (-1 = unlabelled) or 0/1 [N, C]; `train_mask`,
`val_mask`, `test_mask` bool [N]; optionally `weight` float [E], the edges' weights. Other arrays are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from harness.data.catalog import DatasetInfo, with_normalize
from harness.data.formats import MAX_WIDTH, Npz, as_labels, dense_chunks, open_npy, spool_features
from harness.data.graph import Array, GraphData, index_dtype
from harness.data.prepared import npy_writer
from harness.deferred import numpy as np
from harness.errors import DataError


def info(path: Path, name: str) -> DatasetInfo:
    """What is known of a neutral file from its array headers and labels alone."""
    with Npz(path) as npz:
        nodes, width = _nodes(npz), _feature_shape(npz)[1]
        edges = npz.shape("indices", "i", (None,))[0]
        labels, classes, multilabel = _labels(npz, nodes)
        validates = "val_mask" not in npz or bool(npz.array("val_mask", "b", (nodes,)).any())
    source, summary = f"your file {path}", "a graph in the neutral format"
    if not multilabel and (occur := np.unique(labels[labels >= 0]).size) < classes:
        summary += f"; {occur} of its {classes} classes occur: classes are numbers from 0 to {classes - 1}"
    found = DatasetInfo(name, nodes, edges, width, classes, {}, source, summary, multilabel, size_bytes=0)
    return replace(with_normalize(found), validates=validates)


def read(source: Path, name: str, work: Path) -> GraphData:
    """Read the neutral file `source`; features and edges go straight to disk."""
    with Npz(source) as npz:
        nodes = _nodes(npz)
        indptr = npz.array("indptr", "i", (None,)).astype(np.int64)
        indices = _spool_indices(npz, nodes, work)
        labels = _labels(npz, nodes)
        split = [npz.array(f"{part}_mask", "b", (nodes,)) for part in ("train", "val", "test")]
        if not split[0].any():
            raise DataError("train_mask selects no node", file=source)
        shape = _feature_shape(npz)
        if shape[0] != nodes:
            raise DataError(f"features have {shape[0]} rows, the graph has {nodes} nodes", file=source)
        dense = npz.chunks("feat", "n", (nodes, None)) if "feat" in npz else _densified(npz, shape)
        features = spool_features(dense, shape, work, source)
        weights = npz.array("weight", "n", indices.shape).astype(np.float32) if "weight" in npz else None
    csr = indptr, indices
    return GraphData.of(name, csr=csr, features=features, labels=labels, split=split, weights=weights)


def _nodes(npz: Npz) -> int:
    (length,) = npz.shape("indptr", "i", (None,))
    if length < 2:
        raise DataError("indptr has no rows", file=npz.path)
    return length - 1


def _labels(npz: Npz, nodes: int) -> tuple[Array, int, bool]:
    if "label" not in npz:
        raise DataError("has no array 'label'; a graph without labels cannot be trained on", file=npz.path)
    return as_labels(npz.rows("label", nodes), npz.path)


def _feature_shape(npz: Npz) -> tuple[int, int]:
    if "feat" in npz:
        rows, width = npz.shape("feat", "n", (None, None))
    elif "feat_shape" in npz:
        rows, width = (int(size) for size in npz.array("feat_shape", "i", (2,)))
    else:
        raise DataError("has neither 'feat' nor sparse features (feat_indptr, ...)", file=npz.path)
    if rows < 1 or not 1 <= width <= MAX_WIDTH:
        raise DataError(f"features of shape [{rows}, {width}]", file=npz.path)
    return rows, width


def _spool_indices(npz: Npz, nodes: int, work: Path) -> Array:
    path, dtype = work / "indices.npy", index_dtype(nodes)
    shape = npz.shape("indices", "i", (None,))
    with npy_writer(path, shape, dtype) as append:
        for chunk in npz.chunks("indices", "i", (None,)):
            if not 0 <= chunk.min() <= chunk.max() < nodes:
                raise DataError(f"indices name a node outside 0..{nodes - 1}", file=npz.path)
            append(chunk)
    return open_npy(path)


def _densified(npz: Npz, shape: tuple[int, int]) -> Iterator[Array]:
    import scipy.sparse as sp  # long to import, and few graphs are sparse

    rows, width = shape
    indptr = npz.array("feat_indptr", "i", (rows + 1,)).astype(np.int64)
    (count,) = npz.shape("feat_indices", "i", (None,))
    indices = npz.array("feat_indices", "i", (count,))
    data = npz.array("feat_data", "n", (count,)).astype(np.float32)
    if indptr[0] != 0 or indptr[-1] != count or (indptr[1:] < indptr[:-1]).any():
        raise DataError(f"feat_indptr does not rise from 0 to {count}", file=npz.path)
    if count and not 0 <= indices.min() <= indices.max() < width:
        raise DataError(f"feat_indices name a column outside 0..{width - 1}", file=npz.path)
    yield from dense_chunks(sp.csr_matrix((data, indices, indptr), shape=shape))
