"""Names as a user writes them: case, `-` and `_` make no other trial, and what is known as it is written stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.errors import UserError, spelled
from harness.suite.expand import expand
from harness.suite.schema import TrialConfig
from harness.suite.select import chosen
from harness.suite.suite_file import read_suite

EXACT = """
name: exact
datasets: [digits]
model: {name: sage, hidden: 8}
train: {optimizer: adam, schedule: cosine}
partition: {method: random, parts: 2}
methods: [bns-gcn, graphsage]
per_method: {bns-gcn: {train: {lr: 0.02}, per_dataset: {digits: {train: {weight_decay: 0.1}}}}}
per_dataset: {digits: {train: {epochs: 3}}}
tuning: {per_method: {bns-gcn: {train.lr: {log: [0.001, 0.1]}}}}
device: cpu
"""
LOOSE = EXACT
for known, written in {
    "[digits]": "[Digits]",
    "name: sage": "name: SAGE",
    "adam": "Adam",
    "cosine": "COSINE",
    "method: random": "method: Random",
    "[bns-gcn, graphsage]": "[BNS_GCN, graph-sage]",
    "{bns-gcn: {train: {lr": "{bnsgcn: {train: {lr",
    "per_dataset: {digits": "per_dataset: {DIGITS",
    "{bns-gcn: {train.lr": "{Bns-Gcn: {train.lr",
}.items():
    assert known in LOOSE
    LOOSE = LOOSE.replace(known, written)

PLUGIN = """
from harness_methods.full import Full

class Mine(Full):
    "As full."
    name = "bns_gcn"
"""


def trials(text: str, place: Path, plugins: tuple[str, ...] = ()) -> list[TrialConfig]:
    file = place / "suite.yaml"
    file.write_text(text)
    return expand(read_suite(file, (), plugins, trusted=True), device="cpu")


def test_the_trials_are_the_same(tmp_path: Path) -> None:
    exact, loose = trials(EXACT, tmp_path), trials(LOOSE, tmp_path)
    assert [trial.id for trial in exact] == [trial.id for trial in loose]
    assert [trial.label for trial in exact] == [trial.label for trial in loose]
    suite = read_suite(tmp_path / "suite.yaml")
    assert suite.tuning is not None
    assert set(suite.tuning.per_method) == {"bns-gcn"}


def test_what_is_unknown_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"suite.yaml:7: methods.0: unknown method 'bnsgcm' \(did you mean 'bns-gcn'"):
        trials(LOOSE.replace("[BNS_GCN", "[bnsgcm"), tmp_path)
    wrong = LOOSE.replace("[BNS_GCN,", "[{BNS_GCN: {rate: 2}},")
    with pytest.raises(UserError, match=r"suite.yaml:7: .*rate"):
        trials(wrong, tmp_path)


def test_a_graph_of_ones_own_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ogbn_arxiv.npz` beside the published `ogbn-arxiv`: two data sets, each under the name that is written."""
    mask = np.ones(2, dtype=bool)
    arrays = {"feat": np.zeros((2, 3), np.float32), "label": np.array([0, 1])}
    masks = dict.fromkeys(("train_mask", "val_mask", "test_mask"), mask)
    np.savez(tmp_path / "ogbn_arxiv.npz", indptr=np.array([0, 1, 2]), indices=np.array([1, 0]), **arrays, **masks)
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path))
    text = "name: n\nmethods: [full]\ndatasets: [{}]\n"
    names = [trials(text.format(name), tmp_path)[0].dataset.name for name in ("ogbn_arxiv", "ogbn-arxiv", "OGBN-Arxiv")]
    assert names == ["ogbn_arxiv", "ogbn-arxiv", "ogbn-arxiv"]


def test_names_in_general() -> None:
    known = ["bns-gcn", "full", "a_b", "a-b"]
    assert [spelled(name, known) for name in ("BNSGCN", "bns_gcn", "Full", "fulll", "ab", "a_b")] == [
        "bns-gcn", "bns-gcn", "full", "fulll", "ab", "a_b",
    ]  # fmt: skip


def test_trials_are_chosen_by_what_is_printed(tmp_path: Path) -> None:
    found = trials(EXACT.replace("parts: 2", "parts: [1, 2]"), tmp_path)
    for trial in found:
        assert chosen(found, trial.label) == [trial]
    assert chosen(found, "P=2") == [t for t in found if t.partition.parts == 2]
    assert chosen(found, "bns-gcn(rate=0.1) P=2") == chosen(found, "method=bns-gcn,parts=2")
    assert chosen(found, "method=BNS_GCN,dataset=Digits,partitioner=RANDOM,model=Sage,parts=1") == chosen(
        found, "method=bns-gcn,parts=1"
    )
    with pytest.raises(UserError, match="unknown key 'P'"):
        chosen(found, "P=3")


def test_a_plugins_method_keeps_the_name_that_it_has(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    text = "name: n\nmethods: [bns_gcn, BNS-GCN]\ndatasets: [digits]\nplugins: [mine.py]\n"
    with pytest.raises(UserError, match="unknown method 'BNS-GCN'"):  # of two that it may mean neither is guessed
        trials(text, tmp_path)
    (trial,) = trials(text.replace(", BNS-GCN", ""), tmp_path)
    assert (trial.method.name, trial.plugin is not None) == ("bns_gcn", True)
