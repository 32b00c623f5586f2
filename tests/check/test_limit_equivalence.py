"""Truth 1 beyond what `check_method` runs: 1 and 4 ranks, every model, options of all full-graph methods."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiers import batch_of

from harness.check.claims import EXACT_SPEC, exact_check, limit_runs
from harness.check.graphs import LIMITS, MODELS, TinyGraphs
from harness.check.runs import CheckRun, Result, RunFailure, Subject, execute, find_all
from harness.runtime.method import METHODS

pytestmark = pytest.mark.slow

WORLDS = [1, 4]
MORE = 4  # ranks on which `full` runs every model on every graph, and every full-graph method its options
# The options of all full-graph methods run on one model a graph, in turn; in the models that
# `transform_before_exchange` leaves out no product is narrower (in mixhop it does nothing), those of gat are never
# precomputed.
EXTRA = {
    "transform_before_exchange": ["sage", "gcn-narrow-input", "gcn", "gat-tail", "mixhop"],
    "precompute": [name for name, model in MODELS.items() if model.name != "gat"],
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("limit")


@functools.cache
def runs_of(name: str, world: int, graphs: TinyGraphs) -> list[CheckRun]:
    """Return what is run of a method on `world` ranks."""
    method, subject, runs = METHODS.load(name), Subject(name), list[CheckRun]()
    assert method.exact is not None
    runs += limit_runs(subject, method.exact, graphs, world, every_model=name == "full" and world == MORE)
    if method.family == "full-graph" and world == MORE:
        for turn, graph in enumerate(LIMITS):
            for option, models in EXTRA.items():
                options: dict[str, Any] = {**method.exact, option: True}
                model = models[turn % len(models)]
                tiny = graphs.get(graph, world)
                runs.append(CheckRun(subject, options, tiny, world, model, MODELS[model], EXACT_SPEC))
    return runs


EXACT = [name for name in METHODS.names() if METHODS.load(name).exact is not None]


@functools.cache
def graphs_in(folder: Path) -> TinyGraphs:
    return TinyGraphs(folder)


@functools.cache
def results(world: int, folder: Path, *names: str) -> dict[str, Result]:
    """Do some methods' runs on `world` ranks in one group."""
    runs = [run for name in names for run in runs_of(name, world, graphs_in(folder))]
    return execute(runs, limit_s=60)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", EXACT)
def test_exact_setting_is_full_graph_training(name: str, world: int, folder: Path) -> None:
    runs, together = runs_of(name, world, graphs_in(folder)), batch_of(name, EXACT, size=4)
    found = results(world, folder, *together)
    (finding,) = find_all([exact_check(runs, {})], found)
    assert finding.state == "ok", "\n".join(finding.lines)
    for run in runs:
        ranks = found[run.key]
        assert not isinstance(ranks, RunFailure)
        first = ranks[0].after
        assert all(np.array_equal(rank.after[key], first[key]) for rank in ranks for key in first), str(run)
