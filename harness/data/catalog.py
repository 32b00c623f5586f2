"""The published sets: sizes as their publishers give them, where the files are, how features are normalised."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from harness.data.graph import Array
from harness.data.prepared import chunk_rows, npy_chunks, read_header
from harness.deferred import numpy as np
from harness.errors import DataError

NORMALIZERS: dict[str, str] = {
    "none": "features as published",
    "row": "rows sum to 1; rows that sum to 0 stay (Planetoid's convention)",
    "standard": "columns have mean 0, deviation 1 over the training nodes (GraphSAINT's convention)",
}


def normalize_features(path: Path, mode: str, train_mask: Array) -> None:
    """Normalise the float32 [N, F] `.npy` at `path` in place; `train_mask` is bool [N].

    DataError for `standard` with no training node.
    """
    if mode == "standard":
        _rewrite(path, _standard(path, train_mask))
    elif mode == "row":

        def to_one(chunk: Array) -> Array:
            total = chunk.sum(axis=1, dtype=np.float64, keepdims=True)
            scale = np.divide(1.0, total, out=np.zeros_like(total), where=total != 0)
            # A row that sums to zero is left as it is (it is all zeros in the published sets).
            return np.where(total != 0, chunk * scale, chunk).astype(np.float32)

        _rewrite(path, to_one)


def _standard(path: Path, train_mask: Array) -> Callable[[Array], Array]:
    from sklearn.preprocessing import StandardScaler  # half of what a run imports

    if not train_mask.any():
        raise DataError("no training node to fit the standard scaler on", file=path, key="normalize")
    scaler, start = StandardScaler(), 0
    for chunk in npy_chunks(path):
        rows = chunk[train_mask[start : start + len(chunk)]]
        if len(rows):
            scaler.partial_fit(rows.astype(np.float64))
        start += len(chunk)
    return lambda chunk: scaler.transform(chunk.astype(np.float64)).astype(np.float32)


def _rewrite(path: Path, transform: Callable[[Array], Array]) -> None:
    with path.open("r+b") as stream:
        shape, dtype, _ = read_header(stream, path)
        size = chunk_rows(shape, dtype.itemsize) * dtype.itemsize * shape[1]
        while data := stream.read(size):
            stream.seek(-len(data), os.SEEK_CUR)
            stream.write(transform(np.frombuffer(data, dtype=dtype).reshape(-1, shape[1])).tobytes())


class Option(NamedTuple):
    """An option of a data set: type, default, one line of help."""

    type: Any
    default: Any
    summary: str


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a data set without having it."""

    name: str
    nodes: int
    edges: int  # directed, as stored: an undirected edge counts twice
    features: int
    classes: int
    options: Mapping[str, Any]  # `Option` by name
    source: str  # who publishes it, where, under which licence
    summary: str
    multilabel: bool = False
    inductive: bool = False  # default mode: training sees only the subgraph of the training nodes
    origin: str = "real"  # "real", "generated" or "twin"
    normalize: str = "none"  # default of the option `normalize`
    validates: bool = True  # whether it has validation nodes, as far as that is known
    size_bytes: int | None = None  # size of the download, rounded; 0 = nothing to download, None = not known
    like: str = ""  # of a twin: the published set that it imitates
    trained: float = 1.0  # share of the nodes that train; 1 where nobody has said


class Boundary(NamedTuple):
    """The boundary nodes of all parts together that METIS leaves, as published."""

    by_parts: Mapping[int, float]  # in multiples of the graph's nodes
    largest: float | None  # the largest part's to the mean's, up to which; None: not published
    source: str


def boundary_of(name: str, parts: int) -> tuple[float, float | None, str] | None:
    """Return the boundary nodes of a published set in so many parts, as a multiple of its nodes; see `Boundary`.

    Between the published numbers of parts a line in logarithms; None outside of them, and of other sets.
    """
    if (found := BOUNDARIES.get(name)) is None or not min(found.by_parts) <= parts <= max(found.by_parts):
        return None
    below = max(count for count in found.by_parts if count <= parts)
    above = min(count for count in found.by_parts if count >= parts)
    share = math.log(parts / below) / math.log(above / below) if above > below else 0.0
    multiple = found.by_parts[below] ** (1 - share) * found.by_parts[above] ** share
    return multiple, found.largest, found.source


