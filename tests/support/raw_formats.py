"""Small files of every raw format, written from one known graph by independent means."""

from __future__ import annotations

import gzip
import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp


@dataclass(frozen=True)
class Known:
    """The graph that a reader must return: dense adjacency and everything else."""

    adjacency: np.ndarray
    features: np.ndarray
    labels: np.ndarray
    split: np.ndarray
    """int [N]: 1 train, 2 val, 3 test, 0 none."""

    @property
    def csr(self) -> sp.csr_matrix:
        matrix = sp.csr_matrix(self.adjacency.astype(np.int8))
        matrix.sort_indices()
        return matrix


def known(nodes: int = 20, features: int = 5, seed: int = 0, multilabel: bool = False) -> Known:
    """A random symmetric graph; every node is in the split, every class occurs; integer features."""
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((nodes, nodes)) < 0.2, 1)
    labels = (rng.random((nodes, 4)) < 0.4).astype(np.uint8) if multilabel else np.arange(nodes) % 3
    if multilabel:
        labels[0] = (1, 1, 0, 1)
    return Known(
        adjacency=upper | upper.T,
        features=rng.integers(0, 5, (nodes, features)).astype(np.float32),
        labels=labels,
        split=np.arange(nodes) * 3 // nodes + 1,
    )


def write_neutral(path: Path, graph: Known, **changes: Any) -> Path:
    """Write the neutral file; a change of None leaves the array out."""
    arrays = {
        "indptr": graph.csr.indptr.astype(np.int64),
        "indices": graph.csr.indices.astype(np.int32),
        "feat": graph.features,
        "label": graph.labels if graph.labels.ndim == 2 else graph.labels.astype(np.int64),
        "train_mask": graph.split == 1,
        "val_mask": graph.split == 2,
        "test_mask": graph.split == 3,
    } | changes
    np.savez_compressed(path, **{key: value for key, value in arrays.items() if value is not None})
    return path


def write_dgl_reddit(directory: Path, graph: Known, shuffle: int | None = 0) -> Path:
    """Write DGL's two Reddit files, edges in random order."""
    directory.mkdir(parents=True, exist_ok=True)
    np.savez(
        directory / "reddit_data.npz",
        feature=graph.features,
        label=graph.labels.astype(np.int32),
        node_types=graph.split.astype(np.int32),
        node_ids=np.arange(len(graph.labels)),
    )
    coo = graph.csr.tocoo()
    order = np.random.default_rng(shuffle).permutation(coo.nnz)
    shuffled = sp.coo_matrix((np.ones(coo.nnz), (coo.row[order], coo.col[order])), shape=coo.shape)
    sp.save_npz(directory / "reddit_graph.npz", shuffled)
    return directory


def write_graphsaint(directory: Path, graph: Known, labels: list[Any] | None = None) -> Path:
    """Write GraphSAINT's five files; `labels` are what class_map.json gives each node."""
    directory.mkdir(parents=True, exist_ok=True)
    train = graph.split == 1
    for name, adjacency in (("full", graph.adjacency), ("train", graph.adjacency & np.outer(train, train))):
        sp.save_npz(directory / f"adj_{name}.npz", sp.csr_matrix(adjacency.astype(np.int32)))
    np.save(directory / "feats.npy", graph.features.astype(np.float64))
    values = graph.labels.tolist() if labels is None else labels
    (directory / "class_map.json").write_text(json.dumps({str(i): v for i, v in enumerate(values)}))
    roles = {r: np.flatnonzero(graph.split == k).tolist() for k, r in enumerate(("tr", "va", "te"), 1)}
    (directory / "role.json").write_text(json.dumps(roles))
    return directory


def write_graphsage(directory: Path, graph: Known) -> Path:
    """Write GraphSAGE's toy-ppi: links in one direction, a set of each node by two flags."""
    directory.mkdir(parents=True, exist_ok=True)
    nodes = [{"id": i, "val": bool(k == 2), "test": bool(k == 3)} for i, k in enumerate(graph.split)]
    links = [{"source": a, "target": b} for a, b in one_way(graph).T.tolist()]
    content = {"directed": False, "graph": {"name": "toy"}, "multigraph": False, "nodes": nodes, "links": links}
    (directory / "toy-ppi-G.json").write_text(json.dumps(content))
    np.save(directory / "toy-ppi-feats.npy", graph.features.astype(np.float64))
    values = {str(i): v for i, v in enumerate(graph.labels.tolist())}
    (directory / "toy-ppi-class_map.json").write_text(json.dumps(values))
    return directory


