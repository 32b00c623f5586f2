"""The search of settings: resumed, shared, by validation alone, on trials whose best settings are known."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from support.tiers import tiered
from tune.made_up import EPOCHS, RATES, SCORES, Killed, Machine, curve, deaths, suite, to_the_end, tuner

from harness.errors import UserError
from harness.results.tuned import expected_best, kept_tunings, read_tuning
from harness.suite.expand import expand
from harness.suite.schema import Suite
from harness.suite.suite_file import as_written, load_suite, write_suite_file
from harness.tune import tuned_suite
from harness.tune.study import Curve, Tried, asha_rungs, at, choose, studies_at, success


def chosen(found: list[Any]) -> dict[str, Any]:
    return {each.subject.method.name: (each.chosen.tried.point, each.chosen.study) for each in found}


@pytest.mark.slow
@pytest.mark.parametrize("sampler", tiered(["random", "qmc", "tpe"], ["tpe"]))
def test_a_search_that_was_killed_at_random_ends_as_one_that_was_not(sampler: str, tmp_path: Path) -> None:
    of = suite(sampler=sampler, studies=2, budget={"trials": 5})
    whole = Machine()
    expected = chosen(to_the_end(of, tmp_path / "whole", whole)[1])
    rng = np.random.default_rng(0)
    for attempt in range(2):
        machine = Machine(dies=deaths(rng))
        found = to_the_end(of, tmp_path / f"{attempt}", machine)[1]
        assert chosen(found) == expected
        assert sorted(t.id for t in machine.ran) == sorted(t.id for t in whole.ran), "a trial ran twice"
    assert len(whole.ran) == 2 * 2 * 5


def test_each_study_and_seed_draws_its_own(tmp_path: Path) -> None:
    machine = Machine()
    to_the_end(suite(studies=2, default_first=False), tmp_path, machine)
    to_the_end(suite(studies=1, seed=1, default_first=False), tmp_path / "other", other := Machine())
    rates = {round(trial.train.lr, 12) for trial in (*machine.ran, *other.ran)}
    assert len(rates) == 2 * 2 * 6 + 2 * 6
    assert {trial.seed for trial in machine.ran} == {10_000, 10_001}


def test_the_best_of_each_study_and_of_these_the_median_is_chosen(tmp_path: Path) -> None:
    _, found = to_the_end(suite(studies=3), tmp_path, machine := Machine())
    for each in found:
        name = each.subject.method.name
        best = {
            study: max(max(curve(t)[1]) for t in machine.ran if t.method.name == name and t.seed == 10_000 + study)
            for study in range(3)
        }
        assert each.chosen.success == pytest.approx(sorted(best.values())[1])
        assert best[each.chosen.study] == pytest.approx(each.chosen.success)
        assert each.trials == 18
        assert each.trained_s == pytest.approx(18 * EPOCHS * 0.1)


def test_the_first_trial_of_each_study_has_the_suites_own_settings(tmp_path: Path) -> None:
    of = suite(studies=2)
    own, found = to_the_end(of, tmp_path, machine := Machine())
    usual = {t.method.name: (t.train, t.model) for t in expand(of, device="cpu")}
    firsts = [t for t in machine.ran if (t.train, t.model) == usual[t.method.name]]
    assert sorted((t.method.name, t.seed) for t in firsts) == [
        (name, seed) for name in ("bns-gcn", "full") for seed in (10_000, 10_001)
    ]
    # The best rate of `full` is the usual one: what is drawn cannot be better, and what is chosen overrides nothing.
    full, bns = found
    assert (full.subject.method.name, full.chosen.tried.point, full.chosen.tried.number) == ("full", {}, 0)
    assert bns.chosen.tried.point
    tuned = load_suite(write_suite_file(tuned_suite(of, found), tmp_path / "tuned.yaml"))
    trained = [t for t in expand(tuned, device="cpu") if t.method.name == "full"]
    assert all((t.train, t.model) == usual["full"] for t in trained)
    kept = own.outcome(found).methods[0]
    assert (kept.method, kept.drawn_in_a_study, len(kept.drawn_vals)) == ("full", 5, 10)
    assert kept.own_val == pytest.approx(kept.best.best_val)
    _, drawn = to_the_end(suite(studies=2, default_first=False), tmp_path / "drawn", Machine())
    assert all(each.chosen.tried.point for each in drawn)


def test_all_that_was_tried_is_kept(tmp_path: Path) -> None:
    of = suite(goal="time_to_target", target=0.7, studies=2, budget={"trials": 4, "seconds": 1.55})
    own, found = to_the_end(of, tmp_path, machine := Machine())
    path = own.outcome(found).write(tmp_path / "kept")
    kept = read_tuning(path)
    assert (kept.search, kept.suite) == ("made-up-tuning", "made-up-tuned")
    ran = {t.id: t for t in machine.ran}
    for each in kept.methods:
        assert [(t.study, t.number) for t in each.tried] == [(s, n) for s in range(2) for n in range(4)]
        for tried in each.tried:
            seconds, scores = curve(ran[tried.trial])
            within = [v for at, v in zip(np.cumsum(seconds), scores, strict=True) if at <= 1.55]
            assert tried.best_val == pytest.approx(max(within))
            first = next((i for i, v in enumerate(within) if v >= 0.7), None)
            assert tried.target_s == (None if first is None else pytest.approx(0.1 * (first + 1)))
        assert each.trained_s == pytest.approx(8 * EPOCHS * 0.1)
        hits = [t for t in each.tried if t.drawn and t.target_s is not None]
        assert each.reaching == (len(hits), 6)
    assert kept_tunings([tmp_path])["made-up-tuned"] == kept
    path.write_text('{"schema_version": 1}')
    with pytest.raises(UserError, match=r"tuning\.json: damaged: search: Field required"):
        read_tuning(path)


def test_the_expected_best_of_draws_is_the_mean_over_all_of_them() -> None:
    scores = [0.2, 0.9, 0.0, 0.5, 0.5]
    for k, found in enumerate(expected_best(scores, 4), 1):
        every = [max(draw) for draw in itertools.product(scores, repeat=k)]
        assert found == pytest.approx(np.mean(every))


def test_a_target_below_the_baseline_is_of_its_best_trial(tmp_path: Path) -> None:
    of = suite(goal="time_to_target", target={"of": "full", "below": 0.2}, studies=1)
    _, found = to_the_end(of, tmp_path, machine := Machine())
    best = max(max(curve(t)[1]) for t in machine.ran if t.method.name == "full")
    assert [each.target for each in found] == [pytest.approx(best - 0.2)] * 2
    assert [t.method.name for t in machine.ran] == ["full"] * 6 + ["bns-gcn"] * 6, "the baseline comes first"
    for each in found:
        trials = [t for t in machine.ran if t.method.name == each.subject.method.name]
        took = [next((0.1 * (e + 1) for e, v in enumerate(curve(t)[1]) if v >= best - 0.2), np.inf) for t in trials]
        tried = {t.id: s for t, s in zip(trials, took, strict=True)}
        assert tried[each.chosen.tried.trial] == min(took)
    tuned = tuned_suite(of, found)
    assert [t.train.target for t in expand(tuned, device="cpu")] == [pytest.approx(best - 0.2)] * 10


def test_a_target_below_the_best_is_of_whoever_comes_highest(tmp_path: Path) -> None:
    of = suite(goal="time_to_target", target={"of": "best", "below": 0.2}, studies=1)
    _, found = to_the_end(of, tmp_path, machine := Machine())
    top = max(max(curve(trial)[1]) for trial in machine.ran)
    assert [each.target for each in found] == [pytest.approx(top - 0.2)] * 2
    assert len(machine.ran) == 12


def test_a_target_is_of_no_method_that_trains_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCORES, "sign", 0.99)
    monkeypatch.setitem(RATES, "sign", RATES["full"])
    of = suite(["full", "sign"], goal="time_to_target", target={"of": "best", "below": 0.2}, studies=1)
    _, found = to_the_end(of, tmp_path, machine := Machine())
    top = {name: max(max(curve(t)[1]) for t in machine.ran if t.method.name == name) for name in ("full", "sign")}
    assert top["full"] < top["sign"]
    assert [each.target for each in found] == [pytest.approx(top["full"] - 0.2)] * 2


def test_a_target_below_nothing_ends_after_the_baselines_search(tmp_path: Path) -> None:
    of = suite(goal="time_to_target", target={"of": "full", "below": 0.95}, studies=1)
    machine = Machine()
    with pytest.raises(
        UserError, match=r"target\.below: bad value 0\.95: full came to 0\.[0-9]{4} on digits only \(make it"
    ):
        to_the_end(of, tmp_path, machine)
    assert {trial.method.name for trial in machine.ran} == {"full"}


def test_the_chosen_settings_are_a_suite_with_fresh_seeds(tmp_path: Path) -> None:
    of = suite(budget={"trials": 4, "seconds": 9}, default_first=False, per_method={"bns-gcn": {"rate": [0.25, 0.75]}})
    own, found = to_the_end(of, tmp_path, machine := Machine())
    path = write_suite_file(tuned_suite(of, found), tmp_path / "tuned.yaml")
    trials = expand(load_suite(path), device="cpu")
    assert load_suite(path).name == "made-up-tuned"
    assert {t.seed for t in trials} == {0, 1, 2, 3, 4}
    assert not {t.seed for t in trials} & {t.seed for t in machine.ran}
    for each in found:
        name, point = each.subject.method.name, each.chosen.tried.point
        for trial in (t for t in trials if t.method.name == name):
            assert (trial.train.lr, trial.train.weight_decay) == (point["train.lr"], point["train.weight_decay"])
            assert (trial.model.dropout, trial.train.seconds, trial.tuning) == (point["model.dropout"], 9, None)
            assert trial.method.options.get("rate") == point.get("rate")
    assert [row.chosen for row in own.outcome(found).methods] == [e.chosen.tried.trial for e in found]


def test_the_chosen_suite_is_found_from_its_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin and a partition's file lie beside the suite, not beside what was chosen."""
    home = tmp_path / "suites"
    home.mkdir()
    (home / "mine.py").write_text("import harness_methods.full as f\nclass Mine(f.Full):\n    name = 'mine'\n")
    np.save(home / "parts.npy", np.zeros(3, np.int32))
    (home / "s.yaml").write_text(
        "name: s\ndatasets: [digits]\nmethods: [mine]\nplugins: [mine.py]\nseeds: [0, 1, 2, 3, 4]\n"
        "partition: {method: file, file: parts.npy}\ntuning: {budget: {trials: 1}}\n"
    )
    of = load_suite(home / "s.yaml")
    monkeypatch.setitem(SCORES, "mine", 0.9)
    monkeypatch.setitem(RATES, "mine", 0.01)
    _, found = to_the_end(of, tmp_path, Machine())
    tuned = load_suite(write_suite_file(tuned_suite(of, found), tmp_path / "tuned.yaml"))
    trial = expand(tuned, device="cpu")[0]
    assert trial.plugin is not None
    assert trial.plugin.file == (home / "mine.py").resolve()
    assert trial.partition.file == (home / "parts.npy").resolve()


