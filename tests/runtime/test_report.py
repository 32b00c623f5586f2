"""What ranks tell the launcher before they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.runtime.report import RankReport


def events(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "progress.jsonl").read_text().splitlines()]


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
