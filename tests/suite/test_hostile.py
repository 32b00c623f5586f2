"""What fuzzing found, and what is asked for by name: one complete line each."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UserError, UserErrors, printable
from harness.suite.document import parse
from harness.suite.suite_file import load_suite


def test_several_mistakes_are_a_line_each_and_every_line_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("name: s\ndatasets: [digits]\nmethods: [full]\nmodel: {hidden: 0, layers: -1}\nrepeat: no\n")
    with pytest.raises(UserErrors) as error:
        load_suite(file)
    assert [line.split(": ")[:2] for line in str(error.value).splitlines()] == [
        [f"{file}:4", "model.layers"],
        [f"{file}:4", "model.hidden"],
        [f"{file}:5", "repeat"],
    ]


@pytest.mark.parametrize("odd", ["a\nb", "\x1b[2J", "\u2028", "\u202e", "\x07"])
def test_what_a_file_says_does_not_break_a_line_or_drive_the_terminal(odd: str) -> None:
    error = UserError(f"bad value {odd}", file=f"f{odd}", key=odd, fix=odd)
    assert str(error).isprintable()


def test_a_value_of_any_length_leaves_a_line_that_can_be_read() -> None:
    error = UserError(
        f"unknown {'9' * 5000}", file=Path(f"/{'d' * 2000}/s.yaml"), key="9" * 5000, fix=f"not {'9' * 5000}"
    )
    assert len(str(error)) < 2050 + 3 * 820
    assert str(error).startswith(f"/{'d' * 2000}/s.yaml: 999")
    assert str(UserError("9" * 1000)) == "9" * 1000
    said = "--only " + "9" * 500 + "\u2028" + "\udc85" * 9000
    option = UserError("\x85" * 5000, file=said, fix="a " * 9000)
    assert len(str(option)) < 10_000
    assert str(option).startswith("--only 999")


@pytest.mark.timeout(20)
def test_an_answer_takes_no_minute(tmp_path: Path) -> None:
    """Many aliases of one long text, and a key of thousands of levels: each is one line."""
    many = f"a: &a {'x' * 200_000}\nb: [{', '.join(['*a'] * 40_000)}]\n"
    with pytest.raises(UserError, match=r"s:1: more than 4 MiB of text, aliases written out$"):
        parse(many, "s")
    file = tmp_path / "s.yaml"
    file.write_text("name: s\ndatasets: [digits]\nmethods: [full]\n")
    with pytest.raises(UserError, match=r"nested deeper than 20 levels"):
        load_suite(file, overrides=[f"{'.'.join('a' * 5000)}=1"])


def test_printable_leaves_what_can_be_printed() -> None:
    assert printable("é 漢字 'x'\t") == "é 漢字 'x'\\t"


def test_a_key_of_several_lines_is_told_in_one() -> None:
    with pytest.raises(UserError) as error:
        parse('"a\\nb": 1\n"a\\nb": 2\n', "s")
    assert str(error.value) == "s:2: a\\nb: duplicate key, first on line 1 (keep one of them)"
