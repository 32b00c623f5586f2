"""The table of metrics has all that ranks report of any method, with what the method declares."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Any

import pytest
from support.ranks import run_ranks
from support.training import run_all_to_the_end

from harness.check.graphs import TinyGraphs
from harness.check.training import Case
from harness.metrics import METRICS, STAT
from harness.models.layer import ModelSpec
from harness.runtime.method import METHODS
from harness.runtime.run_config import TrainSpec
from tools.reference import EPOCH_METRICS

pytestmark = pytest.mark.slow

MODEL = ModelSpec(layers=2, hidden=4, dropout=0)
MORE: dict[str, list[dict[str, Any]]] = {  # options with statistics of their own
    "psc-gcn": [{"staleness": 2, "rate": 0.5, "cache": "inclusion", "capacity": 0.5}],
    "graphsaint": [{"sampler": "rw"}],
    "clustergcn": [{"clusters": 6, "per_batch": 2}],
    "gas": [{"clusters": 6, "per_batch": 2}],
    "graphsage": [{"cache": "degree", "capacity": 0.5}],
    "dgs": [{}],
    "local": [{}],
    "adaqp": [{"period": 2}],
    "sign": [{"batch_size": 8, "powers": "last"}],
    "p3": [{"sampler": "labor", "importance": 1}],
    "roc": [{}],
    "cooperative": [{"sampler": "labor", "fanouts": 3, "batch_size": 8}],
}
CASES = [(name, METHODS.load(name).unbiased or METHODS.load(name).exact or {}) for name in METHODS.names()]
CASES += [(name, each) for name, some in MORE.items() for each in some]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The first of two ranks' reports of each case."""
    graph = TinyGraphs(tmp_path_factory.mktemp("graphs")).get("weighted", 2).stored
    spec = TrainSpec(epochs=3, eval_every=2, threads=1)
    cases = [Case(graph, name, options, MODEL, spec) for name, options in CASES]
    return run_ranks(run_all_to_the_end, 2, cases, timeout_s=240)[0]


@pytest.mark.parametrize(
    "number", range(len(CASES)), ids=[f"{name} {options or ''}".strip() for name, options in CASES]
)
def test_what_a_rank_reports_is_in_the_table(number: int, reports: list[dict[str, Any]], tmp_path: Path) -> None:
    (name, _), report = CASES[number], reports[number]
    assert report["status"] == "ok", report["reason"]
    own = METHODS.load(name).metrics_by_column()
    columns = {key for row in report["epochs"] for key in row} - {"stats"}
    assert columns - EPOCH_METRICS.keys() - own.keys() == set()
    stats = {f"{STAT}{key}" for row in report["epochs"] for key in row.get("stats", {})}
    assert [key for key in stats if not any(fnmatch.fnmatchcase(key, column) for column in own)] == []
    assert report["setup"].keys() <= {
        metric.key.removeprefix("setup.") for metric in (*METRICS.values(), *own.values())
    }
