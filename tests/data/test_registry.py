"""Data sets by name."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler
from support import raw_formats as raw

from harness.data import registry
from harness.data.catalog import published
from harness.data.prepared import open_graph
from harness.data.registry import dataset_info, dataset_names, prepare
from harness.errors import DataError, DataUnavailable, UserError
from harness.spec import DatasetSpec


def spec(name: str, **options: object) -> DatasetSpec:
    return DatasetSpec(name=name, options=options)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory with one neutral file of no published name."""
    monkeypatch.delenv("HARNESS_DATA", raising=False)
    directory = tmp_path / "data"
    directory.mkdir()
    raw.write_neutral(directory / "my_graph.npz", raw.known(nodes=30))
    return directory


def test_names(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = dataset_names()
    assert {"reddit", "ogbn-products", "ogbn-papers100m", "youtube", "pubmed", "digits", "twin"} <= set(names)
    assert "my_graph" not in names
    assert dataset_names(mine) == [*names, "my_graph"]
    raw.write_neutral(mine / "ogbn_arxiv.npz", raw.known())
    monkeypatch.setenv("HARNESS_DATA", str(mine))
    assert dataset_names() == [*names, "my_graph"], "ogbn_arxiv.npz is ogbn-arxiv, not a set of its own"


@pytest.mark.parametrize("name", list(published()))
def test_published_sets_say_all_of_themselves(name: str, mine: Path) -> None:
    info = dataset_info(spec(name))
    assert info.name == name
    assert min(info.nodes, info.edges, info.features, info.classes) > 1
    assert info.origin == "real"
    assert info.options["normalize"].default == info.normalize
    assert "," in info.source
    assert "\n" not in info.summary
    assert published()[name].urls
    with pytest.raises(DataUnavailable):
        prepare(spec(name), data_dir=mine)


def test_default_normalisation() -> None:
    modes = {name: entry.info.normalize for name, entry in published().items()}
    assert {n for n, m in modes.items() if m == "row"} == {"cora", "citeseer", "pubmed"}
    assert {n for n, m in modes.items() if m == "standard"} == {"reddit", "yelp", "amazon", "flickr", "ppi"}


def test_a_neutral_file_of_any_name(mine: Path) -> None:
    info = dataset_info(spec("my_graph"), mine)
    assert (info.nodes, info.features, info.classes, info.edges) == (30, 5, 3, raw.known(nodes=30).adjacency.sum())
    graph = open_graph(prepare(spec("my_graph"), data_dir=mine))
    np.testing.assert_array_equal(graph.features, raw.known(nodes=30).features)
    assert (graph.name, graph.origin, graph.note) == ("my_graph", "real", "")
    assert isinstance(graph.features, np.memmap)


def test_a_published_name_from_a_neutral_file_says_so(mine: Path) -> None:
    raw.write_neutral(mine / "ogbn_arxiv.npz", raw.known())
    for name in ("ogbn-arxiv", "ogbn_arxiv"):
        graph = open_graph(prepare(spec(name), data_dir=mine))
        assert graph.note == "from ogbn_arxiv.npz, 5 features instead of 128"


@pytest.mark.parametrize("folder", ["reddit", "raw/reddit", "raw/dgl_reddit_reddit"])
def test_raw_files_of_the_data_directory(mine: Path, folder: str) -> None:
    raw.write_dgl_reddit(mine / folder, raw.known(nodes=40))
    graph = open_graph(prepare(spec("reddit"), data_dir=mine))
    assert (graph.nodes, graph.note) == (40, "")


def test_ogbs_own_folder_name(mine: Path) -> None:
    raw.write_ogb_csv(mine / "ogbn_products", raw.known())
    assert open_graph(prepare(spec("ogbn-products"), data_dir=mine)).nodes == 20


def test_prepared_once_and_again_when_the_file_changes(mine: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = prepare(spec("my_graph"), data_dir=mine, cache=cache)
    stamp = (first / "meta.json").stat().st_mtime_ns
    assert prepare(spec("my_graph", normalize="none"), data_dir=mine, cache=cache) == first
    assert (first / "meta.json").stat().st_mtime_ns == stamp
    assert prepare(spec("my_graph", normalize="row"), data_dir=mine, cache=cache) != first
    raw.write_neutral(mine / "my_graph.npz", raw.known(nodes=31))
    assert open_graph(prepare(spec("my_graph"), data_dir=mine, cache=cache)).nodes == 31


def write_plain(path: Path, graph: raw.Known) -> Path:
    """Write the neutral file without compression."""
    path.parent.mkdir(exist_ok=True)
    with np.load(raw.write_neutral(path, graph)) as packed:
        arrays = dict(packed)
    np.savez(path, **arrays)
    return path


def write_raw(path: Path, graph: raw.Known) -> Path:
    raw.write_dgl_reddit(path.parent, graph)
    return path


@pytest.mark.parametrize(
    ("name", "file", "write"),
    [("my_graph", "my_graph.npz", write_plain), ("reddit", "reddit/reddit_data.npz", write_raw)],
)
def test_a_file_of_equal_size_and_time_is_another(
    mine: Path, tmp_path: Path, name: str, file: str, write: Callable[[Path, raw.Known], Path]
) -> None:
    """An uncompressed `.npz` always has its size, and archives and `cp -p` keep times."""
    cache, graph = tmp_path / "cache", raw.known(nodes=30)
    turned = replace(graph, labels=np.roll(graph.labels, 1))
    path, other = write(mine / file, graph), write(tmp_path / "other" / Path(file).name, turned)
    first = prepare(spec(name), data_dir=mine, cache=cache)
    before = path.stat()
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    second = prepare(spec(name), data_dir=mine, cache=cache)
    assert np.array_equal(open_graph(second).labels, turned.labels)
    assert np.array_equal(open_graph(first).labels, graph.labels)


def test_a_copy_of_equal_content_is_the_same(mine: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = prepare(spec("my_graph"), data_dir=mine, cache=cache)
    shutil.copy(mine / "my_graph.npz", tmp_path / "copy")
    (tmp_path / "copy").replace(mine / "my_graph.npz")
    assert prepare(spec("my_graph"), data_dir=mine, cache=cache) == first


def test_hidden_files_are_no_data_sets(mine: Path) -> None:
    (mine / "._my_graph.npz").write_bytes(b"\0" * 100)
    assert "._my_graph" not in dataset_names(mine)


def test_normalisation(mine: Path) -> None:
    known = raw.known(nodes=30)
    plain = replace(known, features=np.vstack([known.features[:-1], np.zeros((1, 5), np.float32)]))
    raw.write_neutral(mine / "my_graph.npz", plain)
    row = open_graph(prepare(spec("my_graph", normalize="row"), data_dir=mine))
    total = plain.features.sum(1, keepdims=True)
    np.testing.assert_allclose(row.features, plain.features / np.where(total == 0, 1, total), rtol=1e-6)
    standard = open_graph(prepare(spec("my_graph", normalize="standard"), data_dir=mine))
    expected = StandardScaler().fit(plain.features[known.split == 1]).transform(plain.features)
    np.testing.assert_allclose(standard.features, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.load(mine / "my_graph.npz")["feat"], plain.features, "the source is untouched")


def test_normalisation_of_many_chunks(mine: Path) -> None:
    known = raw.known(nodes=900, features=3000)
    raw.write_neutral(mine / "wide.npz", known)
    graph = open_graph(prepare(spec("wide", normalize="standard"), data_dir=mine))
    expected = StandardScaler().fit(known.features[known.split == 1]).transform(known.features)
    np.testing.assert_allclose(graph.features, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["digits", "sbm", "kronecker", "twin"])
def test_generated_sets(name: str, tmp_path: Path) -> None:
    options = {"twin": {"of": "cora", "scale": 0.1}}.get(name, {})
    if name == "kronecker":
        options = {key: 8 for key in dataset_info(spec(name)).options if key == "scale"}
    info = dataset_info(spec(name, **options))
    directory = prepare(spec(name, **options), cache=tmp_path)
    graph = open_graph(directory)
    assert (graph.nodes, graph.features.shape[1], graph.num_classes) == (info.nodes, info.features, info.classes)
    assert graph.origin == info.origin
    defaults = {key: option.default for key, option in info.options.items()}
    assert prepare(spec(name, **(defaults | options)), cache=tmp_path) == directory, "defaults may be spelt out"


def test_the_full_split_of_planetoids_sets(mine: Path) -> None:
    """All labelled nodes train but those that validate or test; by default only those of the file do."""
    known = raw.known(nodes=30)
    labels = np.where(np.arange(30) == 7, -1, known.labels).astype(np.int64)
    few = (known.split == 1) & (np.arange(30) < 4)
    raw.write_neutral(mine / "cora.npz", known, label=labels, train_mask=few)
    public, full = (open_graph(prepare(spec("cora", **o), data_dir=mine)) for o in ({}, {"split": "full"}))
    np.testing.assert_array_equal(public.train_mask, few)
    np.testing.assert_array_equal(full.train_mask, (known.split == 1) & (labels >= 0))
    for key in ("val_mask", "test_mask", "labels", "features", "indices"):
        np.testing.assert_array_equal(getattr(full, key), getattr(public, key))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (spec("corra"), "unknown data set 'corra' (did you mean 'cora'?)"),
        (spec("../cora"), "unknown data set '../cora'"),
        (spec("cora", normalise="row"), "unknown option 'normalise' (did you mean 'normalize'?)"),
        (spec("cora", normalize="rows"), "'rows' is no normalisation (did you mean 'row'?)"),
        (spec("cora", normalize=3), "3 is no normalisation"),
        (spec("cora", split="fulll"), "'fulll' is no split (did you mean 'full'?)"),
        (spec("reddit", split="full"), "unknown option 'split'"),
        (spec("sbm", nodez=3), "unknown option 'nodez' (did you mean 'nodes'?)"),
        (spec("sbm", nodes="many"), "'many' is not of type int"),
        (spec("twin", of="redit"), "redit"),
    ],
)
def test_mistakes_are_one_clear_line(bad: DatasetSpec, message: str, mine: Path) -> None:
    for call in (dataset_info, prepare):
        with pytest.raises(UserError) as error:
            call(bad)
        assert message in str(error.value)
        assert "\n" not in str(error.value)


def test_a_damaged_file_is_not_cached(mine: Path, tmp_path: Path) -> None:
    path, cache = mine / "cora.npz", tmp_path / "cache"
    raw.write_neutral(path, raw.known())
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match=r"cora\.npz"):
        prepare(spec("cora"), data_dir=mine, cache=cache)
    one_way = replace(raw.known(), adjacency=np.triu(raw.known().adjacency))
    raw.write_neutral(path, one_way)
    with pytest.raises(DataError, match="not symmetric"):
        prepare(spec("cora"), data_dir=mine, cache=cache)
    assert [p for p in cache.rglob("*") if p.is_file() and not p.name.endswith((".lock", ".files.json"))] == []
    assert path.exists(), "the user's own file is never removed"


