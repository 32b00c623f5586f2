"""new-method keeps what it claims."""

from __future__ import annotations

from pathlib import Path

from harness.check import check_method

FILE = Path(__file__).resolve().parents[1] / "new_method.py"


def test_new_method() -> None:
    """Each line of the report says what was expected, and seen."""
    report = check_method("new-method", plugin=FILE)
    assert report.ok, "\n".join(report.lines)
