"""Suites of twins: what shrinks with a graph, and what stays as the suite has it."""

from __future__ import annotations

from typing import Any

import pytest

from harness.data.registry import dataset_info
from harness.errors import UserError
from harness.launch import twins
from harness.launch.planner import FLOPS_A_CORE, epoch_flops
from harness.launch.twins import EPOCH_S, LEAST_S, TOTAL_S, suite_of_twins
from harness.spec import DatasetSpec
from harness.suite.expand import expand
from harness.suite.suite_file import load_suite, shipped

SUITE: dict[str, Any] = {
    "name": "mine",
    "datasets": [{"reddit": {"normalize": "none"}}, "digits"],
    "model": {"name": "sage", "layers": 2, "hidden": 32},
    "train": {"epochs": 500, "lr": 0.001, "eval_every": 10},
    "partition": {"method": "metis", "parts": [1, 2, 8]},
    "methods": [
        "full",
        {"graphsage": {"fanouts": 10, "batch_size": [1024, 0]}},
        {"ladies": {"sizes": [[4000, 200]]}},
        {"clustergcn": {"clusters": 1500, "per_batch": 20}},
    ],
    "seeds": [0, 1],
    "exclude": [{"method": "full", "dataset": "reddit", "parts": 2}],
    "per_dataset": {"reddit": {"model": {"hidden": 16}}},
    "claims": [
        {"name": "a", "source": "b", "metric": "best_val", "of": {"dataset": "reddit"}, "expect": {"at_least": 0}}
    ],
}


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "cores", lambda: 2)


def test_what_shrinks_and_what_stays() -> None:
    suite, said = suite_of_twins(load_suite(SUITE), 0.1)
    trials = expand(suite, device="cpu")
    assert suite.name == "mine-twin"
    assert "reddit at 0.1 of its nodes; P = 1/2 (1 thread a rank)" in said
    assert {t.partition.parts for t in trials} == {1, 2}
    twin, digits = ([t for t in trials if t.dataset.name == name] for name in ("twin", "digits"))
    assert {(t.dataset.options["of"], t.dataset.options["scale"], t.dataset.options["normalize"]) for t in twin} == {
        ("reddit", 0.1, "none")
    }
    assert {t.model.hidden for t in twin} == {16}  # what the suite has for Reddit is its twin's
    assert {t.model.hidden for t in digits} == {32}
    assert {t.partition.parts for t in twin if t.method.name == "full"} == {1}
    assert {t.partition.parts for t in digits if t.method.name == "full"} == {1, 2}
    options = [t.method.options for t in twin]
    assert {o["batch_size"] for o in options if "fanouts" in o} == {128, 0}  # 102 is too few
    assert next(o["sizes"] for o in options if "sizes" in o) == [400, 128]
    assert {(o["clusters"], o["per_batch"]) for o in options if "clusters" in o} == {(150, 2)}
    assert {(t.train.lr, t.train.threads, t.train.eval_every, t.train.epochs) for t in trials} == {(0.01, 1, 3, 500)}
    assert {t.train.seconds for t in trials} == {round(max(LEAST_S, TOTAL_S / len(trials) - twins.AROUND_S), 1)}
    assert suite.claims == ()
    assert suite.seeds == (0, 1, 2)
    assert suite_of_twins(load_suite(SUITE), 0.1, 0)[0].seeds == (0, 1)


def test_ranks_are_on_a_network_unless_the_suite_names_one() -> None:
    suite, said = suite_of_twins(load_suite(SUITE), 0.1)
    assert [each and each.label for each in suite.network] == ["1gbit"]
    assert suite.shaping == "optional"
    assert "1gbit between ranks, where it can be shaped" in said
    for chosen in ("none", "10gbit"):
        own = load_suite(SUITE | {"network": chosen})
        suite, said = suite_of_twins(own, 0.1)
        assert (suite.network, suite.shaping) == (own.network, "needed")
        assert "between ranks" not in said


def test_the_scale_is_the_largest_that_one_core_trains_in_time() -> None:
    suite, _ = suite_of_twins(load_suite(SUITE), None)
    scale, model = suite.datasets[0].options["scale"], expand(suite, device="cpu")[0].model
    larger = twins.SCALES[twins.SCALES.index(scale) - 1]
    took = [
        epoch_flops(model, dataset_info(DatasetSpec(name="twin", options={"of": "reddit", "scale": s}))) / FLOPS_A_CORE
        for s in (scale, larger)
    ]
    assert took[0] <= EPOCH_S < took[1]


def test_more_parts_than_cores_become_as_many_as_there_are() -> None:
    suite, _ = suite_of_twins(load_suite(SUITE | {"partition": {"parts": [4, 8]}, "exclude": []}), 0.1)
    assert [each.parts for each in suite.partition] == [2]


def test_settings_of_one_graph_of_several_are_refused() -> None:
    with pytest.raises(UserError, match=r"--twin: the suite has settings for one of its graphs .*datasets=\[reddit\]"):
        suite_of_twins(load_suite(SUITE | {"datasets": ["reddit", "yelp"]}), None)


@pytest.mark.parametrize("name", ["reddit", "products", "yelp", "amazon", "arxiv"])
def test_every_flagship_has_a_twin_that_takes_ten_minutes_at_most(name: str) -> None:
    suite, _ = suite_of_twins(load_suite(shipped()[name]), None)
    trials = expand(suite, device="cpu")
    assert {t.dataset.name for t in trials} == {"twin"}
    assert {t.partition.parts for t in trials} == {1, 2}
    assert sum((t.train.seconds or 600) + twins.AROUND_S for t in trials) < 600
