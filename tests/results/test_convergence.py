"""Epochs to the score of exact training: how often honest methods are flagged, and that a cheat is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from e2e.cli import PLUGINS
from launch.tiny import Silent
from report import fake

from harness.cli.results import status
from harness.launch.runner import run_suite
from harness.launch.slots import RunOptions
from harness.report.sections import make_sections
from harness.report.warnings import make_notes
from harness.results.censored import Held, Soon, equal_settings, held_to_references
from harness.results.frames import load_inputs, load_results, too_soon
from harness.results.record_store import ResultStore, read_records
from harness.suite.expand import expand
from harness.suite.suite_file import load_suite

Scores = dict[int, float]
EPOCHS = 100


def scores(rng: np.random.Generator, speed: float, every: int, noise: float) -> Scores:
    """Make up a learning curve, evaluated every few epochs, that rises to 0.9."""
    at = np.arange(every, EPOCHS + 1, every)
    values = 0.9 - 0.6 * np.exp(-at * speed / 15) + rng.normal(0, noise, len(at))
    return dict(zip(at.tolist(), values.tolist(), strict=True))


def judged(*groups: tuple[Mapping[int, Scores], list[Mapping[int, Scores]]]) -> list[Soon]:
    """Hold curves by seed against those of a reference; a record is its curve here."""
    held = [
        Held("", cast(Any, dict(reference)), {str(i): cast(Any, dict(own)) for i, own in enumerate(methods)})
        for reference, methods in groups
    ]
    return [soon for _, soon in held_to_references(held, lambda record: cast(Any, record))]


def drawn(
    rng: np.random.Generator, seeds: int, methods: int, every: int, spread: float, noise: float, *, copies: int = 0
) -> list[Soon]:
    """Draw methods that all learn alike; `copies` of them are exact: their curves are the reference's."""

    def one() -> dict[int, Scores]:
        return {s: scores(rng, float(np.exp(rng.normal(0, spread))), every, noise) for s in range(seeds)}

    reference = one()
    return judged((reference, [reference if i < copies else one() for i in range(methods)]))


DRAWS = 300


@pytest.mark.quick(2)
@pytest.mark.parametrize("copies", [0, 9])
@pytest.mark.parametrize(("every", "spread", "noise"), [(1, 0.1, 0.003), (5, 0.3, 0.003), (10, 0.1, 0.0)])
@pytest.mark.parametrize(("seeds", "methods"), [(3, 1), (3, 10), (5, 1), (5, 10)])
def test_honest_methods_are_flagged_in_one_table_of_twenty_at_most(
    seeds: int, methods: int, every: int, spread: float, noise: float, copies: int
) -> None:
    if copies >= methods:
        pytest.skip("a method alone is not exact")
    rng = np.random.default_rng(41)
    wrong = sum(
        any(soon.sure for soon in drawn(rng, seeds, methods, every, spread, noise, copies=copies)) for _ in range(DRAWS)
    )
    # 5 % of draws, and three standard deviations of such a count
    assert wrong <= 0.05 * DRAWS + 3 * np.sqrt(DRAWS * 0.05 * 0.95)


def test_a_method_that_takes_half_the_epochs_is_found_among_ten() -> None:
    rng, found = np.random.default_rng(42), 0
    for _ in range(50):
        reference, *others = (
            {s: scores(rng, speed * float(np.exp(rng.normal(0, 0.1))), 1, 0.003) for s in range(5)}
            for speed in (1.0, 2.0, *[1.0] * 9)
        )
        soon, *_ = judged((reference, others))
        found += soon.sure
    assert found >= 45


