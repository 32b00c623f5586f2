"""Others' graphs: publishers' formats, archives, partitions."""

from __future__ import annotations

import gzip
import io
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st
from support import raw_formats as raw

from harness.data.download import unpack
from harness.data.formats import neutral
from harness.data.graph import GraphData, check_graph
from harness.data.partition import File
from harness.spec import PartitionSpec

from .target import JSON, Files, Target, as_json

Reader = Callable[[Path, str, Path], GraphData]


class FormatTarget(Target):
    """A format of graphs: read, and checked as `prepare` does."""

    published: ClassVar[str]

    def write(self, folder: Path, graph: raw.Known) -> None:
        """Write a valid graph."""
        raise NotImplementedError

    def graph(self, source: Path, work: Path) -> GraphData:
        """Read it."""
        raise NotImplementedError

    def samples(self, folder: Path) -> list[Files]:
        """See `Target`."""
        found = []
        for number, graph in enumerate((raw.known(), raw.known(nodes=31, features=3, seed=1))):
            home = folder / str(number)
            home.mkdir()
            self.write(home, graph)
            found.append({str(p.relative_to(home)): p.read_bytes() for p in sorted(home.rglob("*")) if p.is_file()})
        return found

    def prepare(self, folder: Path) -> None:
        """See `Target`."""
        shutil.rmtree(folder.parent / "work", ignore_errors=True)
        (folder.parent / "work").mkdir()

    def read(self, folder: Path) -> object:
        """See `Target`."""
        graph = self.graph(folder, folder.parent / "work")
        return check_graph(graph, folder, symmetric=True)

    def strategy(self, files: Files) -> st.SearchStrategy[tuple[str, bytes]]:
        """Whole files of the right kind with other content."""
        return st.sampled_from(self.victims(files)).flatmap(
            lambda file: st.tuples(st.just(file), _like(file, files[file]))
        )


DTYPES = ("i1", "i4", "i8", "u8", "f2", "f4", "f8", "?", "c8", "S3", "U2", "M8[s]", "f4,i4", ">i8", "O")
SIZES = st.sampled_from([0, 1, 2, 5, 19, 20, 21, 31, 32, 1 << 40])


def _array(draw: st.DrawFn) -> bytes:
    """An `.npy` of any type and shape, whose body may be another's."""
    shape, dtype = tuple(draw(st.lists(SIZES, max_size=3))), draw(st.sampled_from(DTYPES))
    stream, kind = io.BytesIO(), np.dtype([("f0", "f4"), ("f1", "i4")]) if "," in dtype else np.dtype(dtype)
    header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": draw(st.booleans()), "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    size = min(4096, int(np.prod(shape, dtype=object)) * kind.itemsize)
    body = draw(st.sampled_from([b"\0", b"\1\0\0\0\0\0\0\0", b"\xff", b"\x7f"]))
    return stream.getvalue() + (body * size)[: size + draw(st.sampled_from([0, 0, 0, -1, 1]))]


ARRAYS = st.composite(_array)()


