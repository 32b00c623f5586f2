"""What is read of others' files and messages: valid samples of each, strategies, and the reader that is tried."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import random
import shutil
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from hypothesis import strategies as st
from report.fake import METHODS as FAKE_METHODS
from report.fake import write_results
from support import raw_formats as raw

from harness.claims import judge
from harness.data.download import unpack
from harness.data.formats import dgl_reddit, graphsaint, mislove, neutral, ogb, planetoid
from harness.data.graph import GraphData, check_graph
from harness.data.partition.partitioners import File
from harness.launch.messages import packed
from harness.launch.rendezvous import Cluster, NodeInfo, StoreClient, check_plan, expand_hosts
from harness.results.frames import ResultInputs, load_epochs, load_inputs
from harness.results.leases import Leases, Runners
from harness.results.reference import measurements
from harness.results.store import ResultStore, kept_suites, write_suite
from harness.results.store import kept as kept_of
from harness.results.tuned import kept_tunings
from harness.spec import PartitionSpec
from harness.suite.document import parse
from harness.suite.expand import expand
from harness.suite.load import load_suite
from harness.suite.select import chosen

from .mutate import CANARY, ODD, TOKENS, mutated

Files = dict[str, bytes]
ODD_VALUES = st.sampled_from(ODD)
JSON = st.recursive(
    ODD_VALUES | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def as_json(value: Any) -> bytes:
    """Write JSON as anybody might: with NaN, and halves of characters."""
    return json.dumps(value, default=str).encode()


class Target(ABC):
    """A reader and what it reads. An input is a whole set of files, of which one, the victim, is changed."""

    name: ClassVar[str]

    @abstractmethod
    def samples(self, folder: Path) -> list[Files]:
        """Return valid sets of files; `folder` is empty, for whoever has to write them."""

    @abstractmethod
    def read(self, folder: Path) -> object:
        """Read the files that are in a folder."""

    def prepare(self, folder: Path) -> None:  # noqa: B027 - most have nothing to do
        """Do what is none of the reader's; files are in the folder."""

    def victims(self, files: Files) -> list[str]:
        """Return the files that may be changed."""
        return list(files)

    def strategy(self, files: Files) -> st.SearchStrategy[tuple[str, bytes]]:
        """Return a strategy of victims and their content, beside that of mutations."""
        return st.tuples(st.sampled_from(self.victims(files)), st.binary(max_size=200))

    def named(self, folder: Path) -> str:
        """Return what every line of a refusal names."""
        return str(folder)

    def mutation(self, files: Files, others: list[Files], rng: random.Random) -> tuple[str, bytes]:
        """Return a victim and its content after a few changes."""
        victim = rng.choice(self.victims(files))
        return victim, mutated(files[victim], [each[victim] for each in others if victim in each], rng)


