"""GraphSAINT's format: `adj_full.npz, adj_train.npz, feats.npy, class_map.json, role.json`.

`adj_train.npz` is the subgraph that `role.json`'s training nodes induce in `adj_full.npz`; inductive training
takes that subgraph itself, so the file is not read. A graph that is not symmetric is made so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from harness.data.catalog import NUMBER, Bounds
from harness.data.formats.files import Npz, as_labels, csr, mask, read_json, reading, spool_features
from harness.data.graph import Array, GraphData, is_symmetric
from harness.data.store import npy_chunks, read_header
from harness.errors import DataError
from harness.files import SMALL, open_regular

FILES = ("adj_full.npz", "feats.npy", "class_map.json", "role.json")


def read(source: Path, name: str, work: Path) -> GraphData:
    """Read the directory `source`; labels are one class a node (a number, or one-hot) or 0/1 lists."""
    adjacency, feats, class_map, role = (source / file for file in FILES)
    with Npz(adjacency) as npz:
        nodes = npz.shape("indptr", "i", (None,))[0] - 1
    if nodes < 1:
        raise DataError("indptr has no rows", file=adjacency)
    bounds = Bounds.of(name)
    bounds.check(adjacency, nodes=nodes)
    labels = _labels(class_map, nodes, bounds)
    roles = read_json(role, '{"tr": [...], "va": [...], "te": [...]}', nodes * NUMBER + SMALL)
    split = [mask(roles.get(part), nodes, role, f"'{part}'") for part in ("tr", "va", "te")]
    with reading(feats, "the features, float [N, F]"), open_regular(feats) as stream:
        shape, dtype, _ = read_header(stream, feats)
    if len(shape) != 2 or shape[0] != nodes or dtype.kind not in "fiu":
        raise DataError(f"is {dtype} {list(shape)}, expected floats [{nodes}, any]", file=feats)
    bounds.check(feats, features=shape[1])
    features = spool_features(npy_chunks(feats), (nodes, shape[1]), work, feats)
    return GraphData.of(name, csr=_edges(adjacency, nodes, bounds), features=features, labels=labels, split=split)


def _labels(path: Path, nodes: int, bounds: Bounds) -> tuple[Array, int, bool]:
    expected = '{"0": class or [0, 1, ...], "1": ...}'
    entries = read_json(path, expected, nodes * (bounds.classes + 2) * NUMBER + SMALL)
    if len(entries) != nodes:
        raise DataError(f"labels {len(entries)} nodes, the graph has {nodes}", file=path)
    first: Any = next(iter(entries.values()))
    width = len(first) if isinstance(first, list) else None
    labels = np.full((nodes,) if width is None else (nodes, width), -1, dtype=np.int64)
    with reading(path, expected):
        for key, value in entries.items():
            node = int(key)
            row = np.asarray(value)
            if not 0 <= node < nodes or row.dtype.kind not in "iubf" or row.shape != labels.shape[1:]:
                raise DataError(f"expected {expected} of one length", file=path, key=key)
            if row.dtype.kind == "f" and not (row % 1 == 0).all():
                raise DataError(f"a label is {value}", file=path, key=key)
            labels[node] = row
    one_hot = width is not None and width > 1 and bool(((labels == 1).sum(1) == 1).all())
    if one_hot and ((labels == 0) | (labels == 1)).all():
        return as_labels(labels.argmax(1), path, classes=width)
    if width == 1:
        raise DataError("label lists have one entry", file=path)
    return as_labels(labels, path)


def _edges(path: Path, nodes: int, bounds: Bounds) -> tuple[Array, Array]:
    with Npz(path) as npz:
        indptr = npz.array("indptr", "i", (nodes + 1,)).astype(np.int64)
        (count,) = npz.shape("indices", "i", (None,))
        bounds.check(path, edges=count)
        if npz.array("shape", "i", (2,)).tolist() != [nodes, nodes]:
            raise DataError(f"the adjacency is not {nodes} x {nodes}", file=path)
        if indptr[0] != 0 or indptr[-1] != count or (indptr[1:] < indptr[:-1]).any():
            raise DataError(f"indptr does not rise from 0 to {count}", file=path)

        def stream() -> Iterator[tuple[Array, Array]]:
            at = 0
            for columns in npz.chunks("indices", "i", (count,)):
                end = at + len(columns)
                first, last = np.searchsorted(indptr, (at, end - 1), side="right") - 1
                counts = np.diff(indptr[first : last + 2].clip(at, end))
                yield columns, np.repeat(np.arange(first, last + 1), counts)
                at = end

        found = csr(stream, nodes, path, "a CSR", symmetrise=False)
        return found if is_symmetric(*found) else csr(stream, nodes, path, "a CSR")