def _npz(data: bytes, member: str, array: bytes) -> bytes:
    """Return a zip file with one member replaced."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, array if name == member else old.read(name))
    return out.getvalue()


def _like(file: str, data: bytes) -> st.SearchStrategy[bytes]:
    """Return a strategy of files of the kind of one."""
    if file.endswith(".npz"):
        members = st.sampled_from(zipfile.ZipFile(io.BytesIO(data)).namelist())
        return st.tuples(members, ARRAYS).map(lambda pair: _npz(data, *pair))
    if file.endswith(".npy"):
        return ARRAYS
    if file.endswith(".gz"):
        numbers = st.sampled_from(
            ["0", "1", "2", "19", "20", "-1", "1e3", "nan", "x", "9" * 30, "", " ", "#", "0x1", "1.5"]
        )
        rows = st.lists(st.lists(numbers, min_size=1, max_size=4), max_size=25)
        return st.tuples(rows, st.sampled_from([",", "\t", " "])).map(_gzipped)
    if file.endswith(".json"):
        keys = st.sampled_from(["0", "1", "19", "20", "-1", "x", "tr", "va", "te", ""])
        return st.dictionaries(keys, JSON, max_size=25).map(as_json) | JSON.map(as_json)
    return st.sampled_from(PICKLED).map(lambda value: pickle.dumps(value, protocol=2)) | st.binary(max_size=60)


PICKLED: tuple[Any, ...] = (
    *({}, {0: [1], 1: [0]}, {0: "ab"}, {"a": [1]}, {0: [[1]]}, {0: [2**70]}, {0: None}, [], 1, None, "x", {None: []}),
    *(np.zeros((3, 2)), np.zeros(3, "i4"), np.array([[0, 1]] * 6), np.zeros((0, 3)), np.array(5), np.array(["a"])),
)


def _gzipped(table: tuple[list[list[str]], str]) -> bytes:
    rows, separator = table
    return gzip.compress("".join(separator.join(row) + "\n" for row in rows).encode(), 1)


class NeutralTarget(FormatTarget):
    """The neutral `.npz`, what is told of it first, and the graph; sparse, weighted and multi-label too."""

    name = "neutral"

    def samples(self, folder: Path) -> list[Files]:
        """See `Target`."""
        return [*super().samples(folder), self._richer(folder)]

    def _richer(self, folder: Path) -> Files:
        graph = raw.known(multilabel=True)
        features = {"feat_indptr": np.arange(21), "feat_indices": np.arange(20) % 5, "feat_data": np.ones(20, "f4")}
        more = {"feat": None, "feat_shape": np.array([20, 5]), "weight": np.ones(graph.csr.nnz, "f4"), **features}
        return {"g.npz": raw.write_neutral(folder / "r.npz", graph, **more).read_bytes()}

    def write(self, folder: Path, graph: raw.Known) -> None:
        """See `FormatTarget`."""
        raw.write_neutral(folder / "g.npz", graph)

    def graph(self, source: Path, work: Path) -> GraphData:
        """See `FormatTarget`."""
        neutral.info(source / "g.npz", "g")
        return neutral.read(source / "g.npz", "g", work)


def format_target(
    name: str, published: str, writer: Callable[[Path, raw.Known], object], reader: Reader
) -> type[FormatTarget]:
    """Return the target of a publisher's format, read under the name of a set that has it."""

    def write(self: FormatTarget, folder: Path, graph: raw.Known) -> None:
        shutil.rmtree(folder)
        writer(folder, graph)

    def graph(self: FormatTarget, source: Path, work: Path) -> GraphData:
        return reader(source, published, work)

    return type(name, (FormatTarget,), {"name": name, "write": write, "graph": graph})


def write_mislove(folder: Path, graph: raw.Known) -> None:
    pairs = raw.one_way(graph).T + 1
    folder.mkdir()
    raw.write_mislove(folder, pairs, pairs)


class ArchiveTarget(Target):
    """A publisher's zip file, unpacked."""

    name = "archive"

    def samples(self, folder: Path) -> list[Files]:
        """See `Target`."""
        found = []
        for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            stream = io.BytesIO()
            with zipfile.ZipFile(stream, "w", compression) as archive:
                archive.writestr("d/a.npz", b"0" * 300)
                archive.writestr("d/b.csv", "x" * 40)
            found.append({"a.zip": stream.getvalue()})
        return found

    def prepare(self, folder: Path) -> None:
        """See `Target`."""
        shutil.rmtree(folder.parent / "out", ignore_errors=True)

    def read(self, folder: Path) -> object:
        """See `Target`."""
        return unpack(folder / "a.zip", folder.parent / "out", "http://host/a.zip", 1 << 20)

    def named(self, folder: Path) -> str:
        """See `Target`."""
        return "host/a.zip"

    def strategy(self, files: Files) -> st.SearchStrategy[tuple[str, bytes]]:
        """Members with odd names."""
        names = st.sampled_from(
            ["a", "../a", "/a", "a/", "", ".", "a\\b", "\0", "é", "a" * 300, "a/../../b", "d", "d/x"]
        )
        return st.lists(names, max_size=4).map(lambda listed: ("a.zip", _zip(listed)))


def _zip(names: list[str]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in dict.fromkeys(names):
            archive.writestr(zipfile.ZipInfo(name), b"x")
    return stream.getvalue()


class PartsTarget(Target):
    """A `.npy` of the part of each node."""

    name = "parts"

    def samples(self, folder: Path) -> list[Files]:
        """See `Target`."""
        np.save(folder / "a.npy", np.arange(20, dtype=np.int64) % 3)
        return [{"parts.npy": (folder / "a.npy").read_bytes()}]

    def read(self, folder: Path) -> object:
        """See `Target`."""
        spec = PartitionSpec(parts=3, method="file", file=folder / "parts.npy")
        return File(spec, File.Options()).parts(np.zeros(21, np.int64), np.zeros(0, np.int32))

    def strategy(self, files: Files) -> st.SearchStrategy[tuple[str, bytes]]:
        """Arrays of any type and shape."""
        return ARRAYS.map(lambda array: ("parts.npy", array))
