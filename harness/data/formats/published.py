"""Readers of the published raw formats: DGL's Reddit, sets of GraphSAINT, GraphSAGE and OGB, Mislove's YouTube."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from harness.data.catalog import GRAPHSAGE_FILES, GRAPHSAINT_FILES, NUMBER, Bounds
from harness.data.formats import Npz, as_labels, csr, csv_chunks, dense_chunks, mask, read_json, reading, spool_features
from harness.data.formats.planetoid import read as read_planetoid
from harness.data.graph import Array, GraphData, is_symmetric
from harness.data.prepared import npy_chunks, read_header
from harness.errors import DataError
from harness.files import SMALL, open_regular

REDDIT_FILES = ("reddit_data.npz", "reddit_graph.npz")
_TRAIN, _VAL, _TEST = 1, 2, 3


def read_dgl_reddit(source: Path, name: str, work: Path) -> GraphData:
    """Read DGL's Reddit: `reddit_data.npz` (feature, label, node_types) and `reddit_graph.npz` (scipy COO).

    Edges are streamed twice and features once, so that the peak is the finished `indices` and a few MB.
    """
    data, edges = (source / file for file in REDDIT_FILES)
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
    return GraphData.of(name, csr=_reddit_edges(edges, nodes, bounds), features=features, labels=labels, split=split)


def _reddit_edges(path: Path, nodes: int, bounds: Bounds) -> tuple[Array, Array]:
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


def read_graphsaint(source: Path, name: str, work: Path) -> GraphData:
    """Read GraphSAINT's format: `adj_full.npz, adj_train.npz, feats.npy, class_map.json, role.json`.

    `adj_train.npz` is the subgraph that `role.json`'s training nodes induce in `adj_full.npz`; inductive training
    takes that subgraph itself, so the file is not read. Labels are one class a node (a number, or one-hot) or 0/1
    lists. A graph that is not symmetric is made so.
    """
    adjacency, feats, class_map, role = (source / file for file in GRAPHSAINT_FILES)
    with Npz(adjacency) as npz:
        nodes = npz.shape("indptr", "i", (None,))[0] - 1
    if nodes < 1:
        raise DataError("indptr has no rows", file=adjacency)
    bounds = Bounds.of(name)
    bounds.check(adjacency, nodes=nodes)
    labels = _graphsaint_labels(class_map, nodes, bounds)
    roles = read_json(role, '{"tr": [...], "va": [...], "te": [...]}', nodes * NUMBER + SMALL)
    split = [mask(roles.get(part), nodes, role, f"'{part}'") for part in ("tr", "va", "te")]
    features = _npy_features(feats, nodes, bounds, work)
    return GraphData.of(
        name, csr=_graphsaint_edges(adjacency, nodes, bounds), features=features, labels=labels, split=split
    )


def read_graphsage(source: Path, name: str, work: Path) -> GraphData:
    """Read GraphSAGE's example: `toy-ppi-G.json` (nodes with val and test, links), `-feats.npy`, `-class_map.json`.

    A node that is of neither set trains. Nodes are numbered as they are listed, and each link counts in both
    directions.
    """
    graph, feats, class_map = (source / file for file in GRAPHSAGE_FILES)
    bounds, expected = Bounds.of(name), '{"nodes": [{"id": 0, "val": false, "test": false}], "links": [...]}'
    content = read_json(graph, expected, 8 * NUMBER * (bounds.nodes + bounds.edges) + SMALL)
    with reading(graph, expected):
        listed = np.array([(each["id"], each["val"], each["test"]) for each in content["nodes"]])
        ends = np.array([(each["source"], each["target"]) for each in content["links"]]).reshape(-1, 2)
        if not len(listed) or (listed[:, 0] != np.arange(len(listed))).any() or (ends.dtype.kind != "i" and len(ends)):
            raise DataError("nodes are not numbered from 0 on in their order, or links have other ends", file=graph)
    bounds.check(graph, nodes=len(listed), edges=len(ends))
    val, test = listed[:, 1:].T.astype(np.bool_)
    return GraphData.of(
        name, csr=csr(lambda: iter([(ends[:, 0], ends[:, 1])]), len(listed), graph),
        features=_npy_features(feats, len(listed), bounds, work),
        labels=_graphsaint_labels(class_map, len(listed), bounds), split=(~(val | test), val, test),
    )  # fmt: skip


def _npy_features(path: Path, nodes: int, bounds: Bounds, work: Path) -> Array:
    with reading(path, "the features, float [N, F]"), open_regular(path) as stream:
        shape, dtype, _ = read_header(stream, path)
    if len(shape) != 2 or shape[0] != nodes or dtype.kind not in "fiu":
        raise DataError(f"is {dtype} {list(shape)}, expected floats [{nodes}, any]", file=path)
    bounds.check(path, features=shape[1])
    return spool_features(npy_chunks(path), (nodes, shape[1]), work, path)


def _graphsaint_labels(path: Path, nodes: int, bounds: Bounds) -> tuple[Array, int, bool]:
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
    if width == 1:
        raise DataError("label lists have one entry", file=path)
    return as_labels(labels, path)


def _graphsaint_edges(path: Path, nodes: int, bounds: Bounds) -> tuple[Array, Array]:
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


def read_ogb(source: Path, name: str, work: Path) -> GraphData:
    """Read OGB's node sets as published: CSV (ogbn-arxiv, ogbn-products) or binary (ogbn-papers100M).

    CSV: `raw/{edge,node-feat,node-label,num-node-list}.csv.gz`; binary: `raw/data.npz` (edge_index, node_feat,
    num_nodes_list) and `raw/node-label.npz` (node_label, NaN = unlabelled); both: `split/*/{train,valid,test}.csv.gz`.
    Edges are made symmetric, self-loops and duplicates dropped, as is customary for these sets.
    """
    binary = any((source / "raw" / file).exists() for file in ("data.npz", "node-label.npz"))
    indptr, indices, features, label_file, values = (_read_ogb_binary if binary else _read_ogb_csv)(
        source / "raw", work, Bounds.of(name)
    )
    nodes = len(indptr) - 1
    labels = as_labels(values, label_file)
    found = sorted(p for p in (source / "split").glob("*") if (p / "train.csv.gz").is_file())
    if len(found) != 1:
        raise DataError(f"expected one split with train.csv.gz, found {len(found)}", file=source / "split")
    split = []
    for file in (found[0] / f"{part}.csv.gz" for part in ("train", "valid", "test")):
        ids = np.concatenate(list(csv_chunks(file, np.int64, nodes, 1)))
        if ids.shape[1] != 1:
            raise DataError(f"{ids.shape[1]} columns, expected one node id a line", file=file)
        split.append(mask(ids[:, 0], nodes, file, file.name.split(".")[0]))
    return GraphData.of(name, csr=(indptr, indices), features=features, labels=labels, split=split)


def _read_ogb_csv(raw: Path, work: Path, bounds: Bounds) -> tuple[Array, Array, Array, Path, Array]:
    count, edge, feat, label = (raw / f"{part}.csv.gz" for part in ("num-node-list", "edge", "node-feat", "node-label"))
    number = np.concatenate(list(csv_chunks(count, np.int64, 1, 1)))
    if number.shape != (1, 1) or number[0, 0] < 1:
        raise DataError("expected one positive number: the count of nodes", file=count)
    nodes = int(number[0, 0])
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


def _read_ogb_binary(raw: Path, work: Path, bounds: Bounds) -> tuple[Array, Array, Array, Path, Array]:
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


MISLOVE_FILES = ("youtube-links.txt.gz", "youtube-groupmemberships.txt.gz")
LABEL_GROUPS, FEATURE_GROUPS, FEATURE_POOL = 64, 2048, 4096
_MAX_ID = 1 << 28


def read_mislove(source: Path, name: str, work: Path) -> GraphData:
    """Read Mislove's YouTube (IMC 2007): `youtube-links.txt.gz` and `youtube-groupmemberships.txt.gz`.

    Lines are `user user` and `user group`. The crawl has neither features nor labels; they are made from the
    users' groups as in the skewed-sampling paper (section 5.1). Labels: member or not of each of the 64 largest
    groups. Features: member or not of 2,048 groups drawn (seed 0) from the 4,096 largest. Those hold the label
    groups too, as the paper says it: about half of a user's labels are among its own features. Only users in
    some group are in the split: 90 % of them train; the paper tests on the rest, which is halved here into
    validation and test so that no score is chosen on the test set. Every link counts in both directions.
    Users are numbered from 1 in the files, from 0 in the graph.
    """
    links, memberships = (source / file for file in MISLOVE_FILES)
    bounds = Bounds.of(name)
    users, groups = np.concatenate(list(_pairs(memberships, bounds))).T
    nodes = max(max((int(chunk.max()) for chunk in _pairs(links, bounds)), default=1), int(users.max()))

    edges = csr(lambda: ((pairs[:, 0] - 1, pairs[:, 1] - 1) for pairs in _pairs(links, bounds)), nodes, links)
    member = sp.csr_matrix((np.ones(len(users), np.float32), (users - 1, groups - 1)), (nodes, int(groups.max())))
    member.data[:] = 1  # a membership listed twice was summed
    # Stable order: of equally large groups the lower number comes first.
    largest = np.argsort(-np.diff(member.tocsc().indptr), kind="stable")
    rng = np.random.default_rng(0)
    pool = largest[:FEATURE_POOL]
    chosen = np.sort(rng.choice(pool, min(FEATURE_GROUPS, len(pool)), replace=False))
    grouped = rng.permutation(np.flatnonzero(np.diff(member.indptr)))
    if len(grouped) < 3:
        raise DataError(f"only {len(grouped)} users are in a group", file=memberships)
    cuts = np.split(grouped, [int(0.9 * len(grouped)), int(0.95 * len(grouped))])
    split = [mask(ids, nodes, memberships, "drawn") for ids in cuts]
    wide = member[:, chosen]
    features = spool_features(dense_chunks(wide), wide.shape, work, memberships)
    labels = member[:, largest[:LABEL_GROUPS]].toarray().astype(np.uint8)
    known, note = (labels, labels.shape[1], True), "labels and features made from groups"
    return GraphData.of(name, csr=edges, features=features, labels=known, split=split, note=note)


def _pairs(file: Path, bounds: Bounds) -> Iterator[Array]:
    for pairs in csv_chunks(file, np.int64, bounds.edges, 2, separator=r"\s+"):
        if pairs.shape[1] != 2 or pairs.min() < 1 or pairs.max() > _MAX_ID:
            raise DataError("expected two numbers from 1 on in each line", file=file)
        bounds.check(file, nodes=int(pairs.max()))  # there are fewer groups than users
        yield pairs


READERS = {
    "dgl_reddit": read_dgl_reddit,
    "graphsage": read_graphsage,
    "graphsaint": read_graphsaint,
    "mislove": read_mislove,
    "ogb": read_ogb,
    "planetoid": read_planetoid,
}
