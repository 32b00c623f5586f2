"""One method against others: against intervals worked out by hand, and on made-up methods that are equal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from report.fake import METHODS, Method, write_results
from scipy import stats

from harness.errors import UserError
from harness.report.rivals import TARGET, Match, Place, answers, find_places, match_all, names_in
from harness.results.frames import ResultInputs, load_inputs

FULL: Method = ("full", {"precompute": False})
GRAPHSAGE, OURS = METHODS[2], METHODS[0]
SEEDS = tuple(range(5))


def made(root: Path, methods: Sequence[Method] = (FULL, OURS, GRAPHSAGE), **chosen: object) -> ResultInputs:
    return load_inputs(write_results(root, methods=methods, **{"parts": (2,), "seeds": SEEDS, "epochs": 6} | chosen))  # type: ignore[arg-type]


Values = Mapping[str, Sequence[float]]  # by method, one a seed


def put(places: Sequence[Place], column: str, values: Values) -> list[Place]:
    """Give the trials of places other values of a metric; of the time to the target as the time of their only epoch."""
    sections = {}
    for section in {place.section.anchor: place.section for place in places}.values():
        frame = section.frame.copy()
        own = [values[method][seed] for method, seed in zip(frame["method"], frame["seed"], strict=True)]
        if column == TARGET:
            new = replace(section, frame=frame)
            vars(new)["epoch_sums"] = {
                trial: pd.DataFrame({"time_s": [abs(t)], "sent_bytes": [1.0], "score": [float(t > 0)]})
                for trial, t in zip(frame["trial"], own, strict=True)
            }
        else:
            frame[column] = own
            new = replace(section, frame=frame)
            vars(new).update({key: kept for key, kept in vars(section).items() if key == "epoch_sums"})
        sections[section.anchor] = new
    return [replace(place, section=sections[place.section.anchor]) for place in places]


def by_other(matches: Sequence[Match]) -> dict[str, Match]:
    return {match.place.other.method: match for match in matches}


def hand_made(sizes: Sequence[float], risk: float) -> tuple[float, float, float]:
    """Student's interval of a mean."""
    far = stats.t.ppf(1 - risk / 2, len(sizes) - 1) * stats.sem(sizes)
    return float(np.mean(sizes)), float(np.mean(sizes) - far), float(np.mean(sizes) + far)


def test_scores_are_paired_by_seed_and_judged_with_all_others(tmp_path: Path) -> None:
    """Of three methods each pair has its own variance; of four comparisons on two data sets the surest is first."""
    inputs = made(tmp_path, datasets=(("digits", "real", ""), ("other", "real", "")))
    scores = {
        "full": [0.80, 0.82, 0.78, 0.81, 0.79],
        "bns-gcn": [0.845, 0.86, 0.83, 0.855, 0.83],
        "graphsage": [0.84, 0.87, 0.80, 0.88, 0.82],
    }
    alike = {
        "full": [0.8, 0.7, 0.9, 0.7, 0.8],
        "bns-gcn": [0.7, 0.8, 0.8, 0.9, 0.7],
        "graphsage": [0.9, 0.7, 0.8, 0.8, 0.8],
    }
    places = find_places(inputs, "bns-gcn", ["full", "graphsage"])
    assert [str(place) for place in places] == ["digits · sage, P = 2"] * 2 + ["other · sage, P = 2"] * 2
    drawn = [*put(places[:2], "best_val", scores), *put(places[2:], "best_val", alike)]
    matches = match_all(inputs, drawn, ["best_val"])
    found, ours = by_other(matches[:2]), np.array(scores["bns-gcn"])
    for other, risk, verdict in (("full", 0.04 / 4, "better"), ("graphsage", 0.04 / 3, "cannot tell")):
        row = found[other].row
        assert row.interval is not None
        expected = hand_made(ours - scores[other], risk)
        assert (row.change, row.interval.low, row.interval.high) == pytest.approx(expected)
        assert (row.verdict, row.trials) == (verdict, 5)
        assert (row.before, row.after) == pytest.approx((np.mean(scores[other]), ours.mean()))
    assert "more interleaved seeds would detect a gap of" in found["graphsage"].row.needs
    assert {match.row.verdict for match in matches[2:]} == {"cannot tell"}
    places = put(find_places(inputs, "full", ["bns-gcn"])[:1], "best_val", scores)
    (turned,) = match_all(inputs, places, ["best_val"])
    expected = hand_made(scores["full"] - ours, 0.04)
    assert turned.row.interval is not None
    assert turned.row.interval.low == pytest.approx(expected[1])
    assert (turned.row.verdict, turned.row.worse) == ("worse", True)


