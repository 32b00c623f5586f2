"""`harness partition`, `list` and `data`: what there is, and how it is cut."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from launch.tiny import write_ring, write_star
from support.commands import harness

from harness.data.partition.cached import ensure_partitioned, partition_table
from harness.data.registry import prepare
from harness.spec import DatasetSpec, PartitionSpec

pytestmark = pytest.mark.timeout(90)


def test_partition_of_ones_own_data(
    home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HARNESS_DATA")
    write_ring(tmp_path / "elsewhere", "My_Graph")
    options = ("--parts", "2", "--method", "chunk", "--data-dir")
    for name in ("My_Graph", "my-graph"):
        code, out, err = harness(capsys, "partition", name, *options, str(tmp_path / "elsewhere"))
        assert (code, err) == (0, "")
        assert out.startswith("My_Graph, chunk, 2 parts\n")


def test_partition_table(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A ring of 12 cut into contiguous parts: two cut edges for 2 parts, three for 3."""
    code, out, _ = harness(capsys, "partition", "ring", "--parts", "2,3", "--method", "chunk")
    assert code == 0
    *rest, head, two, three = out.splitlines()
    assert [line.rsplit(None, 1)[0] for line in (head, two, three)] == [
        "parts  method  imbalance  edge imbalance  cut edges  cut share  volume  boundary imbalance",
        "    2  chunk           1               1          2     0.1667       4                   1",
        "    3  chunk           1               1          3       0.25       6                   1",
    ]
    assert head.endswith("  seconds")
    assert all(0 < float(line.split()[-1]) < 60 for line in (two, three))
    assert "\n".join(rest) == (
        "ring, chunk, 2 parts\n"
        "part  inner  boundary   ratio  edges  edges_cut  train_nodes\n"
        "   0      6         2  0.3333     12          2            2\n"
        "   1      6         2  0.3333     12          2            2\n"
        "\n"
        "ring, chunk, 3 parts\n"
        "part  inner  boundary  ratio  edges  edges_cut  train_nodes\n"
        "   0      4         2    0.5      8          2            2\n"
        "   1      4         2    0.5      8          2            1\n"
        "   2      4         2    0.5      8          2            1\n"
        "\n"
        "ring: partitions"
    )


def test_a_partition_is_kept_as_an_array_and_for_dgl(
    home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cut = ("partition", "ring", "--parts", "3", "--method", "random", "--out", str(tmp_path / "out"))
    code, out, _ = harness(capsys, *cut)
    assert code == 0
    parts = np.load(tmp_path / "out" / "parts.npy")
    assert (parts.dtype, np.bincount(parts).tolist()) == (np.int32, [4, 4, 4])
    assert [int(line) for line in (tmp_path / "out" / "_N.txt").read_text().splitlines()] == parts.tolist()
    meta = json.loads((tmp_path / "out" / "partition_meta.json").read_text())
    assert meta == {"graph_name": "ring", "algo_name": "random", "num_parts": 3, "version": "1.0.0"}
    # It comes back as one's own vector, and cuts the graph as before.
    spec = PartitionSpec(parts=3, method="file", file=tmp_path / "out" / "parts.npy")
    graph = prepare(DatasetSpec(name="ring"), data_dir=home / "data")
    rows = partition_table(ensure_partitioned(graph, spec, inductive=False).train)
    assert [[str(row[key]) for key in ("inner", "boundary", "edges", "edges_cut")] for row in rows[:-1]] == [
        [line.split()[at] for at in (1, 2, 4, 5)] for line in out.splitlines()[2:5]
    ]
    code, _, err = harness(capsys, *cut[:2], "--parts", "2,3", *cut[4:])
    assert (code, err) == (2, "error: --out: 2 partitions (one --method and one of --parts)\n")


def test_unbalanced_boundaries_are_shown_and_warned_of(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A star of 12 in contiguous parts: the hub's part has all leaves elsewhere as its boundary, others the hub."""
    write_star(home / "data")
    star = ["--set", "datasets=[star]", "--set", "seeds=[0]", "--set", "partition.parts=[2,4]"]
    known = [
        "data set  parts  method  objective  volume  boundary imbalance",
        "star  2  chunk  7  1.714",
        "star  4  chunk  12  3",
    ]
    warned = (
        "note: star, chunk, 4 parts: the largest boundary is 3 times the mean, and a synchronous epoch waits for it"
    )
    warned += " (try `method: metis`)"

    def lines(*arguments: str) -> list[str]:
        code, out, _ = harness(capsys, *arguments)
        assert code == 0
        return [re.sub(" {2,}", "  ", line) for line in out.splitlines()]

    before = lines("plan", "tiny.yaml", *star)
    assert not [line for line in before if "volume" in line or "boundary" in line]
    shown = lines("partition", "star", "--parts", "2,4", "--method", "chunk")
    assert [line.split("  ")[-3:-1] for line in shown[-3:-1]] == [["7", "1.714"], ["12", "3"]]
    assert shown[-1] == warned
    after = lines("plan", "tiny.yaml", *star)
    start = after.index(known[0])
    assert after[start : start + 4] == [*known, warned]
    assert after.count(warned) == 1


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("list datasets", ["reddit", "114,615,892", "ring"]),
        ("data list", ["reddit ", "no, 1.21 GiB to get", "sbm ", "made when needed", "ring "]),
        ("list methods", ["bns-gcn (full-graph): ", "rate", "0.1", "bernoulli|fixed", "graphsage (mini-batch): "]),
        ("list models", ["gat ", "gcn ", "mixhop ", "sage ", "heads"]),
        ("list optimizers", ["adam ", "sgd ", "momentum"]),
        ("list schedules", ["constant ", "cosine ", "plateau ", "steps ", "patience"]),
        ("list partitioners", ["metis", "random", "chunk", "volume|cut"]),
        ("suites", ["quickstart ", "papers/bns-table2 ", "reddit, ogbn-products, yelp", "nothing"]),
        ("suites --ready", ["quickstart "]),
        ("data info Ring", ["nodes", "12", "yes, or made when it is needed"]),
        ("data info ring", ["nodes", "12", "yes, or made when it is needed"]),
        ("partition Ring --parts 2 --method CHUNK", ["ring: partitions"]),
        ("data info reddit", ["232,965", "inductive", "harness data get reddit"]),
        ("data get ring", ["datasets/ring-"]),
        ("--version", ["harness 0.1.0"]),
    ],
)
def test_what_there_is(home: Path, capsys: pytest.CaptureFixture[str], command: str, expected: list[str]) -> None:
    code, out, _ = harness(capsys, *command.split())
    assert code == 0
    assert [text for text in expected if text not in out] == []


@pytest.mark.slow
def test_a_damaged_graph_hides_no_other(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = home / "data" / "bad.npz"
    bad.write_text("no graph")
    said = f"{bad}: damaged or foreign, expected an .npz file (File is not a zip file)"
    for command in ("data list", "list datasets"):
        code, out, err = harness(capsys, *command.split())
        assert (code, err) == (0, "")
        assert re.search(r"^ring +yes +12 ", out, re.M)
        assert out.splitlines()[-1] == f"not listed: {said}"
    assert harness(capsys, "plan", "tiny.yaml")[0] == 0
    assert harness(capsys, "run", "tiny.yaml", "--only", "parts=1,method=full")[0] == 0
    code, out, err = harness(capsys, "plan", "tiny.yaml", "--set", "datasets=[ring, bad]")
    assert (code, out, err) == (2, "", f"error: --set datasets=[ring, bad]: datasets.1: {said}\n")
