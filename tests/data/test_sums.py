"""Arrays that are kept are held against their checksums; what is damaged, and that alone, is made again."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from launch.tiny import write_ring
from support import raw_formats as raw

from harness.data import registry
from harness.data.catalog import published
from harness.data.partition.cached import PartitionPaths, ensure_partitioned, find_partitioned, partition_fingerprint
from harness.data.prepared import SUMS, damage, fingerprint, locked, seal
from harness.data.registry import prepare
from harness.errors import DataError, UserError
from harness.spec import DatasetSpec, PartitionSpec

RING = DatasetSpec(name="ring")
HALVES = PartitionSpec(parts=2, method="chunk")


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def make(tmp_path: Path, told: list[str]) -> Callable[[], Path]:
    write_ring(tmp_path / "data")
    return lambda: prepare(RING, data_dir=tmp_path / "data", cache=tmp_path / "cache", report=told.append)


@pytest.fixture
def split(tmp_path: Path, told: list[str]) -> Callable[[Path], PartitionPaths]:
    where = {"cache": tmp_path / "cache", "inductive": True}
    return lambda graph: ensure_partitioned(graph, HALVES, **where, report=told.append)


def flip(path: Path, keep_time: bool = False) -> None:
    """Flip the highest bit of the last byte: the column of an edge is negative then."""
    times = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 128
    path.write_bytes(content)
    if keep_time:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_sums_are_those_of_zlib(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    content = np.random.default_rng(0).bytes(9 << 20)  # several chunks
    (tmp_path / "a" / "b.npy").write_bytes(content)
    (tmp_path / "other.json").write_text("{}")
    seal(tmp_path)
    assert (tmp_path / SUMS).read_text() == f'{{\n "a/b.npy": [\n  {9 << 20},\n  {zlib.crc32(content)}\n ]\n}}\n'
    assert damage(tmp_path) is None
    flip(tmp_path / "a" / "b.npy")
    assert damage(tmp_path) == "a/b.npy changed since it was made"
    (tmp_path / "a" / "b.npy").unlink()
    assert damage(tmp_path) == "a/b.npy changed since it was made"
    (tmp_path / SUMS).write_text('{"a/b.npy": 3}')
    assert damage(tmp_path) == f"{SUMS} changed since it was made"
    assert damage(tmp_path / "a") is None


@pytest.mark.parametrize("keep_time", [False, True])
@pytest.mark.parametrize("name", ["indices.npy", "indptr.npy", "features.npy", "labels.npy", "test_mask.npy"])
def test_a_flipped_bit_is_found_and_the_graph_made_again(
    make: Callable[[], Path], told: list[str], name: str, keep_time: bool
) -> None:
    graph = make()
    content, hashed = (graph / name).read_bytes(), fingerprint(graph)
    flip(graph / name, keep_time)
    assert fingerprint(graph) == hashed  # damage is no other data: trials that ran on it stay what they are
    assert make() == graph
    assert (graph / name).read_bytes() == content
    assert told == [f"damaged: {name} changed since it was made; set aside as {graph}.damaged, and made again"]
    assert (Path(f"{graph}.damaged") / name).read_bytes() != content
    flip(graph / name, keep_time)
    make()
    make()
    assert len(told) == 2


@pytest.mark.parametrize("name", ["full/parts.npy", "train/indices.npy", "full/rank1/indices.npy"])
def test_a_flipped_bit_in_a_partition(
    make: Callable[[], Path], split: Callable[[Path], PartitionPaths], told: list[str], name: str
) -> None:
    paths = split(make())
    file, hashed = paths.full.parent / name, partition_fingerprint(paths)
    content = file.read_bytes()
    flip(file)
    assert partition_fingerprint(paths) == hashed
    assert split(make()) == paths
    assert file.read_bytes() == content
    assert len(told) == 1
    assert f"{name} changed since it was made" in told[0]


def test_a_disk_that_fails_for_a_moment_proves_nothing(
    make: Callable[[], Path], told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = make()
    with monkeypatch.context() as patch:
        patch.setattr(zlib, "crc32", failing)
        with pytest.raises(OSError, match="Input/output"):
            make()
    assert make() == graph
    assert told == []


def failing(*_: object) -> int:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.fixture
def download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Reddit, small, as `fetch` leaves it."""
    monkeypatch.delenv("HARNESS_DATA", raising=False)
    monkeypatch.setattr(registry, "published", lambda: {"reddit": replace(published()["reddit"], urls=("http://x",))})
    files = raw.write_dgl_reddit(tmp_path / "cache" / "raw" / "reddit", raw.known(nodes=40))
    seal(files, "*")
    return files


