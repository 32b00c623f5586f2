"""The leaderboard: who stands where, what is bold, and at which number of parts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from report.fake import ENVIRONMENT, METHODS, write_results
from report.measured import FULL, Write, one_section

from harness.report import write_report
from harness.report.sections import Section
from harness.report.summary import make_summaries
from harness.report.views.convergence import still_rises
from harness.report.views.leaderboard import LeaderboardView
from harness.report.warnings import FLAGS

BNS = METHODS[:2]
AT_ONCE = "2026-01-01T00:00:00+00:00"  # all runs at one moment: without drift


def column(section: Section, start: str) -> dict[str, tuple[str, bool]]:
    """Text of a column's cells, and whether they are bold, by method."""
    table = LeaderboardView(section).table()
    assert table is not None
    (index,) = [i for i, head in enumerate(table.columns) if head.startswith(start)]
    return {row.label: (row.cells[index].text, row.cells[index].best) for row in table.rows}


def timed(section: Section, *seconds: float, noise: tuple[float, ...] = (0.0, 0.01, -0.01)) -> Section:
    """Give each variant an epoch time, times 1 + noise by seed; the noise of each variant is another."""
    at = {
        variant.key: (second, turn)
        for turn, (variant, second) in enumerate(zip(section.variants, seconds, strict=True))
    }
    rows = zip(section.frame["variant"], section.frame["seed"], strict=True)
    times = [at[key][0] * (1 + noise[(seed + at[key][1]) % len(noise)]) for key, seed in rows]
    return replace(section, frame=section.frame.assign(epoch_time_s=times, started=AT_ONCE))


def test_without_a_target_methods_stand_by_their_validation(write: Write) -> None:
    section = write((FULL, *BNS), seeds=(0, 1, 2), epochs=10)
    table = LeaderboardView(section).table()
    assert table is not None
    means = section.ok.groupby("variant")["best_val"].mean()
    labels = {variant.key: variant.label for variant in section.variants}
    assert [row.label for row in table.rows] == [labels[str(key)] for key in means.sort_values(ascending=False).index]


def test_what_follows_a_mean_is_the_deviation(write: Write) -> None:
    section = timed(write((FULL, *BNS), seeds=(0, 1, 2)), 1.0, 2.0, 3.0)
    own = section.ok[section.ok["variant"] == section.variants[1].key]["epoch_time_s"]
    text, _ = column(section, "Epoch time")[section.variants[1].label]
    assert text == f"{own.mean():.2f} ± {own.std(ddof=1):.2f}"


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("seconds", "bold"),
    [
        ((1.0, 2.0, 3.0), [True, False, False]),
        ((1.0, 1.0001, 3.0), [True, True, False]),
        ((1.0, 1.0, 1.0), [False] * 3),
    ],
)
def test_bold_is_the_best_and_what_cannot_be_told_from_it(
    write: Write, seconds: tuple[float, ...], bold: list[bool]
) -> None:
    section = timed(write((FULL, *BNS), seeds=(0, 1, 2)), *seconds)
    found = column(section, "Epoch time")
    assert [found[variant.label][1] for variant in section.variants] == bold


def test_of_one_seed_nobody_is_ahead_in_time(write: Write) -> None:
    section = timed(write((FULL, *BNS), seeds=(0,)), 1.0, 2.0, 3.0, noise=(0.0,))
    assert sorted(column(section, "Epoch time").values()) == [("1.00", False), ("2.00", False), ("3.00", False)]
    assert any(bold for _, bold in column(section, "Sent per epoch").values())  # exact: one seed says it


def test_a_target_stands_first(tmp_path: Path) -> None:
    write_results(tmp_path, methods=METHODS[2:], parts=(2,), seeds=(0, 1, 2), train={"target": 0.8})
    table = LeaderboardView(one_section(tmp_path)).table()
    assert table is not None
    assert table.columns[:2] == ("To 80.0 % (s)", "Behind")
    medians = [float(row.cells[0].text.partition(" ")[0]) for row in table.rows if row.cells[0].number]
    assert medians == sorted(medians)


