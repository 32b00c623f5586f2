"""Partitions of prepared graphs, made once and kept."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.caches import cache_root
from harness.data.graph import GraphData
from harness.data.partition import PARTITIONERS, extend_parts, node_order, partition_nodes
from harness.data.partition.files import hash_parts
from harness.data.partition.view import META, Ints, PartitionedGraph, Rows, write_induced, write_view
from harness.data.prepared import (
    FINGERPRINT_DIGITS,
    Report,
    chunk_rows,
    content_hash,
    fingerprint,
    known_hash,
    locked,
    made_once,
    npy_writer,
    open_graph,
    to_stderr,
)
from harness.deferred import numpy as np
from harness.deferred import torch
from harness.errors import DataError, UserError, writing
from harness.files import RECORD, read_text, write_whole
from harness.spec import PartitionSpec, PluginSource, RowType

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT = 3  # part of the key: raise it when a view's files change
HASHED = ("indptr.npy", "indices.npy", "train_mask.npy", "weights.npy")  # all that a partition depends on
HASH_FILE = "topology-hash.json"


@dataclass(frozen=True)
class PartitionPaths:
    """View directories (layout: `partition_view.write_view`): for training and for evaluation."""

    train: Path  # the same as `full` when transductive
    full: Path


def ensure_partitioned(
    graph_dir: Path,
    spec: PartitionSpec,
    *,
    inductive: bool,
    cache: Path | None = None,
    source: PluginSource | None = None,
    check: bool = True,
    report: Report = to_stderr,
    room: int | None = None,
) -> PartitionPaths:
    """Return the views of the prepared graph in `graph_dir` under `spec`, building them if need be.

    Views that are there are held against their checksums (`check`); if they are damaged, they are set aside and made
    again; `report` receives a line. Nothing is written if they are whole: the cache may be read-only.

    They lie in `cache/partitions/<key>/{train,full}`; the key hashes the graph's topology and training mask, what of
    `spec` matters to its partitioner, the code of a plugin's (`source`), and the format. Processes that ask at the
    same time wait for the one that builds; a build that is killed leaves nothing a later call would take.

    Inductive: the training subgraph is partitioned, then the other nodes join parts as `extend_parts`
    says. With `method: file` the vector has an entry for every node of the data set and its restriction
    partitions the training subgraph.

    Raises what `partition_nodes` raises (see there for `room`), and UserError for inductive training without training
    nodes.
    """
    graph_dir = graph_dir.resolve()
    target = _target(graph_dir, spec, inductive, cache, source)
    topologies = {"full": graph_dir if spec.order == "none" else target / "full"}
    if inductive:
        topologies["train"] = target / "train"

    def build(work: Path) -> None:
        start, graph = time.perf_counter(), open_graph(graph_dir)
        order = None if spec.order == "none" else node_order(graph.indptr, graph.indices, spec, room)
        if inductive:
            parts = _inductive_parts(graph, spec, source, room, order, work, target)
        else:
            parts = partition_nodes(graph.indptr, graph.indices, spec, source, train=graph.train_mask, room=room)
        nodes: Ints = np.arange(parts.size, dtype=np.int64)
        rows: Rows = graph.indptr, graph.indices, graph.weights
        train = graph.train_mask
        if order is not None:  # else nothing is copied
            rows, nodes, parts, train = write_induced(graph, order, work / "full"), order, parts[order], train[order]
        view = PartitionedGraph(*rows, nodes, parts, train, spec.parts, inductive, topologies["full"])
        write_view(view, work / "full")
        seconds = time.perf_counter() - start
        for meta in work.glob(f"*/{META}"):  # for the trials that find them
            write_whole(meta, json.dumps(json.loads(meta.read_text()) | {"seconds": seconds}, indent=1))

    made_once(target, f"full/{META}", build, report, check=check)
    # The cache or the graph may have moved since a view was written: its absolute path is kept right.
    for name, topology in topologies.items():
        meta = _read_meta(target / name)
        if meta["topology"] != str(topology):
            with locked(target):
                write_whole(target / name / META, json.dumps(meta | {"topology": str(topology)}, indent=1))
    return _paths(target, inductive)


def row_type(options: Mapping[str, Any]) -> RowType | None:
    """Return the dtype of the features that a method with these options reads from files; None if it does not."""
    return options.get("on_disk", "float32") if options.get("storage") == "disk" else None


def ensure_rows(
    graph_dir: Path, views: PartitionPaths, dtype: RowType, *, check: bool = True, report: Report = to_stderr
) -> Path:
    """Return the directory of the features of each part's nodes, writing it if need be.

    It has `train/rank{r}.npy` and `full/rank{r}.npy`, those of a view's part in the order of its inner nodes: float32
    or float16 [n_in, F], and of bfloat16 the bits as uint16. It lies in `cache/rows`; what `ensure_partitioned` says of
    damage and of other processes holds.

    Raises:
        UserError: a feature is too large for float16.
    """

    def build(work: Path) -> None:
        features = open_graph(graph_dir).features
        for view in dict.fromkeys((views.train, views.full)):
            (work / view.name).mkdir()
            nodes = np.load(view / "nodes.npy", mmap_mode="r")
            for rank in range(len(partition_table(view)) - 1):
                inner = np.load(view / f"rank{rank}/inner.npy", mmap_mode="r")
                shape, step = (inner.size, features.shape[1]), chunk_rows(features.shape, features.itemsize)
                stored = np.uint16 if dtype == "bfloat16" else np.dtype(dtype)
                with npy_writer(work / view.name / f"rank{rank}.npy", shape, stored) as append:
                    for start in range(0, inner.size, step):
                        append(_rounded(features[nodes[inner[start : start + step]]], dtype))
        write_whole(work / META, json.dumps({"dtype": dtype, "partition": views.full.parent.name}))

    return made_once(rows_place(graph_dir, views, dtype), META, build, report, check=check)


def rows_place(graph_dir: Path, views: PartitionPaths, dtype: RowType) -> Path:
    """Return the directory that `ensure_rows` writes to."""
    partition = views.full.parent
    what = {"features": fingerprint(graph_dir), "partition": partition.name, "dtype": dtype}
    key = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:24]
    return partition.parent.parent / "rows" / key


def _rounded(rows: NDArray[np.float32], dtype: RowType) -> NDArray[Any]:
    if dtype == "bfloat16":
        return torch.from_numpy(rows).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    with np.errstate(over="ignore"):
        stored = rows.astype(dtype)
    if np.isinf(stored).any() and not np.isinf(rows).any():
        raise UserError(
            f"a feature of {np.abs(rows).max():.4g} is too large for float16", key="on_disk", fix="use bfloat16"
        )
    return stored


def find_partitioned(
    graph_dir: Path,
    spec: PartitionSpec,
    *,
    inductive: bool,
    cache: Path | None = None,
    source: PluginSource | None = None,
) -> PartitionPaths | None:
    """Return what `ensure_partitioned` would, if it is there already; else None. Nothing is built or written.

    None also for a graph whose hash nobody has computed yet (which reads the whole topology).
    """
    graph_dir = graph_dir.resolve()
    if known_hash(graph_dir, HASHED, HASH_FILE) is None:
        return None
    paths = _paths(_target(graph_dir, spec, inductive, cache, source), inductive)
    return paths if (paths.full / META).is_file() else None


def partition_fingerprint(paths: PartitionPaths) -> str:
    """Return hex digits that say which part each node of the data set is in, and the order of a part's rows."""
    names = ["parts.npy", *(["nodes.npy"] if (paths.full / "indptr.npy").exists() else [])]
    return content_hash(paths.full, names, "fingerprint.json")[:FINGERPRINT_DIGITS]