SUITE: dict[str, Any] = {
    "name": "s",
    "description": "a suite",
    "datasets": ["digits", {"sbm": {"nodes": [100, 200], "classes": 4}}],
    "model": {"name": "gat", "layers": 2, "hidden": [32, 64], "norm": "layer", "dropout": 0.5, "heads": 4},
    "train": {"epochs": 10, "lr": 0.01, "optimizer": {"adamw": {}}, "schedule": "cosine", "target": 0.9},
    "partition": {"parts": [1, 2], "method": "metis", "objective": "volume", "balance": "nodes", "seed": 0},
    "network": ["none", {"rate": "1gbit", "latency": "50us", "ranks_per_host": 2}],
    "methods": ["full", {"bns-gcn": {"rate": [0.1, 1], "sampler": "fixed"}}, {"graphsage": {"fanouts": [10, 5]}}],
    "seeds": [0],
    "repeat": 2,
    "interleave": True,
    "timeouts": {"trial_s": 100, "collective_s": 10},
    "per_dataset": {"digits": {"model": {"hidden": 16}, "train": {"lr": 0.1}}},
    "per_method": {"full": {"train": {"clip": 0.1}, "model": {"norm": "none"}, "options": {"precompute": True}}},
    "exclude": [{"method": "bns-gcn", "rate": 0.1, "parts": 1}],
    "tuning": {"budget": {"trials": 3, "seconds": 10}, "space": {"train.lr": {"log": [0.001, 0.1]}}},
    "claims": [
        {"name": "faster", "source": "here", "metric": "epoch_time_s", "of": {"method": "bns-gcn"},
         "over": {"method": "full"}, "expect": {"at_most": 1.0}},
        {"name": "sum", "source": "here", "metric": "bytes_feature + bytes_embedding / epoch_time_s",
         "of": {"method": "full"}, "expect": {"order": [{"parts": 1}, {"parts": 2}], "direction": "increasing"}},
    ],
}  # fmt: skip
SMALL_SUITE: dict[str, Any] = {"name": "s", "datasets": ["digits"], "methods": ["full"], "plugins": [f"{CANARY}.py"]}
YAML = """\
name: s
datasets: &d [digits, {sbm: {nodes: 100}}]
model: {hidden: 16, dropout: .5}
train: &t
  epochs: 1e1
  lr: 1.e-2
methods:
- full
- bns-gcn: {rate: [0.5, 1]}
per_dataset: {digits: {train: {lr: 0.1}}}
"""


class SuiteTarget(Target):
    """A suite's file, to its trials; no plugin is imported, as loading imports none."""

    name = "suite"

    def samples(self, folder: Path) -> list[Files]:
        """See `Target`."""
        every = [
            SUITE,
            {key: SUITE[key] for key in ("name", "datasets", "methods", "partition", "claims")},
            SMALL_SUITE,
        ]
        return [{"s.yaml": as_json(each)} for each in every] + [{"s.yaml": YAML.encode()}]

    def read(self, folder: Path) -> object:
        """See `Target`."""
        suite = load_suite(folder / "s.yaml")
        return None if suite.plugins else [trial.id + trial.label for trial in expand(suite, device="cpu")]

    def named(self, folder: Path) -> str:
        """See `Target`."""
        return str(folder / "s.yaml")

    def strategy(self, files: Files) -> st.SearchStrategy[tuple[str, bytes]]:
        """Suites with some keys of the sample, and odd values in the place of others."""
        keys = {key: st.just(value) | ODD_VALUES | JSON for key, value in SUITE.items() if key not in BASE}
        suites = st.fixed_dictionaries({key: st.just(SUITE[key]) | JSON for key in BASE}, optional=keys)
        text = st.text("ab:-[]{},&*!|>'\"#?% \n1.e", max_size=80).map(lambda said: YAML.encode() + said.encode())
        return (suites.map(as_json) | text).map(lambda data: ("s.yaml", data))


BASE = ("name", "datasets", "methods")


class OptionsTarget(Target):
    """What the command line says of a suite: `--set`, `--only`, `--option`."""

    name = "options"
    _suite: ClassVar[dict[str, Any]] = {
        "name": "s",
        "datasets": ["digits"],
        "methods": SUITE["methods"][:2],
        "seeds": [0],
    }

    def samples(self, folder: Path) -> list[Files]:
        """See `Target`."""
        said = [
            "train.lr=0.1",
            "methods.1.bns-gcn.rate=[0.1, 0.2]",
            "partition.parts=2",
            "claims=[]",
            "datasets=digits",
        ]
        only = ["method=full|bns-gcn,parts=2", "rate=0.1", "P=2 seed=0", "id=0123456789ab", "train.lr=0.01"]
        return [{"set": a.encode(), "only": b.encode()} for a, b in zip(said, only, strict=True)]

    def read(self, folder: Path) -> object:
        """See `Target`."""
        said = (folder / "set").read_bytes().decode(errors="surrogateescape").replace("\0", "")
        only = (folder / "only").read_bytes().decode(errors="surrogateescape").replace("\0", "")
        parse(said, "--set")
        trials = expand(load_suite(self._suite, [said]), device="cpu")
        return chosen(trials, only, {"rate", "sampler", "fanouts"})

    def named(self, folder: Path) -> str:
        """A line names the option, or the key of the suite: a suite in Python has no file."""
        return ""

    def strategy(self, files: Files) -> st.SearchStrategy[tuple[str, bytes]]:
        """Paths of keys with values, and expressions."""
        words = st.sampled_from(
            ["train", "lr", "methods", "0", "1", "-1", "bns-gcn", "rate", "99999999999", "", "a", "seeds"]
        )
        values = JSON.map(as_json) | st.sampled_from(TOKENS)
        paths = st.lists(words, min_size=1, max_size=4).map(lambda parts: ".".join(parts).encode() + b"=")
        sets = st.tuples(paths, values).map(lambda pair: ("set", b"".join(pair)))
        only = st.text("abmethodparts=|,.0 ~!()'\"", max_size=40).map(lambda text: ("only", text.encode()))
        return sets | only


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


