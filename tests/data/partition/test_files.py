"""Partitions that other tools made: what METIS, ParMETIS and DGL write is read back as the parts that they gave."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.check.graphs import random_graph
from harness.data.partition import partition_nodes
from harness.data.partition.cached import ensure_partitioned, export_parts
from harness.data.partition.files import hash_parts, read_parts
from harness.data.prepared import write_graph
from harness.errors import DataError, UserError
from harness.spec import PartitionSpec

NODES, COUNT = 40, 3
PARTS = np.random.default_rng(5).integers(0, COUNT, NODES)


def of_file(path: Path) -> NDArray[np.int32]:
    spec = PartitionSpec(parts=COUNT, method="file", file=path)
    return partition_nodes(np.zeros(NODES + 1, np.int64), np.zeros(0, np.int32), spec)


def write_dgl(folder: Path) -> tuple[Path, NDArray[np.int64]]:
    """Write DGL's own partition, with the numbers of nodes that its pipeline saves; return it and the parts."""
    dgl = pytest.importorskip("dgl", reason="DGL has no wheel for this Python")
    utils, torch = pytest.importorskip("dgl.data.utils"), pytest.importorskip("torch")
    graph = dgl.graph((torch.arange(NODES), (torch.arange(NODES) + 1) % NODES))
    own, _ = dgl.distributed.partition_graph(
        graph, "ring", COUNT, str(folder), part_method="random", return_mapping=True
    )
    parts = np.empty(NODES, np.int64)
    for part in range(COUNT):
        local = dgl.load_graphs(str(folder / f"part{part}" / "graph.dgl"))[0][0]
        inner = local.ndata[dgl.NID][local.ndata["inner_node"].bool()]
        utils.save_tensors(str(folder / f"part{part}" / "orig_nids.dgl"), {"_N": own[inner]})
        parts[own[inner].numpy()] = part
    return folder / "ring.json", parts


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("graph.txt.part.3", [str(part) for part in PARTS]),
        ("parts.txt", ["% a comment", *(f"{part} " for part in PARTS)]),
        # ParMETIS by DGL's tools: a node and its part, in any order
        ("p000-graph_part.3", [f"{node} {PARTS[node]}" for node in np.random.default_rng(1).permutation(NODES)]),
    ],
)
def test_text_says_the_part_of_each_node(tmp_path: Path, name: str, lines: list[str]) -> None:
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    np.testing.assert_array_equal(of_file(tmp_path / name), PARTS)


def test_what_is_kept_for_dgl_is_read_back(tmp_path: Path) -> None:
    graph, spec = tmp_path / "graph", PartitionSpec(parts=COUNT, method="random")
    write_graph(random_graph(3, NODES), graph)
    export_parts(ensure_partitioned(graph, spec, inductive=False, cache=tmp_path), "g", spec, tmp_path / "out")
    found = of_file(tmp_path / "out" / "partition_meta.json")
    np.testing.assert_array_equal(found, np.load(tmp_path / "out" / "parts.npy"))
    before = hash_parts(tmp_path / "out" / "partition_meta.json")
    (tmp_path / "out" / "_N.txt").write_text("0\n" * NODES)
    assert hash_parts(tmp_path / "out" / "partition_meta.json") != before


def test_a_graph_that_dgl_partitioned_is_read(tmp_path: Path) -> None:
    path, parts = write_dgl(tmp_path)
    assert np.unique(parts).size == COUNT
    np.testing.assert_array_equal(of_file(path), parts)
    before = hash_parts(path)
    (tmp_path / "part1" / "orig_nids.dgl").write_bytes((tmp_path / "part2" / "orig_nids.dgl").read_bytes())
    assert hash_parts(path) != before
    with pytest.raises(UserError, match=r"values -1..2 for 3 parts"):
        of_file(path)
    (tmp_path / "part1" / "orig_nids.dgl").unlink()
    with pytest.raises(DataError, match=r"orig_nids.dgl: .*: no such file, .* .save them .*--save-orig-nids"):
        of_file(path)
    with pytest.raises(DataError, match=r"orig_nids.dgl"):
        hash_parts(path)


def test_a_missing_part_of_a_file_is_named_before_anything_is_partitioned(tmp_path: Path) -> None:
    write_graph(random_graph(3, NODES), tmp_path / "graph")
    (tmp_path / "partition_meta.json").write_text("{}")
    spec = PartitionSpec(parts=COUNT, method="file", file=tmp_path / "partition_meta.json")
    with pytest.raises(DataError, match=r"_N\.txt.*no such file, with a part in each line .keep both in one folder"):
        ensure_partitioned(tmp_path / "graph", spec, inductive=False, cache=tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0\n1\ntwo\n", "expected a part in each line"),
        ("", "expected a part in each line"),
        ("0.5\n1.5\n", "expected a part in each line"),
        ("0 1 2\n", "3 columns"),
        ("0 1\n40 1\n", r"nodes 0\.\.40 of 40 .*0\.\.39"),
        ("0\n1\n", "2 entries for 40 nodes"),
    ],
)
def test_bad_text_is_refused_with_its_name(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "graph.part.3").write_text(text)
    with pytest.raises((DataError, UserError), match=rf"graph\.part\.3.*{message}"):
        of_file(tmp_path / "graph.part.3")


@pytest.mark.parametrize("text", ["{", "[]", '{"num_parts": 2}', '{"num_parts": 1, "part-0": {}}'])
def test_bad_json_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "ring.json").write_text(text)
    with pytest.raises(DataError, match=r"ring\.json.*expected DGL's partitioned graph"):
        read_parts(tmp_path / "ring.json", NODES)