def export_parts(paths: PartitionPaths, name: str, spec: PartitionSpec, directory: Path) -> None:
    """Write which part each node is in, as one array and as DGL's tools that distribute a graph read it.

    In `directory`: `parts.npy`, int32 [N]; `_N.txt`, a number a line, and `partition_meta.json` (DGL's user guide, 7.1,
    "Data Preprocessing"). Raises OSError where they cannot be written.
    """
    view, nodes = (np.load(paths.full / f"{name}.npy") for name in ("parts", "nodes"))
    parts = np.empty_like(view)
    parts[nodes] = view
    meta = {"graph_name": name, "algo_name": spec.method, "num_parts": spec.parts, "version": "1.0.0"}
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        np.save(directory / "parts.npy", parts)
        write_whole(directory / "_N.txt", "".join(f"{part}\n" for part in parts.tolist()))
        write_whole(directory / "partition_meta.json", json.dumps(meta))


def partition_seconds(view_dir: Path) -> float | None:
    """Return how long a kept partition took to make, its views included; None where that is not known."""
    return _read_meta(view_dir).get("seconds")


def partition_table(view_dir: Path) -> list[dict[str, Any]]:
    """Return the sizes of a view: one row a part, then one with `part` = "total".

    Every row: part, inner, boundary (nodes), edges (entries of the inner rows), edges_cut (those from
    another part: over all parts, cut edges counted in both directions), train_nodes. The total row also
    has volume (= sum of boundary: METIS' total communication volume, BNS-GCN Eq. 4), imbalance (largest /
    mean inner) and edge_imbalance (largest / mean edges).
    """
    table: list[dict[str, Any]] = _read_meta(view_dir)["table"]
    return table