def _prepare(arguments: tuple[Path, Path]) -> str:
    return str(prepare(spec("my_graph"), data_dir=arguments[0], cache=arguments[1]))


@pytest.mark.slow
def test_two_processes_prepare_once(mine: Path, tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        first, second = pool.map(_prepare, [(mine, tmp_path / "cache")] * 2, chunksize=1)
    assert first == second
    assert len(list((tmp_path / "cache" / "datasets").glob("[!.]*"))) == 1


def test_unavailable_says_how_to_get_it(mine: Path, tmp_path: Path) -> None:
    with pytest.raises(DataUnavailable) as error:
        prepare(spec("pubmed"), data_dir=mine, cache=tmp_path)
    assert error.value.command == "harness data get pubmed"
    assert registry.dataset_info(spec("ppi")).nodes == 14_755


@pytest.mark.data
def test_real_files(data_dir: Path) -> None:
    cora = open_graph(prepare(spec("cora"), data_dir=data_dir))
    assert (cora.nodes, cora.edges, cora.note) == (2_708, 10_556, "from cora.npz")
    np.testing.assert_allclose(cora.features.sum(1), 1, rtol=1e-5)
    arxiv = open_graph(prepare(spec("ogbn-arxiv"), data_dir=data_dir))
    info = dataset_info(spec("ogbn-arxiv"))
    assert (arxiv.nodes, arxiv.edges, arxiv.num_classes) == (info.nodes, info.edges, info.classes)
