"""The sentences of the summary: who won, by how much, how sure."""

from __future__ import annotations

from dataclasses import replace

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
    means = own.groupby("variant")[["epoch_time_s", "test_at_best_val", "peak_memory_bytes"]].mean()
    found = wins(section)
    assert found["Fastest epoch"].variant.key == means["epoch_time_s"].idxmin()
    assert found["Best test accuracy"].variant.key == means["test_at_best_val"].idxmax()
    assert found["Least memory"].variant.key == means["peak_memory_bytes"].idxmin()
    full = next(v.key for v in section.variants if v.method == "full")
    ratio = means["epoch_time_s"][full] / means["epoch_time_s"].min()
    assert f": {ratio:.2f} times as fast as full (95 % interval" in found["Fastest epoch"].text
    assert "over 3 seeds" in found["Fastest epoch"].text


def test_what_cannot_be_told_is_said(write: Write) -> None:
    section = write((FULL, *BNS))
    text = wins(section)["Best test accuracy"].text
    assert "which of one seed may be chance" in text
    best, second = sorted(section.ok["epoch_time_s"])[:2]
    wide = {"epoch_time_low_s": 0.1 * best, "epoch_time_high_s": 10 * second}
    unsure = replace(section, frame=section.frame.assign(**wide))
    assert "which cannot be told from a tie" in wins(unsure)["Fastest epoch"].text
    narrow = section.frame["epoch_time_s"]
    sure = section.frame.assign(epoch_time_low_s=0.999 * narrow, epoch_time_high_s=1.001 * narrow)
    assert "tie" not in wins(replace(section, frame=sure))["Fastest epoch"].text
    short = replace(section, frame=section.frame.assign(too_short=True))
    assert "of too few epochs to say how sure" in wins(short)["Fastest epoch"].text


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