_BAJAJ, _PSC = "Bajaj et al., PVLDB 18, 2025", "PSC-GCN, Table I"
BOUNDARIES = {
    "pubmed": Boundary({2: 0.110, 4: 0.197, 8: 0.389, 16: 0.573, 32: 0.728, 64: 0.910}, None, _BAJAJ),
    "ogbn-arxiv": Boundary({2: 0.159, 4: 0.438, 8: 0.812, 16: 1.186, 32: 1.641, 64: 2.092}, 2.44, _BAJAJ),
    "reddit": Boundary({2: 0.721, 4: 1.732, 8: 3.388, 16: 5.757, 32: 9.968, 64: 17.034}, 1.57, _BAJAJ),
    "ogbn-products": Boundary({2: 0.181, 4: 0.411, 8: 0.708, 16: 1.112, 32: 1.508, 64: 2.082}, 1.64, _BAJAJ),
    "ogbn-papers100m": Boundary({2: 0.016, 4: 0.049, 8: 0.080, 16: 0.129, 32: 0.184, 64: 0.239}, 1.95, _BAJAJ),
    "yelp": Boundary({4: 0.673, 6: 1.044, 8: 1.289}, None, _PSC),
}


@dataclass(frozen=True)
class Published:
    """A published set: its sizes, the format of its files, and where they are."""

    info: DatasetInfo
    format: str  # key of `formats.published.READERS`
    marker: str  # a file (or directory) by which a directory is known to hold the raw files
    urls: tuple[str, ...]  # direct links, each with `#NAME` where its path does not end in the file's name
    mirrors: tuple[tuple[str, ...], ...] = ()  # other links, for where those fail
    files: tuple[str, ...] = ()  # the ones that the reader needs, where they are not the links'
    folders: tuple[str, ...] = ()  # other names of the raw directory

    @property
    def by_hand(self) -> str:
        """What a user does to get files that no link brings."""
        links = [url for urls in (self.urls, *self.mirrors) for url in urls]
        files = self.files or [file_name(url) for url in self.urls]
        unpacked = ", unpacked" if any(file.endswith(".zip") for file in files) else ""
        where = f"{' '.join(links)} into $HARNESS_DATA/{self.info.name}"
        return f"Download from {where}; files needed: {', '.join(files)}{unpacked}"


def file_name(url: str) -> str:
    """Return what the file of a link is called."""
    parts = urlsplit(url)
    return parts.fragment or PurePosixPath(parts.path).name