def _format(
    name: str, published: str, writer: Callable[[Path, raw.Known], object], reader: Reader
) -> type[FormatTarget]:
    """Return the target of a publisher's format, read under the name of a set that has it."""

    def write(self: FormatTarget, folder: Path, graph: raw.Known) -> None:
        shutil.rmtree(folder)
        writer(folder, graph)

    def graph(self: FormatTarget, source: Path, work: Path) -> GraphData:
        return reader(source, published, work)

    return type(name, (FormatTarget,), {"name": name, "write": write, "graph": graph})


def _write_mislove(folder: Path, graph: raw.Known) -> None:
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


class ResultsTarget(Target):
    """A suite's directory of results: records, epochs, the kept suite with its claims, and what lies beside."""

    files: ClassVar[tuple[str, ...]]
    _trials: ClassVar[dict[str, Files]] = {}

    def samples(self, folder: Path) -> list[Files]:
        """See `Target`: two trials, of which the first is changed."""
        made = write_results(folder / "r", methods=FAKE_METHODS[::3], parts=(2,), seeds=(0,), epochs=4)
        store = ResultStore(made, "demo")
        suite = load_suite({**SUITE, "name": "demo", "network": None, "plugins": []})
        write_suite(store.directory, kept_of(suite, expand(suite, device="cpu")[:3]))
        (store.directory / "reference.jsonl").write_text(MEASURED * 2)
        (store.directory / "tuning.json").write_text(json.dumps(TUNED))
        found = {}
        for path in sorted(p for p in store.directory.rglob("*") if p.is_file() and ".staging" not in p.parts):
            found[str(path.relative_to(store.directory.parent))] = path.read_bytes()
        return [{k: v for k, v in found.items() if not Path(k).name.startswith(".")}]

    def victims(self, files: Files) -> list[str]:
        """See `Target`."""
        return [file for file in files if Path(file).name in self.files][:1]

    def read(self, folder: Path) -> object:
        """See `Target`."""
        inputs = load_inputs(folder)
        return inputs.declared, inputs.tunings, [inputs.data(row) for row in inputs.results.to_dict("records")]


MEASURED = '{"machine":"0a","when":"2025-01-01T10:00:00Z","seconds":1.5,"cores":2}\n'
TUNED: dict[str, Any] = {
    "schema_version": 1, "search": "demo-tuning", "suite": "demo", "goal": "best_val", "sampler": "random",
    "methods": [{"dataset": "digits", "method": "full", "target": None, "tried": [], "chosen": None, "study": None}],
}  # fmt: skip


class RecordTarget(ResultsTarget):
    """`record.json`, to rows of results."""

    name, files = "record", ("record.json",)

    def strategy(self, files: Files) -> st.SearchStrategy[tuple[str, bytes]]:
        """Records with odd values in some places."""
        victim = self.victims(files)[0]
        record = json.loads(files[victim])
        keys = {key: st.just(value) | JSON for key, value in record.items()}
        return st.fixed_dictionaries({}, optional=keys).map(lambda said: (victim, as_json(record | said)))


