"""Truth 2 beyond what methods declare: every other sampler and estimator that is unbiased."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from support.tiers import tiered

from harness.check.claims import DRAWS, unbiased_check, unbiased_runs
from harness.check.graphs import TinyGraphs
from harness.check.runs import CheckRun, Result, Subject, execute, find_all
from harness.runtime.method import METHODS

pytestmark = pytest.mark.slow

SAMPLERS: dict[str, tuple[str, dict[str, Any]]] = {
    # 0.03 of these boundaries is less than one node: the rate at which public code samples no one.
    "bns fixed below one": ("bns-gcn", {"rate": 0.03, "sampler": "fixed"}),
    "bns fixed": ("bns-gcn", {"rate": 0.33, "sampler": "fixed"}),
    "cagnet fixed below one": ("cagnet", {"rate": 0.03, "sampler": "fixed"}),
    "psc random": ("psc-gcn", {"rate": 0.3, "staleness": 0, "sampler": "random"}),
    "graphsage weighted": ("graphsage", {"fanouts": 3, "batch_size": 8, "weights": "propagation"}),
    "graphsage labor": ("graphsage", {"fanouts": 3, "batch_size": 8, "sampler": "labor"}),
    "graphsage important": ("graphsage", {"fanouts": 3, "batch_size": 8, "sampler": "labor", "importance": 2}),
    "cooperative labor": ("cooperative", {"fanouts": 3, "batch_size": 8, "sampler": "labor"}),
    "guided": ("support.methods:Guided", {"fanouts": 3, "batch_size": 8}),
    "ladies nested": ("ladies", {"sizes": 10, "batch_size": 8, "layers": "nested", "estimator": "poisson"}),
    "ladies public": ("ladies", {"sizes": 10, "batch_size": 8, "layers": "public", "estimator": "poisson"}),
    "fastgcn paper": ("fastgcn", {"sizes": 25, "batch_size": 8, "layers": "paper"}),
    "fastgcn public": ("fastgcn", {"sizes": 25, "batch_size": 8, "layers": "public"}),
    "skewed quadratic": ("skewed", {"sizes": 10, "batch_size": 8, "skew": "quadratic", "estimator": "poisson"}),
    # So many are counted that what counts err by is small against what the draws here do; the other samplers'
    # counts are held to be unbiased in tests/methods/graphsaint/test_normalise.py.
    "graphsaint frontier": ("graphsaint", {"size": 25, "frontier": 6, "coverage": 4000}),
    "skewed saint": ("skewed", {"base": "saint", "size": 25, "skew": "fixed", "alpha": 3}),
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("unbiased")


@functools.cache
def runs(folder: Path) -> dict[str, list[CheckRun]]:
    graphs = TinyGraphs(folder)
    return {
        name: list(unbiased_runs(Subject(method), options, graphs, DRAWS[METHODS.load(method).family]))
        for name, (method, options) in SAMPLERS.items()
    }


QUICK = ("graphsage weighted", "fastgcn public", "skewed quadratic")


@functools.cache
def results(folder: Path, quick: bool) -> dict[str, Result]:
    """Run those of one tier together."""
    return execute(
        [run for name, each in runs(folder).items() if (name in QUICK) == quick for run in each], limit_s=200
    )


@pytest.mark.parametrize("name", tiered(SAMPLERS, QUICK))
def test_the_mean_over_draws_is_the_full_aggregation(name: str, folder: Path) -> None:
    (finding,) = find_all([unbiased_check(runs(folder)[name], SAMPLERS[name][1])], results(folder, name in QUICK))
    assert finding.state == "ok", "\n".join(finding.lines)
