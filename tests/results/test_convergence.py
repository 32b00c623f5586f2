"""Epochs to the score of exact training: how often honest methods are flagged, and that a cheat is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from report import fake

from harness.cli.results import status
from harness.report.sections import make_sections
from harness.report.warnings import make_notes
from harness.results.censored import Held, Soon, equal_settings, held_to_references
from harness.results.frames import load_inputs, load_results, too_soon
from harness.results.record_store import read_records

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
    curve = {epoch: min(0.9, 0.3 + 0.01 * epoch) for epoch in range(1, 101)}
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
    status(results)
    assert "convergence: reaches" in " ".join(capsys.readouterr().out.split())
