"""The schema of suite files: what is shipped is valid, what `harness plan` refuses is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from harness.suite.json_schema import suite_schema

SUITES = sorted((Path(__file__).parents[2] / "suites").rglob("*.yaml"))
GOOD: dict[str, Any] = {
    "name": "a",
    "datasets": ["digits", {"twin": {"of": "reddit", "scale": 0.01}}],
    "model": {"name": "sage", "hidden": [32, 64]},
    "train": [{"epochs": 2}, {"epochs": [3, 4]}],
    "partition": {"parts": [1, 2]},
    "methods": ["full", {"bns-gcn": {"rate": [0.5, 0.1]}}, {"graphsage": {"fanouts": [[10, 10], [5, 5]]}}],
    "network": ["none", {"rate": ["100mbit", "1gbit"]}],
    "seeds": [0, 1],
}


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = suite_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_shipped_suites_are_valid(validator: jsonschema.Draft202012Validator) -> None:
    assert len(SUITES) > 50
    for suite in SUITES:
        errors = list(validator.iter_errors(YAML(typ="safe").load(suite.read_text())))
        assert not errors, (suite, errors[0].json_path, errors[0].message)


def test_a_suite_with_every_shape_is_valid(validator: jsonschema.Draft202012Validator) -> None:
    validator.validate(GOOD)
    validator.validate(GOOD | {"methods": "full", "datasets": {"my-own-graph": None}, "network": "none"})
    own = {"train": {"schedule": "cosine", "lr": 0.1}, "model": {"norm": "layer"}, "options": {"rate": 0.3}}
    validator.validate(GOOD | {"per_method": {"bns-gcn": own | {"per_dataset": {"digits": own}}}})
    space = {"train.lr": {"log": [0.1, 1]}, "train.optimizer": ["adam", "sgd"]}
    tuning = {"budget": {"trials": 3}, "target": {"of": "full"}, "space": space, "per_method": {"full": space}}
    validator.validate(GOOD | {"tuning": tuning})
    validator.validate(GOOD | {"plugins": "mine.py", "methods": [{"mine": {"anything": 1}}]})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("trian",), {}),
        (("train", 0, "epoch"), 3),
        (("train", 0, "epochs"), 0),
        (("model", "hidden"), ["wide"]),
        (("methods", 1, "bns-gcn", "rates"), 0.1),
        (("methods", 1, "bns-gcn", "rate"), [0.5, 2]),
        (("datasets", 1, "twin", "skale"), 1),
        (("partition", "objective"), "volum"),
        (("partition", "method"), {"metis": {"anything": 1}}),
        (("seeds",), [-1]),
        (("claims",), [{"name": "no metric"}]),
        (("per_method",), {"full": {"model": {"hidden": 3}}}),
        (("tuning",), {"budget": {"trials": 0}}),
        (("tuning",), {"space": {"train.lr": {"logarithm": [1, 2]}}}),
    ],
)
def test_mistakes_are_refused(
    validator: jsonschema.Draft202012Validator, path: tuple[str | int, ...], value: object
) -> None:
    bad: Any = copy.deepcopy(GOOD)
    inner = bad
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    assert not validator.is_valid(bad)


def test_required_keys_are(validator: jsonschema.Draft202012Validator) -> None:
    for key in ("name", "datasets", "methods"):
        assert not validator.is_valid({k: v for k, v in GOOD.items() if k != key})