def _paths(target: Path, inductive: bool) -> PartitionPaths:
    return PartitionPaths(train=target / ("train" if inductive else "full"), full=target / "full")


def _inductive_parts(
    graph: GraphData, spec: PartitionSpec, source: PluginSource | None, room: int | None, order: Ints | None,
    staging: Path, target: Path,
) -> NDArray[np.int32]:  # fmt: skip
    """Write the training view, its nodes in `order` (int64 [N]); return the part of every node of the data set."""
    nodes: Ints = np.flatnonzero(graph.train_mask)
    if not nodes.size:
        raise UserError(f"{graph.name} has no training nodes for inductive training", key="inductive")
    directory = staging / "train"
    # Parts are of the graph as it is, so that they are the same in every order.
    rows = write_induced(graph, nodes, directory if order is None else staging / "as it is")
    if PARTITIONERS.load(spec.method, source).of_all_nodes:
        parts = partition_nodes(graph.indptr, graph.indices, spec, source)
    else:
        placed = np.full(graph.train_mask.size, -1, np.int32)
        placed[nodes] = partition_nodes(*rows[:2], spec, source, room=room)
        parts = extend_parts(graph.indptr, graph.indices, placed, spec)
    if order is not None:
        shutil.rmtree(staging / "as it is")
        nodes = order[graph.train_mask[order]]
        rows = write_induced(graph, nodes, directory)
    train = np.ones(nodes.size, np.bool_)
    write_view(PartitionedGraph(*rows, nodes, parts[nodes], train, spec.parts, True, target / "train"), directory)
    return parts


def _target(
    graph_dir: Path, spec: PartitionSpec, inductive: bool, cache: Path | None, source: PluginSource | None
) -> Path:
    what: dict[str, Any] = {"parts": spec.parts, "method": spec.method}
    found = PARTITIONERS.load(spec.method, source)
    if spec.parts == 1 and not found.of_all_nodes:
        what["method"] = "whole"
    else:
        what |= {key: getattr(spec, key) for key in found.reads}
        if "file" in found.reads:
            what["file"] = hash_parts(spec.file) if spec.file and spec.file.is_file() else None
        if spec.options:
            what["options"] = spec.options
        if source is not None:
            what["code"] = source.sha256
    if inductive:
        what["inductive"] = spec.balance  # extend_parts balances with every method
    if spec.order != "none":
        what["order"] = spec.order, spec.seed if spec.order == "metis" else 0
    what |= {"topology": content_hash(graph_dir, HASHED, HASH_FILE), "format": FORMAT}
    key = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:24]
    return (cache or cache_root()).resolve() / "partitions" / key


def _read_meta(view_dir: Path) -> dict[str, Any]:
    path = view_dir / META
    try:
        meta: dict[str, Any] = json.loads(read_text(path, RECORD))
        if not {"topology", "table"} <= meta.keys():
            raise ValueError("keys missing")
    except OSError as error:
        raise UserError("not a partition view", file=path, fix="run the partitioning again") from error
    except (ValueError, AttributeError, RecursionError) as error:
        raise DataError("damaged partition", file=path, fix=f"delete {view_dir.parent}") from error
    return meta
