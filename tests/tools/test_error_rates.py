"""How often statements err: what the page shows is what the code does, and it is at most what they allow."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from tools.error_rates import FEW, Table, shown, tables

PAGE = Path(__file__).resolve().parents[2] / "docs" / "error-rates.md"
EVERY = 13  # of so many rates one is counted again: all would take ten minutes


@pytest.fixture(scope="module")
def page() -> dict[str, dict[str, list[str]]]:
    """The rates of the page by the title of their table and the name of their row, headings included."""
    parts = re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]
    found = {}
    for part in parts:
        lines = [re.split(r" \| ", line.strip("| ")) for line in part.splitlines() if line.startswith("|")]
        found[part.splitlines()[0]] = {line[0]: line[1:] for line in lines if set(line[0]) != {"-"}}
    return found


@pytest.mark.slow
def test_the_page_is_what_the_generator_counts(page: dict[str, dict[str, list[str]]]) -> None:
    made = list(tables())
    assert list(page) == [each.title for each in made]
    counted = 0
    for each in made:
        rows = page[each.title]
        assert list(rows) == [each.heads[0], *(name for name, _ in each.rows)]
        assert rows[each.heads[0]] == list(each.heads[1:])
        for name, rates in each.rows:
            assert len(rows[name]) == len(rates)
            for rate, told in zip(rates, rows[name], strict=True):
                if not counted % EVERY:
                    assert shown(rate()) == told, f"{each.title}, {name}: run python -m tools.error_rates"
                counted += 1


def rates(page: dict[str, dict[str, list[str]]], table: Table) -> dict[tuple[str, str], float]:
    """The rates of a table, by the names of their row and column."""
    own = page[table.title]
    return {
        (name, head): float(text.removesuffix(" %")) / 100
        for name, _ in table.rows
        for head, text in zip(table.heads[1:], own[name], strict=True)
    }


def test_false_statements_are_at_most_five_percent(page: dict[str, dict[str, list[str]]]) -> None:
    """Each as far as so many draws can tell; all of them together plainly."""
    false = [rate for each in tables() if each.false for rate in rates(page, each).values()]
    assert len(false) > 80
    assert max(false) <= 0.05 + 2.33 * math.sqrt(0.05 * 0.95 / FEW)
    assert sum(false) / len(false) <= 0.03


def test_what_is_there_is_found(page: dict[str, dict[str, list[str]]]) -> None:
    """10 % at a noise of 3 % by five repeats in turns, and never by one run of each."""
    found = rates(page, next(each for each in tables() if each.title == "A slowdown of 10 % is found"))
    five = {head: rate for (name, head), rate in found.items() if name == "3 %, 5"}
    assert min(five[head] for head in ("A B A B", "A B B A")) >= 0.9
    assert max(rate for (name, _), rate in found.items() if name == "3 %, 1") == 0
    title = "A slower method is excluded from those that may be the best"
    excluded = rates(page, next(each for each in tables() if each.title == title))
    assert min(rate for (seeds, _), rate in excluded.items() if seeds == "5") >= 0.8
    assert min(rate for (seeds, _), rate in excluded.items() if seeds == "10") >= 0.9
    ahead = rates(page, next(each for each in tables() if each.title == "A winner is found"))
    assert min(rate for (seeds, _), rate in ahead.items() if seeds == "5") >= 0.5
    assert ahead["5", "14 methods"] >= 0.6  # by all pairs at once: 0.31