def _gz(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def _csv(path: Path, rows: np.ndarray) -> None:
    _gz(path, "".join(",".join(str(v) for v in row) + "\n" for row in np.atleast_2d(rows).tolist()))


def one_way(graph: Known, seed: int = 0) -> np.ndarray:
    """Edges [2, E] in one direction each, with a self-loop, a duplicate and a reversed duplicate."""
    edges = np.array(np.nonzero(np.triu(graph.adjacency)))
    edges = edges[:, np.random.default_rng(seed).permutation(edges.shape[1])]
    return np.hstack([edges, [[3], [3]], edges[:, :1], edges[::-1, 1:2]])


def write_ogb_csv(directory: Path, graph: Known) -> Path:
    """Write OGB's CSV files."""
    raw, split = directory / "raw", directory / "split" / "time"
    _csv(raw / "edge.csv.gz", one_way(graph).T)
    _csv(raw / "node-feat.csv.gz", graph.features)
    _csv(raw / "node-label.csv.gz", graph.labels.reshape(len(graph.labels), -1))
    _csv(raw / "num-node-list.csv.gz", np.array([[len(graph.labels)]]))
    _write_splits(split, graph)
    return directory


def write_ogb_binary(directory: Path, graph: Known, fortran: bool = False) -> Path:
    """Write OGB's binary files; labels are floats, NaN outside the split."""
    raw, split = directory / "raw", directory / "split" / "time"
    raw.mkdir(parents=True)
    edges = one_way(graph)
    np.savez_compressed(
        raw / "data.npz",
        edge_index=np.asfortranarray(edges) if fortran else np.ascontiguousarray(edges),
        node_feat=graph.features,
        num_nodes_list=np.array([len(graph.labels)]),
        num_edges_list=np.array([edges.shape[1]]),
    )
    labels = np.where(graph.split > 0, graph.labels.astype(np.float64), np.nan)
    np.savez_compressed(raw / "node-label.npz", node_label=labels[:, None])
    _write_splits(split, graph)
    return directory


def _write_splits(split: Path, graph: Known) -> None:
    for kind, name in enumerate(("train", "valid", "test"), 1):
        _csv(split / f"{name}.csv.gz", np.flatnonzero(graph.split == kind)[:, None])


def write_mislove(directory: Path, links: np.ndarray, memberships: np.ndarray) -> Path:
    """Write the two YouTube files from pairs [K, 2]."""
    for name, pairs in (("links", links), ("groupmemberships", memberships)):
        _gz(directory / f"youtube-{name}.txt.gz", "".join(f"{a}\t{b}\n" for a, b in pairs.tolist()))
    return directory


def write_planetoid(directory: Path, name: str, graph: Known, train: int = 6, test: int = 6) -> Path:
    """Write `ind.NAME.*` with today's numpy and scipy: the last `test` nodes test, in reversed order."""
    directory.mkdir(parents=True, exist_ok=True)
    nodes = len(graph.labels)
    one_hot = np.eye(int(graph.labels.max()) + 1, dtype=np.int32)[graph.labels]
    rows, order = nodes - test, np.arange(nodes - test, nodes)[::-1]
    features = sp.csr_matrix(graph.features)
    parts = {
        "x": features[:train],
        "y": one_hot[:train],
        "tx": features[order],
        "ty": one_hot[order],
        "allx": features[:rows],
        "ally": one_hot[:rows],
        "graph": {i: np.flatnonzero(graph.adjacency[i]).tolist() for i in range(nodes)},
    }
    for part, value in parts.items():
        (directory / f"ind.{name}.{part}").write_bytes(pickle.dumps(value, protocol=3))
    (directory / f"ind.{name}.test.index").write_text("".join(f"{i}\n" for i in order))
    return directory