class EpochsTarget(ResultsTarget):
    """`epochs.parquet`."""

    name, files = "epochs", ("epochs.parquet",)

    def read(self, folder: Path) -> object:
        """See `Target`."""
        return load_epochs(folder)

    def strategy(self, files: Files) -> st.SearchStrategy[tuple[str, bytes]]:
        """Tables with other columns and types."""
        victim = self.victims(files)[0]
        columns = st.sampled_from(["epoch", "rank", "suite", "trial", "loss", "stat_x", "", "epoch_time_s", "\ud7ff"])
        values = st.sampled_from(
            [[1, 2], ["a", "b"], [None, None], [b"x", b"y"], [1.5, float("nan")], [[1], [2]], [{"a": 1}] * 2]
        )
        tables = st.dictionaries(columns, values, max_size=5)
        return tables.map(lambda table: (victim, pd.DataFrame(table).to_parquet(index=False)))


class BesideTarget(ResultsTarget):
    """What lies beside records: times of the reference workload, tunings."""

    name, files = "beside", ("reference.jsonl", "tuning.json")

    def victims(self, files: Files) -> list[str]:
        """See `Target`."""
        return [file for file in files if Path(file).name in self.files]

    def read(self, folder: Path) -> object:
        """See `Target`."""
        return measurements(folder), kept_tunings([folder])

    def strategy(self, files: Files) -> st.SearchStrategy[tuple[str, bytes]]:
        """Tunings with odd values."""
        victim = next(file for file in files if file.endswith("tuning.json"))
        keys = {key: st.just(value) | JSON for key, value in TUNED.items()}
        return st.fixed_dictionaries({}, optional=keys).map(lambda said: (victim, as_json(TUNED | said)))


class ClaimsTarget(ResultsTarget):
    """`suite.json` with its claims, held against results, which stay as they are and are read once."""

    name, files = "claims", ("suite.json",)
    _inputs: ResultInputs | None = None

    def read(self, folder: Path) -> object:
        """See `Target`."""
        self._inputs = known = self._inputs or load_inputs(folder)
        return judge(known.runs, kept_suites([folder]), known.declared)

    def strategy(self, files: Files) -> st.SearchStrategy[tuple[str, bytes]]:
        """Other claims: metrics, selections, expectations."""
        victim = self.victims(files)[0]
        suite = json.loads(files[victim])
        metrics = st.sampled_from(["epoch_time_s", "a / b", "stat_x", "1/0", "best_val + ", "((", "-", "epochs * 2"])
        selector = st.dictionaries(
            st.sampled_from(["method", "parts", "rate", "seed", "train.lr", "x"]), JSON, max_size=2
        )
        expect = st.sampled_from(
            [{"at_least": 1}, {"at_most": -1e308}, {"between": [0, 1]}, {"order": [{"parts": 1}, {"parts": 2}]}, {}]
        )
        claim = st.fixed_dictionaries(
            {"name": st.just("c"), "source": st.just("s"), "metric": metrics, "of": selector, "expect": expect | JSON},
            optional={"over": selector, "by": st.sampled_from(["ratio", "difference", "x"])},
        )
        return st.lists(claim, max_size=3).map(lambda claims: (victim, as_json(suite | {"claims": claims})))


class LeaseTarget(Target):
    """What runners tell each other beside results: leases, who they are, that they live."""

    name = "leases"

    def samples(self, folder: Path) -> list[Files]:
        """See `Target`."""
        store = ResultStore(folder, "demo")
        with store.runner():
            leases = store.leases()
            leases.take("0123456789ab", None)
            every = {
                str(p.relative_to(store.directory)): p.read_bytes() for p in store.directory.rglob("*") if p.is_file()
            }
        return [{name: data for name, data in every.items() if not name.endswith(".lock")}]

    def read(self, folder: Path) -> object:
        """See `Target`."""
        runners = Runners(folder)
        latest = Leases(folder, "other", runners).latest()
        told = [runners.dead(info.id) for info in runners.all()]
        return told, [runners.dead(str(lease.runner)) for lease in latest.values()], runners.beats_elsewhere()