def test_a_planted_test_score_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a trial of the tuning has test_score: settings are chosen by validation"):
        to_the_end(suite(), tmp_path, Machine(test_scores=True))


def test_failed_trials_are_spent_and_never_chosen(tmp_path: Path) -> None:
    machine = Machine(fails=lambda trial: trial.method.name == "full" and trial.train.lr > 0.01)
    _, found = to_the_end(suite(budget={"trials": 12}, default_first=False), tmp_path, machine)
    full = next(each for each in found if each.subject.method.name == "full")
    assert (full.trials, full.chosen.tried.point["train.lr"] <= 0.01) == (12, True)
    _, found = to_the_end(suite(), tmp_path / "all", Machine(fails=lambda trial: trial.method.name == "full"))
    with pytest.raises(UserError, match="all trials of full on digits failed"):
        tuned_suite(suite(), found)


def test_no_trial_begins_once_the_seconds_of_a_study_are_spent(tmp_path: Path) -> None:
    """Each takes 2 s: the third begins at 4 of 5."""
    _, found = to_the_end(suite(budget={"trials": 9, "total_seconds": 5}), tmp_path, Machine())
    assert [each.trials for each in found] == [3, 3]


def test_a_target_that_nobody_reaches_is_said_in_a_line(tmp_path: Path) -> None:
    own, _ = to_the_end(suite(goal="time_to_target", target=0.99), tmp_path, Machine())
    with pytest.raises(
        UserError, match=r"tuning.target: bad value 0.99: no trial of any method came to it, the best to"
    ):
        own.check_reached()