def test_times_to_a_target_that_is_not_reached_are_bounds(tmp_path: Path) -> None:
    """A negative time is a budget in which the target was not reached."""
    inputs = made(tmp_path, train={"target": 0.5})
    seconds = {
        "full": [10.0, 11.0, 9.0, 10.5, 10.0],
        "bns-gcn": [5.0, 5.4, 4.6, 5.3, 5.0],
        "graphsage": [-20.0, -20.0, -20.0, -20.0, -20.0],
    }
    places = put(find_places(inputs, "bns-gcn", []), TARGET, seconds)
    found = by_other(match_all(inputs, places, [TARGET]))
    row = found["full"].row
    expected = hand_made(np.log(np.divide(seconds["bns-gcn"], seconds["full"])), 0.04 / 2)  # the surer of the two
    assert row.interval is not None
    assert np.log([row.change, row.interval.low, row.interval.high]) == pytest.approx(expected)
    assert (row.verdict, row.before, row.after) == ("sooner", 10.0, 5.0)
    never = found["graphsage"].row
    assert (never.verdict, never.before) == ("sooner", math.inf)
    assert never.interval is not None
    assert (never.interval.low, never.interval.high < 0.3) == (0.0, True)
    places = put(find_places(inputs, "graphsage", ["full"]), TARGET, seconds)
    (late,) = match_all(inputs, places, [TARGET])
    assert (late.row.verdict, late.row.worse, late.row.after) == ("later", True, math.inf)
    censored = {"full": [-30.0, 25.0, 26.0, 25.0, 24.0], "bns-gcn": [60.0] * 5, "graphsage": [70.0] * 5}
    places = put(find_places(inputs, "bns-gcn", ["full"]), TARGET, censored)
    (unsure,) = match_all(inputs, places, [TARGET])
    assert (unsure.row.verdict, unsure.row.interval) == ("cannot tell", None)
    assert unsure.row.needs == "not all seeds of full reach the target"


def test_the_answer_counts_places(tmp_path: Path) -> None:
    datasets = (("digits", "real", ""), ("other", "real", ""))
    inputs = made(tmp_path, datasets=datasets, train={"target": 0.5})
    slow, fast, alike = [10.0, 11.0, 9.0, 10.5, 10.0], [5.0, 5.4, 4.6, 5.3, 5.0], [5.1, 5.2, 4.9, 4.6, 5.4]
    places = find_places(inputs, "bns-gcn", ["full", "graphsage"])
    first = put(places[:2], TARGET, {"full": slow, "bns-gcn": fast, "graphsage": alike})
    second = put(places[2:], TARGET, {"full": fast, "bns-gcn": slow, "graphsage": [3 * t for t in slow]})
    matches = match_all(inputs, [*first, *second], [TARGET, "counted_bytes"])
    bytes_line, last = answers(matches)
    assert last == (
        "Time to target: bns-gcn is surely sooner than full on 1 of 2, than graphsage on 1 of 2; surely later on 1 of 4"
    )
    assert bytes_line.startswith("Sent per epoch: bns-gcn is surely better than full on 2 of 2")


def test_methods_and_variants_are_named_as_in_a_report(tmp_path: Path) -> None:
    inputs = made(tmp_path, methods=(FULL, *METHODS[:3]), seeds=(0, 1))
    labels = {place.mine.label for place in find_places(inputs, "BNS_GCN", ["full"])}
    assert labels == {"bns-gcn (rate=0.01)", "bns-gcn (rate=0.1)"}
    (one,) = find_places(inputs, "bns-gcn (rate=0.1)", ["bns-gcn"])
    assert one.other.label == "bns-gcn (rate=0.01)"
    assert len(find_places(inputs, "full", [])) == 3
    assert names_in("full, bns-gcn (rate=0.1, sampler=bernoulli)") == ["full", "bns-gcn (rate=0.1, sampler=bernoulli)"]
    with pytest.raises(UserError, match=r"--against: no trial of 'graphsaeg' \(did you mean 'graphsage'\?\)"):
        find_places(inputs, "full", ["graphsaeg"])
    with pytest.raises(UserError, match=r"--method: no trial of 'ful' \(did you mean 'full'\?\)"):
        find_places(inputs, "ful", [])
    with pytest.raises(UserError, match="nothing but 'full' itself to hold it against"):
        find_places(inputs, "full", ["full"])


def test_trials_of_one_part_count_once_for_all_networks(tmp_path: Path) -> None:
    """A trial of one part uses no network: it is comparable with the trials on each."""
    for rate in ("1gbit", "10gbit"):
        write_results(
            tmp_path / rate, suite=rate, methods=(FULL, OURS), parts=(2,), seeds=(0,), epochs=6,
            settings={"network": {"rate": rate}},
        )  # fmt: skip
    write_results(tmp_path / "one", suite="one", methods=(FULL, OURS), parts=(1,), seeds=(0,), epochs=6)
    inputs = load_inputs([tmp_path / name for name in ("1gbit", "10gbit", "one")])
    assert sorted(place.parts for place in find_places(inputs, "bns-gcn", ["full"])) == [1, 2, 2]


@pytest.mark.slow
def test_of_equal_methods_any_is_called_different_in_5_of_100_tables_at_most(tmp_path: Path) -> None:
    """Two data sets, four methods, five seeds, three metrics: 18 comparisons a table that no method wins."""
    methods: tuple[Method, ...] = (FULL, *METHODS[:1], METHODS[2], ("ladies", {}))
    datasets = (("digits", "real", ""), ("other", "real", ""))
    inputs = made(tmp_path, methods=methods, datasets=datasets, train={"target": 0.5})
    places = find_places(inputs, "bns-gcn", [])
    rng, runs, wrong, columns = np.random.default_rng(0), 150, 0, (TARGET, "epoch_time_s", "best_val")
    for _ in range(runs):
        drawn = places
        for column in columns:
            of_seed, noise = rng.normal(0, 0.2, 5), rng.normal(0, 0.05, (4, 5))
            size = 0.8 + 0.1 * (of_seed + noise) if column == "best_val" else np.exp(of_seed + noise)
            drawn = put(drawn, column, {name: list(own) for (name, _), own in zip(methods, size, strict=True)})
        found = match_all(inputs, drawn, columns)
        assert len(found) == 18
        wrong += any(match.row.verdict not in ("same", "cannot tell") for match in found)
    assert stats.binomtest(wrong, runs, 0.05, alternative="greater").pvalue > 0.01, f"{wrong} of {runs}"
