"""The sentences of the summary: who won, by how much, how sure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from report.fake import METHODS
from report.measured import FULL, Write

from harness.report.page import make_filters
from harness.report.sections import Section
from harness.report.summary import Win, make_summaries

BNS = METHODS[:2]


def wins(section: Section) -> dict[str, Win]:
    (summary,) = make_summaries([section])
    return {win.what: win for win in summary.wins}


def test_winners_of_several_seeds(write: Write) -> None:
    section = write((FULL, *BNS), seeds=(0, 1, 2), parts=(1, 2))
    assert make_summaries([section])[0].parts == 2
    own = section.ok[section.ok["parts"] == 2]
    means = own.groupby("variant")[["epoch_time_s", "best_val", "peak_memory_bytes"]].mean()
    found = wins(section)
    assert found["Fastest epoch"].variant.key == means["epoch_time_s"].idxmin()
    assert found["Best validation accuracy"].variant.key == means["best_val"].idxmax()
    assert found["Least memory"].variant.key == means["peak_memory_bytes"].idxmin()
    full = next(v.key for v in section.variants if v.method == "full")
    ratio = means["epoch_time_s"][full] / means["epoch_time_s"].min()
    assert re.search(
        rf"full takes {ratio:.2f} times as long \(.*95 % interval .*, 3 seeds\)", found["Fastest epoch"].text
    )


def test_scores_of_trials_that_ended_at_the_target_have_no_winner(write: Write) -> None:
    section = write((FULL, *BNS))
    ended = section.frame.assign(stopped=["target", *["epochs"] * (len(section.frame) - 1)])
    what = "Best validation accuracy"
    assert wins(section).keys() - wins(replace(section, frame=ended)).keys() == {what}


def test_what_cannot_be_told_is_said(write: Write) -> None:
    found = wins(write((FULL, *BNS)))
    for what in ("Fastest epoch", "Best validation accuracy", "Least memory"):
        assert "Not significantly different from" in found[what].text
    assert found["Fastest epoch"].text.endswith(" and full: 4 more interleaved seeds would detect a gap of 10 %.")
    assert "bytes" in found["Fewest bytes sent"].what
    assert "Not significantly" not in found["Fewest bytes sent"].text


def test_a_winner_must_beat_all_of_them(write: Write) -> None:
    """Its interval is wider than that of two; the summary names each that it does not beat."""
    section = write((FULL, *BNS), seeds=(0, 1, 2))
    keys = [variant.key for variant in section.variants]  # full, and rates 0.01 and 0.1
    frame = section.frame.assign(started="2026-01-01T00:00:00+00:00")  # all at once: without drift
    noise = {(keys[1], 1): 0.02, (keys[1], 2): -0.01, (keys[2], 1): -0.01}

    def fastest(*seconds: float, shown: Sequence[str] = keys) -> str:
        own = dict(zip(keys, seconds, strict=True))
        times = [own[v] + noise.get((v, s), 0.0) for v, s in zip(frame["variant"], frame["seed"], strict=True)]
        kept = frame.assign(epoch_time_s=times)[frame["variant"].isin(shown)]
        return wins(replace(section, frame=kept))["Fastest epoch"].text

    clear = 1.0, 1.5, 1.2
    assert "Not significantly" not in fastest(*clear)
    tied = " Not significantly different from full: the gap is less than 10 %. Significantly behind the best: "
    assert f"{tied}bns-gcn (rate=0.01), 1.4" in fastest(1.0, 1.5, 1.0001)
    ends = [
        re.findall(r"interval \[([\d.]+), ([\d.]+)\]", fastest(*clear, shown=shown))[-1] for shown in (keys, keys[::2])
    ]
    three, two = (float(high) - float(low) for low, high in ends)
    assert three >= two > 0


def test_the_second_is_never_faster_than_the_first(write: Write) -> None:
    """Whatever scatters and drifts: the ratio that is named is that of the table's means, and intervals have ends."""
    section = write((FULL, *BNS), seeds=(0, 1, 2))
    for draw in range(12):
        rng, keys = np.random.default_rng(draw), [variant.key for variant in section.variants]
        frame = section.frame[section.frame["parts"] == 2]
        order = frame["variant"].map(keys.index) * 3 + frame["seed"]  # method by method
        drift = np.exp(0.3 * rng.choice([-1, 1]) * order / order.max())
        seconds = frame["variant"].map(dict(zip(keys, rng.uniform(0.2, 0.8, 3), strict=True))) * drift
        frame = frame.assign(
            epoch_time_s=seconds * np.exp(rng.normal(0, rng.choice([0.01, 0.2, 2.0]), len(frame))),
            reference_s=0.01 * np.exp(rng.normal(0, rng.choice([0.001, 0.5]), len(frame))),
            started=[f"2026-01-01T00:{minute:02d}:00+00:00" for minute in order],
        )
        means = frame.groupby("variant")["epoch_time_s"].mean().sort_values()
        said = wins(replace(section, frame=frame))["Fastest epoch"].text
        (ratio,) = re.findall(r"Next is .*?: takes ([\d.]+) times as long", said)
        assert float(ratio) == pytest.approx(means.iloc[1] / means.iloc[0], rel=0.006)
        assert float(ratio) >= 1
        assert all(
            1 <= float(least) <= means.iloc[-1] / means.iloc[0] for least in re.findall(r"([\d.]+) times or more", said)
        )
        for low, high in re.findall(r"interval \[([\d.,]+), ([\d.,]+)\]", said):
            assert 0 < float(high.replace(",", "")) <= 101 * float(low.replace(",", ""))