def test_a_curve_that_rises_to_its_end_has_not_converged(write: Write) -> None:
    epochs = np.arange(1, 41)
    assert still_rises((0.9 - 0.5 * np.exp(-epochs / 20)).tolist())
    assert not still_rises((0.9 - 0.5 * np.exp(-epochs / 20)).tolist()[:2])
    assert not still_rises([0.5, 0.8, 0.9, 0.89, 0.9])
    rng = np.random.default_rng(0)
    settled = [still_rises((0.9 + rng.normal(0, 0.003, 40)).tolist()) for _ in range(400)]
    assert sum(settled) <= 0.05 * len(settled)
    rising = [still_rises((0.5 + 0.01 * epochs + rng.normal(0, 0.003, 40)).tolist()) for _ in range(100)]
    assert sum(rising) >= 95

    section = write((FULL, *BNS), seeds=(0, 1, 2))
    late = section.variants[1]
    own = set(section.select(late, 2)["trial"].astype(str)[:2])  # of three seeds
    scored = section.epochs["val_score"].notna()
    flat = section.epochs["val_score"].where(~scored, 0.8)
    rises = section.epochs["trial"].isin(own) & scored
    changed = section.epochs.assign(val_score=flat.where(~rises, 0.5 + 0.01 * section.epochs["epoch"]))
    table = LeaderboardView(replace(section, epochs=changed)).table()
    assert table is not None
    notes = {row.variant: [cell.note for cell in row.cells if "converged" in cell.note] for row in table.rows}
    assert notes == {variant: ["not converged"] if variant == late else [] for variant in section.variants}
    assert "Not converged: with most seeds" in table.caption


def crowded(root: Path, cores: int) -> Section:
    """Trials in 1, 2 and 4 parts, most of them in 4, on so many cores."""
    where = ENVIRONMENT | {"usable_cores": cores, "threads": 1}
    write_results(root, methods=(FULL, *BNS), parts=(2,), seeds=(0, 1), environment=where)
    write_results(root, methods=(FULL, *BNS), parts=(4,), seeds=(0, 1, 2), environment=where)
    write_results(root, methods=(FULL,), parts=(1,), seeds=(0, 1, 2), environment=where)
    return one_section(root)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("cores", "parts"), [(1, 4), (2, 2), (3, 2), (4, 4)])
def test_methods_are_compared_where_ranks_have_a_core_each(tmp_path: Path, cores: int, parts: int) -> None:
    section = crowded(tmp_path, cores)
    assert section.compared_parts == parts
    assert make_summaries([section])[0].parts == parts
    table = LeaderboardView(section).table()
    assert table is not None
    assert {row.parts for row in table.rows} == {1, 2, 4}
    (flag,) = [flag for flag in FLAGS if flag.lead == "Ranks share cores"]
    assert [f"at P = {count} " in flag.where(section) or f", {count} (" in flag.where(section) for count in (2, 4)] == [
        cores < 2,
        cores < 4,
    ]


def test_there_is_none_of_one_method(write: Write) -> None:
    section = write((FULL,))
    assert LeaderboardView(section).table() is None
    assert LeaderboardView(section).figure() is None


def test_its_figure_shows_who_is_on_the_front(write: Write) -> None:
    section = timed(write((FULL, *BNS), seeds=(0, 1)), 1.0, 2.0, 3.0)
    scores = {variant.key: score for variant, score in zip(section.variants, (0.8, 0.7, 0.9), strict=True)}
    scored = section.frame.assign(test_at_best_val=section.frame["variant"].map(scores))
    picture = LeaderboardView(replace(section, frame=scored)).figure()
    assert picture is not None
    front = dict(zip(picture.data["series"], picture.data["front"], strict=True))
    assert [front[variant.label] for variant in section.variants] == [True, False, True]


def test_the_answer_is_open_and_all_else_folded(tmp_path: Path) -> None:
    write_results(tmp_path, methods=(FULL, *BNS), parts=(1, 2), seeds=(0,))
    page = write_report(tmp_path, tmp_path / "out", formats=("html",)).read_text()
    order = ["leaderboard", "summary", "notes", "time", "environment", "files"]
    places = [re.search(rf'<h[23] id="[a-z-]*{name}"', page) for name in order]
    starts = [place.start() for place in places if place]
    assert len(starts) == len(order)
    assert starts == sorted(starts)
    assert page.index('<details class="fold">') > starts[1]
    headings = re.findall(r'(<summary>)?<h3 id="[^"]*">', page[starts[2] :])
    assert headings
    assert all(headings)
