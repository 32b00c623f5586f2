"""Settings of `per_dataset`: what of model and train differs on a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.errors import UserError
from harness.suite.expand import expand
from harness.suite.schema import Suite
from harness.suite.suite_file import load_suite

pytestmark = pytest.mark.usefixtures("world")


def suite(**sections: Any) -> Suite:
    return Suite.model_validate({"name": "s", "methods": ["full"], **sections})


def test_settings_per_dataset() -> None:
    sections: dict[str, Any] = {
        "datasets": ["digits", {"twin": {"scale": [0.1, 0.2]}}],
        "model": {"name": ["gcn", "sage"], "layers": 2, "hidden": 16},
        "train": {"epochs": 7, "lr": 0.1},
    }
    own = {"twin": {"model": {"layers": 4}, "train": {"epochs": 9, "inductive": False}}}
    found = expand(suite(**sections, per_dataset=own))
    assert [(t.dataset.name, t.model.name, t.model.layers, t.model.hidden) for t in found] == [
        *[("digits", "gcn", 2, 16), ("digits", "sage", 2, 16)],
        *[("twin", "gcn", 4, 16), ("twin", "sage", 4, 16)] * 2,
    ]
    assert [(t.train.epochs, t.train.lr, t.train.inductive) for t in found[1:3]] == [(7, 0.1, False), (9, 0.1, False)]
    same = expand(suite(**sections | {"datasets": ["digits"]}))
    assert [t.id for t in same] == [t.id for t in found[:2]]


def test_a_data_set_lays_its_training_over_each_of_the_grid() -> None:
    own = {"twin": {"train": {"lr": 0.5}}}
    found = expand(suite(datasets=["digits", "twin"], train={"threads": [1, 2]}, per_dataset=own))
    assert [(t.dataset.name, t.train.threads, t.train.lr) for t in found] == [
        *[("digits", 1, 0.01), ("digits", 2, 0.01), ("twin", 1, 0.5), ("twin", 2, 0.5)]
    ]


def test_a_multi_label_set_has_its_own_loss() -> None:
    own = {"twin": {"train": {"pos_weight": 50}}}
    found = expand(suite(datasets=["digits", {"twin": {"of": "youtube"}}], per_dataset=own))
    assert [t.train.pos_weight for t in found] == [1, 50]


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ("{digit: {}}", "s.yaml:4: per_dataset.digit: no data set of the suite (did you mean 'digits'?)"),
        ("{digits: {modle: {}}}", "s.yaml:4: per_dataset.digits.modle: unknown key (did you mean 'model'?)"),
        ("{digits: {model: {hiden: 3}}}",
         "s.yaml:4: per_dataset.digits.model.hiden: unknown key (did you mean 'hidden'?)"),
        ("{digits: {train: {lr: 0}}}",
         "s.yaml:4: per_dataset.digits.train.lr: bad value 0: must be greater than 0"),
        ("{digits: {train: {pos_weight: 50}}}",
         "s.yaml:4: per_dataset.digits.train.pos_weight: bad value 50: the nodes of 'digits' have one label "
         "each, its loss no positive term (remove it, or give it to the multi-label sets by per_dataset)"),
        ("{digits: {train: 3}}",
         "s.yaml:4: per_dataset.digits.train: bad value 3: must be a section of `key: value` lines"),
    ],
)  # fmt: skip
def test_mistakes_per_dataset_golden(own: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(f"name: s\ndatasets: [digits]\nmethods: [full]\nper_dataset: {own}\n")
    with pytest.raises(UserError) as error:
        expand(load_suite(Path("s.yaml")))
    assert str(error.value) == message
