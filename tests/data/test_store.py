"""Prepared directories and the cache tools: whole or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from harness.caches import cache_root
from harness.data.graph import GraphData
from harness.data.prepared import atomic_directory, locked, open_graph, write_graph
from harness.errors import DataError
from harness.files import write_whole


def make_graph(edges: bool = True) -> GraphData:
    nodes = 4
    return GraphData(
        name="path",
        indptr=np.array([0, 1, 2, 2, 2] if edges else [0] * 5, dtype=np.int64),
        indices=np.array([1, 0] if edges else [], dtype=np.int32),
        features=np.arange(8, dtype=np.float32).reshape(nodes, 2),
        labels=np.array([0, 1, 2, -1]),
        train_mask=np.array([True, False, False, False]),
        val_mask=np.array([False, True, False, False]),
        test_mask=np.array([False, False, True, False]),
        num_classes=3,
        multilabel=False,
        origin="twin",
        note="twin of something",
    )


@pytest.mark.parametrize("edges", [True, False])
def test_round_trip_is_exact_and_memory_mapped(tmp_path: Path, edges: bool) -> None:
    graph = make_graph(edges)
    write_graph(graph, tmp_path / "g")
    back = open_graph(tmp_path / "g")
    for field in dataclasses.fields(GraphData):
        before, after = getattr(graph, field.name), getattr(back, field.name)
        if isinstance(before, np.ndarray):
            np.testing.assert_array_equal(before, after)
            assert before.dtype == after.dtype
            assert isinstance(after, np.memmap)
            assert not after.flags.writeable
        else:
            assert before == after
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g"]


def test_a_wide_array_is_written_by_chunks(tmp_path: Path) -> None:
    graph = make_graph()
    rng = np.random.default_rng(0)
    wide = dataclasses.replace(graph, features=rng.random((4, 600_000), dtype=np.float32)[:, ::2])
    write_graph(wide, tmp_path / "g")
    np.testing.assert_array_equal(open_graph(tmp_path / "g").features, wide.features)


def test_a_bad_graph_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        write_graph(dataclasses.replace(make_graph(), num_classes=2), tmp_path / "g")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["indices.npy", "features.npy", "meta.json", "train_mask.npy"])
@pytest.mark.parametrize("damage", ["missing", "empty", "half", "text"])
def test_a_damaged_directory_is_a_data_error(tmp_path: Path, name: str, damage: str) -> None:
    write_graph(make_graph(), tmp_path / "g")
    path = tmp_path / "g" / name
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "half": whole[: len(whole) // 2], "text": b"<html>" * 99}[damage])
    with pytest.raises(DataError) as error:
        open_graph(tmp_path / "g")
    assert name in str(error.value)


@pytest.mark.parametrize(
    ("key", "value"), [("format", 999), ("nodes", 7), ("edges", "2"), ("note", None), ("multilabel", 3)]
)
def test_a_wrong_meta_is_a_data_error(tmp_path: Path, key: str, value: object) -> None:
    write_graph(make_graph(), tmp_path / "g")
    path = tmp_path / "g" / "meta.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(DataError):
        open_graph(tmp_path / "g")


def test_an_object_array_is_not_unpickled(tmp_path: Path) -> None:
    write_graph(make_graph(), tmp_path / "g")
    np.save(tmp_path / "g" / "labels.npy", np.array([{}, {}, {}, {}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"labels\.npy"):
        open_graph(tmp_path / "g")


def test_atomic_directory_removes_on_error_and_replaces_on_success(tmp_path: Path) -> None:
    target = tmp_path / "cache" / "x"
    with pytest.raises(FileNotFoundError), atomic_directory(target) as work:
        (work / "half").with_suffix("").touch() or (work / "missing").read_text()
    assert list(target.parent.iterdir()) == []
    for text in ("first", "second"):
        with atomic_directory(target) as work:
            (work / "file").write_text(text)
            assert (target / "file").exists() == (text == "second")
        assert (target / "file").read_text() == text
    assert [p.name for p in target.parent.iterdir()] == ["x"]


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys; from harness.data.prepared import atomic_directory\n"
        "with atomic_directory(pathlib.Path(sys.argv[1])) as work:\n"
        "    (work / 'f').write_text('x'); os._exit(9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "x")], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    with atomic_directory(tmp_path / "x") as mine, atomic_directory(tmp_path / "x"):
        assert mine.exists(), "the directory of a living process stays"
        assert len(list(tmp_path.iterdir())) == 2


def test_of_two_put_in_place_at_once_one_stays_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without locks another may put its own there between the two renames."""
    target, rename = tmp_path / "x", Path.rename

    def overtaken(self: Path, to: Path) -> Path:
        if to == target:
            target.mkdir()
            (target / "file").write_text("theirs")
        return rename(self, to)

    with atomic_directory(target) as work:
        (work / "file").write_text("mine")
        monkeypatch.setattr(Path, "rename", overtaken)
    assert (target / "file").read_text() == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_two_with_one_process_id_write_a_file_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts and containers that share a directory do not share process ids."""
    file, replace = tmp_path / "x", os.replace

    def overtaken(*paths: Path) -> None:
        monkeypatch.setattr(os, "replace", replace)
        write_whole(file, "theirs")
        replace(*paths)

    monkeypatch.setattr(os, "replace", overtaken)
    write_whole(file, "mine")
    assert file.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EIO])
def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def flock(*arguments: object) -> None:
        raise OSError(code, "planted")

    monkeypatch.setattr(fcntl, "flock", flock)
    expected = pytest.raises(OSError, match="planted") if code == errno.EIO else contextlib.nullcontext()
    with expected, locked(tmp_path / "x"):
        pass


def test_the_lock_excludes_other_processes(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys, time; from harness.data.prepared import locked\n"
        "with locked(pathlib.Path(sys.argv[1])):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "x")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        got = threading.Event()

        def take() -> None:
            with locked(tmp_path / "x"):
                got.set()

        thread = threading.Thread(target=take)
        thread.start()
        time.sleep(0.2)
        assert not got.is_set()
        other.kill()
        thread.join(10)
        assert got.is_set(), "the kernel drops the lock of a killed process"


def test_cache_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path))
    assert cache_root() == tmp_path
    monkeypatch.delenv("HARNESS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "harness"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path(os.path.expanduser("~/.cache/harness"))