def test_two_processes_share_a_search(tmp_path: Path) -> None:
    of = suite(sampler="tpe", studies=2)
    machines = [Machine(), Machine()]
    together = threading.Barrier(2)

    def search(machine: Machine) -> None:
        own = tuner(of, tmp_path, machine)
        together.wait()
        own.search()

    threads = [threading.Thread(target=search, args=(machine,)) for machine in machines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trials = {t.id for machine in machines for t in machine.ran}
    assert len(trials) == 2 * 2 * 6, "more trials than the budget has"
    assert chosen(tuner(of, tmp_path, Machine()).search()[0])


def test_what_was_searched_with_another_space_is_searched_anew(tmp_path: Path) -> None:
    to_the_end(suite(), tmp_path, Machine())
    machine = Machine()
    to_the_end(suite(space={"train.lr": {"log": [1e-4, 1e-3]}}), tmp_path, machine)
    assert len(machine.ran) == 10, "only the suite's own settings are the same"
    assert all(1e-4 <= trial.train.lr <= 1e-3 for trial in machine.ran)


def test_success_is_ordered_by_time_and_below_the_target_by_score() -> None:
    def of(seconds: float, score: float) -> Curve:
        return Curve((seconds,), (score,), 20.0)

    curves = [of(1, 0.9), of(3, 0.95), of(3.1, 0.9), of(1, 0.89), of(9, 0.99), Curve((), (), 5.0)]
    found = [success(curve, "time_to_target", 0.9, 8) for curve in curves]
    assert found == sorted(found, reverse=True)
    assert found[4] == found[5] == 0.0, "what came after the budget counted"
    assert [success(curve, "best_val", 0.9, 8) for curve in curves] == [0.9, 0.95, 0.9, 0.89, 0, 0]


def test_of_an_even_number_of_studies_the_lower_middle_one_is_chosen() -> None:
    studies = [[Tried(0, f"{s}", {}, Curve((1.0,), (score,), 1.0))] for s, score in enumerate((0.4, 0.9, 0.7, 0.8))]
    found = choose(studies, "best_val", None, None)
    assert found is not None
    assert (found.success, found.study) == (0.7, 2)
    failed = [[Tried(0, "x", {}, None)], *studies[1:2]]
    assert choose(failed, "best_val", None, None) is None


def test_rungs_stop_what_is_not_in_the_best_third() -> None:
    """Against a direct reading of the rule, on random curves."""
    rng = np.random.default_rng(1)
    for _ in range(50):
        curves = []
        for _ in range(int(rng.integers(0, 12))):
            trained = float(rng.choice([2, 5, 12, 27]))
            at = np.arange(1, trained + 1)
            curves.append(Curve(tuple(at.tolist()), tuple(rng.random(at.size).tolist()), trained))
        found = dict(asha_rungs(27, curves))
        for seconds in (1, 3, 9):
            there = [max(s for t, s in zip(c.seconds, c.scores, strict=True) if t <= seconds)
                     for c in curves if c.trained_s >= seconds]  # fmt: skip
            if len(there) < 3:
                assert seconds not in found
                continue
            goes_on = [score for score in there if score >= found[seconds]]
            assert len(goes_on) == -(-len(there) // 3)


def test_a_trial_that_ended_at_the_target_counts_at_later_rungs() -> None:
    early, others = Curve((0.5, 2.0), (0.3, 0.9), 2.0), [Curve((1.0, 9.0), (0.1, s), 9.0) for s in (0.5, 0.6)]
    assert dict(asha_rungs(27, [early, *others])).keys() == {1.0}
    assert dict(asha_rungs(27, [early, *others], target=0.9)) == {1.0: 0.3, 3.0: 0.9, 9.0: 0.9}


def test_draws_fill_their_ranges_evenly(tmp_path: Path) -> None:
    """The first 64 of Sobol's sequence have four in each sixteenth of every range; independent draws are uniform."""
    space = {"train.lr": {"log": [1e-4, 1.0]}, "model.dropout": {"uniform": [0.2, 0.6]}}
    own = {"train.epochs": {"integer": [3, 10]}, "train.optimizer": ["adam", "adamw"]}
    for sampler in ("qmc", "random"):
        of = suite(sampler=sampler, space=space | own, budget={"trials": 64}, default_first=False)
        study = _studies(of, tmp_path / sampler)[0]
        while study.ask():
            pass
        points = [study.point(trial) for trial in study.trials]
        shares = [[(np.log10(p["train.lr"]) + 4) / 4, (p["model.dropout"] - 0.2) / 0.4] for p in points]
        counts = [np.histogram(axis, bins=16, range=(0, 1))[0] for axis in np.array(shares).T]
        if sampler == "qmc":
            assert np.array(counts).tolist() == [[4] * 16] * 2
            assert sorted(p["train.epochs"] for p in points) == sorted([*range(3, 11)] * 8)
            assert sum(p["train.optimizer"] == "adam" for p in points) == 32
        else:
            assert all(scipy.stats.chisquare(count).pvalue > 1e-3 for count in counts)
            assert {p["train.epochs"] for p in points} == set(range(3, 11))
    ends = [at(values, share) for values in study.subject.space.values() for share in (0.0, 1.0)]
    assert ends == [pytest.approx(1e-4), 1.0, 0.2, pytest.approx(0.6), 3, 10, "adam", "adamw"]


def test_asha_tells_later_trials_where_to_stop(tmp_path: Path) -> None:
    machine = Machine()
    to_the_end(suite(pruner="asha", budget={"trials": 8, "seconds": 2}), tmp_path, machine)
    full = [t for t in machine.ran if t.method.name == "full"]
    assert [bool(t.tuning.rungs) for t in full if t.tuning] == [False] * 3 + [True] * 5
    assert all(0 < score <= SCORES["full"] for t in full if t.tuning for _, score in t.tuning.rungs)


def test_a_kill_leaves_no_trial_behind(tmp_path: Path) -> None:
    """What was asked for and not run is run first, with the same settings."""
    of = suite(sampler="tpe", default_first=False)
    machine = Machine(dies=iter([0]))
    with pytest.raises(Killed):
        tuner(of, tmp_path, machine).search()
    asked = [t for s in _studies(of, tmp_path) for t in s.waiting]
    assert [t.number for t in asked] == [0, 0]
    machine = Machine()
    tuner(of, tmp_path, machine).search()
    assert machine.ran[0].train.lr == asked[0].params["train.lr"]


def _studies(of: Any, results: Path) -> list[Any]:
    own = tuner(of, results, Machine())
    kept = studies_at(own.store.directory / "optuna.journal", own.searched.spec, own.subjects)
    return [study for studies in kept for study in studies]


def test_a_method_with_a_model_of_its_own_has_no_other_depths_and_widths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They follow from its options, and are those that the search tries."""
    monkeypatch.setitem(SCORES, "sign", 0.8)
    monkeypatch.setitem(RATES, "sign", 0.05)
    of = Suite.model_validate(as_written(suite()) | {"methods": ["full", "sign"]})
    own, found = to_the_end(of, tmp_path, machine := Machine())
    tried = [trial for trial in machine.ran if trial.method.name == "sign"]
    assert {trial.model.order for trial in tried} == {trial.method.options["hops"] or 2 for trial in tried}
    assert len({trial.model.order for trial in tried}) > 1
    changed, code = own.try_changes(found, cross=True, sensitivity=True)
    assert code == 0
    told = {each.method: [c.change for c in each.changed] for each in own.outcome(changed).methods}
    assert told["sign"] == ["settings of full"]
    assert len(told["full"]) == 5


def test_changes_are_of_what_was_chosen_and_cannot_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other family's best has its shared keys tried; a later call without the options keeps what was tried."""
    monkeypatch.setitem(SCORES, "graphsage", 0.8)
    monkeypatch.setitem(RATES, "graphsage", 0.05)
    of = Suite.model_validate(as_written(suite()) | {"methods": ["full", "graphsage"]})
    own, found = to_the_end(of, tmp_path, machine := Machine())
    searched = {trial.id for trial in machine.ran}
    changed, code = own.try_changes(found, cross=True, sensitivity=True)
    assert code == 0
    trials = {trial.id: trial for trial in machine.ran}
    size = trials[found[0].chosen.tried.trial].model
    rate = {each.subject.method.name: trials[each.chosen.tried.trial].train.lr for each in found}
    assert rate["full"] != rate["graphsage"]
    for each in own.outcome(changed).methods:
        donor = "graphsage" if each.method == "full" else "full"
        told = {c.change: trials[c.trial] for c in each.changed}
        assert {name: (t.model.layers, t.model.hidden, t.train.lr) for name, t in told.items()} == {
            f"settings of {donor}": (size.layers, size.hidden, rate[donor]),
            f"layers {size.layers - 1}": (size.layers - 1, size.hidden, rate[each.method]),
            f"layers {size.layers + 1}": (size.layers + 1, size.hidden, rate[each.method]),
            f"hidden {size.hidden // 2}": (size.layers, size.hidden // 2, rate[each.method]),
            f"hidden {size.hidden * 2}": (size.layers, size.hidden * 2, rate[each.method]),
        }
        assert {(t.method.name, t.seed) for t in told.values()} == {(each.method, 10_000)}
        assert all(c.best_val == pytest.approx(max(curve(told[c.change])[1])) for c in each.changed)
        assert each.chosen in searched
        assert len(each.tried) == 6
    count = len(machine.ran)
    later, _ = own.try_changes(found, cross=False, sensitivity=False)
    assert len(machine.ran) == count
    assert own.outcome(later) == own.outcome(changed)


def test_of_several_networks_the_first_is_searched_and_all_are_trained_on(tmp_path: Path) -> None:
    of = Suite.model_validate(as_written(suite()) | {"network": ["none", "1gbit"], "partition": {"parts": 2}})
    _, found = to_the_end(of, tmp_path, machine := Machine())
    assert {trial.network for trial in machine.ran} == {None}
    final = expand(tuned_suite(of, found), device="cpu")
    assert len(final) == 2 * 2 * 5
    assert [t.network.label if t.network else "none" for t in final[:3]] == ["none", "none", "1gbit"]
    rates = {(t.method.name, t.train.lr) for t in final}
    assert rates == {(f.subject.method.name, f.chosen.tried.point.get("train.lr", 0.01)) for f in found}
