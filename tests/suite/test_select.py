from __future__ import annotations

import pytest

from harness.errors import UserError
from harness.models.layer import ModelSpec
from harness.runtime.method import METHODS
from harness.runtime.run_config import MethodSpec, TrainSpec
from harness.spec import DatasetSpec, PartitionSpec
from harness.suite.schema import TrialConfig
from harness.suite.select import matches

pytestmark = pytest.mark.usefixtures("world")

TRIAL = TrialConfig(
    dataset=DatasetSpec(name="twin", options={"of": "reddit", "scale": 0.02}),
    model=ModelSpec(name="sage", layers=4, hidden=256, norm="layer"),
    train=TrainSpec(epochs=1500, lr=0.01, inductive=True),
    partition=PartitionSpec(parts=8),
    method=MethodSpec(name="bns-gcn", options={"rate": 0.1, "sampler": "bernoulli", "precompute": False}),
    seed=0,
    device="cpu",
)


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ("method=bns-gcn", True),
        ("method=full", False),
        ("method=full|bns-gcn,parts=2|8", True),
        ("rate=0.10", True),
        ("rate=0.5|1e-1", True),
        ("rate=0.5", False),
        ("sampler=bernoulli, precompute=false", True),
        ("transform_before_exchange=true", False),
        ("fanouts=[10,5]", False),
        ("codec=none", True),  # its default, which the options leave out
        ("codec=int8", False),
        ("dataset=twin,model=sage,partitioner=metis,seed=0", True),
        ("seed=1", False),
        ("dataset.of=reddit|yelp,model.hidden=256", True),
        ("dataset.scale=0.1", False),
        ("dataset.neighbours=5", False),
        ("model.layers=2", False),
        ("train.epochs=1500|3,train.lr=0.01", True),
        ("train.epochs=3", False),
        (f"id={TRIAL.id}", True),
        (f"id={TRIAL.id[:5]}", True),
        ("id=zzz", False),
    ],
)
def test_matches(expr: str, expected: bool) -> None:
    assert matches(TRIAL, expr) is expected


def test_matches_lists() -> None:
    trial = TRIAL.model_copy(update={"method": MethodSpec(name="graphsage", options={"fanouts": [10, 5]})})
    assert matches(trial, "fanouts=[10,5]|7,parts=8")
    assert not matches(trial, "fanouts=[10,6]")


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        ("mehtod=full", "--only mehtod=full: unknown key 'mehtod' (did you mean 'method'?)"),
        ("hidden=3", "--only hidden=3: unknown key 'hidden' (write model.hidden)"),
        ("model.hiden=3", "--only model.hiden=3: unknown key 'model.hiden' (did you mean 'model.hidden'?)"),
        ("method", "--only method: 'method' is not of the form key=value (e.g. method=bns-gcn|full,parts=2)"),
        ("method=",
         "--only method=: 'method=' is not of the form key=value (e.g. method=bns-gcn|full,parts=2)"),
        ("", "--only : '' is not of the form key=value (e.g. method=bns-gcn|full,parts=2)"),
        ("seed=0,seed=1", "--only seed=0,seed=1: 'seed' twice (seed=a|b allows both)"),
        ("parts={", "--only parts={:1: while parsing a flow node, expected the node content, "
         "but found '<stream end>'"),
    ],
)  # fmt: skip
def test_malformed_expressions_golden(expr: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        matches(TRIAL, expr)
    assert str(error.value) == message


def test_a_broken_plugin_does_not_break_an_expression(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS, "names", lambda plugins=None: ["broken", "full"])
    assert not matches(TRIAL, "transform_before_exchange=true")
