"""What a report of checks says, in lines."""

from __future__ import annotations

import pytest

from harness.check.runs import CheckFinding


@pytest.mark.parametrize(
    ("problems", "more"), [(3, []), (4, ["and 1 more like these"]), (9, ["and 6 more like these"])]
)
def test_a_finding_tells_three_problems_and_how_many_more_there_are(problems: int, more: list[str]) -> None:
    finding = CheckFinding("exact", "FAIL", "the claim", tuple(f"problem {k}" for k in range(problems)))
    _, *told = (line.strip() for line in finding.lines)
    assert told == ["problem 0", "problem 1", "problem 2", *more]
