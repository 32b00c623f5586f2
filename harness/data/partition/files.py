"""Which part each node is in, as other tools write it: .npy, text of METIS, ParMETIS and KaMinPar, folders of DGL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.data.formats import reading
from harness.data.partition.view import Ints
from harness.data.prepared import hash_file, map_npy
from harness.deferred import numpy as np
from harness.errors import DataError, UserError
from harness.files import RECORD, open_regular, read_text

NODES = "_N"  # DGL's name of a graph's only type of nodes
ASSIGNED = "partition_meta.json"  # DGL's, with a text file for each type of nodes
KEY = "partition.file"


def hash_parts(path: Path) -> str:
    """Return a hash of the file, and of those that it names."""
    return "+".join(map(hash_file, [path, *_named(path).values()]))


def read_parts(path: Path, nodes: int) -> Ints:
    """Return the part of each node, integers [nodes], -1 of nodes that the file does not name.

    A vector as `.npy`; text with a part in each line, or a node and its part; DGL's `partition_meta.json` (`_N.txt` is
    read), or the `.json` of a partitioned graph, of which each part has the nodes' own numbers in `orig_nids.dgl`.

    Raises:
        DataError: a file is missing or damaged, or numbers a node that is not there.
        UserError: `dgl` is needed and not installed.
    """
    named = _named(path)
    if path.suffix == ".json" and path.name != ASSIGNED:
        return _of_dgl(path, named, nodes)
    if path.suffix == ".npy":
        vector = map_npy(path, "np.save an integer vector", KEY)
        if vector.ndim != 1 or vector.dtype.kind not in "iu":
            raise UserError("not a vector of integers", file=path, key=KEY, fix="np.save an integer vector [N]")
        return vector
    return _of_text(next(iter(named.values()), path), nodes)


def _named(path: Path) -> dict[int, Path]:
    """Return the files that DGL's .json names, by part; of nodes' parts under 0. DataError if one is missing."""
    if path.suffix != ".json":
        return {}
    if path.name == ASSIGNED:
        return _there({0: path.with_name(f"{NODES}.txt")}, "a part in each line", "keep both in one folder")
    with reading(path, "DGL's partitioned graph"):
        config: dict[str, Any] = json.loads(read_text(path, RECORD))
        graphs = {part: Path(config[f"part-{part}"]["part_graph"]) for part in range(config["num_parts"])}
    named = {part: path.parent / graph.with_name("orig_nids.dgl") for part, graph in graphs.items()}
    fix = "save them (DGL's pipeline: --save-orig-nids; partition_graph: return_mapping=True), or give a .npy"
    return _there(named, "the nodes' own numbers", fix)


def _there(files: dict[int, Path], content: str, fix: str) -> dict[int, Path]:
    for file in files.values():
        if not file.is_file():
            raise DataError(f"no such file, with {content}", file=file, key=KEY, fix=fix)
    return files


def _of_text(path: Path, nodes: int) -> Ints:
    import pandas as pd

    with reading(path, "a part in each line, or a node and its part"), open_regular(path) as stream:
        table = pd.read_csv(stream, header=None, sep=r"\s+", comment="%", dtype=np.int64).to_numpy()
    if table.shape[1] == 1:
        return table[:, 0]
    if table.shape[1] > 2:
        raise DataError(f"{table.shape[1]} columns, expected a part, or a node and its part", file=path, key=KEY)
    return _placed([(table[:, 0], table[:, 1])], nodes, path)


def _of_dgl(path: Path, named: dict[int, Path], nodes: int) -> Ints:
    try:
        from dgl.data.utils import load_tensors
    except ImportError as error:
        fix = "pip install 'gnn-harness[dgl]', or give the nodes' parts as .npy"
        raise UserError("needs dgl, which is not installed", file=path, key=KEY, fix=fix) from error
    found = []
    for part, file in named.items():
        with reading(file, "DGL's tensors"):
            own = load_tensors(str(file))[NODES].numpy()
        found.append((own, np.full(own.size, part)))
    return _placed(found, nodes, path)


def _placed(pairs: list[tuple[Ints, Ints]], nodes: int, path: Path) -> Ints:
    """Return the parts [nodes] of pairs of nodes and their parts."""
    parts = np.full(nodes, -1, np.int64)
    for ids, where in pairs:
        if ids.size and not 0 <= ids.min() <= ids.max() < nodes:
            raise DataError(f"nodes {ids.min()}..{ids.max()} of {nodes}", file=path, key=KEY, fix=f"0..{nodes - 1}")
        parts[ids] = where
    return parts
