"""Graphs of other libraries and tools, as they come, against what scipy and networkx make of the same edges."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse as sp
import torch
from support.raw_formats import known, write_ogb_csv
from support.tiers import tiered

import harness
from harness.cli import main
from harness.data.formats.imported import numbers
from harness.data.graph import GraphData
from harness.errors import DataError, UserError

N, F, C = 40, 5, 3
RNG = np.random.default_rng(7)
# Directed, unsorted, with three self-loops and four edges twice.
PAIRS = RNG.integers(0, N, (2, 150))
PAIRS = PAIRS[:, PAIRS[0] != PAIRS[1]]
EDGES = np.concatenate([PAIRS, PAIRS[:, :4], [[1, 2, 3]] * 2], axis=1)[:, RNG.permutation(PAIRS.shape[1] + 7)]
FEATURES = RNG.normal(size=(N, F))
LABELS = RNG.integers(0, C, N)
ORDER = RNG.permutation(N)
SETS = {"train": ORDER[:20], "val": ORDER[20:28], "test": ORDER[28:36]}
MASKS = {part: np.isin(np.arange(N), ids) for part, ids in SETS.items()}
DENSE = np.zeros((N, N), bool)
DENSE[EDGES[1], EDGES[0]] = DENSE[EDGES[0], EDGES[1]] = True
np.fill_diagonal(DENSE, False)
WHOLE = sp.csr_matrix(DENSE)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    return tmp_path


def is_whole(graph: GraphData) -> None:
    assert np.array_equal(graph.indptr, WHOLE.indptr)
    assert np.array_equal(graph.indices, WHOLE.indices)
    assert np.array_equal(graph.features, FEATURES.astype(np.float32))
    assert np.array_equal(graph.labels, LABELS)
    assert (graph.num_classes, graph.multilabel) == (C, False)
    for part, mask in MASKS.items():
        assert np.array_equal(getattr(graph, f"{part}_mask"), mask)


def as_pyg() -> Any:
    data = pytest.importorskip("torch_geometric.data")
    masks = {f"{part}_mask": torch.from_numpy(mask) for part, mask in MASKS.items()}
    return data.Data(
        x=torch.from_numpy(FEATURES), edge_index=torch.from_numpy(EDGES), y=torch.from_numpy(LABELS), **masks
    )


def as_dgl() -> Any:
    dgl = pytest.importorskip("dgl")
    made = dgl.graph((torch.from_numpy(EDGES[0]), torch.from_numpy(EDGES[1])), num_nodes=N)
    made.ndata["feat"], made.ndata["label"] = torch.from_numpy(FEATURES), torch.from_numpy(LABELS)
    made.ndata.update({f"{part}_mask": torch.from_numpy(mask) for part, mask in MASKS.items()})
    return made


def as_networkx() -> Any:
    import networkx as nx

    made = nx.MultiDiGraph()
    part = {int(node): part for part, ids in SETS.items() for node in ids}
    made.add_nodes_from(
        (f"n{i}", {"x": FEATURES[i].tolist(), "y": int(LABELS[i]), "split": part.get(i, "none")}) for i in range(N)
    )
    made.add_edges_from((f"n{a}", f"n{b}") for a, b in EDGES.T)
    return made


LOOPS = "3 self-loops dropped, 4 repeated edges dropped"


@pytest.mark.parametrize("make", [as_pyg, as_dgl, as_networkx])
def test_an_object_of_a_library_is_a_data_set(make: Any, said: list[str]) -> None:
    path = harness.save_graph("mine", make(), report=said.append)
    assert path.name == "mine.npz"
    is_whole(harness.load_graph("mine"))
    (line,) = said
    assert line.startswith(
        f"mine: 40 nodes, {WHOLE.nnz} directed edges, 5 features, 3 classes, 20/8/8 nodes train/val/"
    )
    unique = len({(a, b) for a, b in EDGES.T if a != b})
    repeated = EDGES.shape[1] - 3 - unique
    assert f"3 self-loops dropped, {repeated} repeated edges dropped, {WHOLE.nnz - unique} reverse edges added" in line
    assert "features from float64 to float32" in line


@pytest.mark.parametrize(
    "edges", [EDGES, EDGES.T, EDGES.astype(float), torch.from_numpy(EDGES), EDGES.tolist(), np.asfortranarray(EDGES)]
)
def test_edges_are_arrays_of_either_shape(edges: Any) -> None:
    harness.save_graph("mine", edges, features=FEATURES, labels=LABELS, splits=SETS)
    is_whole(harness.load_graph("mine"))


@pytest.mark.parametrize(
    "given",
    [
        {"features": sp.csr_matrix(FEATURES)},
        {"features": torch.from_numpy(FEATURES).requires_grad_()},
        {"labels": LABELS[:, None]},
        {"labels": LABELS.astype(float)},
        {"labels": np.eye(C)[LABELS]},
        {"labels": torch.eye(C)[torch.from_numpy(LABELS)].bool()},
        {"splits": MASKS},
        {"splits": {"train": SETS["train"], "valid": MASKS["val"], "test": torch.from_numpy(MASKS["test"])}},
        {"splits": {part: np.stack([~mask, mask], axis=1) for part, mask in MASKS.items()}, "split": 1},
        {"splits": {part: mask.astype(np.uint8) for part, mask in MASKS.items()}},
    ],
)
def test_arrays_come_in_many_forms(given: dict[str, Any]) -> None:
    whole: dict[str, Any] = {"features": FEATURES, "labels": LABELS, "splits": SETS} | given
    harness.save_graph("mine", sp.coo_matrix((np.ones(EDGES.shape[1]), EDGES[::-1]), (N, N)), **whole)
    is_whole(harness.load_graph("mine"))


def test_a_split_can_be_drawn(said: list[str]) -> None:
    labels = np.where(np.arange(N) < 30, LABELS, -1)
    harness.save_graph("mine", EDGES, features=FEATURES, labels=labels, splits=(0.5, 0.2, 0.3), report=said.append)
    graph = harness.load_graph("mine")
    masks = [graph.train_mask, graph.val_mask, graph.test_mask]
    assert [int(mask.sum()) for mask in masks] == [15, 6, 9]
    assert np.array_equal(np.sum(masks, axis=0), labels >= 0)
    assert "a split was drawn with seed 0" in said[0]


def test_weights_of_repeated_edges_are_added_and_reverse_edges_have_them() -> None:
    pairs, weights = np.array([[0, 0, 1, 2, 3], [1, 1, 2, 1, 3]]), [1.0, 2.0, 5.0, 5.0, 9.0]
    features, labels = np.ones((4, 1)), [0, 1, 0, 1]
    splits = {"train": [0, 1], "val": [2], "test": [3]}
    harness.save_graph("mine", pairs, features=features, labels=labels, splits=splits, weights=weights)
    graph = harness.load_graph("mine")
    assert (graph.indptr.tolist(), graph.indices.tolist()) == ([0, 1, 3, 4, 4], [1, 0, 2, 1])
    assert graph.weights is not None
    assert graph.weights.tolist() == [3.0, 3.0, 5.0, 5.0]
    odd = [1.0, 2.0, 5.0, 6.0, 9.0]
    with pytest.raises(DataError, match="edge weights are not symmetric"):
        harness.save_graph("mine", pairs, features=features, labels=labels, splits=splits, weights=odd)


BAD = {
    "the feature of row 3, column 2 is not a finite number": {"features": FEATURES},
    "features are [39, 5], expected numbers [40, F]": {"graph": WHOLE, "features": FEATURES[1:]},
    "has no features": {"features": None},
    "has no labels": {"labels": None},
    "labels are [39], the graph has 40 nodes": {"labels": LABELS[1:]},
    "features are <U1, expected numbers": {"features": [["a"] * F] * N},
    "an edge names a node outside 0..39": {"graph": [[0, 40], [1, 2]]},
    "edge 1 names node -1": {"graph": [[0, -1], [1, 2]]},
    "edge 0 names node 0.5": {"graph": [[0.5, 1], [1, 2]]},
    "edges are [3, 3]": {"graph": np.zeros((3, 3), int)},
    "has no split": {"splits": None},
    "train has no node": {"splits": {"val": [1], "test": [2]}},
    "node 1 is in two sets": {"splits": {"train": [0, 1], "val": [1]}},
    "splits has 'dev'": {"splits": {"train": [0, 1], "dev": [2]}},
    "train set names a node outside": {"splits": {"train": [0, 40]}},
    "train has 39 entries": {"splits": {"train": np.ones(39, bool)}},
    "split 2 of 2": {"splits": {"train": np.ones((N, 2), bool)}, "split": 2},
    "expected shares of train, val and test": {"splits": (0.9, 0.2, 0.1)},
    "splits are neither sets nor shares": {"splits": 0.5},
    "149 weights, the graph has": {"weights": np.ones(149)},
    "the weight of edge 2 is -1.0": {"weights": np.where(np.arange(EDGES.shape[1]) == 2, -1.0, 1.0)},
}  # fmt: skip


@pytest.mark.parametrize("message", BAD)
def test_what_cannot_be_trained_on_is_named(message: str, place: Path) -> None:
    features = FEATURES.copy()
    if "row 3" in message:
        features[3, 2] = np.nan
    given: dict[str, Any] = {"graph": EDGES, "features": features, "labels": LABELS, "splits": SETS} | BAD[message]
    if "row 3" in message:
        given["features"] = features
    with pytest.raises(DataError) as error:
        harness.save_graph("mine", given.pop("graph"), **given)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not list((place / "data").iterdir())


def test_names_and_places_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"bad name '\.\./x'"):
        harness.save_graph("../x", EDGES, features=FEATURES, labels=LABELS, splits=SETS)
    with pytest.raises(UserError, match="a str is no graph that is known"):
        harness.save_graph("x", "graph.pt")
    monkeypatch.delenv("HARNESS_DATA")
    with pytest.raises(UserError, match="no data directory"):
        harness.save_graph("x", EDGES, features=FEATURES, labels=LABELS, splits=SETS)


def test_a_graph_goes_to_other_libraries_and_comes_back() -> None:
    harness.save_graph("mine", EDGES, features=FEATURES, labels=LABELS, splits=SETS)
    for to in (harness.to_pyg, harness.to_dgl):
        pytest.importorskip({harness.to_pyg: "torch_geometric", harness.to_dgl: "dgl"}[to])
        said: list[str] = []
        harness.save_graph("again", to(harness.load_graph("mine")), report=said.append)
        is_whole(harness.load_graph("again"))
        assert said[0].endswith("changed: nothing")


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exited:
        main([str(each) for each in arguments])
    found = capsys.readouterr()
    return int(exited.value.code or 0), found.out, found.err


def write_arrays(place: Path) -> list[object]:
    np.save(place / "f.npy", FEATURES)
    pd.DataFrame(LABELS).to_csv(place / "l.csv", header=False, index=False)
    (place / "s.json").write_text(json.dumps({part: ids.tolist() for part, ids in SETS.items()}))
    return ["--features", "f.npy", "--labels", "l.csv", "--splits", "s.json"]


def edge_files(place: Path) -> dict[str, Path]:
    frame = pd.DataFrame(EDGES.T, columns=["src", "dst"])
    frame.to_csv(place / "named.csv", index=False)
    frame[["dst", "src"]].to_csv(place / "turned.csv", index=False)
    frame.to_csv(place / "plain.tsv", sep="\t", header=False, index=False)
    (place / "spaced.txt").write_text("# a comment\n" + frame.to_csv(sep=" ", header=False, index=False))
    with gzip.open(place / "packed.csv.gz", "wt") as stream:
        stream.write(frame.to_csv(header=False, index=False))
    frame.to_parquet(place / "columns.parquet")
    matrix = sp.coo_matrix((np.ones(EDGES.shape[1]), EDGES[::-1]), (N, N))
    scipy.io.mmwrite(place / "market.mtx", matrix)
    sp.save_npz(place / "sparse.npz", (matrix.tocsr() > 0).astype(np.float64))
    torch.save({"edge_index": torch.from_numpy(EDGES), "num_nodes": N}, place / "tensors.pt")
    return {path.name: path for path in place.iterdir() if path.is_file() and path.name[0] not in "fls"} | {
        name: place / name for name in ("spaced.txt", "sparse.npz")
    }


NAMES = ["named.csv", "turned.csv", "plain.tsv", "spaced.txt", "packed.csv.gz", "columns.parquet"]


@pytest.mark.parametrize("name", [*NAMES, "market.mtx", "sparse.npz", "tensors.pt"])
def test_a_file_of_edges_is_imported(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = edge_files(place)[name]
    code, out, err = run(capsys, "data", "import", path, "--name", "mine", *write_arrays(place))
    assert (code, err) == (0, "")
    assert out.startswith(f"mine: 40 nodes, {WHOLE.nnz} directed edges")
    is_whole(harness.load_graph("mine"))


MATRICES = {
    "general": sp.random(N, N, 0.1, rng=np.random.default_rng(1)),
    "symmetric": sp.triu(sp.random(N, N, 0.1, rng=np.random.default_rng(2))),
    "integer": sp.coo_matrix(np.arange(N * N).reshape(N, N) % 7),
    "dense": np.arange(12.0).reshape(4, 3),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", MATRICES)
def test_matrix_market_is_read_as_scipy_reads_it(name: str, packed: bool, place: Path) -> None:
    matrix = MATRICES[name]
    matrix = matrix + matrix.T if name == "symmetric" else matrix
    scipy.io.mmwrite(place / "m.mtx", matrix, symmetry=name if name == "symmetric" else "general")
    expected = scipy.io.mmread(place / "m.mtx")
    path = place / "m.mtx"
    if packed:
        path = place / "m.mtx.gz"
        path.write_bytes(gzip.compress((place / "m.mtx").read_bytes()))
    found = numbers(path)
    assert np.array_equal(found if name == "dense" else found.toarray(), np.asarray(sp.coo_matrix(expected).toarray()))


@pytest.mark.parametrize("whole", [True, False])
def test_pygs_files_are_imported_without_pyg(
    whole: bool, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = as_pyg()
    # As PyG's data sets keep their one graph, and as `torch.save` does.
    torch.save(data if whole else (data.to_dict(), {"x": torch.tensor([0, N])}, type(data)), place / "mine.pt")
    monkeypatch.setitem(__import__("sys").modules, "torch_geometric", None)
    code, _, err = run(capsys, "data", "import", place / "mine.pt")
    assert (code, err) == (0, "")
    is_whole(harness.load_graph("mine"))


@pytest.mark.slow
def test_dgls_files_are_imported(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dgl = pytest.importorskip("dgl")
    dgl.save_graphs(str(place / "mine.bin"), [as_dgl()])
    assert run(capsys, "data", "import", place / "mine.bin")[0] == 0
    is_whole(harness.load_graph("mine"))


@pytest.mark.slow
def test_a_file_that_ends_dgls_reader_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dgl")
    (place / "mine.bin").write_bytes(b"anything")
    monkeypatch.setattr("harness.data.formats.imported._dgl_refusal", end_the_process)
    code, _, err = run(capsys, "data", "import", place / "mine.bin")
    assert (code, err) == (
        2,
        f"error: {place}/mine.bin: damaged or foreign, expected DGL's graphs (it ends DGL's reader)\n",
    )


def end_the_process(path: str) -> None:
    os.abort()


class Evil:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("mark"),))


MARKET = b"%%MatrixMarket matrix coordinate pattern general\n% a comment\n"
HOSTILE: dict[str, tuple[bytes, str]] = {
    "a.csv": (b"0,1\nx,2\n", "column 0 has words"),
    "b.csv": (b"", "expected rows of numbers"),
    "c.csv": (b"0\n1\n", "has one column"),
    "d.csv": (b"0,1\n1,-2\n", "edge 1 names node -2"),
    "d.mtx": (MARKET + b"40 40 1\n41 1\n", "entry 0 is outside of [40, 40]"),
    "e.mtx": (MARKET + b"40 40 2\n1 2\n", "has 1 entries, its first lines say 2"),
    "g.mtx": (MARKET + b"40 40 1\n1 2 3\n", "rows have 3 numbers, expected 2"),
    "h.mtx": (MARKET + b"40 41 1\n1 2\n", "is [40, 41], expected coordinates of a square"),
    "i.mtx": (MARKET + b"40 40 1\n1 \0\0002\n", "has words"),
    "j.mtx": (MARKET.replace(b"pattern", b"complex"), "complex is not real or double"),
    "e.parquet": (b"PAR1", "expected a Parquet file"),
    "f.mtx": (b"%%MatrixMarket matrix\n1", "expected a Matrix Market file"),
    "g.npz": (b"PK\x03\x04", "expected"),
    "h.pt": (b"\x80\x02", "damaged or foreign, expected tensors, or PyG's Data"),
    "i.bin": (b"\0" * 64, "expected DGL's graphs"),
    "j.graph": (b"0 1", "no kind of graph has the suffix '.graph'"),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_in_one_line(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, message = HOSTILE[name]
    (place / name).write_bytes(content)
    code, _, err = run(capsys, "data", "import", place / name, *write_arrays(place))
    assert (code, err.count("\n")) == (2, 1), err
    assert err.startswith(f"error: {place / name}: ")
    assert message in err
    assert not list((place / "data").iterdir())


def test_a_packed_line_without_end_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "a.csv.gz").write_bytes(gzip.compress(b"1" * (1 << 26)))
    code, _, err = run(capsys, "data", "import", place / "a.csv.gz", *write_arrays(place))
    assert (code, err.count("\n")) == (2, 1)
    assert "has a line of more than 16777216 bytes" in err


def test_a_split_in_json_is_an_object(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, arrays = edge_files(place)["named.csv"], write_arrays(place)
    (place / "s.json").write_text("[0.6, {}, 0.2]")
    code, _, err = run(capsys, "data", "import", path, *arrays)
    assert (code, err) == (2, 'error: s.json: is a list, expected {"train": [...], "val": [...], "test": [...]}\n')


@pytest.mark.timeout(60)
def test_a_pipe_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(place / "a.csv")
    code, _, err = run(capsys, "data", "import", place / "a.csv", *write_arrays(place))
    assert (code, err) == (2, f"error: {place}/a.csv: is a FIFO, expected a file (name a regular file)\n")


def test_nothing_is_unpickled_but_what_is_listed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"edge_index": Evil()}, place / "mine.pt")
    code, _, err = run(capsys, "data", "import", place / "mine.pt")
    assert code == 2
    assert "damaged or foreign" in err
    assert not (place / "mark").exists()


def from_csv(place: Path) -> list[object]:
    return [edge_files(place)["named.csv"], *write_arrays(place)]


def from_ogb(place: Path) -> list[object]:
    write_ogb_csv(place / "ogb", known())
    return [place / "ogb"]


@pytest.mark.parametrize("source", tiered([as_pyg, as_dgl, from_csv, from_ogb], [as_pyg, from_csv]))
@pytest.mark.timeout(120)
def test_three_lines_train_a_graph(source: Any, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if source in (as_pyg, as_dgl):
        harness.save_graph("mine", source())
    else:
        assert run(capsys, "data", "import", *source(place), "--name", "mine")[0] == 0
    suite = {"name": "s", "datasets": ["mine"], "methods": ["full"], "train": {"epochs": 2}, "device": "cpu"}
    results = harness.run(suite | {"partition": {"parts": 2}})
    assert results["status"].tolist() == ["ok"]
    assert results["best_val"].between(0, 1).all()