REDDIT = DatasetSpec(name="reddit", options={"normalize": "none"})


def test_a_reader_that_fails_for_a_moment_keeps_the_download(
    download: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.read_bytes() for path in download.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr("zipfile.ZipExtFile.read", failing)
        with pytest.raises(DataError, match=r"Input/output error.*try again; to download it anew, remove .*reddit"):
            prepare(REDDIT, cache=tmp_path / "cache")
    assert {path: path.read_bytes() for path in download.iterdir()} == before
    assert prepare(REDDIT, cache=tmp_path / "cache").is_dir()


def test_a_download_that_changed_on_the_disk_is_removed(download: Path, tmp_path: Path) -> None:
    file = download / "reddit_graph.npz"
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"reddit_graph.npz changed since it was made; removed \(harness data get red"):
        prepare(REDDIT, cache=tmp_path / "cache")
    assert not download.exists()


def test_a_download_older_than_checksums_is_kept(download: Path, tmp_path: Path) -> None:
    (download / SUMS).unlink()
    (download / "reddit_graph.npz").write_bytes(b"PK")
    with pytest.raises(DataError, match="to download it anew, remove"):
        prepare(REDDIT, cache=tmp_path / "cache")
    assert (download / "reddit_graph.npz").exists()


@pytest.fixture
def others() -> Iterator[Path]:
    """A place of another user's (of root's, if root tests) that one may read; all in it is read-only then."""
    place = Path(tempfile.mkdtemp(prefix="harness-others-"))
    place.chmod(0o755)
    yield place
    if os.getuid() == 0:
        os.seteuid(0)
    for path in [place, *place.rglob("*")]:
        path.chmod(0o755)
    shutil.rmtree(place)


def give_away(place: Path) -> None:
    for path in place.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    place.chmod(0o555)
    if os.getuid() == 0:
        os.seteuid(65534)


def test_somebody_elses_cache_is_used_as_it_is(others: Path, told: list[str]) -> None:
    write_ring(others / "data")
    where = {"data_dir": others / "data", "cache": others / "cache", "report": told.append}
    graph = prepare(RING, **where)
    options = {"inductive": False, "cache": others / "cache", "report": told.append}
    made = ensure_partitioned(graph, HALVES, **options)
    give_away(others)
    assert prepare(RING, **where) == graph
    assert ensure_partitioned(graph, HALVES, **options) == made
    assert find_partitioned(graph, HALVES, inductive=False, cache=others / "cache") == made
    with pytest.raises(PermissionError) as error:  # told in a line by who calls
        ensure_partitioned(graph, HALVES.model_copy(update={"parts": 3}), **options)
    assert str(others / "cache") in str(error.value)
    assert told == []


def test_damage_in_somebody_elses_cache_is_told(others: Path) -> None:
    write_ring(others / "data")
    where = {"data_dir": others / "data", "cache": others / "cache"}
    flip(prepare(RING, **where) / "indices.npy")
    give_away(others)
    with pytest.raises((UserError, PermissionError)) as error:
        prepare(RING, **where)
    assert str(others / "cache" / "datasets") in str(error.value)


def test_a_lock_is_not_made_through_a_link(tmp_path: Path) -> None:
    (tmp_path / ".x.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="Too many levels of symbolic links"), locked(tmp_path / "x"):
        pass
    assert not (tmp_path / "elsewhere").exists()
