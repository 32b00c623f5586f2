"""Suites, and what the command line says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from hypothesis import strategies as st

from harness.suite.document import parse
from harness.suite.expand import expand
from harness.suite.select import chosen
from harness.suite.suite_file import load_suite

from .mutate import CANARY, TOKENS
from .target import JSON, ODD_VALUES, Files, Target, as_json

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
    "interleave": False,
    "timeouts": {"trial_s": 100, "collective_s": 10},
    "per_dataset": {"digits": {"model": {"hidden": 16}, "train": {"lr": 0.1}}},
    "per_method": {"full": {"train": {"clip": 0.1}, "model": {"norm": "none"}, "options": {"precompute": False}}},
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
