"""Tables on a narrow terminal: no number and no word is broken, and what is left out is said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cli import terminal
from harness.cli.terminal import BREAK, GAP, LONGEST_WORD, beginning, end_of, fitted, table

COLUMNS = ["id", "state", "trial", "memory", "fits", "loss"]
ROWS = [
    ("0123456789ab", "run", "digits sage-2x64 bns-gcn(rate=0.1) P=2 seed=0", "3.61 MiB - 12.2 MiB", "", 0.5),
    ("ba9876543210", "done (ok)", "digits sage-2x64 full P=2 seed=0", "2.9 MiB", "", 123.25),
]


def printed(room: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setattr(terminal, "is_terminal", lambda: room is not None)
    monkeypatch.setenv("COLUMNS", str(room))
    table(COLUMNS, ROWS, spare=["memory"])
    return capsys.readouterr().out.replace("\033[1m", "").replace("\033[0m", "").splitlines()


def test_off_a_terminal_all_is_shown_however_wide(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(None, monkeypatch, capsys) == [
        "id            state      trial                                          memory               fits   loss",
        "0123456789ab  run        digits sage-2x64 bns-gcn(rate=0.1) P=2 seed=0  3.61 MiB - 12.2 MiB          0.5",
        "ba9876543210  done (ok)  digits sage-2x64 full P=2 seed=0               2.9 MiB                    123.2",
    ]


def test_at_80_columns_text_is_wrapped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(80, monkeypatch, capsys)
    assert max(map(len, lines)) <= 80
    words = {word for line in lines for word in line.split()}
    assert {"0123456789ab", "bns-gcn(rate=0.1)", "sage-2x64", "3.61", "12.2", "123.2", "0.5"} <= words
    assert "left out" not in "".join(lines)


def test_at_50_columns_the_spare_go_first(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(50, monkeypatch, capsys)
    assert max(map(len, lines)) <= 50
    assert lines[-1] == "left out, for want of room: memory"
    words = {word for line in lines for word in line.split()}
    assert {"0123456789ab", "bns-gcn(rate=0.1)", "123.2"} <= words
    assert "fits" not in words  # it is empty: not a loss to tell


TEXT = st.text(st.sampled_from("abc 123."), max_size=60).map(lambda text: " ".join(text.split()))


@given(st.lists(st.lists(TEXT, min_size=4, max_size=4), max_size=4), st.integers(20, 140), st.booleans())
def test_no_word_is_broken_at_any_width(rows: list[list[str]], room: int, right: bool) -> None:
    columns = ["one", "two", "three", "four"]
    widths = fitted(columns, rows, [right, False, False, right], ["two"], room)
    assert 0 in widths
    if len(widths) > 1:
        assert sum(widths.values()) + GAP * (len(widths) - 1) <= room
    for i, width in widths.items():
        for text in [columns[i], *(row[i] for row in rows)]:
            assert width >= min(LONGEST_WORD, max(map(len, BREAK.split(text))))
            assert " ".join(terminal._wrapped(text, width)) == text or width < max(map(len, BREAK.split(text)))


def test_lines_of_parts() -> None:
    assert beginning(["ab", "", "cd", "efg"], 6) == "ab  cd"
    assert beginning([], 6) == ""
    assert end_of("a bc def", 20) == "a bc def"
    assert end_of("a bc def", 7) == "… def"
    assert end_of("abcdef", 3) == "…"


def test_a_unit_stays_with_its_number() -> None:
    assert BREAK.split("3.6 MiB - 4 GiB, 2 min 05 s of P=2 seed=0") == [
        "3.6 MiB", "-", "4 GiB,", "2 min", "05 s", "of", "P=2", "seed=0",
    ]  # fmt: skip