def test_what_is_said_and_what_is_never_flagged() -> None:
    curve = {epoch: min(0.9, 0.302 + 0.01 * epoch) for epoch in range(1, 101)}
    later = {seed: {epoch: curve[max(1, epoch - seed)] for epoch in curve} for seed in range(5)}
    sooner = {seed: {epoch: own[min(100, 2 * epoch)] for epoch in own} for seed, own in later.items()}
    (soon,) = judged((later, [sooner]))
    assert soon.sure
    # The score is 0.89, reached after 59 epochs and as many as the seed is later; at twice the pace after half.
    assert (list(soon.reference), list(soon.own)) == ([59, 60, 61, 62, 63], [30, 30, 31, 31, 32])
    # Student: 2.776 deviations of the mean, sqrt(2.5 / 5) and sqrt(0.7 / 5)
    assert str(soon) == (
        "reaches a validation score of 0.89 after 30.8 [29.8, 31.8] epochs, exact training (its reference) after "
        "61 [59, 63] (means of 5 seeds each)"
    )
    (same,) = judged((later, [later]))
    assert not same.sure
    (slower,) = judged((sooner, [later]))
    assert not slower.sure
    two_seeds = {seed: later[seed] for seed in range(2)}
    assert judged((two_seeds, [sooner])) == []
    one_never = sooner | {0: {1: 0.5, 100: 0.8}}
    assert judged((later, [one_never])) == []


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results in which `bns-gcn` with a rate of 0.1 learns three times as fast as all others, by its own account."""
    made = fake.make_ranks

    def make_ranks(config: Any, epochs: int, rng: np.random.Generator) -> list[dict[str, Any]]:
        ranks = made(config, epochs, rng)
        for row in (row for rank in ranks for row in rank["epochs"]):
            speed = 3 if config.method.options.get("rate") == 0.1 else 1
            own = np.random.default_rng([config.seed, row["epoch"]]).normal(0, 0.004)
            row["val_score"] = 0.9 - 0.6 * np.exp(-speed * row["epoch"] / 10) + own
        return ranks

    monkeypatch.setattr(fake, "make_ranks", make_ranks)
    return fake.write_results(tmp_path, seeds=range(5), parts=(1, 2), train={"eval_every": 1})


def test_settings_that_are_equal(results: Path) -> None:
    groups = {held.batch: held for held in equal_settings(read_records(results).values())}
    full = groups.pop("all training nodes a step")
    assert full.reference.keys() == set(range(5))
    assert {record.config["partition"]["parts"] for record in full.reference.values()} == {1}
    assert sorted(len(own) for own in full.methods.values()) == [5] * 4  # two rates, on one part and two
    assert groups.keys() == {"1000 targets a step", "2000 targets a step"}
    assert not any(held.reference for held in groups.values())


def test_flags_are_where_flags_are(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = load_results(results)
    flagged = frame[frame["flags"] != ""]
    assert {options["rate"] for options in flagged["options"]} == {0.1}
    assert len(flagged) == 10
    assert set(flagged["flags"].str.partition(": ")[0]) == {"convergence"}
    inputs = load_inputs(results)
    notes = {note.lead: note.text for note in make_notes(inputs, make_sections(inputs))}
    assert "reaches a validation score of" in notes["Flagged: 10 trials"]
    assert notes["No reference of convergence:"].startswith(
        "digits, sage: graphsage (1000 targets a step); digits, sage: graphsage (2000 targets a step). "
    )
    assert {label for label, _ in too_soon(results)} == set(flagged["label"])
    status(results / "demo")
    assert "convergence: reaches" in " ".join(capsys.readouterr().out.split())


SUITE = f"""\
name: held
datasets: [digits]
model: {{name: sage, layers: 2, hidden: 32, norm: layer, dropout: 0.3}}
train: {{epochs: 60, lr: 0.002, eval_every: 1, threads: 1}}
partition: {{parts: [1, 2]}}
plugins: {PLUGINS / "sooner.py"}
references: true
methods:
  - full
  - bns-gcn
  - hidden-rate
  - graphsage: {{batch_size: 256}}
  - fastgcn: {{batch_size: 256}}
exclude:
  - {{method: [bns-gcn, graphsage, fastgcn], parts: 1}}
  - {{method: [hidden-rate], parts: 2}}
seeds: [0, 1, 2, 3, 4]
timing: wall
device: cpu
"""


def test_a_suite_has_the_references_that_it_asks_for(tmp_path: Path) -> None:
    (tmp_path / "held.yaml").write_text(SUITE)
    trials = expand(load_suite(tmp_path / "held.yaml"))
    without = {trial.id for trial in expand(load_suite(tmp_path / "held.yaml", ["references=false"]))}
    more = [trial for trial in trials if trial.id not in without]  # `full` on one part is the suite's own
    assert {(trial.method.name, trial.partition.parts) for trial in more} == {("graphsage", 1)}
    assert {(trial.method.options["fanouts"], trial.method.options["batch_size"]) for trial in more} == {(-1, 512)}
    assert sorted(trial.seed for trial in more) == [0, 1, 2, 3, 4]
    assert len(trials) == len(without) + 5 == len({trial.id for trial in trials})


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_planted_cheat_is_flagged_and_honest_methods_are_not(tmp_path: Path) -> None:
    (tmp_path / "held.yaml").write_text(SUITE)
    suite = load_suite(tmp_path / "held.yaml")
    assert run_suite(suite, expand(suite), ResultStore(tmp_path / "out", suite.name), RunOptions(), Silent()) == 0
    frame = load_results(tmp_path / "out")
    assert set(frame["status"]) == {"ok"}
    flags = frame.groupby("method")["flags"].agg(lambda own: {flag.partition(":")[0] for flag in own})
    assert flags.pop("hidden-rate") == {"convergence"}
    assert not any("convergence" in own for own in flags)
    assert not any(held.unheld for held in equal_settings(read_records(tmp_path / "out").values()))