Sizes = tuple[int, int, int, int]  # nodes, edges, features, classes
_SUMMARIES = {
    "reddit": "posts, linked when one user commented on both; class = community",
    "ogbn-products": "products bought together; class = category; trained on the best sold, tested on the rest",
    "ogbn-arxiv": "citations among computer-science papers, both directions; class = subject; split by year",
    "ogbn-papers100m": "citations among papers, both directions (edges: before duplicates are dropped); 1.4 % labelled",
    "yelp": "reviewers and their friends; labels = kinds of business reviewed",
    "amazon": "buyers linked by purchases; labels = kinds of product",
    "flickr": "images that share a property; class = tag group",
    "ppi": "proteins and interactions as one graph; labels = functions",
    "youtube": "users and links; labels = 64 largest groups, features = 2,048 of the 4,096 largest",
    "cora": "citations; class = subject; public split",
    "citeseer": "citations; class = subject; public split, 48 isolated",
    "pubmed": "citations; class = subject; public split",
}
SPLITS = ("public", "full")
_SPLIT_SUMMARY = "public: 20 training nodes a class; full: all labelled nodes but validation and test train"
_PLANETOID_URL = "https://github.com/kimiyoung/planetoid/raw/master/data"
_PLANETOID_PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
_OGB_URL = "http://snap.stanford.edu/ogb/data/nodeproppred"
_DGL_URL = "https://data.dgl.ai/dataset"
_MISLOVE_URL = "http://socialnetworks.mpi-sws.mpg.de/data"
_DRIVE = "https://drive.usercontent.google.com/download?id={}&confirm=t#{}"
_GRAPHSAGE_URL = "https://raw.githubusercontent.com/williamleif/GraphSAGE/master/example_data"
# Of GRAPHSAINT_FILES, as PyG's data sets name them.
_DRIVE_IDS = {
    "amazon": (
        *("17qhNA8H1IpbkkR-T2BmPQm8QNW5do-aa", "10SW8lCvAj-kb6ckkfTOC5y0l8XXdtMxj"),
        *("1LIl4kimLfftj4-7NmValuWyCQE8AaE7P", "1npK9xlmbnjNkV80hK2Q68wTEVOFjnt4K"),
    ),
    "yelp": (
        *("1Juwx8HtDwSzmVIJ31ooVa1WljI4U5JnA", "1Zy6BZH_zLEjKlEFSduKE5tV9qqA_8VtM"),
        *("1VUcBGr0T0-klqerjAjxRmAqFuld_SMWU", "1NI5pa5Chpd-52eSmLW60OnB3WS5ikxq_"),
    ),
    "flickr": (
        *("1crmsTbd1-2sEXsGwa2IKnIB7Zd3TmUsy", "1join-XdvX3anJU_MLVtick7MgeAQiWIZ"),
        *("1uxIkbtg5drHTsKt-PAsZZ4_yJmgFmle9", "1htXCtuktuCW8TR8KiKfrFDAxUgekQoV7"),
    ),
}
GRAPHSAINT_FILES = ("adj_full.npz", "feats.npy", "class_map.json", "role.json")
GRAPHSAGE_FILES = ("toy-ppi-G.json", "toy-ppi-feats.npy", "toy-ppi-class_map.json")


def _info(name: str, sizes: Sizes, source: str, **others: Any) -> DatasetInfo:
    return with_normalize(DatasetInfo(name, *sizes, {}, source, _SUMMARIES[name], **others))


def _planetoid(name: str, sizes: Sizes, size: int) -> Published:
    source = "Planetoid (Yang et al. 2016), github.com/kimiyoung/planetoid, MIT"
    info = _info(name, sizes, source, normalize="row", size_bytes=size)
    info = replace(info, options={**info.options, "split": Option(str, SPLITS[0], _SPLIT_SUMMARY)})
    urls = tuple(f"{_PLANETOID_URL}/ind.{name}.{part}" for part in _PLANETOID_PARTS)
    return Published(info, "planetoid", f"ind.{name}.graph", urls)


def _graphsaint(name: str, sizes: Sizes, *, dgl: bool = False, multilabel: bool = True) -> Published:
    source = "GraphSAINT (Zeng et al. 2020), github.com/GraphSAINT/GraphSAINT, no licence stated for the data"
    info = _info(name, sizes, source, multilabel=multilabel, inductive=True, normalize="standard")
    drive = tuple(map(_DRIVE.format, _DRIVE_IDS.get(name, ()), GRAPHSAINT_FILES))
    urls, mirrors = ((f"{_DGL_URL}/{name}.zip",), (drive,)) if dgl else (drive, ())
    return Published(info, "graphsaint", "adj_full.npz", urls, mirrors, GRAPHSAINT_FILES)


def _ogb(name: str, file: str, sizes: Sizes, size: int, licence: str, trained: float) -> Published:
    info = _info(name, sizes, f"OGB (Hu et al. 2020), ogb.stanford.edu, {licence}", size_bytes=size, trained=trained)
    folders = (name.replace("-", "_").replace("papers100m", "papers100M"), file)
    return Published(info, "ogb", "raw", (f"{_OGB_URL}/{file}.zip",), folders=folders)


