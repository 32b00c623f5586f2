"""Damaged files: a reader returns a sound graph or raises DataError; it never runs what a pickle says."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import raw_formats as raw

from harness.data.formats import neutral, planetoid
from harness.data.formats.published import read_dgl_reddit, read_graphsage, read_graphsaint, read_mislove, read_ogb
from harness.data.graph import GraphData, check_graph
from harness.errors import DataError

ARRAYS = ("indptr", "indices", "features", "labels", "train_mask", "val_mask", "test_mask")
Reader = Callable[[Path, str, Path], GraphData]


def _neutral(directory: Path, graph: raw.Known) -> Path:
    directory.mkdir()
    return raw.write_neutral(directory / "g.npz", graph).parent


def _read_neutral(source: Path, name: str, work: Path) -> GraphData:
    return neutral.read(source / "g.npz", name, work)


def _planetoid(directory: Path, graph: raw.Known) -> Path:
    return raw.write_planetoid(directory, "tiny", graph)


def _mislove(directory: Path, graph: raw.Known) -> Path:
    pairs = raw.one_way(graph).T + 1
    return raw.write_mislove(directory, pairs, pairs)


# Formats whose every byte is under a checksum must return the very graph that was written, or refuse.
FORMATS: dict[str, tuple[Callable[[Path, raw.Known], Path], Reader, bool]] = {
    "neutral": (_neutral, _read_neutral, True),
    "dgl_reddit": (raw.write_dgl_reddit, read_dgl_reddit, True),
    "ogb_csv": (raw.write_ogb_csv, read_ogb, True),
    "ogb_binary": (raw.write_ogb_binary, read_ogb, True),
    "mislove": (_mislove, read_mislove, True),
    "graphsage": (raw.write_graphsage, read_graphsage, False),
    "graphsaint": (raw.write_graphsaint, read_graphsaint, False),
    "planetoid": (_planetoid, planetoid.read, False),
}


def damaged(data: bytes, draw: Callable[[st.SearchStrategy[Any]], Any]) -> bytes:
    """`data` cut, with flipped bits, with a changed or doubled stretch, or replaced by something foreign."""
    kind = draw(st.sampled_from(["cut", "flip", "flips", "byte", "zeros", "twice", "foreign"]))
    position = draw(st.integers(0, max(0, len(data) - 1)))
    changed = bytearray(data)
    if kind == "cut":
        return data[:position]
    if kind == "foreign":
        return draw(st.sampled_from([b"", b"<html>404</html>", b"\x93NUMPY", b"PK\x05\x06" + b"\0" * 18, b"\x80\x02."]))
    if kind == "twice":
        return data[:position] + data[position : position + 64] + data[position:]
    if kind == "zeros":
        changed[position : position + 16] = bytes(len(changed[position : position + 16]))
    elif kind == "byte" and data:
        changed[position] = draw(st.integers(0, 255))
    elif data:
        for _ in range(1 if kind == "flip" else 8):
            changed[draw(st.integers(0, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(changed)


@cache
def sample(name: str) -> tuple[dict[Path, bytes], dict[str, np.ndarray]]:
    """Files of one format by relative path, and the arrays of the graph in them."""
    write, read, _ = FORMATS[name]
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        (root / "work").mkdir()
        source = write(root / "source", raw.known())
        graph = read(source, "tiny", root / "work")
        files = {p.relative_to(source): p.read_bytes() for p in sorted(source.rglob("*")) if p.is_file()}
        return files, {key: np.array(getattr(graph, key)) for key in ARRAYS}


def attempt(read: Callable[[], GraphData]) -> tuple[GraphData | None, str]:
    """The checked graph, or None and the message of the DataError."""
    try:
        graph = read()
        check_graph(graph, "tiny", symmetric=True)
    except DataError as error:
        return None, str(error)
    return graph, ""


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_damaged_file_is_refused_or_harmless(name: str, data: st.DataObject) -> None:
    _, read, checksummed = FORMATS[name]
    files, whole = sample(name)
    victim = data.draw(st.sampled_from(list(files)))
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        (root / "work").mkdir()
        for path, content in files.items():
            target = root / "source" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(damaged(content, data.draw) if path == victim else content)
        graph, message = attempt(lambda: read(root / "source", "tiny", root / "work"))
        if graph is None:
            assert str(root) in message or "tiny" in message
            assert "\n" not in message
        elif checksummed:
            for key, array in whole.items():
                np.testing.assert_array_equal(getattr(graph, key), array, err_msg=key)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_arrays_of_any_shape_and_dtype(data: st.DataObject) -> None:
    """Neutral files with arrays of wrong shapes and dtypes, whole as files."""
    key = data.draw(st.sampled_from(["indptr", "indices", "feat", "label", "train_mask", "val_mask", "test_mask"]))
    dtype = data.draw(st.sampled_from(["i1", "i4", "i8", "u8", "f2", "f8", "?", "c8", "S3", "U2", "M8[s]", "f4,i4"]))
    shape = data.draw(st.lists(st.sampled_from([0, 1, 2, 19, 20, 21]), max_size=3))
    filled = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as temporary:
        array = np.zeros(shape, dtype=dtype)
        array.view(np.uint8).fill(filled) if array.ndim and array.size and dtype != "?" else None
        path = raw.write_neutral(Path(temporary) / "g.npz", raw.known(), **{key: array})
        graph, message = attempt(lambda: neutral.read(path, "tiny", Path(temporary)))
        assert graph is not None or str(path) in message or "tiny" in message


@pytest.mark.parametrize("name", FORMATS)
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    write, read, _ = FORMATS[name]
    (tmp_path / "work").mkdir()
    files = sorted(p.relative_to(tmp_path / "0") for p in write(tmp_path / "0", raw.known()).rglob("*") if p.is_file())
    for k, file in enumerate(files, 1):
        source = write(tmp_path / str(k), raw.known())
        (source / file).unlink()
        if file.name in ("adj_train.npz", "ind.tiny.x"):  # implied by the others, never read
            continue
        with pytest.raises(DataError) as error:
            read(source, "tiny", tmp_path / "work")
        assert file.name in str(error.value)


class _Bomb:
    """Pickles as a call that leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("part", ["x", "y", "tx", "allx", "graph"])
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path: Path, protocol: int, part: str) -> None:
    source = raw.write_planetoid(tmp_path / "s", "tiny", raw.known())
    (tmp_path / "work").mkdir()
    payload = pickle.dumps({0: _Bomb(tmp_path / "boom")}, protocol=protocol)
    (source / f"ind.tiny.{part}").write_bytes(payload)
    if part != "x":  # x is a prefix of allx: not needed, so not read
        with pytest.raises(DataError, match=rf"ind\.tiny\.{part}"):
            planetoid.read(source, "tiny", tmp_path / "work")
    with pytest.raises(DataError, match=r"open|opcode"):
        planetoid.load_pickle(source / f"ind.tiny.{part}")
    assert not (tmp_path / "boom").exists()
    pickle.loads(payload)
    assert (tmp_path / "boom").exists(), "the payload works where it is allowed to"


