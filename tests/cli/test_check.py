"""`harness check`: lines, exit codes, and what it hands on."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

import harness.check
from harness.check import CheckFinding, CheckReport
from harness.cli import app, main


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("FAIL", 1), ("not claimed", 0)])
def test_the_exit_code_is_that_of_the_findings(state: Any, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def checked(name: str, **options: Any) -> CheckReport:
        asked.update(options, name=name)
        return CheckReport(name, (CheckFinding("exact", state, "the claim", ("expected 1, seen 2",)),))

    monkeypatch.setattr(harness.check, "check_method", checked)
    result = CliRunner().invoke(app, ["check", "mine", "--plugin", "mine.py", "-o", "rate=0.5"])
    assert result.exit_code == code
    assert result.stdout.splitlines()[:2] == [f"{state:<11}  exact          the claim", " " * 13 + "expected 1, seen 2"]
    assert asked == {"name": "mine", "plugin": ["mine.py"], "options": {"rate": 0.5}, "limit_s": 20.0}


def test_a_method_that_there_is_not_is_the_users_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["check", "bns-gnc"])
    assert ended.value.code == 2
    assert "did you mean 'bns-gcn'?" in capsys.readouterr().err
