"""Records and rank reports to test with."""

from __future__ import annotations

from typing import Any

import pytest

from harness.results.record import Record


@pytest.fixture
def make_record():
    def make(trial: str = "0123456789ab", **fields: Any) -> Record:
        config = {
            "dataset": {"name": "digits", "options": {}},
            "model": {"name": "sage", "layers": 2},
            "partition": {"parts": 2, "method": "metis"},
            "method": {"name": "bns-gcn", "options": {"rate": 0.1}},
            "network": "none",
            "seed": 3,
            "device": "cpu",
        }
        known = {
            "trial": trial,
            "suite": "demo",
            "label": "digits sage bns-gcn P=2 seed=3",
            "status": "ok",
            "started": "2026-01-02T03:04:05+00:00",
            "wall_s": 12.5,
            "config": config,
            "dataset": {"name": "digits", "note": "", "origin": "real"},
        }
        return Record.model_validate(known | fields)

    return make
