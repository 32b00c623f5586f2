"""Files that ask for more than they are: refused before anything is unpacked, in a process that has little memory."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support import raw_formats as raw
from support.tiers import tiered

from harness.data.catalog import Bounds
from harness.data.download import unpack
from harness.data.formats import MAX_WIDTH, csv_chunks, neutral, planetoid
from harness.data.formats.published import read_graphsaint
from harness.errors import DataError

READ = """
import resource, sys
from pathlib import Path
import numpy, pandas, scipy.sparse, harness.data.graph
from harness.data.formats.published import READERS
from harness.errors import DataError
format, name, root = sys.argv[1:]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    READERS[format](Path(root, "s"), name, Path(root, "work"))
except DataError as error:
    print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def refusal(format: str, name: str, root: Path) -> tuple[str, int]:
    """Read what is in `root/s` in a process of its own; return what it says, and the KiB that it grew by."""
    (root / "work").mkdir()
    arguments = [sys.executable, "-c", READ, format, name, str(root)]
    said = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    assert len(said) == 2, said
    return said[0], int(said[1])


def bomb(path: Path, unpacked: int, line: bytes = b"\n") -> None:
    """Write a gzip file of so many bytes of a line, a thousandth as large."""
    with gzip.open(path, "wb", compresslevel=9) as stream:
        block = line * ((1 << 20) // len(line))
        for _ in range(unpacked >> 20):
            stream.write(block)


LINES = {"blank": b"\n", "comments": b"#" * 63 + b"\n", "one line": b"1", "rows": b"1\n", "columns": b"1,"}


@pytest.mark.slow
@pytest.mark.parametrize("line", tiered(LINES, ["rows", "one line"]))
@pytest.mark.parametrize(
    "file", tiered(["raw/num-node-list", "raw/node-label", "raw/edge", "split/time/train"], ["raw/edge"])
)
def test_a_gzip_bomb_is_refused_as_it_is_unpacked(line: str, file: str, tmp_path: Path) -> None:
    raw.write_ogb_csv(tmp_path / "s", raw.known())
    bomb(tmp_path / "s" / f"{file}.csv.gz", 400 << 20, LINES[line])
    said, grown = refusal("ogb", "ogbn-arxiv", tmp_path)
    assert f"{file}.csv.gz" in said
    assert grown < 200 << 10


@pytest.mark.slow
def test_a_gzip_bomb_of_memberships_is_refused(tmp_path: Path) -> None:
    pairs = raw.one_way(raw.known()).T + 1
    raw.write_mislove(tmp_path / "s", pairs, pairs)
    bomb(tmp_path / "s" / "youtube-groupmemberships.txt.gz", 600 << 20, b"1\t1\n")
    said, grown = refusal("mislove", "youtube", tmp_path)
    assert "at most 7476107 of 2 were expected" in said
    assert grown < 400 << 10


def test_rows_of_text_come_whole(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 9, (300_000, 3))
    text = "".join(",".join(map(str, row)) + "\n" for row in values.tolist())
    (tmp_path / "t.gz").write_bytes(gzip.compress(text.encode()))
    np.testing.assert_array_equal(np.concatenate(list(csv_chunks(tmp_path / "t.gz", np.int64, 300_000, 3))), values)
    with pytest.raises(DataError, match="rows, at most 299999 of 3"):
        list(csv_chunks(tmp_path / "t.gz", np.int64, 299_999, 3))
    with pytest.raises(DataError, match="has 3 columns, at most 300000 of 2"):
        list(csv_chunks(tmp_path / "t.gz", np.int64, 300_000, 2))


def _npz(path: Path, **members: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)


def _header(shape: tuple[int, ...], dtype: str) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def claim(path: Path, size: int) -> None:
    """Have every member of a zip file's directory say that it holds so many bytes."""
    data = bytearray(path.read_bytes())
    at = data.find(b"PK\x01\x02")
    while at >= 0:
        data[at + 24 : at + 28] = struct.pack("<I", size)
        at = data.find(b"PK\x01\x02", at + 4)
    path.write_bytes(data)


def test_a_small_npz_that_says_it_is_large_is_refused(tmp_path: Path) -> None:
    """4 KB whose header and directory agree on 4 GiB of row pointers."""
    (tmp_path / "s").mkdir()
    count = ((1 << 32) - 1 - 128) // 8
    _npz(tmp_path / "s" / "reddit_data.npz", label=_header((count,), "<i8") + bytes(4096))
    _npz(tmp_path / "s" / "reddit_graph.npz", row=b"")
    claim(tmp_path / "s" / "reddit_data.npz", 128 + 8 * count)
    said, grown = refusal("dgl_reddit", "unpublished", tmp_path)
    assert "says that it holds 4 GiB, of " in said
    assert grown < 50 << 10


def test_what_is_wider_than_memory_or_disk_is_refused(tmp_path: Path) -> None:
    graph = raw.known()
    indptr, indices = np.zeros(21, np.int64), np.zeros(0, np.int32)
    sparse = {"feat": None, "feat_indptr": indptr, "feat_indices": indices, "feat_data": np.zeros(0, np.float32)}
    path = raw.write_neutral(tmp_path / "g.npz", graph, **sparse, feat_shape=np.array([20, MAX_WIDTH + 1]))
    with pytest.raises(DataError, match=r"features of shape \[20, 1048577\]"):
        neutral.read(path, "g", tmp_path)


def test_a_huge_sparse_matrix_needs_the_disk_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from collections import namedtuple

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("harness.data.formats.shutil.disk_usage", lambda _: usage(1, 1, 99))
    with pytest.raises(DataError, match="takes 400 bytes when it is prepared, 99 bytes are free in"):
        neutral.read(raw.write_neutral(tmp_path / "g.npz", raw.known()), "g", tmp_path)


def _too_wide(root: Path) -> None:
    raw.write_graphsaint(root / "s", raw.known(features=626))


def _too_many_nodes(root: Path) -> None:
    nodes = 111_563
    _npz(root / "adj_full.npz", indptr=_header((nodes + 1,), "<i8") + bytes(8 * nodes + 8))
    (root / "s").mkdir()
    (root / "adj_full.npz").rename(root / "s" / "adj_full.npz")


@pytest.mark.parametrize(
    ("write", "said"),
    [(_too_wide, "has 626 features, flickr at most 625"), (_too_many_nodes, "111,563 nodes, flickr at most 111,562")],
)
def test_more_than_the_catalogue_says(write: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    """Flickr has 89,250 nodes of 500 features; a quarter more is let pass."""
    write(tmp_path)
    with pytest.raises(DataError, match=said):
        read_graphsaint(tmp_path / "s", "flickr", tmp_path)


def test_an_archive_that_unpacks_to_more_than_is_published_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("big", bytes(1 << 20))
    unpack(tmp_path / "a.zip", tmp_path / "fits", "http://x/a.zip", 1 << 20)
    with pytest.raises(DataError, match="unpacks to 1 MiB, the published files have at most 1024 KiB"):
        unpack(tmp_path / "a.zip", tmp_path / "no", "http://x/a.zip", (1 << 20) - 1)
    assert list((tmp_path / "no").iterdir()) == []
    assert Bounds.of("cora").unpacked < 300 << 20 < Bounds.of("reddit").unpacked


def test_one_list_for_every_node_is_not_written_out(tmp_path: Path) -> None:
    """2,700 nodes that share one list of 100,000 neighbours: 270 million edges in 600 KB."""
    raw.write_planetoid(tmp_path / "s", "cora", raw.known())
    shared = list(range(20)) * 5_000
    (tmp_path / "s" / "ind.cora.graph").write_bytes(pickle.dumps(dict.fromkeys(range(20), shared), protocol=2))
    said, grown = refusal("planetoid", "cora", tmp_path)
    assert "ind.cora.graph: has 2,000,000 edges, cora at most 13,195" in said
    assert grown < 50 << 10


@pytest.mark.parametrize(
    "payload",
    [
        b"\x80\x02}" + b"N" + b"\x85" * 200_000 + b"K\x01s.",  # a tuple in a tuple in ...: hashed by recursion
        b"\x80\x02c__builtin__\nlist\nq\x00" + b"]\x94" + b"K\x01a" * 10 + b"\x85R.",
    ],
    ids=["nested", "copied"],
)
def test_a_pickle_that_would_overrun_the_stack_or_copy_is_refused(payload: bytes, tmp_path: Path) -> None:
    (tmp_path / "ind.x").write_bytes(payload)
    with pytest.raises(DataError, match="damaged or foreign"):
        planetoid.load_pickle(tmp_path / "ind.x")


def test_the_unpacked_pickle_would_have_crashed() -> None:
    """The test above can fail: Python's own unpickler does not survive the nested tuples."""
    program = "import pickle; pickle.loads(b'\\x80\\x02}N' + b'\\x85' * 2_000_000 + b'K\\x01s.')"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60).returncode < 0
