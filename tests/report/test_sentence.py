"""The first line of a report: who reaches the target first, who may be as fast, and whether distributing pays."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report.fake import METHODS, Method, write_results
from report.measured import EPOCHS, FULL, Write

from harness.cli import main
from harness.report import write_report
from harness.report.sections import Section
from harness.report.summary import answer_sentence, answer_sentences
from harness.report.views.answer import AnswerView
from harness.report.views.leaderboard import LeaderboardView

BNS = METHODS[:2]  # rates 0.1 and 0.01
SEEDS = (0, 1, 2, 3, 4)
NOISE = (0.0, 0.01, -0.01, 0.02, -0.02)
SCORES = (0.5, 0.8, 0.95, 0.96)  # of the evaluations, every 5 epochs
Seconds = Mapping[tuple[str, int], float]
MADE: dict[str, Section] = {}
"""What was written for an earlier test, and read: a section is never changed."""


def label(variant: Any) -> str:
    rate = variant.options.get("rate")
    return variant.method if rate is None else f"{variant.method} {rate}"


def paced(section: Section, seconds: Seconds, scores: Mapping[str, tuple[float, ...]] | None = None) -> Section:
    """Give trials the seconds of their epochs and their scores; noise of runs differs from method to method."""
    labels = {variant.key: label(variant) for variant in section.variants}
    turns = {key: turn for turn, key in enumerate(seconds)}
    pace, own_scores = {}, {}
    for row in section.frame.to_dict("records"):
        key = labels[row["variant"]], int(row["parts"])
        pace[row["trial"]] = seconds[key] * (1 + NOISE[(int(row["seed"]) + turns[key]) % len(NOISE)])
        own_scores[row["trial"]] = (scores or {}).get(key[0], SCORES)
    epochs = section.epochs.assign(epoch_time_s=section.epochs["trial"].map(pace))
    evaluated = epochs["val_score"].notna()
    at = zip(epochs["trial"], epochs["epoch"], strict=True)
    values = [own_scores[trial][min(int(epoch) // 5, len(SCORES) - 1)] for trial, epoch in at]
    return replace(section, epochs=epochs.assign(val_score=epochs["val_score"].where(~evaluated, values)))


@pytest.fixture
def trials(write: Write) -> Any:
    def made(methods: tuple[Method, ...] = (FULL, *BNS), **chosen: Any) -> Section:
        key = repr((methods, sorted(chosen.items())))
        if key not in MADE:
            MADE[key] = write(methods, **{"seeds": SEEDS, "parts": (1, 2), "train": {"target": 0.9}} | chosen)
        return replace(MADE[key])

    return made


EQUAL: Seconds = {(name, parts): 0.1 for name in ("full", "bns-gcn 0.1", "bns-gcn 0.01") for parts in (1, 2)}
AHEAD = dict.fromkeys(EQUAL, 0.3) | {("bns-gcn 0.1", 2): 0.1, ("full", 1): 0.2}


def said(section: Section) -> str:
    return answer_sentence(section, section.name)


def test_a_winner_is_ahead_of_all_others_by_the_least_of_its_leads(trials: Any) -> None:
    section = paced(trials(), AHEAD)
    answer = AnswerView(section)
    first, *others = answer.order
    leads = [answer.leads(first, other) for other in others]
    least = min(lead for lead in leads if lead is not None)
    assert None not in leads
    assert 1.5 < least <= 2  # full on one rank takes twice as long
    assert said(section) == (
        "On digits, 2 CPU ranks: bns-gcn (rate=0.1) reaches 90 % first, in 1.50 s, at least "
        f"{int(100 * least) / 100:.4g} times sooner than all others. One rank needs 3.00 s."
    )


def test_who_may_be_as_fast_is_named(trials: Any) -> None:
    section = trials()
    text = said(paced(section, AHEAD | {("bns-gcn 0.01", 2): 0.1002}))
    assert "times sooner than all but bns-gcn (rate=0.01), which may be as fast. One rank needs 3.00 s." in text
    tied = said(paced(section, AHEAD | {("full", 1): 0.1002}))
    assert "all but full on one rank, which may be as fast." in tied
    assert tied.endswith("One rank needs 1.50 s: whether distributing pays is not decided.")


def test_who_is_behind_others_alone_is_not_said_to_be_as_fast(trials: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in no set that contains the best, as its cell in the table, which is not bold, says."""
    section = paced(trials(), AHEAD | {("bns-gcn 0.01", 2): 0.1002, ("full", 2): 0.1003})
    slow = next((v, 2) for v in section.variants if label(v) == "bns-gcn 0.01")
    full = next((v, 2) for v in section.variants if label(v) == "full")
    view = AnswerView(section)
    found = {(one, other): view.leads(one, other) for one in view.order for other in view.order}
    monkeypatch.setattr(AnswerView, "open", [key for key in view.open if key != slow])
    monkeypatch.setattr(AnswerView, "leads", lambda _, one, other: (found | {(full, slow): 1.001})[one, other])
    assert (
        "first, in 1.50 s; full on 2 ranks may be as fast. All others are surely slower than one of these. "
        "One rank needs 3.00 s."
    ) in said(section)


