"""Partition views against pure-Python sets and sparse algebra."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small_graphs import Edges, prepared, random_edges

from harness.data.graph import GraphData
from harness.data.partition import node_order
from harness.data.partition.cached import ensure_partitioned, export_parts, partition_fingerprint, partition_table
from harness.data.partition.view import imbalance
from harness.data.prepared import write_graph
from harness.spec import PartitionSpec


def check_view(view: Path, edges: Edges, parts: list[int], count: int, train: set[int]) -> None:
    """Everything in `view`, whose node ids `edges`, `parts` and `train` use, from first principles."""
    load = lambda name: np.load(view / name).tolist()  # noqa: E731
    assert load("parts.npy") == parts
    neighbours: dict[int, list[int]] = {i: [] for i in range(len(parts))}
    for i, j in sorted(edges):
        neighbours[i].append(j)
    inner = [[i for i, p in enumerate(parts) if p == r] for r in range(count)]
    outside = [{j for i in inner[r] for j in neighbours[i] if parts[j] != r} for r in range(count)]
    boundary = [sorted(nodes, key=lambda j: (parts[j], j)) for nodes in outside]
    assert load("local.npy") == [inner[p].index(i) for i, p in enumerate(parts)]
    for r in range(count):
        rank = f"rank{r}/"
        owned = [sum(parts[j] == q for j in boundary[r]) for q in range(count)]
        assert load(rank + "inner.npy") == inner[r]
        assert load(rank + "boundary.npy") == boundary[r]
        assert load(rank + "boundary_ptr.npy") == np.cumsum([0, *owned]).tolist()
        columns = inner[r] + boundary[r]
        rows = [sorted(columns.index(j) for j in neighbours[i]) for i in inner[r]]
        assert load(rank + "indptr.npy") == np.cumsum([0, *map(len, rows)]).tolist()
        assert load(rank + "indices.npy") == list(chain(*rows))
        assert load(rank + "degree.npy") == [len(neighbours[i]) for i in columns]
        sends = [[inner[r].index(j) for j in boundary[q] if parts[j] == r] for q in range(count)]
        assert load(rank + "send_index.npy") == list(chain(*sends))
        assert load(rank + "send_ptr.npy") == np.cumsum([0, *map(len, sends)]).tolist()
    *rows, total = partition_table(view)
    assert [(row["part"], row["inner"], row["boundary"]) for row in rows] == [
        (r, len(inner[r]), len(boundary[r])) for r in range(count)
    ]
    assert [row["edges"] for row in rows] == [sum(len(neighbours[i]) for i in nodes) for nodes in inner]
    cut = [sum(parts[i] == r != parts[j] for i, j in edges) for r in range(count)]
    assert [row["edges_cut"] for row in rows] == cut
    assert [row["train_nodes"] for row in rows] == [len(train & set(nodes)) for nodes in inner]
    # METIS' volume: for each node the number of other parts with a neighbour (here: that read it)
    readers = [{parts[i] for i, j in edges if j == v} - {parts[v]} for v in range(len(parts))]
    assert total["volume"] == total["boundary"] == sum(map(len, readers))
    assert total["edges_cut"] == sum(parts[i] != parts[j] for i, j in edges)
    assert total["imbalance"] == pytest.approx(max(map(len, inner)) * count / len(parts))
    halo = [len({j for i, j in edges if parts[i] == r != parts[j]}) for r in range(count)]
    balanced = max(halo) / (sum(halo) / count) if sum(halo) else 1
    assert imbalance([row["boundary"] for row in rows]) == pytest.approx(balanced)


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    n=st.integers(1, 12),
    density=st.floats(0, 3),
    directed=st.booleans(),
    count=st.integers(1, 5),
    used=st.integers(1, 5),
    seed=st.integers(0, 9999),
)
def test_view_is_what_sets_say(tmp_path_factory, n, density, directed, count, used, seed):
    """Any vector, with parts that own nothing."""
    tmp = tmp_path_factory.mktemp("view")
    parts = np.random.default_rng(seed).integers(0, min(count, used), n)
    edges = random_edges(n, int(n * density), seed, directed=directed)
    np.save(tmp / "parts.npy", parts)
    graph = prepared(tmp / "graph", n, edges, train=list(range(0, n, 2)))
    spec = PartitionSpec(parts=count, method="file", file=tmp / "parts.npy")
    paths = ensure_partitioned(graph, spec, inductive=False, cache=tmp / "cache")
    assert paths.train == paths.full
    check_view(paths.full, edges, parts.tolist(), count, set(range(0, n, 2)))
    meta = json.loads((paths.full / "meta.json").read_text())
    assert (meta["nodes"], meta["edges"], meta["parts"]) == (n, len(edges), count)
    assert meta["inductive"] is False
    assert meta["topology"] == str(graph.resolve())
    assert np.load(paths.full / "nodes.npy").tolist() == list(range(n))
    assert len(list(paths.full.glob("rank*"))) == count


@pytest.mark.quick(13)
@pytest.mark.parametrize("method", ["metis", "random", "chunk", "file"])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_inductive_views(tmp_path, method, directed, count):
    n = 40
    edges = random_edges(n, 90, count, directed=directed)
    train = sorted(np.random.default_rng(count).permutation(n)[:22].tolist())
    graph = prepared(tmp_path / "graph", n, edges, train)
    vector = np.arange(n) * 7 % count
    np.save(tmp_path / "parts.npy", vector)
    spec = PartitionSpec(parts=count, method=method, file=tmp_path / "parts.npy")
    paths = ensure_partitioned(graph, spec, inductive=True, cache=tmp_path / "cache")
    assert paths.train != paths.full

    assert np.load(paths.train / "nodes.npy").tolist() == train
    known = np.load(paths.train / "parts.npy").tolist()
    inside = {(train.index(i), train.index(j)) for i, j in edges if i in train and j in train}
    check_view(paths.train, inside, known, count, set(range(len(train))))
    topology = Path(json.loads((paths.train / "meta.json").read_text())["topology"])
    rows = np.split(np.load(topology / "indices.npy"), np.load(topology / "indptr.npy")[1:-1])
    assert {(i, j) for i, row in enumerate(rows) for j in row.tolist()} == inside

    parts = np.load(paths.full / "parts.npy").tolist()
    check_view(paths.full, edges, parts, count, set(train))
    assert [parts[i] for i in train] == known
    if method == "file":
        assert parts == vector.tolist()
    else:
        assert set(parts) == set(range(count))


@pytest.mark.parametrize("order", ["rcm", "metis"])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("inductive", [False, True])
def test_ordered_views_have_the_same_parts_of_the_same_graph(tmp_path, monkeypatch, inductive, directed, order):
    monkeypatch.setattr("harness.data.partition.CLUSTER", 5)
    n, count = 40, 3
    edges = random_edges(n, 90, 1, directed=directed)
    train = sorted(np.random.default_rng(0).permutation(n)[:22].tolist())
    graph = prepared(tmp_path / "graph", n, edges, train)
    before, after = (
        ensure_partitioned(graph, PartitionSpec(parts=count, order=by), inductive=inductive, cache=tmp_path / "cache")
        for by in ("none", order)
    )
    export_parts(before, "g", PartitionSpec(parts=count), tmp_path / "before")
    export_parts(after, "g", PartitionSpec(parts=count), tmp_path / "after")
    whole = np.load(tmp_path / "before" / "parts.npy")
    assert (np.load(tmp_path / "after" / "parts.npy") == whole).all()
    assert partition_fingerprint(before) != partition_fingerprint(after)
    for plain, view in {(before.full, after.full), (before.train, after.train)}:
        known, nodes = np.load(plain / "nodes.npy"), np.load(view / "nodes.npy").tolist()
        assert sorted(nodes) == known.tolist() != nodes
        place = {node: at for at, node in enumerate(nodes)}
        renumbered = {(place[i], place[j]) for i, j in edges if i in place and j in place}
        check_view(view, renumbered, whole[nodes].tolist(), count, {place[node] for node in train})
        topology = Path(json.loads((view / "meta.json").read_text())["topology"])
        rows = np.split(np.load(topology / "indices.npy"), np.load(topology / "indptr.npy")[1:-1])
        assert [row.tolist() for row in rows] == [sorted(j for i, j in renumbered if i == k) for k in range(len(nodes))]
        assert partition_table(view) == partition_table(plain)


def test_an_order_brings_neighbours_near_each_other():
    """A ring of 60 cliques of 20 nodes whose numbers are shuffled."""
    size, number = 20, 60
    blocks = sp.block_diag([np.ones((size, size)) - np.eye(size)] * number).tolil()
    for k in range(number):
        first, last = k * size, ((k + 1) * size) % (size * number)
        blocks[first, last] = blocks[last, first] = 1
    shuffled = np.random.default_rng(0).permutation(size * number)
    graph = blocks.tocsr()[shuffled][:, shuffled].tocoo()

    def distance(order):
        place = np.empty_like(order)
        place[order] = np.arange(order.size)
        return np.median(np.abs(place[graph.row] - place[graph.col]))

    rows = graph.tocsr()
    rows.sort_indices()
    assert distance(np.arange(shuffled.size)) > 300
    for by in ("rcm", "metis"):
        assert distance(node_order(rows.indptr.astype(np.int64), rows.indices, PartitionSpec(order=by))) < 256


@pytest.mark.data
@pytest.mark.parametrize("name", ["cora", "citeseer"])
def test_real_graphs_against_scipy(data_dir, tmp_path, name):
    """Boundary and cut of METIS' parts on graphs with isolated nodes, by sparse algebra."""
    with np.load(data_dir / f"{name}.npz") as raw:
        indptr, indices = raw["indptr"], raw["indices"]
    n = indptr.size - 1
    pairs = zip(np.repeat(np.arange(n), np.diff(indptr)).tolist(), indices.tolist(), strict=True)
    graph = tmp_path / "graph"
    masks = np.arange(n) % 2 == 0
    write_graph(
        GraphData(
            name=name, indptr=indptr, indices=indices, features=np.zeros((n, 1), np.float32),
            labels=np.zeros(n, np.int64), train_mask=masks, val_mask=~masks, test_mask=~masks & False,
            num_classes=2, multilabel=False, origin="real", note="",
        ),
        graph,
    )  # fmt: skip
    view = ensure_partitioned(graph, PartitionSpec(parts=4), inductive=False, cache=tmp_path / "c").full
    parts = np.load(view / "parts.npy")
    owner = sp.csr_matrix((np.ones(n), (np.arange(n), parts)), shape=(n, 4))
    adjacency = sp.csr_matrix((np.ones(indices.size), indices, indptr), shape=(n, n))
    reads = (owner.T @ adjacency).toarray() > 0  # part x node
    reads[parts, np.arange(n)] = False
    *rows, total = partition_table(view)
    assert [row["boundary"] for row in rows] == reads.sum(1).tolist()
    assert total["edges_cut"] == sum(parts[i] != parts[j] for i, j in pairs)
    assert total["imbalance"] < 1.06
    assert total["edges_cut"] < 0.2 * indices.size  # a random partition would cut 75 %
