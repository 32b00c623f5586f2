"""Fresh seeds until it is decided who is fastest: who gets them, why they end, and how often that is wrong."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from launch.tiny import Silent, write_suite
from report.fake import ENVIRONMENT, epoch_rows, make_ranks, without_epochs

from harness.cli import main
from harness.cli.until import Budget, run_until_decided, run_while_time_allows
from harness.errors import UserError
from harness.launch.runner import run_suite
from harness.launch.runner_process import INTERRUPTED
from harness.launch.slots import RunOptions
from harness.report.sections import make_sections
from harness.report.summary import answer_sentence
from harness.results.censored import Times, compare, risk_of_look
from harness.results.contrast import RISK
from harness.results.frames import load_inputs
from harness.results.record import Record
from harness.results.record_store import SUITE_FILE, ResultStore, kept, read_suite, seeds_at_looks
from harness.results.reduce import reduce
from harness.results.status import SuiteWatch
from harness.runtime.method import METHODS
from harness.suite.expand import expand
from harness.suite.schema import Suite, TrialConfig
from harness.suite.suite_file import load_suite

SUITE: dict[str, Any] = {
    "name": "small",
    "datasets": ["digits"],
    "train": {"epochs": 30, "eval_every": 5, "target": 0.6},
    "partition": {"parts": [1, 2]},
    "methods": ["full", {"graphsage": {"fanouts": 5}}],
    "exclude": [{"method": "graphsage", "parts": 1}],
    "seeds": [0, 1, 2],
    "device": "cpu",
}
Pace = Mapping[tuple[str, int], float]
FIRST, SECOND, THIRD = ("full", 1), ("full", 2), ("graphsage", 2)
Runner = tuple[Callable[[Suite, Sequence[TrialConfig]], int], list[list[TrialConfig]]]


@pytest.fixture
def runner(tmp_path: Path) -> Callable[..., Runner]:
    """Make a runner whose trials take the seconds of a pace an epoch, give or take the noise of a run.

    Those of `poor` do not reach the target.
    """

    def made(pace: Pace, noise: float, poor: Collection[tuple[str, int]] = ()) -> Runner:
        rounds: list[list[TrialConfig]] = []

        def run(suite: Suite, trials: Sequence[TrialConfig]) -> int:
            store = ResultStore(tmp_path, suite.name)
            store.directory.mkdir(exist_ok=True)
            store.keep_suite(kept(suite, expand(suite)))
            done = store.finished()
            rounds.append([trial for trial in trials if trial.id not in done])
            for trial in rounds[-1]:
                _commit(store, trial, pace, noise, 0.5 if names([trial]) <= set(poor) else 0.9)
            return 0

        return run, rounds

    return made


def _commit(store: ResultStore, trial: TrialConfig, pace: Pace, noise: float, best: float = 0.9) -> None:
    rng = np.random.default_rng(int(trial.id, 16))
    ranks = make_ranks(trial, trial.train.epochs, rng)
    seconds = pace[trial.method.name, trial.partition.parts] * np.exp(noise * rng.standard_normal())
    for rank in ranks:
        for row in rank["epochs"]:
            row["epoch_time_s"] = seconds
            row["val_score"] = None if row["val_score"] is None else min(best, 0.2 + row["epoch"] / 30)
    record = Record(
        trial=trial.id, suite=store.suite, label=trial.label, status="ok", reason=None, wall_s=60.0,
        started="2025-01-01T10:00:00+00:00", config=trial.model_dump(mode="json"), environment=ENVIRONMENT,
        dataset={"name": "digits", "origin": "real", "note": "", "multilabel": False}, result=reduce(ranks),
        ranks=without_epochs(ranks), declared=METHODS.load(trial.method.name).declared(),
    )  # fmt: skip
    store.stage(trial.id)
    store.commit(trial.id, record, epoch_rows(ranks), "")


def decide(tmp_path: Path, runner: Runner, budget: str = "40 trials") -> str:
    suite = load_suite(SUITE)
    code, why = run_until_decided(suite, expand(suite), ResultStore(tmp_path, "small"), runner[0], Budget.parse(budget))
    assert code == 0
    return why


def names(trials: Sequence[TrialConfig]) -> set[tuple[str, int]]:
    return {(trial.method.name, trial.partition.parts) for trial in trials}


def test_those_that_are_surely_behind_get_no_more_seeds(tmp_path: Path, runner: Any) -> None:
    own = runner({FIRST: 1.0, SECOND: 0.85, THIRD: 9.0}, 0.06)
    why = decide(tmp_path, own)
    _, rounds = own
    assert why == f"decided with {2 + len(rounds)} seeds"
    assert names(rounds[0]) == {FIRST, SECOND, THIRD}
    assert [names(each) for each in rounds[1:]] == [{FIRST, SECOND}] * (len(rounds) - 1)
    assert [{trial.seed for trial in each} for each in rounds[1:]] == [{3 + i} for i in range(len(rounds) - 1)]
    assert len(rounds) > 1
    inputs = load_inputs(tmp_path)
    (section,) = make_sections(inputs)
    assert section.looks[0] == (0, 1, 2)
    assert len(section.looks) == len(rounds)
    assert "full on 2 ranks reaches 60 % first" in answer_sentence(section, "digits")
    assert "may be as fast" not in answer_sentence(section, "digits")  # the page judges as the run did

    again = runner({FIRST: 9.0, SECOND: 9.0, THIRD: 9.0}, 0.02)  # nothing is run again
    assert decide(tmp_path, again) == why
    assert [each for each in again[1] if each] == []


def test_every_second_round_is_in_the_reverse_order(tmp_path: Path, runner: Any) -> None:
    own = runner({FIRST: 1.0, SECOND: 1.001, THIRD: 9.0}, 0.1)
    decide(tmp_path, own, "6 trials")
    order = [[(trial.method.name, trial.partition.parts) for trial in each] for each in own[1][1:]]
    assert order == [[SECOND, FIRST], [FIRST, SECOND, SECOND, FIRST]]  # of seed 3, and of 4 and 5; seed 0 was forwards


def test_equal_methods_end_as_equal(tmp_path: Path, runner: Any) -> None:
    own = runner({FIRST: 1.0, SECOND: 1.0, THIRD: 3.0}, 0.005)
    assert decide(tmp_path, own).startswith("equal within 5 % with ")


@pytest.mark.quick(1)
@pytest.mark.parametrize(("budget", "seeds"), [("6 trials", 6), ("7 trials", 6), ("359 s", 4), ("6 min", 6)])
def test_a_budget_ends_it(tmp_path: Path, runner: Any, budget: str, seeds: int) -> None:
    """Of two that cannot be told apart a round of one seed has two trials, of a minute each, the next four."""
    own = runner({FIRST: 1.0, SECOND: 1.001, THIRD: 9.0}, 0.1)
    why = f"not decided with {seeds} seeds: another round would exceed the budget of {budget}"
    assert decide(tmp_path, own, budget) == why


def test_without_a_time_to_a_score_it_is_refused(tmp_path: Path, runner: Any) -> None:
    suite = load_suite(SUITE | {"train": {"epochs": 9, "eval_every": 5}})
    run, _ = runner({FIRST: 1.0, SECOND: 1.0, THIRD: 3.0}, 0.1)
    with pytest.raises(UserError, match=r"--until: no time to a score is known of digits .*train\.eval_every"):
        run_until_decided(suite, expand(suite), ResultStore(tmp_path, "small"), run, Budget.parse("1 h"))


def allowed(tmp_path: Path, runner: Runner, seconds: float) -> str:
    suite, store = load_suite(SUITE), ResultStore(tmp_path, "small")
    code, why = run_while_time_allows(suite, expand(suite), store, runner[0], 2, seconds)
    assert code == 0
    return why


@pytest.mark.quick(1)
@pytest.mark.parametrize(("seconds", "seeds"), [(0, 3), (599, 3), (600, 4), (719, 4), (720, 5)])
def test_what_reaches_the_target_gets_the_fresh_seeds_that_fit(
    tmp_path: Path, runner: Any, seconds: float, seeds: int
) -> None:
    """Six trials of a minute each, then of two configurations as many as fit, at least all seeds of the suite."""
    own = runner({FIRST: 1.0, SECOND: 1.5, THIRD: 1.0}, 0.05, poor=[THIRD])
    why = f"2 seeds of each configuration, {seeds} of each of the 2 that reach the target"
    assert allowed(tmp_path, own, seconds) == why
    first, fresh = own[1]
    assert (names(first), {trial.seed for trial in first}) == ({FIRST, SECOND, THIRD}, {0, 1})
    assert (names(fresh), {trial.seed for trial in fresh}) == ({FIRST, SECOND}, {*range(2, seeds)})
    (section,) = make_sections(load_inputs(tmp_path))
    assert section.looks == ()  # one look, at the end
    assert "full on one rank reaches 60 % first" in answer_sentence(section, "digits")
    assert "do not reach it with graphsage" in answer_sentence(section, "digits")
    assert read_suite(tmp_path / "small" / SUITE_FILE).decided == why

    again = runner({FIRST: 9.0, SECOND: 9.0, THIRD: 9.0}, 0.02)  # nothing is run again
    assert allowed(tmp_path, again, seconds) == why
    assert [each for each in again[1] if each] == []


def test_where_nothing_reaches_the_target_there_are_no_fresh_seeds(tmp_path: Path, runner: Any) -> None:
    own = runner({FIRST: 1.0, SECOND: 1.0, THIRD: 1.0}, 0.05, poor=[FIRST, SECOND, THIRD])
    assert allowed(tmp_path, own, 6000) == "2 seeds of each configuration, none of which reaches the target"
    assert len(own[1]) == 1


def test_a_run_that_is_cut_off_gets_the_same_fresh_seeds(tmp_path: Path, runner: Any) -> None:
    run, rounds = runner({FIRST: 1.0, SECOND: 1.5, THIRD: 1.0}, 0.05, poor=[THIRD])
    suite, store = load_suite(SUITE), ResultStore(tmp_path, "small")

    def cut(suite: Suite, trials: Sequence[TrialConfig]) -> int:
        if rounds:  # of the second round only one trial
            run(suite, trials[:1])
            return INTERRUPTED
        return int(run(suite, trials))

    assert run_while_time_allows(suite, expand(suite), store, cut, 2, 720) == (INTERRUPTED, "")
    assert not read_suite(tmp_path / "small" / SUITE_FILE).decided
    assert "5 of each of the 2" in allowed(tmp_path, (run, rounds), 720)
    assert [len(each) for each in rounds] == [6, 1, 0, 5]


@pytest.mark.parametrize("spread", [0.0, pytest.param(0.5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("arrive", [0.5, 0.9])
def test_equal_methods_of_which_some_get_more_seeds_are_told_apart_in_5_of_100_at_most(
    arrive: float, spread: float
) -> None:
    """Of eight equal methods those that reach the target with one of two seeds get three more."""
    rng, draws, wrong = np.random.default_rng(8), 200, 0
    limit = 0.17 * NormalDist().inv_cdf(arrive)
    for _ in range(draws):
        own = np.exp(spread * rng.standard_normal((8, 1))) * rng.normal(0, 0.13, (8, 5))
        logs, times = own + rng.normal(0, 0.11, 5), dict[int, Times]()
        for i, row in enumerate(logs):
            ran = range(5 if (row[:2] <= limit).any() else 2)
            reached = {seed: math.exp(row[seed]) for seed in ran if row[seed] <= limit}
            times[i] = Times(reached, {seed: math.exp(limit) for seed in ran if seed not in reached})
        wrong += any(pair.sure for pair in compare(times))
    assert wrong / draws <= 0.05


@pytest.mark.parametrize("text", ["", "many", "1.5 trials", "2 days", "-1 h"])
def test_a_budget_is_trials_or_time(text: str) -> None:
    with pytest.raises(UserError, match=r"--budget: .* is no budget .*'2 h'"):
        Budget.parse(text)


LOOKS = [tuple(range(count)) for count in itertools.takewhile((32).__ge__, seeds_at_looks(3))]
MOST = len(LOOKS[-1])


def drawn(rng: np.random.Generator, means: Sequence[float], noise: float) -> dict[str, Times]:
    shared = rng.normal(0, 0.1, MOST)  # a seed is easy or hard for all
    return {
        str(i): Times({seed: mean * float(np.exp(shared[seed] + rng.normal(0, noise))) for seed in range(MOST)}, {})
        for i, mean in enumerate(means)
    }


@pytest.mark.parametrize("methods", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_equal_methods_are_told_apart_in_5_of_100_sequences_at_most(methods: int) -> None:
    rng, draws = np.random.default_rng(methods), 300
    wrong = sum(any(pair.sure for pair in compare(drawn(rng, [1.0] * methods, 0.1), looks=LOOKS)) for _ in range(draws))
    assert wrong / draws <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / draws)
    assert sum(map(risk_of_look, range(1000))) <= RISK


def test_looking_every_time_with_the_whole_risk_would_err_more_often() -> None:
    rng, draws = np.random.default_rng(2), 300

    def peeked(times: Mapping[str, Times]) -> bool:
        return any(pair.sure for seeds in LOOKS for pair in compare({k: own.of(seeds) for k, own in times.items()}))

    assert sum(peeked(drawn(rng, [1.0] * 2, 0.1)) for _ in range(draws)) / draws > 0.08


def test_one_that_takes_twice_as_long_is_behind_at_an_early_look() -> None:
    found = compare(drawn(np.random.default_rng(0), [1.0, 1.1, 2.0], 0.05), looks=LOOKS[:2])
    assert {pair.over for pair in found if pair.sure} >= {"2"}


@pytest.mark.parametrize("more", [["--budget", "2 days"], ["--jobs", "2"], ["--nnodes", "2", "--rdzv", "a:1"]])
def test_a_mistake_is_refused_before_anything_is_read_or_downloaded(more: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "reddit", "--until", "decided", "--results", str(tmp_path / "r"), *more])
    assert ended.value.code == 2
    assert not (tmp_path / "r").exists()


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", ["first_look", "first_seeds"])
def test_status_counts_no_seeds_that_will_not_run(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The rounds are as `run_until_decided` and `run_while_time_allows` ask for them; ranks are fakes."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[1]), prepend=os.pathsep)
    suite, data = load_suite(write_suite(tmp_path)), tmp_path / "data"
    store, options = (
        ResultStore(tmp_path / "results", suite.name),
        RunOptions(data_dir=data, worker="launch.fake_worker"),
    )

    def round_of(count: int, *parts: int) -> list[str]:
        rounds = suite.model_copy(update={"seeds": tuple(range(count)), kind: 1})
        every = expand(rounds, data_dir=data)
        asked = [trial for trial in every if trial.seed == count - 1 and trial.partition.parts in parts]
        assert run_suite(rounds, asked, store, options, Silent()) == 0
        return said()

    def said() -> list[str]:
        with pytest.raises(SystemExit):
            main(["status", str(store.root)])
        return capsys.readouterr().out.splitlines()

    watch = SuiteWatch(store.directory)
    assert round_of(1, 1, 2) == [
        "tiny: 2 trials: 2 ended (2 ok), 0 running, 0 to run",
        "not decided yet: 2 of 2 configurations may still be the fastest, with 1 seed so far",
    ]
    assert not watch.state().over  # a round may follow
    first, then, head, row = round_of(2, 1)
    assert first == "tiny: 3 trials: 3 ended (3 ok), 0 running, 0 to run"
    assert then == "not decided yet: 1 of 2 configurations may still be the fastest, with 2 seeds so far"
    assert (head.split("  ")[0], row.split()[-2:]) == ("gets no more seeds", ["chunk", "1"])
    assert "P=2" in row
    store.keep_suite(read_suite(store.directory / SUITE_FILE).model_copy(update={"decided": "decided with 2 seeds"}))
    assert said()[1] == "decided with 2 seeds"
    assert watch.state().over


def _untested(rows: Callable[[Any], list[dict[str, Any]]], ranks: Any) -> list[dict[str, Any]]:
    return [row | {"test_score": None} for row in rows(ranks)]


def test_what_was_tuned_is_trained_until_it_is_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh seeds go to what may still be the fastest; begun again, nothing is run twice, and it ends the same."""
    ran: list[TrialConfig] = []

    def run_suite(suite: Suite, trials: Sequence[TrialConfig], store: ResultStore, *_: object) -> int:
        store.directory.mkdir(parents=True, exist_ok=True)
        store.keep_suite(kept(suite, expand(suite)))
        for trial in trials:
            if trial.id not in store.finished():
                ran.append(trial)
                _commit(store, trial, {("full", 2): 1.0, ("graphsage", 2): 1.02, ("bns-gcn", 2): 9.0}, 0.1)
        return 0

    monkeypatch.setattr("harness.launch.runner.run_suite", run_suite)
    monkeypatch.setitem(globals(), "epoch_rows", partial(_untested, epoch_rows))
    file = tmp_path / "tiny.yaml"
    file.write_text(
        "name: tiny\ndatasets: [digits]\ntrain: {epochs: 30, eval_every: 5}\npartition: {parts: 2}\n"
        "methods: [full, graphsage, bns-gcn]\nseeds: [0, 1, 2, 3, 4]\ndevice: cpu\n"
        "tuning: {budget: {trials: 1}, goal: time_to_target, target: 0.6}\n"
    )
    command = ["tune", str(file), "--until", "decided", "--budget", "6 trials", "--results", str(tmp_path)]
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 0
    search, first, more = ran[:3], ran[3:18], ran[18:]
    assert {trial.seed for trial in search} == {10_000}
    assert {trial.seed for trial in first} == {0, 1, 2, 3, 4}
    assert {trial.method.name for trial in more} == {"full", "graphsage"}
    assert len(more) == 4
    assert {trial.seed for trial in more} == {5, 6}
    said = read_suite(tmp_path / "tiny-tuned" / SUITE_FILE).decided
    assert said == "not decided with 7 seeds: another round would exceed the budget of 6 trials"