def test_the_only_row_that_is_slower_is_named(trials: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    section = paced(trials(parts=(2,)), EQUAL)
    view = AnswerView(section)
    first, second, slow = view.order
    monkeypatch.setattr(AnswerView, "open", [first, second])
    monkeypatch.setattr(AnswerView, "leads", lambda _, *pair: 1.1 if pair == (second, slow) else None)
    may_be, is_slower = (variant.label for variant, _ in (second, slow))
    assert said(section).endswith(f"; {may_be} may be as fast; {is_slower} is surely slower than one of these.")


def test_where_nothing_is_decided_nobody_is_called_slower(trials: Any) -> None:
    text = said(paced(trials(), EQUAL))
    assert "; all others may be as fast." in text
    assert "sooner" not in text
    assert "hether distributing pays is not decided" in text


def test_one_seed_decides_nothing(trials: Any) -> None:
    text = said(paced(trials(seeds=(0,)), AHEAD))
    assert "reaches 90 % first, in 1.53 s; all others may be as fast, as one seed shows no difference." in text


def test_where_nobody_arrives_the_closest_is_named(trials: Any) -> None:
    section = trials(train={"target": 0.99})
    means = section.ok.groupby(["variant", "parts"])["best_val"].mean()
    text = said(section)
    assert text.startswith("On digits, 2 CPU ranks: most seeds of every method do not reach 99 %; ")
    assert text.endswith(f"comes closest, to {100 * means.max():.2f} %.")


def test_who_does_not_arrive_is_named(trials: Any) -> None:
    section = paced(trials(parts=(2,)), EQUAL, {"bns-gcn 0.01": (0.5, 0.6, 0.7, 0.8)})
    never = next(own for (variant, _), own in AnswerView(section).times.items() if label(variant) == "bns-gcn 0.01")
    shortest = math.floor(100 * min(never.censored.values())) / 100
    assert said(section).endswith(
        f". In {shortest:g} s of training most seeds do not reach it with bns-gcn (rate=0.01)."
    )


def test_the_few_that_arrive_are_named_where_nothing_is_decided(trials: Any) -> None:
    text = said(paced(trials(), EQUAL, {"bns-gcn 0.01": (0.5, 0.6, 0.7, 0.8)}))
    assert "all others" not in text
    assert {"full on one rank", "full on 2 ranks", "bns-gcn (rate=0.1)"} <= {
        *re.split(r"; |, | and | reaches| may be|: ", text)
    }


def test_one_rank_that_wins_says_that_distributing_does_not_pay(trials: Any) -> None:
    text = said(paced(trials(), AHEAD | {("full", 1): 0.05}))
    assert "full on one rank reaches 90 % first, in 750 ms, at least " in text
    assert text.endswith(
        "Distributing does not pay here: one rank needs 750 ms, more ranks need 1.50 s (bns-gcn (rate=0.1))."
    )


def test_of_several_numbers_of_ranks_each_method_has_its_own(trials: Any) -> None:
    seconds = {(name, parts): at for (name, _), at in EQUAL.items() for parts in (2, 4)} | {("full", 4): 0.05}
    text = said(paced(trials(parts=(2, 4)), seconds))
    assert text.startswith("On digits, 2 and 4 CPU ranks: full on 4 ranks reaches 90 % first, in 750 ms, at least ")
    assert "istribut" not in text  # nothing ran on one rank


def test_a_network_and_a_device_are_named(trials: Any) -> None:
    section = trials(settings={"network": {"rate": "1gbit", "latency": "50us"}, "device": "cuda"})
    assert said(section).startswith("On digits over 1 Gbit/s+50us, 2 GPU ranks: ")


def test_a_target_of_its_own_names_its_origin(trials: Any) -> None:
    section = paced(trials(train={}), AHEAD, {"full": (0.5, 0.8, 0.95, 0.9712)})
    assert section.target == 0.961
    assert "bns-gcn" not in said(section).partition("do not reach it with")[0]  # they come to 96 %
    assert "reaches 96.1 % (1 point below what full reached) first" in said(section)
    table = LeaderboardView(section).table()
    assert table is not None
    assert "The time to the target, 96.1 % (1 point below what full reached)," in table.caption


def test_of_few_evaluations_no_target_follows(trials: Any) -> None:
    few = said(trials(train={}, epochs=10))
    assert few.endswith("no time to a score is known, as trials have fewer than 3 evaluations (train.eval_every).")


def test_a_method_too_slow_for_three_evaluations_leaves_the_others_their_target(trials: Any) -> None:
    section = paced(trials(train={}), AHEAD)
    slow = {variant.key for variant in section.variants if label(variant) == "bns-gcn 0.01"}
    own = section.frame.loc[section.frame["variant"].isin(slow), "trial"]
    late = section.epochs["trial"].isin(own) & (section.epochs["epoch"] >= 10)  # two evaluations are before
    short = replace(section, epochs=section.epochs[~late])
    assert short.target == section.target
    assert "bns-gcn (rate=0.1) reaches" in said(short)
    assert "do not reach it with bns-gcn (rate=0.01)" in said(short)
    assert "do not reach it" not in said(section)


def test_without_the_baseline_the_best_mean_decides(trials: Any) -> None:
    section = paced(trials(BNS, train={}), AHEAD, {"bns-gcn 0.01": (0.5, 0.8, 0.95, 0.98)})
    assert section.derived_from is not None
    assert (label(section.derived_from[0]), section.target) == ("bns-gcn 0.01", 0.97)


def test_what_trains_as_the_baseline_on_one_part_is_shown_once(trials: Any) -> None:
    section = trials()
    full, slow, fast = section.variants
    frame = section.frame[section.frame["parts"] == 1]
    trial = {(key, seed): t for key, seed, t in zip(frame["variant"], frame["seed"], frame["trial"], strict=True)}
    curves = {
        trial[fast.key, seed]: section.epochs[section.epochs["trial"] == trial[full.key, seed]]["val_score"].tolist()
        for seed in SEEDS
    }
    alike = section.epochs.copy()
    for name, scores in curves.items():
        alike.loc[alike["trial"] == name, "val_score"] = scores
    answer = AnswerView(replace(section, epochs=alike))
    assert answer.repeated == [(fast, 1)]
    assert {key for key in answer.times if key not in answer.rows} == {(fast, 1)}
    table = LeaderboardView(answer.section).table()
    assert table is not None
    assert [row.label for row in table.rows if row.variant == fast] == [f"{fast.label}, P = 2"]
    assert f"On one part {fast.label} train as full does, whose row is theirs." in table.caption
    assert {(row.variant, row.parts) for row in table.rows} == {(v, p) for v in (full, slow, fast) for p in (1, 2)} - {
        (fast, 1)
    }
    assert AnswerView(section).repeated == []


def test_all_numbers_of_parts_are_one_comparison(trials: Any) -> None:
    """Of six rows 15 pairs share the risk: what three of one number of parts decide, these need not."""
    section = paced(trials(), AHEAD)
    answer = AnswerView(section)
    full = section.variants[0]
    assert answer.leads((full, 1), (full, 2)) is not None
    table = LeaderboardView(section).table()
    assert table is not None
    assert [row.label for row in table.rows][:2] == ["bns-gcn (rate=0.1), P = 2", "full, P = 1"]
    behind = [row.cells[1].text for row in table.rows]
    assert behind[0] == "fastest"
    assert behind[1].endswith(" ×")
    assert [row.cells[0].rank for row in table.rows][:2] == [0, 1]


def test_the_files_and_the_terminal_begin_with_it(tmp_path: Path) -> None:
    write_results(
        tmp_path, methods=(FULL, *BNS), parts=(1, 2), seeds=(0, 1), epochs=EPOCHS,
        fails=lambda config: ("oom", "killed") if config.seed == 1 and config.method.name == "full" else None,
    )  # fmt: skip
    lines: list[str] = []
    write_report(tmp_path, tmp_path / "out", formats=("html", "md"), say=lines.append)
    sentence, line = lines
    assert sentence.startswith("On digits, 2 CPU ranks: ")
    assert line.startswith("2025-01-01 · 2 of 12 trials did not end well · ")
    text = (tmp_path / "out" / "report.md").read_text()
    places = [text.index(each) for each in ("# demo", "On digits, 2 CPU ranks: ", line[:20], "## Answer")]
    assert places == sorted(places)
    page = (tmp_path / "out" / "index.html").read_text()
    assert page.index("<h1>") < page.index(f">{sentence}<") < page.index(f">{line}<") < page.index('<h2 id="answer">')


def test_the_command_says_it_where_no_program_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_results(tmp_path / "results", methods=(FULL,), parts=(1,), seeds=(0,), epochs=EPOCHS)
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path / "results"), "--out", str(tmp_path / "out"), "--format", "md"])
    assert not ended.value.code
    said = capsys.readouterr()
    assert said.out == f"{tmp_path / 'out' / 'report.md'}\n"
    assert said.err.startswith("On digits, one CPU rank: full reaches ")


def test_sections_of_one_data_set_have_their_models(trials: Any) -> None:
    one = trials()
    found = [text for _, text in answer_sentences([one, replace(one, model="gcn")])]
    assert [text.split(",")[0] for text in found] == ["On digits · sage", "On digits · gcn"]
    faster = replace(one, frame=one.frame.assign(network="10gbit"))
    found = [text for _, text in answer_sentences([one, faster])]
    assert [text.split(",")[0] for text in found] == ["On digits", "On digits over 10 Gbit/s"]
    searched = replace(one, facts=(*one.facts, ("search", "settings")))
    assert answer_sentences([searched]) == []
