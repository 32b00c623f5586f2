"""A trial that was cut off ends with the bits of one that was not, whatever was under way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.methods import SMALL

from harness.check.claims import SPEC, resume_check
from harness.check.graphs import TinyGraphs
from harness.check.runs import CheckFinding, Subject, execute, find_all

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DGS = SMALL["dgs"]
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "psc-gcn": [
        {"rate": 0.5, "refresh": 2, "staleness": 2},
        {"rate": 0.5, "refresh": 3, "staleness": 0, "cache": "random"},
        {"rate": 0.5, "refresh": 2, "cache": "none", "uniform": 0.3, "warmup": "sync"},
        {"rate": 1.0, "cache": "degree"},
    ],
    "pipegcn": [{"staleness": 3}, {"smoothing": True, "warmup": "sync"}, {"staleness": 2, "precompute": True}],
    "bns-gcn": [{"rate": 0.5, "sampler": "fixed"}, {"rate": 0.5, "precompute": True}],
    "graphsage": [
        SMALL["graphsage"] | {"prefetch": 2, "cache": "vip"},
        SMALL["graphsage"] | {"topology": "owner", "prefetch": 1, "feature_loss": 0.2},
        SMALL["graphsage"] | {"storage": "host", "feature_rate": 0.5},
        SMALL["graphsage"] | {"sampler": "labor", "importance": 1, "prefetch": 1},
    ],
    "graphsaint": [
        SMALL["graphsaint"] | {"scope": "local", "reshuffle": 2},
        SMALL["graphsaint"] | {"pool": 2, "sampler": "rw"},
    ],
    "vrgcn": [SMALL["vrgcn"] | {"cache": "degree", "fanouts": 1}],
    "gas": [SMALL["gas"] | {"cache": "degree", "prefetch": 1}],
    "dgs": [DGS | {"prefetch": 2}, DGS | {"period": 5, "variant": "fs-only"}],
    "support.methods:PromptDGS": [DGS | {"explain": "background"}, DGS | {"explain": "background", "period": 7}],
    "roc": [{"budget_share": 0.6}],
    "cagnet": [{"precompute": True}],
    "clustergcn": [SMALL["clustergcn"] | {"scope": "local", "prefetch": 1}],
}
SPECS = {  # also: what else carries something from epoch to epoch
    "adam": SPEC.model_copy(update={"epochs": 6}),
    "sgd": SPEC.model_copy(
        update={
            **{"epochs": 6, "optimizer": "sgd", "optimizer_options": {"momentum": 0.9}, "lr": 0.1},
            **{"schedule": "cosine", "lr_warmup": 4, "clip": 0.5},
        }
    ),
}

# Optimizers are the trainer's: two methods show them.
RUNS = [(name, "adam") for name in SETTINGS] + [(name, "sgd") for name in ("psc-gcn", "graphsage")]


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, str], CheckFinding]:
    graphs = TinyGraphs(Path(tmp_path_factory.mktemp("graphs")))

    def run(keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], CheckFinding]:
        checks = [resume_check(Subject(name), SETTINGS[name], graphs, 2, SPECS[spec]) for name, spec in keys]
        results = execute([run for check in checks for run in check.runs], limit_s=100)
        return dict(zip(keys, find_all(checks, results), strict=True))

    return run(RUNS)


@pytest.mark.parametrize("run", RUNS, ids=" ".join)
def test_a_cut_off_trial_ends_with_the_same_bits(
    run: tuple[str, str], findings: Mapping[tuple[str, str], CheckFinding]
) -> None:
    finding = findings[run]
    assert finding.state == "ok", "\n".join(finding.lines)
