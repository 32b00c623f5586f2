"""The quickstart's first sentence, of twenty runs that were made: at most one may say what all of them refute.

The runs are kept as times (`python -m tools.recorded`), and today's report says its sentence of each of them. What is
true is what a hundred seeds together say, read from the times without the project's statistics.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report.fake import Method, write_results
from report.measured import one_section

from harness.report.sections import Section
from harness.report.summary import answer_sentence
from harness.report.views.answer import AnswerView
from tools.recorded import recorded, text

RUNS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "quickstart_runs.json").read_text())
TARGET, EPOCHS, SEEDS = 0.88, 14, 5
METHODS: tuple[Method, ...] = (
    ("full", {}),
    ("bns-gcn", {"rate": 0.1}),
    ("psc-gcn", {"rate": 0.1, "staleness": 2, "cache": "none", "capacity": 0.0}),
    ("pipegcn", {}),
    ("graphsage", {}),
    ("graphsaint", {}),
)
ONE = " on one rank"
Row = tuple[str, int]


@pytest.fixture(scope="module")
def blank(tmp_path_factory: pytest.TempPathFactory) -> Section:
    """Trials of the quickstart's methods, whose times are still to be written."""
    return one_section(
        write_results(
            tmp_path_factory.mktemp("quickstart"),
            methods=METHODS,
            seeds=range(SEEDS),
            epochs=EPOCHS,
            train={"target": TARGET},
            fails=lambda config: (
                ("skipped", "left out") if (config.method.name != "full") and config.partition.parts == 1 else None
            ),
        )
    )


def of_run(blank: Section, run: Mapping[str, Any]) -> Section:
    """Return a section of a run's times: who reaches the target does so in the last epoch, others never."""
    kept = {(row["method"], row["parts"]): {**row["reached"], **row["in vain"]} for row in run["times"]}
    reached = {(row["method"], row["parts"], seed) for row in run["times"] for seed in row["reached"]}
    methods = {variant.key: variant.method for variant in blank.variants}
    seconds, arrive = {}, set()
    for trial in blank.ok.to_dict("records"):
        row = methods[trial["variant"]], int(trial["parts"])
        seed = sorted(kept[row], key=int)[int(trial["seed"])]
        seconds[trial["trial"]] = kept[row][seed] / EPOCHS
        arrive |= {trial["trial"]} if (*row, seed) in reached else set()
    last = (blank.epochs["epoch"] == EPOCHS - 1) & blank.epochs["trial"].isin(arrive)
    scores = last.map({True: TARGET, False: TARGET / 2})
    return replace(blank, epochs=blank.epochs.assign(epoch_time_s=blank.epochs["trial"].map(seconds), val_score=scores))


def pooled(runs: list[dict[str, Any]]) -> dict[Row, list[float]]:
    """The seconds of all seeds, infinite where one did not reach the target."""
    found: dict[Row, list[float]] = {}
    for run in runs:
        for row in run["times"]:
            times = [*row["reached"].values(), *[math.inf] * len(row["in vain"])]
            found.setdefault((row["method"], row["parts"]), []).extend(times)
    return found


def usual(times: list[float]) -> float:
    """The geometric mean; where seeds did not arrive, the median."""
    return statistics.median(times) if math.inf in times else statistics.geometric_mean(times)


def rows_in(names: str, rows: Mapping[Row, Any]) -> set[Row]:
    """The rows that a part of a sentence names."""
    wholes = {(f"{method}{ONE}" if parts == 1 else method): (method, parts) for method, parts in rows}
    return {wholes[name] for name in re.split(r", | and ", names) if name and not name.endswith("others")}