class _Store:
    """A store that says whatever was put there."""

    def __init__(self, values: dict[str, bytes]) -> None:
        self.values = values

    def get(self, key: str) -> bytes | None:
        return self.values.get(key)


INFO = NodeInfo("s", "10.0.0.1", 0, {"platform": "x", "cores": 2})
PLAN: dict[str, Any] = {
    "nodes": 2, "versions": {"harness": "1"}, "plugins": {}, "suite": "s", "timeouts": {}, "trials": {"a": "b"},
    "node_timeout_s": 30.0,
}  # fmt: skip


class RendezvousTarget(Target):
    """What nodes say to each other, and Slurm's lists of nodes."""

    name = "rendezvous"

    def samples(self, folder: Path) -> list[Files]:
        """See `Target`: messages as bytes in the store."""
        messages = {"node": asdict(INFO), "plan": PLAN}
        found = {key: b"0:" + packed(value) for key, value in messages.items()}
        data = packed(PLAN)
        long = {"plan": b"1:" + data[:20], "plan#1": data[20:]}
        return [{**found, "hosts": b"node[01-03,7],x"}, {**found, **long, "hosts": b"a1,b[2-4]c[5,6]"}]

    def prepare(self, folder: Path) -> None:
        """See `Target`."""
        self._values = {path.name: path.read_bytes() for path in folder.iterdir()}
        self._client = StoreClient.__new__(StoreClient)  # without a connection: bytes are all that it reads
        self._client.cluster, self._client._store = Cluster(2, "127.0.0.1"), _Store(self._values)  # type: ignore

    def read(self, folder: Path) -> object:
        """See `Target`."""
        values, client = self._values, self._client
        NodeInfo.of(client.get("node"))
        check_plan(PLAN, client.get("plan"))
        return expand_hosts(values["hosts"].decode("latin1")), client.text("hosts")

    def named(self, folder: Path) -> str:
        """A message has no file: a line names its key."""
        return ": "

    def mutation(self, files: Files, others: list[Files], rng: random.Random) -> tuple[str, bytes]:
        """Also what is inside: JSON that is packed again."""
        victim = rng.choice(("node", "plan"))
        if rng.random() < 0.5 or "#" in "".join(files):
            return super().mutation(files, others, rng)
        text = zlib.decompress(files[victim][2:])
        return victim, b"0:" + zlib.compress(mutated(text, [text], rng), 1)

    def strategy(self, files: Files) -> st.SearchStrategy[tuple[str, bytes]]:
        """Any JSON, packed, in any number of pieces."""
        heads = st.sampled_from([b"0:", b"1:", b"999999:", b"-1:", b":", b"", b"1e9:", b"\xff:"])
        body = JSON.map(lambda value: zlib.compress(as_json(value), 1)) | st.binary(max_size=50)
        messages = st.tuples(st.sampled_from(["node", "plan"]), st.tuples(heads, body).map(b"".join))
        hosts = st.text("ab[]0123-,", max_size=30).map(lambda text: ("hosts", text.encode()))
        return messages | hosts


TARGETS: tuple[type[Target], ...] = (
    SuiteTarget,
    OptionsTarget,
    NeutralTarget,
    _format("ogb-csv", "ogbn-arxiv", raw.write_ogb_csv, ogb.read),
    _format("ogb-binary", "ogbn-papers100m", raw.write_ogb_binary, ogb.read),
    _format("dgl-reddit", "reddit", raw.write_dgl_reddit, dgl_reddit.read),
    _format("graphsaint", "flickr", raw.write_graphsaint, graphsaint.read),
    _format("planetoid", "cora", lambda folder, graph: raw.write_planetoid(folder, "cora", graph), planetoid.read),
    _format("mislove", "youtube", _write_mislove, mislove.read),
    ArchiveTarget,
    PartsTarget,
    RecordTarget,
    EpochsTarget,
    BesideTarget,
    ClaimsTarget,
    LeaseTarget,
    RendezvousTarget,
)
