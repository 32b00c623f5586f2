"""Every reader returns the known graph its files were written from."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from support import raw_formats as raw

from harness.data.formats import neutral, planetoid
from harness.data.formats.published import read_dgl_reddit, read_graphsage, read_graphsaint, read_mislove, read_ogb
from harness.data.graph import GraphData, check_graph
from harness.errors import DataError


@pytest.fixture
def work(tmp_path: Path) -> Path:
    directory = tmp_path / "work"
    directory.mkdir()
    return directory


def assert_equal(graph: GraphData, known: raw.Known) -> None:
    check_graph(graph, "x", symmetric=True)
    found = sp.csr_matrix((np.ones(graph.edges, bool), graph.indices, graph.indptr), (graph.nodes, graph.nodes))
    np.testing.assert_array_equal(found.toarray(), known.adjacency)
    np.testing.assert_array_equal(graph.features, known.features)
    np.testing.assert_array_equal(graph.labels, known.labels)
    for kind, mask in enumerate((graph.train_mask, graph.val_mask, graph.test_mask), 1):
        np.testing.assert_array_equal(mask, known.split == kind)


@pytest.mark.parametrize("multilabel", [False, True])
def test_neutral(tmp_path: Path, work: Path, multilabel: bool) -> None:
    known = raw.known(multilabel=multilabel)
    path = raw.write_neutral(tmp_path / "g.npz", known)
    assert_equal(neutral.read(path, "g", work), known)
    info = neutral.info(path, "g")
    sizes = (info.nodes, info.edges, info.features, info.classes, info.multilabel)
    assert sizes == (20, int(known.adjacency.sum()), 5, 4 if multilabel else 3, multilabel)


def test_neutral_sparse_and_column_ordered_features(tmp_path: Path, work: Path) -> None:
    known = raw.known(nodes=700, features=3000)
    sparse = sp.csr_matrix(known.features)
    parts = {f"feat_{key}": getattr(sparse, key) for key in ("indptr", "indices", "data")}
    path = raw.write_neutral(tmp_path / "g.npz", known, feat=None, feat_shape=np.array(sparse.shape), **parts)
    assert_equal(neutral.read(path, "g", work), known)
    path = raw.write_neutral(tmp_path / "f.npz", known, feat=np.asfortranarray(known.features))
    assert_equal(neutral.read(path, "g", work), known)


def test_neutral_with_no_edges(tmp_path: Path, work: Path) -> None:
    known = replace(raw.known(), adjacency=np.zeros((20, 20), dtype=bool))
    assert_equal(neutral.read(raw.write_neutral(tmp_path / "g.npz", known), "g", work), known)


NEUTRAL_FAULTS = {
    "no array 'indptr'": {"indptr": None},
    "no array 'indices'": {"indices": None},
    "neither 'feat' nor": {"feat": None},
    "without labels": {"label": None},
    "no array 'test_mask'": {"test_mask": None},
    "train_mask selects no node": {"train_mask": np.zeros(20, bool)},
    "is float64 [20], expected booleans [20]": {"val_mask": np.zeros(20)},
    "is bool [19], expected booleans [20]": {"val_mask": np.zeros(19, bool)},
    "expected integers [any]": {"indices": np.zeros(4)},
    "outside 0..19": {"indices": np.full(4, 20, np.int32)},
    "features have 19 rows": {"feat": np.zeros((19, 2), np.float32)},
    "expected numbers [20, any]": {"feat": np.zeros(20, np.float32), "match": "expected numbers [any, any]"},
    "the feature of row 7, column 0 is not a finite number": {
        "feat": np.where(np.arange(20)[:, None] == 7, np.nan, [[1.0, 2.0]])
    },
    "the feature of row 9, column 0 is too large for float32": {
        "feat": np.where(np.arange(20)[:, None] == 9, 1e300, [[1.0, 2.0]])
    },
    "labels have no column": {"label": np.zeros((20, 0), np.uint8)},
    "something other than 0 and 1": {"label": np.full((20, 2), 2, np.uint8)},
    "other than class numbers": {"label": np.full(20, 0.5)},
    "no node is labelled": {"label": np.full(20, -1)},
    "class 1000000 in a graph of 20 nodes": {"label": np.full(20, 10**6)},
    "feat_indptr does not rise": {
        "feat": None,
        "feat_shape": np.array([20, 3]),
        "feat_indptr": np.arange(21)[::-1],
        "feat_indices": np.zeros(20, np.int32),
        "feat_data": np.ones(20, np.float32),
    },
    "column outside 0..2": {
        "feat": None,
        "feat_shape": np.array([20, 3]),
        "feat_indptr": np.arange(21),
        "feat_indices": np.full(20, 3),
        "feat_data": np.ones(20, np.float32),
    },
    "features of shape [-1, 3]": {"feat": None, "feat_shape": np.array([-1, 3])},
    "never loaded": {"label": np.array([{}] * 20, dtype=object)},
}


@pytest.mark.parametrize("fault", NEUTRAL_FAULTS)
def test_neutral_names_what_is_wrong(tmp_path: Path, work: Path, fault: str) -> None:
    changes = dict(NEUTRAL_FAULTS[fault])
    match = changes.pop("match", fault)
    path = raw.write_neutral(tmp_path / "g.npz", raw.known(), **changes)
    with pytest.raises(DataError) as error:
        neutral.read(path, "g", work)
    assert str(match) in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("form", ["integers", "booleans"])
def test_one_hot_labels_are_classes_in_every_format(tmp_path: Path, work: Path, form: str) -> None:
    known = raw.known()
    one_hot = np.eye(3, dtype=np.bool_ if form == "booleans" else np.int64)[known.labels]
    path = raw.write_neutral(tmp_path / "g.npz", known, label=one_hot)
    assert_equal(neutral.read(path, "g", work), known)
    found = neutral.info(path, "g")
    assert (found.classes, found.multilabel) == (3, False)


def test_classes_that_do_not_occur_are_said(tmp_path: Path) -> None:
    known = raw.known()
    found = neutral.info(raw.write_neutral(tmp_path / "g.npz", known, label=10 * known.labels), "g")
    assert found.summary.endswith("; 3 of its 21 classes occur: classes are numbers from 0 to 20")
    assert "occur" not in neutral.info(raw.write_neutral(tmp_path / "h.npz", known), "h").summary


def test_dgl_reddit(tmp_path: Path, work: Path) -> None:
    known = raw.known(nodes=60)
    assert_equal(read_dgl_reddit(raw.write_dgl_reddit(tmp_path / "r", known), "reddit", work), known)


def test_dgl_reddit_that_is_not_symmetric_is_refused(tmp_path: Path, work: Path) -> None:
    known = raw.known()
    adjacency = known.adjacency.copy()
    adjacency[np.nonzero(adjacency)[0][0], np.nonzero(adjacency)[1][0]] = False
    graph = read_dgl_reddit(raw.write_dgl_reddit(tmp_path / "r", replace(known, adjacency=adjacency)), "r", work)
    with pytest.raises(DataError, match="not symmetric"):
        check_graph(graph, "r", symmetric=True)


@pytest.mark.parametrize("form", ["class", "one-hot", "multi-label"])
def test_graphsaint(tmp_path: Path, work: Path, form: str) -> None:
    known = raw.known(multilabel=form == "multi-label")
    labels = np.eye(3, dtype=int)[known.labels].tolist() if form == "one-hot" else None
    graph = read_graphsaint(raw.write_graphsaint(tmp_path / "g", known, labels), "g", work)
    assert_equal(graph, known)
    assert graph.multilabel == (form == "multi-label")
    assert graph.num_classes == (4 if form == "multi-label" else 3)


def test_graphsage(tmp_path: Path, work: Path) -> None:
    known = raw.known(multilabel=True)
    graph = read_graphsage(raw.write_graphsage(tmp_path / "g", known), "g", work)
    assert_equal(graph, known)
    assert (graph.multilabel, graph.num_classes) == (True, 4)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"nodes": []}, "numbered"),
        ({"nodes": [{"id": 3, "val": False, "test": False}]}, "numbered"),
        ({"nodes": [{"id": "a", "val": False, "test": False}]}, "numbered"),
        ({"nodes": [{"id": 0}]}, "expected"),
        ({"nodes": 3}, "expected"),
        ({"links": [{"source": 0, "target": 99}]}, "outside"),
        ({"links": [{"source": 0.5, "target": 1}]}, "numbered"),
        ({"links": [{"source": "0", "target": 1}]}, "numbered"),
        ({"links": None}, "expected"),
    ],
)
def test_graphsage_refuses_foreign_json(tmp_path: Path, work: Path, change: dict[str, object], told: str) -> None:
    directory = raw.write_graphsage(tmp_path / "g", raw.known())
    file = directory / "toy-ppi-G.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(DataError, match=rf"toy-ppi-G\.json.*{told}"):
        read_graphsage(directory, "g", work)


def test_graphsaint_takes_column_ordered_features_and_mends_a_one_way_edge(tmp_path: Path, work: Path) -> None:
    known = raw.known(nodes=800, features=900)
    directory = raw.write_graphsaint(tmp_path / "g", replace(known, adjacency=np.triu(known.adjacency)))
    np.save(directory / "feats.npy", np.asfortranarray(known.features))
    assert_equal(read_graphsaint(directory, "g", work), known)


def test_graphsaint_without_features_is_clear(tmp_path: Path, work: Path) -> None:
    directory = raw.write_graphsaint(tmp_path / "g", raw.known())
    (directory / "feats.npy").unlink()
    with pytest.raises(DataError, match=r"feats\.npy: no such file"):
        read_graphsaint(directory, "g", work)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("class_map.json", "[]"),
        ("class_map.json", '{"0": 1}'),
        ("class_map.json", "{" + ",".join(f'"{i}": "a"' for i in range(20)) + "}"),
        ("class_map.json", "{" + ",".join(f'"{i}": [1, {i}]' for i in range(20)) + "}"),
        ("class_map.json", "{" + ",".join(f'"{i}": {[1] * (1 + i % 2)}' for i in range(20)) + "}"),
        ("class_map.json", "{" + ",".join(f'"{i + 1}": 1' for i in range(20)) + "}"),
        ("class_map.json", "{" + ",".join(f'"{i}": 0.5' for i in range(20)) + "}"),
        ("role.json", "{}"),
        ("role.json", '{"tr": [0], "va": [1], "te": [20]}'),
        ("role.json", '{"tr": [0], "va": [1], "te": ["2"]}'),
        ("role.json", '{"tr": [0], "va": [1], "te": [[2]]}'),
        ("role.json", "[" * 100_000),
    ],
)
def test_graphsaint_refuses_foreign_json(tmp_path: Path, work: Path, name: str, content: str) -> None:
    directory = raw.write_graphsaint(tmp_path / "g", raw.known())
    (directory / name).write_text(content)
    with pytest.raises(DataError, match=name):
        read_graphsaint(directory, "g", work)


def _ogb_fortran(directory: Path, known: raw.Known) -> Path:
    return raw.write_ogb_binary(directory, known, fortran=True)


@pytest.mark.parametrize("write", [raw.write_ogb_csv, raw.write_ogb_binary, _ogb_fortran])
def test_ogb(tmp_path: Path, work: Path, write: Callable[[Path, raw.Known], Path]) -> None:
    known = raw.known(nodes=50)
    assert_equal(read_ogb(write(tmp_path / "g", known), "g", work), known)


def test_ogb_unlabelled_nodes(tmp_path: Path, work: Path) -> None:
    known = raw.known()
    split = np.where(np.arange(20) % 4 == 0, 0, known.split)
    graph = read_ogb(raw.write_ogb_binary(tmp_path / "g", replace(known, split=split)), "g", work)
    assert_equal(graph, replace(known, split=split, labels=np.where(split > 0, known.labels, -1)))


def test_mislove(tmp_path: Path, work: Path) -> None:
    rng = np.random.default_rng(0)
    links = rng.integers(1, 301, (900, 2))
    links[0] = (300, 1)
    sizes = rng.permutation(np.arange(2, 102))  # 100 groups, no two equally large
    memberships = np.vstack(
        [np.column_stack([rng.choice(250, s, replace=False) + 1, np.full(s, g + 1)]) for g, s in enumerate(sizes)]
    )
    graph = read_mislove(raw.write_mislove(tmp_path / "y", links, memberships), "youtube", work)
    check_graph(graph, "y", symmetric=True)

    adjacency = np.zeros((300, 300), dtype=bool)
    adjacency[links[:, 0] - 1, links[:, 1] - 1] = True
    adjacency |= adjacency.T
    np.fill_diagonal(adjacency, False)
    found = sp.csr_matrix((np.ones(graph.edges, bool), graph.indices, graph.indptr), (300, 300))
    np.testing.assert_array_equal(found.toarray(), adjacency)
    member = np.zeros((300, 100))
    member[memberships[:, 0] - 1, memberships[:, 1] - 1] = 1
    np.testing.assert_array_equal(graph.labels, member[:, np.argsort(-sizes)[:64]])
    np.testing.assert_array_equal(np.sort(graph.features.sum(0)), np.sort(sizes))
    split = graph.train_mask | graph.val_mask | graph.test_mask
    np.testing.assert_array_equal(split, member.any(1))
    assert graph.train_mask.sum() == int(0.9 * split.sum())


def test_planetoid_with_todays_pickles(tmp_path: Path, work: Path) -> None:
    known = raw.known(nodes=40)
    graph = planetoid.read(raw.write_planetoid(tmp_path, "tiny", known), "tiny", work)
    split = np.where(np.arange(40) < 6, 1, np.where(np.arange(40) < 34, 2, 3))
    assert_equal(graph, replace(known, split=split))


@pytest.mark.data
@pytest.mark.parametrize("name", ["cora", "citeseer"])
def test_real_planetoid_equals_the_neutral_file(data_dir: Path, work: Path, tmp_path: Path, name: str) -> None:
    graph = planetoid.read(data_dir / "raw" / f"planetoid_{name}", name, work)
    check_graph(graph, name, symmetric=True)
    (tmp_path / "other").mkdir()
    expected = neutral.read(data_dir / f"{name}.npz", name, tmp_path / "other")
    for key in ("indptr", "indices", "features", "labels", "train_mask", "val_mask", "test_mask", "num_classes"):
        np.testing.assert_array_equal(getattr(graph, key), getattr(expected, key), err_msg=key)
    if name == "citeseer":
        assert (graph.labels == -1).sum() == 15
        assert (np.diff(graph.indptr) == 0).sum() == 48


@pytest.mark.data
def test_real_graphsaint_flickr(data_dir: Path, work: Path, tmp_path: Path) -> None:
    source = tmp_path / "flickr"
    source.mkdir()
    for path in (data_dir / "raw" / "graphsaint_flickr").iterdir():
        (source / path.name).symlink_to(path)
    rng = np.random.default_rng(0)
    feats = rng.random((89_250, 8))
    np.save(source / "feats.npy", feats)
    graph = read_graphsaint(source, "flickr", work)
    check_graph(graph, "flickr", symmetric=True)
    (tmp_path / "other").mkdir()
    expected = neutral.read(data_dir / "flickr.npz", "flickr", tmp_path / "other")
    for key in ("indptr", "indices", "labels", "train_mask", "val_mask", "test_mask", "num_classes"):
        np.testing.assert_array_equal(getattr(graph, key), getattr(expected, key), err_msg=key)
    np.testing.assert_array_equal(graph.features, feats.astype(np.float32))

    # Inductive training takes the subgraph of the training nodes: it must be the publisher's adj_train.npz.
    full = sp.csr_matrix((np.ones(graph.edges), graph.indices, graph.indptr), (89_250, 89_250))
    keep = sp.diags(graph.train_mask.astype(float))
    induced = (keep @ full @ keep).tocsr()
    published = sp.load_npz(source / "adj_train.npz")
    assert abs(induced - published).nnz == 0
