"""What ranks tell the launcher before they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.runtime.report import RankReport, TrialError


def events(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "progress.jsonl").read_text().splitlines()]


def test_flags_are_written_once_however_a_rank_ends(tmp_path: Path) -> None:
    report = RankReport(tmp_path, 0)
    with report.concluding():
        for _ in range(2):
            report.flag("cores", "2 of 1")
        raise TrialError("invalid", "why")
    written = json.loads((tmp_path / "rank0.json").read_text())
    assert (written["status"], written["flags"]) == ("invalid", [["cores", "2 of 1"]])


def test_stages_are_told_by_whoever_does_the_work_the_rest_by_rank_0(tmp_path: Path) -> None:
    reports = [RankReport(tmp_path, rank) for rank in range(2)]
    for rank, report in enumerate(reports):
        report.stage(f"stage of {rank}")
        report.progress(event="epoch", epoch=rank)
    assert events(tmp_path) == [
        {"event": "stage", "text": "stage of 0"},
        {"event": "epoch", "epoch": 0},
        {"event": "stage", "text": "stage of 1"},
    ]


def test_an_error_in_a_plugin_names_its_line(tmp_path: Path) -> None:
    plugin, report = tmp_path / "mine.py", RankReport(tmp_path, 0)
    report.plugins.append(plugin)
    code = compile("def steps():\n    return {}['key']\n", str(plugin), "exec")
    names: dict[str, Any] = {}
    exec(code, names)
    with report.concluding():
        names["steps"]()
    assert json.loads((tmp_path / "rank0.json").read_text())["reason"] == f"{plugin}:2: KeyError: 'key'"
