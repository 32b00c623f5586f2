"""Settings of `per_method`: what of model and train a method sets itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.errors import UserError
from harness.suite.expand import expand
from harness.suite.schema import Suite
from harness.suite.sections import Claim
from harness.suite.select import pairs_of
from harness.suite.suite_file import load_suite

pytestmark = pytest.mark.usefixtures("world")


def suite(**sections: Any) -> Suite:
    return Suite.model_validate({"name": "s", "datasets": ["digits"], "methods": ["full", "graphsage"], **sections})


def test_a_method_sets_keys_itself() -> None:
    own = {"graphsage": {"train": {"lr": 0.1, "weight_decay": 5e-4}, "model": {"dropout": 0.2}}}
    plain = expand(suite())
    full, sage = expand(suite(per_method=own))
    assert full.id == plain[0].id, "what a method sets changed another's trial"
    assert (sage.train.lr, sage.train.weight_decay, sage.model.dropout, sage.model.norm) == (0.1, 5e-4, 0.2, "none")
    assert sage.shared == {"model.dropout": 0.5, "train.lr": 0.01, "train.weight_decay": 0.0}
    assert sage.workload == (full.model, full.train)
    assert sage.id != plain[1].id
    assert sage.label == plain[1].label.replace(" seed=0", " dropout=0.2 lr=0.1 weight_decay=0.0005 seed=0")


def test_what_a_method_sets_as_the_suite_has_it_is_nothing_of_its_own() -> None:
    own = {"graphsage": {"train": {"lr": 0.01}, "model": {"norm": "none"}}}
    assert [t.id for t in expand(suite(per_method=own))] == [t.id for t in expand(suite())]


def test_a_data_set_of_a_method_goes_over_the_method_and_that_over_the_data_set() -> None:
    sections: dict[str, Any] = {
        "datasets": ["digits", "twin"],
        "train": {"lr": 0.5, "epochs": 7},
        "per_dataset": {"twin": {"train": {"lr": 0.4, "epochs": 9}}},
    }
    own = {"full": {"train": {"lr": 0.3, "clip": 1}, "per_dataset": {"twin": {"train": {"lr": 0.2}}}}}
    found = {(t.dataset.name, t.method.name): t for t in expand(suite(**sections, per_method=own))}
    assert {key: (t.train.lr, t.train.epochs, t.train.clip) for key, t in found.items()} == {
        ("digits", "full"): (0.3, 7, 1), ("digits", "graphsage"): (0.5, 7, None),
        ("twin", "full"): (0.2, 9, 1), ("twin", "graphsage"): (0.4, 9, None),
    }  # fmt: skip
    assert found["twin", "full"].shared == {"train.lr": 0.4, "train.clip": None}
    assert found["twin", "full"].train.inductive == found["twin", "graphsage"].train.inductive


def test_another_optimizer_does_not_inherit_options() -> None:
    train = {"optimizer": {"adam": {"eps": 1e-3}}, "schedule": {"steps": {"every": 3}}}
    own = {"full": {"train": {"optimizer": "sgd", "schedule": {"steps": {"factor": 0.5}}}}}
    full, sage = expand(suite(train=train, per_method=own))
    assert (full.train.optimizer, full.train.optimizer_options) == ("sgd", {})
    assert (full.train.schedule, full.train.schedule_options) == ("steps", {"factor": 0.5})
    assert sage.train.optimizer_options == {"eps": 1e-3}
    assert full.workload[1] == sage.train


def test_a_claim_compares_methods_that_set_keys_themselves() -> None:
    own = {"graphsage": {"train": {"lr": 0.1}, "per_dataset": {"twin": {"train": {"lr": 0.2}}}}}
    trials = expand(suite(datasets=["digits", "twin"], per_method=own))
    claim = Claim.model_validate(
        {"name": "c", "source": "s", "metric": "epoch_time_s", "of": {"method": "graphsage"},
         "over": {"method": "full"}, "expect": {"at_least": 1}}
    )  # fmt: skip
    rows = [row for _, row in pairs_of(claim, trials)]
    assert [[cell[0].dataset.name for cell in row] for row in rows] == [["digits"] * 2, ["twin"] * 2]


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ("{ful: {}}", "per_method.ful: no method of the suite (did you mean 'full'?)"),
        ("{full: {trian: {}}}", "per_method.full.trian: unknown key (did you mean 'train'?)"),
        ("{full: {model: {hidden: 3}}}",
         "per_method.full.model.hidden: unknown key (known: dropout, norm)"),
        ("{full: {train: {lr: 0}}}", "per_method.full.train.lr: bad value 0: must be greater than 0"),
        ("{full: {train: {leanring: 1}}}",
         "per_method.full.train.leanring: unknown key (known: "),
        ("{full: {train: {epochs: 2}}}",
         "per_method.full.train.epochs: the suite has several values of train.epochs: this one would run for "
         "each of them (leave one value in train.epochs)"),
        *((f"{{full: {{train: {{{key}: {value}}}}}}}",
           f"per_method.full.train.{key}: the same for every method: with another value times or scores are of "
           "something else (set it in `train`)")
          for key, value in (("threads", 2), ("cores", 2), ("inductive", "true"), ("target", 0.5))),
        ("{full: {per_dataset: {digit: {}}}}",
         "per_method.full.per_dataset.digit: no data set of the suite (did you mean 'digits'?)"),
        ("{full: {per_dataset: {digits: {train: {lr: -1}}}}}",
         "per_method.full.per_dataset.digits.train.lr: bad value -1: must be greater than 0"),
        ("{full: {per_dataset: {digits: {modell: {}}}}}",
         "per_method.full.per_dataset.digits.modell: unknown key (did you mean 'model'?)"),
        ("{full: {train: {optimizer: sdg}}}",
         "per_method.full.train.optimizer: unknown optimizer 'sdg' (did you mean 'sgd'?)"),
        ("{full: {train: {pos_weight: 50}}}",
         "per_method.full.train.pos_weight: bad value 50: the nodes of 'digits' have one label each, its loss no "
         "positive term (remove it, or give it to the multi-label sets by per_dataset)"),
    ],
)  # fmt: skip
def test_mistakes_per_method_golden(own: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = f"name: s\ndatasets: [digits]\nmethods: [full]\ntrain: {{epochs: [1, 2]}}\nper_method: {own}\n"
    Path("s.yaml").write_text(text)
    with pytest.raises(UserError) as error:
        expand(load_suite(Path("s.yaml")))
    assert str(error.value).startswith(f"s.yaml:5: {message}")