def one(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[1] if found else ""


def refuted(text: str, times: Mapping[Row, list[float]]) -> list[str]:
    """Return what a sentence says that is not so, by the times of all runs."""
    truth = {row: usual(own) for row, own in times.items()}
    (winner,) = rows_in(one(r"ranks: (.+?) reaches 88 % first, in ", text), times)
    never = rows_in(one(r"most seeds do not reach it with (.+?)\.", text), times)
    as_fast = one(r"(?:but|;) (?!all others)([^;]+?),? (?:which )?may be as fast", text)
    open_ = rows_in(as_fast, times)
    if "all others may be as fast" in text:
        open_ = set(times)
    least = float(one(r"at least ([\d.]+) times sooner", text) or 1)
    ahead = least * truth[winner]
    if "surely slower than one of these" in text:
        ahead = min(truth[row] for row in {winner} | open_)
    nearer = [row for row in set(times) - {winner} - open_ - never if truth[row] < ahead]
    unnamed = int(one(r" and (\d+) others?(?:, which)? may be as fast", text) or 0)
    wrong = [f"{winner} is {truth[row] / truth[winner]:.3f} times sooner than {row}" for row in nearer[unnamed:]]
    wrong += [f"most seeds of {row} reach it" for row in never if math.isfinite(truth[row])]
    alone, several = (min(t for (_, parts), t in truth.items() if (parts == 1) == single) for single in (True, False))
    if "istributing pays is not decided" not in text and (winner[1] == 1) != (alone < several):
        wrong.append(f"one rank {alone:.3f} s, two {several:.3f} s")
    return wrong


def test_what_is_kept_of_a_run_is_its_times_and_its_sentence(tmp_path: Path) -> None:
    write_results(tmp_path, methods=METHODS[:2], seeds=(5, 6), epochs=EPOCHS, train={"target": 0.91})
    section = one_section(tmp_path)
    kept = json.loads(text([recorded(tmp_path), recorded(tmp_path)]))
    assert kept[0] == kept[1]
    assert (kept[0]["trials"], kept[0]["said"]) == (8, answer_sentence(section, section.name))
    times = {(variant.method, parts): own for (variant, parts), own in AnswerView(section).times.items()}
    assert len(times) == len(kept[0]["times"]) == 4
    assert sum(bool(own.censored) for own in times.values()) > 0
    for row in kept[0]["times"]:
        own = times[row["method"], row["parts"]]
        for name, seconds in (("reached", own.reached), ("in vain", own.censored)):
            assert {int(seed): value for seed, value in row[name].items()} == pytest.approx(seconds, abs=1e-4)


def test_they_are_twenty_with_seeds_of_their_own() -> None:
    assert len(RUNS) == 20
    assert {len(times) for times in pooled(RUNS).values()} == {20 * SEEDS}
    seeds = [tuple(sorted({s for row in run["times"] for s in (*row["reached"], *row["in vain"])})) for run in RUNS]
    assert len({seed for own in seeds for seed in own}) == 20 * SEEDS


@pytest.mark.slow
def test_of_twenty_sentences_one_at_most_is_refuted(blank: Section) -> None:
    times = pooled(RUNS)
    found = {}
    for number, run in enumerate(RUNS):
        section = of_run(blank, run)
        text = answer_sentence(section, section.name)
        found[number] = (text, refuted(text, times))
    wrong = {number: said for number, said in found.items() if said[1]}
    assert len(wrong) <= 1, wrong


@pytest.mark.slow
def test_it_is_the_sentence_that_was_printed(blank: Section) -> None:
    """The first words are about the data and the network, which the made-up section has not."""
    for run in RUNS:
        section = of_run(blank, run)
        now = answer_sentence(section, section.name).partition(": ")[2]
        options = r" \((rate|fanouts|batch_size|size|frontier|staleness|decay)=[^)]*\)"
        assert now == re.sub(options, "", run["said"]).partition(": ")[2]


def test_a_tenth_of_trials_is_flagged_at_most() -> None:
    assert sum(run["flagged"] for run in RUNS) <= sum(run["trials"] for run in RUNS) / 10


def test_the_check_refutes(blank: Section) -> None:
    """A slow method that is called the first, and a factor that is too large, are found."""
    times = pooled(RUNS)
    truth = {row: usual(own) for row, own in times.items()}
    several = [row for row, own in truth.items() if row[1] == 2 and math.isfinite(own)]
    fast, slow = (pick(several, key=truth.__getitem__) for pick in (min, max))
    said = "On digits, 2 CPU ranks: {} reaches 88 % first, in 1 s, at least {} times sooner than all others."
    assert refuted(said.format(slow[0], 1.01), times)
    assert refuted(said.format(fast[0], 1000), times)