@pytest.mark.parametrize(
    "payload",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cscipy.sparse.csr\ncsr_matrix.__init__\n.",
        b"c__builtin__\neval\n(S'1'\ntR.",
        b"\x80\x02cbuiltins\ngetattr\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
        b"Pid\n.",
        b"\x82\x01.",
        b"\x80\x02Nr\xff\xff\xff\x7f.",  # a memo number that would reserve 16 GB
        b"\x80\x02]\x94" + b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x80\x02K\x01.",
        b"\x80\x02cnumpy\ndtype\n.",
    ],
)
def test_a_pickle_of_anything_else_is_refused(tmp_path: Path, payload: bytes) -> None:
    (tmp_path / "ind.x").write_bytes(payload)
    with pytest.raises(DataError):
        planetoid.load_pickle(tmp_path / "ind.x")


def test_an_object_array_is_refused_and_not_run(tmp_path: Path) -> None:
    bomb = np.array([_Bomb(tmp_path / "boom")] * 20, dtype=object)
    path = raw.write_neutral(tmp_path / "g.npz", raw.known(), feat=bomb)
    with pytest.raises(DataError, match="pickle"):
        neutral.read(path, "g", tmp_path)
    source = raw.write_graphsaint(tmp_path / "s", raw.known())
    np.save(source / "feats.npy", bomb, allow_pickle=True)
    with pytest.raises(DataError, match="pickle"):
        read_graphsaint(source, "g", tmp_path)
    assert not (tmp_path / "boom").exists()
