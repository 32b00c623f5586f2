"""OGB's node sets as published: CSV (ogbn-arxiv, ogbn-products) or binary (ogbn-papers100M).

CSV: `raw/{edge,node-feat,node-label,num-node-list}.csv.gz`; binary: `raw/data.npz` (edge_index, node_feat,
num_nodes_list) and `raw/node-label.npz` (node_label, NaN = unlabelled); both: `split/*/{train,valid,test}.csv.gz`.
Edges are made symmetric, self-loops and duplicates dropped, as is customary for these sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from harness.data.catalog import Bounds
from harness.data.formats.files import Npz, as_labels, csr, csv_chunks, mask, spool_features
from harness.data.graph import Array, GraphData
from harness.errors import DataError

_SPLITS = ("train", "valid", "test")


def read(source: Path, name: str, work: Path) -> GraphData:
    """Read the directory `source`, which holds `raw/` and `split/`."""
    binary = any((source / "raw" / file).exists() for file in ("data.npz", "node-label.npz"))
    indptr, indices, features, label_file, values = (_read_binary if binary else _read_csv)(
        source / "raw", work, Bounds.of(name)
    )
    nodes = len(indptr) - 1
    labels, directory = as_labels(values, label_file), _split_directory(source)
    split = (_split_mask(directory / f"{part}.csv.gz", nodes) for part in _SPLITS)
    return GraphData.of(name, csr=(indptr, indices), features=features, labels=labels, split=split)


def _read_csv(raw: Path, work: Path, bounds: Bounds) -> tuple[Array, Array, Array, Path, Array]:
    count, edge, feat, label = (raw / f"{part}.csv.gz" for part in ("num-node-list", "edge", "node-feat", "node-label"))
    nodes = _one_number(count)
    bounds.check(count, nodes=nodes)
    values = np.concatenate(list(csv_chunks(label, np.float64, nodes, bounds.classes)))
    if len(values) != nodes:
        raise DataError(f"{len(values)} rows, the graph has {nodes} nodes", file=label)
    chunks = csv_chunks(feat, np.float32, nodes, bounds.features)
    first = next(chunks)
    features = spool_features(chain([first], chunks), (nodes, first.shape[1]), work, feat)

    def edges() -> Iterator[tuple[Array, Array]]:
        for pairs in csv_chunks(edge, np.int64, bounds.edges, 2):
            if pairs.shape[1] != 2:
                raise DataError(f"{pairs.shape[1]} columns, expected source,destination", file=edge)
            yield pairs[:, 0], pairs[:, 1]

    return *csr(edges, nodes, edge), features, label, values


def _read_binary(raw: Path, work: Path, bounds: Bounds) -> tuple[Array, Array, Array, Path, Array]:
    data, label = raw / "data.npz", raw / "node-label.npz"
    with Npz(data) as npz:
        nodes, width = npz.shape("node_feat", "f", (None, None))
        bounds.check(data, nodes=nodes, features=width)
        if "num_nodes_list" in npz and npz.array("num_nodes_list", "i", (1,))[0] != nodes:
            raise DataError(f"num_nodes_list is not the {nodes} rows of node_feat", file=data)
        with Npz(label) as labels:
            values = labels.rows("node_label", nodes)
        features = spool_features(npz.chunks("node_feat", "f", (nodes, width)), (nodes, width), work, data)

        bounds.check(data, edges=npz.shape("edge_index", "i", (2, None))[1])
        return *csr(lambda: npz.row_pair_chunks("edge_index"), nodes, data), features, label, values


def _one_number(file: Path) -> int:
    values = np.concatenate(list(csv_chunks(file, np.int64, 1, 1)))
    if values.shape != (1, 1) or values[0, 0] < 1:
        raise DataError("expected one positive number: the count of nodes", file=file)
    return int(values[0, 0])


def _split_directory(source: Path) -> Path:
    found = sorted(p for p in (source / "split").glob("*") if (p / "train.csv.gz").is_file())
    if len(found) != 1:
        raise DataError(f"expected one split with train.csv.gz, found {len(found)}", file=source / "split")
    return found[0]


def _split_mask(file: Path, nodes: int) -> Array:
    ids = np.concatenate(list(csv_chunks(file, np.int64, nodes, 1)))
    if ids.shape[1] != 1:
        raise DataError(f"{ids.shape[1]} columns, expected one node id a line", file=file)
    return mask(ids[:, 0], nodes, file, file.name.split(".")[0])
