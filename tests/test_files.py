"""What is no regular file is refused at once, wherever a file is expected; what is too large, before it is read."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.data.formats import neutral, planetoid
from harness.data.formats.published import read_graphsaint, read_mislove, read_ogb
from harness.data.partition import File
from harness.data.prepared import map_npy, npy_chunks
from harness.errors import UserError
from harness.files import RECORD, open_regular, read_bytes, read_text, size_text
from harness.registry import find_plugins
from harness.results.environment import measurements
from harness.results.record import read_record
from harness.results.record_store import read_epochs, read_suite
from harness.spec import PartitionSpec
from harness.suite.suite_file import load_suite

pytestmark = pytest.mark.timeout(20)  # a FIFO that is opened blocks for ever


@pytest.fixture(params=["directory", "fifo", "socket", "null", "zero", "dangling"])
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Something that is no regular file."""
    path = tmp_path / "odd"
    if request.param == "directory":
        path.mkdir()
    elif request.param == "fifo":
        os.mkfifo(path)
    elif request.param == "socket":
        here = os.getcwd()
        os.chdir(tmp_path)  # the path of a socket may have 108 characters
        try:
            server = socket.socket(socket.AF_UNIX)
            server.bind("odd")
        finally:
            os.chdir(here)
    else:
        path.symlink_to(f"/dev/{request.param}" if request.param != "dangling" else tmp_path / "nowhere")
    yield path
    if request.param == "socket":
        server.close()


def _at(name: str, read: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Return a reader of what lies as `name` in a directory, the odd file linked there."""

    def run(path: Path) -> Any:
        home = path.parent / "home"
        (home / Path(name).parent).mkdir(parents=True)
        (home / name).symlink_to(path)
        (home / "work").mkdir()
        return read(home)

    return run


def _partition_file(path: Path) -> Any:
    return File(PartitionSpec(parts=2, method="file", file=path), File.Options()).parts(
        np.zeros(3, np.int64), np.zeros(0, np.int32)
    )


READERS: dict[str, Callable[[Path], Any]] = {
    "suite": load_suite,
    "plugin": lambda path: find_plugins([f"{path.parent}/./{path.name}"]),
    "record": read_record,
    "kept suite": read_suite,
    "epochs": read_epochs,
    "measurements": _at("reference.jsonl", measurements),
    "npy": lambda path: list(npy_chunks(path)),
    "prepared array": lambda path: map_npy(path, "delete it"),
    "partition": _partition_file,
    "npz": lambda path: neutral.info(path, "odd"),
    "ogb, binary": _at("raw/data.npz", lambda home: read_ogb(home, "odd", home / "work")),
    "ogb, text": _at("raw/num-node-list.csv.gz", lambda home: read_ogb(home, "odd", home / "work")),
    "mislove": _at("youtube-groupmemberships.txt.gz", lambda home: read_mislove(home, "odd", home / "work")),
    "graphsaint": _at("adj_full.npz", lambda home: read_graphsaint(home, "odd", home / "work")),
    "planetoid": _at("ind.odd.y", lambda home: planetoid.read(home, "odd", home / "work")),
}


@pytest.mark.parametrize("kind", READERS)
def test_what_is_no_file_is_refused_at_once(kind: str, odd: Path) -> None:
    """A FIFO has no writer, /dev/zero no end; a link that leads nowhere is a file that is missing."""
    if kind == "measurements" and not odd.exists():
        assert READERS[kind](odd) == []
        return
    with pytest.raises((UserError, FileNotFoundError)) as error:
        READERS[kind](odd)
    if odd.exists():
        assert isinstance(error.value, UserError)
        assert len(str(error.value).splitlines()) == 1
        assert "is a " in str(error.value)


def test_a_name_that_no_file_can_have_is_one_that_is_missing() -> None:
    with pytest.raises(FileNotFoundError):
        open_regular(Path("a\0b"))


@pytest.mark.parametrize("size", [0, 9, 10, 11, 5000])
def test_no_more_is_read_than_the_limit(size: int, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * size)
    if size <= 10:
        assert read_bytes(tmp_path / "f", 10) == b"x" * size
        return
    with pytest.raises(UserError, match=r"f: larger than 10 bytes \(is it"):
        read_bytes(tmp_path / "f", 10)


def test_a_file_whose_size_is_not_told_is_bounded_too() -> None:
    status = Path("/proc/self/status")
    assert status.stat().st_size == 0
    assert read_text(status, 1 << 20).startswith("Name:")
    with pytest.raises(UserError, match="larger than 100 bytes"):
        read_text(status, 100)


def test_a_sparse_record_of_a_terabyte_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "record.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match=f"larger than {size_text(RECORD)}"):
        read_record(tmp_path / "record.json")


def test_a_record_as_deep_as_a_stack_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text("[" * 200_000)
    with pytest.raises(UserError, match="damaged record: not JSON"):
        read_record(tmp_path / "record.json")


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 bytes"), (1023, "1023 bytes"), (1 << 20, "1 MiB"), (3 << 29, "1.5 GiB"), (1 << 90, None)]
)
def test_sizes_as_text(size: int, text: str | None) -> None:
    assert size_text(size) == (text or f"{float(1 << 30):.4g} EiB")