def test_a_twin_is_run_in_rounds_all_of_which_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trial of a minute leaves time for one more seed; `fastgcn` never reaches the target."""
    every: list[TrialConfig] = []

    def run_suite(suite: Suite, trials: Sequence[TrialConfig], store: ResultStore, *_: object) -> int:
        store.directory.mkdir(parents=True, exist_ok=True)
        every.extend(trials)
        store.keep_suite(kept(suite, every))
        pace = {(trial.method.name, trial.partition.parts): 1.0 for trial in trials}
        for trial in trials:
            _commit(store, trial, pace, 0.1, 0.5 if trial.method.name == "fastgcn" else 0.9)
        return 0

    monkeypatch.setattr("harness.launch.runner.run_suite", run_suite)
    file = tmp_path / "tiny.yaml"
    file.write_text(
        "name: tiny\ndatasets: [reddit]\ntrain: {epochs: 30, eval_every: 5, target: 0.6}\npartition: {parts: 2}\n"
        "methods: [full, bns-gcn, {fastgcn: {sizes: 64}}]\nnetwork: none\ndevice: cpu\n"
    )
    with pytest.raises(SystemExit) as ended:
        main(["run", str(file), "--twin", "0.002", "--results", str(tmp_path)])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "2 seeds of each configuration, 3 of each of the 2 that reach the target" in said
    assert re.search(r"^ok +8$", said, re.MULTILINE)