def published() -> dict[str, Published]:
    """All published sets by name."""
    source = "GraphSAGE (Hamilton et al. 2017) as shipped by DGL, data.dgl.ai, no licence stated"
    options: dict[str, Any] = {"inductive": True, "normalize": "standard", "size_bytes": 1_300_000_000}
    reddit = _info("reddit", (232_965, 114_615_892, 602, 41), source, **options)
    source = "GraphSAGE (Hamilton et al. 2017), github.com/williamleif/GraphSAGE, MIT"
    ppi = _info("ppi", (14_755, 450_540, 50, 121), source, multilabel=True, inductive=True, normalize="standard")
    source = "Mislove et al. 2007, socialnetworks.mpi-sws.org/data-imc2007.html, no licence stated"
    youtube = _info("youtube", (1_138_499, 5_980_886, 2_048, 64), source, multilabel=True, size_bytes=12_000_000)
    youtube_urls = tuple(f"{_MISLOVE_URL}/youtube-{part}.txt.gz" for part in ("links", "groupmemberships"))
    papers = 111_059_956, 3_231_371_744, 128, 172
    entries = [
        Published(reddit, "dgl_reddit", "reddit_data.npz", (f"{_DGL_URL}/reddit.zip",)),
        _ogb("ogbn-products", "products", (2_449_029, 123_718_280, 100, 47), 1_480_000_000, "Amazon licence", 0.0803),
        _ogb("ogbn-arxiv", "arxiv", (169_343, 2_315_598, 128, 40), 85_000_000, "ODC-BY", 0.537),
        _ogb("ogbn-papers100m", "papers100M-bin", papers, 60_000_000_000, "ODC-BY", 0.01087),
        _graphsaint("yelp", (716_847, 13_954_819, 300, 100), dgl=True),
        _graphsaint("amazon", (1_569_960, 264_339_468, 200, 107)),
        _graphsaint("flickr", (89_250, 899_756, 500, 7), dgl=True, multilabel=False),
        Published(ppi, "graphsage", GRAPHSAGE_FILES[0], tuple(f"{_GRAPHSAGE_URL}/{file}" for file in GRAPHSAGE_FILES)),
        Published(youtube, "mislove", "youtube-links.txt.gz", youtube_urls),
        _planetoid("cora", (2_708, 10_556, 1_433, 7), 572_444),
        _planetoid("citeseer", (3_327, 9_104, 3_703, 6), 1_036_188),
        _planetoid("pubmed", (19_717, 88_648, 500, 3), 9_000_000),
    ]
    return {entry.info.name: entry for entry in entries}


NUMBER = 24  # characters that a number in a file of text may have, with what separates it


@dataclass(frozen=True)
class Bounds:
    """The most that a set's files may hold: a quarter more than its publisher says; of an unpublished name no end."""

    name: str
    nodes: int
    edges: int
    features: int
    classes: int

    @classmethod
    def of(cls, name: str) -> Bounds:
        """Return those of a set by its name."""
        entry = published().get(name)
        if entry is None:
            return cls(name, *[1 << 48] * 4)
        info = entry.info
        return cls(name, *(size + size // 4 for size in (info.nodes, info.edges, info.features, info.classes)))

    def check(self, file: Path, **found: int) -> None:
        """Raise a DataError if a file has more `nodes`, `edges`, `features` or `classes` than the set can have."""
        for what, count in found.items():
            most = getattr(self, what)
            if count > most:
                why = f"has {count:,} {what}, {self.name} at most {most:,}"
                raise DataError(why, file=file, fix="is it the published file?")

    @property
    def unpacked(self) -> int:
        """Bytes of all files together: 16 a feature and a label, 64 an edge, 256 a node; 16 MiB for the rest."""
        return self.nodes * (16 * (self.features + self.classes) + 256) + 64 * self.edges + (16 << 20)


def with_normalize(info: DatasetInfo) -> DatasetInfo:
    """`info` with the option every set has among its options."""
    option = Option(str, info.normalize, f"how features are scaled: {', '.join(NORMALIZERS)}")
    return replace(info, options={**info.options, "normalize": option})