def test_who_shares_no_seed_with_the_best_is_tied(write: Write) -> None:
    section = write((FULL, *BNS), seeds=(0, 1))
    frame = section.frame.assign(seed=section.frame["seed"] + 5 * (section.frame["variant"] == section.variants[0].key))
    frame = frame[(frame["variant"] != section.variants[1].key)]
    found = wins(replace(section, frame=frame))
    for what in ("Fastest epoch", "Best validation accuracy", "Least memory"):
        assert re.search(r"Not significantly different from .*: no seed in common\.$", found[what].text)
    assert "Not significantly" not in found["Fewest bytes sent"].text


def test_runs_of_one_seed_count_for_times(write: Write) -> None:
    section = write((FULL, *BNS))
    seconds = section.frame["variant"].map({v.key: 1.0 + i for i, v in enumerate(section.variants)})
    at_once = section.frame.assign(started="2026-01-01T00:00:00+00:00", best_val=seconds / 10)
    runs = [at_once.assign(epoch_time_s=seconds * (1 + noise)) for noise in (0.0, 0.01, -0.01)]
    found = wins(replace(section, frame=at_once.assign(epoch_time_s=seconds), repeats=pd.concat(runs)))
    assert ", 3 runs)" in found["Fastest epoch"].text
    assert "Not significantly" not in found["Fastest epoch"].text
    assert "Not significantly" in found["Best validation accuracy"].text


def test_nothing_won_where_nothing_is_compared(write: Write) -> None:
    section = write((FULL, *BNS))
    equal = section.frame.assign(epoch_time_s=1.0)
    assert "Fastest epoch" not in wins(replace(section, frame=equal))
    assert make_summaries([replace(section, frame=section.frame[:1])]) == []


@pytest.mark.parametrize("parts", [(2,), (1, 2)])
def test_filters_are_of_what_there_is_a_choice_of(write: Write, parts: tuple[int, ...]) -> None:
    filters = {each.key: each for each in make_filters([write((FULL, *BNS), parts=parts)])}
    assert set(filters) == {"method"} | ({"parts"} if len(parts) > 1 else set())
    full, bns = filters["method"].choices
    assert (full.value, full.under, bns.value, len(bns.under)) == ("full", (), "bns-gcn", 2)
