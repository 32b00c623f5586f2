"""What a suite says of its tuning, and the trials that its points are."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UserError
from harness.runtime.method import METHODS
from harness.suite.expand import expand
from harness.suite.schema import Suite
from harness.suite.suite_file import load_suite
from harness.tune.space import Searched

SUITE = """name: s
datasets: [digits]
methods: [full, {bns-gcn: {rate: 0.1}}, graphsage]
seeds: [0, 1, 2, 3, 4]
tuning: TUNING
"""


def searched(text: str, tmp_path: Path) -> Searched:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    return Searched(load_suite(path), device="cpu")


def test_shared_keys_and_the_methods_own_are_searched(tmp_path: Path) -> None:
    text = SUITE.replace("TUNING", "{per_method: {graphsage: {fanouts: [[5, 5], 3], train.lr: {log: [0.1, 1]}}}}")
    full, bns, sage = searched(text, tmp_path).subjects()
    shared = ["train.lr", "train.weight_decay", "model.dropout"]
    assert list(full.space) == shared
    assert list(bns.space) == shared, "an option that the suite gives was searched"
    assert list(sage.space) == [*shared, "batch_size", "fanouts"]
    assert sage.space["train.lr"].log == (0.1, 1)
    assert sage.space["fanouts"].choice == ([5, 5], 3)
    assert sage.space["batch_size"].choice == tuple(METHODS.load("graphsage").space["batch_size"])


def test_rules_of_layers_are_searched_where_layers_are_drawn(tmp_path: Path) -> None:
    text = SUITE.replace("[full, {bns-gcn: {rate: 0.1}}, graphsage]", "[ladies, {skewed: {base: saint}}]")
    layers, saint = searched(text.replace("TUNING", "{}"), tmp_path).subjects()
    assert layers.space["estimator"].choice == ("ladies", "poisson")
    assert layers.space["layers"].choice == ("paper", "public", "nested")
    assert not {"estimator", "layers"} & set(saint.space), "a preset of `base: saint` says what they are"


def test_a_point_is_a_trial_with_its_values_and_no_other(tmp_path: Path) -> None:
    text = SUITE.replace("TUNING", "{budget: {seconds: 7}}") + "per_method: {graphsage: {train: {clip: 3, lr: 0.5}}}\n"
    own = searched(text, tmp_path)
    sage = own.subjects()[2]
    point = {"train.lr": 0.25, "model.dropout": 0.125, "fanouts": 4}
    trial = own.trial(sage, point, study=2)
    plain = next(t for t in expand(own.suite, device="cpu") if t.method.name == "graphsage")
    assert (trial.train.lr, trial.train.clip, trial.train.seconds, trial.model.dropout) == (0.25, 3, 7, 0.125)
    assert trial.method.options == plain.method.options | {"fanouts": 4}
    assert (trial.seed, trial.tuning and trial.tuning.study) == (10_002, 2)
    assert trial.workload[1].model_copy(update={"seconds": None}) == plain.workload[1]
    assert trial.id != own.trial(sage, point, study=1).id


@pytest.mark.parametrize(
    ("tuning", "known"),
    [
        ("{goal: time_to_target, target: 0.9}", 0.9),
        ("{goal: time_to_target, target: {of: full, below: 0.01}}", None),
        ("{}", None),
    ],
)
def test_a_trial_ends_at_a_target_that_is_known_before_the_search(
    tuning: str, known: float | None, tmp_path: Path
) -> None:
    for stop in (True, False):
        text = SUITE.replace("TUNING", tuning) + f"train: {{stop_at_target: {str(stop).lower()}}}\n"
        own = searched(text, tmp_path)
        assert own.trial(own.subjects()[0], {}, study=0).train.target == (known if stop else None)


@pytest.mark.parametrize("name", METHODS.names())
def test_every_shipped_method_declares_a_space_that_its_options_take(name: str, tmp_path: Path) -> None:
    own = Searched(
        Suite.model_validate(
            {"name": "s", "datasets": ["digits"], "methods": [name], "seeds": [0, 1, 2, 3, 4], "tuning": {}}
        ),
        device="cpu",
    )
    (subject,) = own.subjects()
    assert set(METHODS.load(name).space) <= set(subject.space)


@pytest.mark.parametrize(
    ("tuning", "message"),
    [
        ("{budgt: {}}", "tuning.budgt: unknown key (did you mean 'budget'?)"),
        ("{budget: {trails: 3}}", "tuning.budget.trails: unknown key (did you mean 'trials'?)"),
        ("{budget: {trials: 0}}", "tuning.budget.trials: bad value 0: must be greater than or equal to 1"),
        ("{budget: {seconds: 9, total_seconds: 5}}",
         "tuning.budget: total_seconds of 5 are below one trial's 9: make them more"),
        ("{sampler: bayes}", "tuning.sampler: bad value 'bayes', allowed: random, qmc, tpe"),
        ("{goal: time_to_target}", "tuning: `goal: time_to_target` needs a `target`"),
        ("{pruner: asha}", "tuning: `pruner: asha` compares trials at equal seconds: give `budget.seconds`"),
        ("{target: 1.5}", "tuning: bad value 1.5 of target: a score is a fraction, above 0 and at most 1"),
        ("{target: {of: ful}}", "tuning.target.of: 'ful' is no method of the suite (did you mean 'full'?)"),
        ("{space: {train.lrr: {log: [1, 2]}}}", "tuning.space.train.lrr: unknown key (did you mean 'train.lr'?)"),
        ("{space: {rate: [0.5]}}", "tuning.space.rate: unknown key"),
        ("{space: {train.lr: {log: [0.1, 0.01]}}}",
         "tuning.space.train.lr: the range [0.1, 0.01] is empty: write the smaller number first"),
        ("{space: {train.lr: {log: [0, 0.01]}}}",
         "tuning.space.train.lr: bad value 0: a logarithm needs numbers above 0"),
        ("{space: {train.lr: {uniform: [-1, 1]}}}", "tuning.space.train.lr: bad value -1.0: must be greater than 0"),
        ("{space: {train.lr: []}}", "tuning.space.train.lr.choice: bad value []: must not be empty"),
        ("{space: {train.lr: [0.1, 0.1]}}", "tuning.space.train.lr: a value is listed twice: leave one of them"),
        ("{space: {train.lr: {log: [1, 2], choice: [1]}}}",
         "tuning.space.train.lr: write one of uniform, log, integer, choice, not 2"),
        ("{per_method: {sage: {}}}", "tuning.per_method.sage: no method of the suite"),
        ("{per_method: {full: {rate: [0.1]}}}", "tuning.per_method.full.rate: unknown key"),
        ("{per_method: {bns-gcn: {rate: {uniform: [0.5, 2]}}}}",
         "tuning.per_method.bns-gcn.rate: bad value 2.0: must be less than or equal to 1"),
        ("{space: {train.threads: [1, 2]}}", "tuning.space.train.threads: the same for every method: "),
        ("{studies: 0}", "tuning.studies: bad value 0: must be greater than or equal to 1"),
    ],
)  # fmt: skip
def test_mistakes_golden(tuning: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        searched(SUITE.replace("TUNING", tuning), Path()).subjects()
    assert str(error.value).startswith(f"s.yaml:5: {message}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[0, 1, 2, 3, 4]", "[0, 1]"), "s.yaml:4: seeds: 2 of at least 5 seeds"),
        (("[0, 1, 2, 3, 4]", "[0, 1, 2, 3, 10000]"), "s.yaml:4: seeds: 10000 is a seed of the search"),
        (("[full,", "[{bns-gcn: {rate: 0.2}},"), "s.yaml:5: tuning: several variants of 'bns-gcn'"),
        (("[digits]", "[digits, {digits: {k: 5}}]"), "s.yaml:5: tuning: several data sets named 'digits'"),
        (("tuning", "train: {lr: [0.1, 1]}\ntuning"), "s.yaml:6: tuning: `train` has 2 variants"),
        (
            ("tuning: TUNING", "timing: 'off'\ntuning: {budget: {seconds: 3}}"),
            "s.yaml:5: timing: the tuning asks for seconds, and epochs are not timed with `timing: off` (timing: wall)",
        ),
        (("tuning: TUNING", ""), "s.yaml: the suite has no `tuning`"),
    ],
)
def test_suites_that_cannot_be_tuned_golden(
    change: tuple[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        searched(SUITE.replace(*change).replace("TUNING", "{}"), Path()).subjects()
    assert str(error.value).startswith(message)


def test_a_ruleset_gives_what_is_not_given(tmp_path: Path) -> None:
    spec = searched(SUITE.replace("TUNING", "{ruleset: algoperf, target: 0.5, studies: 2}"), tmp_path).spec
    assert (spec.budget.trials, spec.studies, spec.goal, spec.default_first) == (5, 2, "time_to_target", False)
