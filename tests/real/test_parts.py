"""On real graphs full-graph training scores the same whole and in two parts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from real.runs import Runs

pytestmark = [pytest.mark.data, pytest.mark.slow, pytest.mark.timeout(300)]

# No dropout: its masks are drawn by rank. Scored once, at the end: of many evaluations the best may be
# another one after a difference in the last bit. Few epochs: in float32 such a difference grows by the epoch
# (on ppi_go from 1e-7 of the loss at 50 epochs to 1e-3 at 80; in float64 it stays below 1e-14).
# A random partition has the largest boundary; isolated parts (rate 0) show what the comparison can see.
SUITE = """\
name: {dataset}
datasets: [{dataset}]
model: {{name: sage, layers: 2, hidden: {hidden}, norm: layer, dropout: 0}}
train: {{epochs: {epochs}, lr: 0.03, eval_every: 0, threads: 1}}
partition: {{parts: [1, 2], method: random}}
methods: [full, {{bns-gcn: {{rate: 0}}}}]
exclude: [{{method: bns-gcn, parts: 1}}]
device: cpu
timing: 'off'
"""
SETTINGS = {"ppi_go": (64, 55), "ogbn_arxiv": (32, 20)}  # hidden width, epochs
SCORES = ["best_val", "test_at_best_val"]


@dataclass(frozen=True)
class Case:
    """A data set's three trials, and the labels of its test nodes."""

    whole: pd.Series
    halves: pd.Series
    isolated: pd.Series
    labels: np.ndarray


@pytest.fixture(scope="module", params=SETTINGS)
def case(request: pytest.FixtureRequest, runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Case:
    dataset = request.param
    hidden, epochs = SETTINGS[dataset]
    text = SUITE.format(dataset=dataset, hidden=hidden, epochs=epochs)
    results = runs.run_text(text, tmp_path_factory.mktemp(dataset)).loc[dataset]
    with np.load(runs.data_dir / f"{dataset}.npz") as graph:
        labels = graph["label"][graph["test_mask"]]
    return Case(results.loc["full", 1], results.loc["full", 2], results.loc["bns-gcn", 2], labels)


def test_same_score_whole_and_in_two_parts(case: Case) -> None:
    assert case.whole["boundary_nodes"] == 0
    assert case.halves["boundary_nodes"] > 0.5 * case.halves["inner_nodes"]
    assert case.halves["bytes_embedding"] > 0
    for score in SCORES:
        assert case.halves[score] == pytest.approx(case.whole[score], abs=1e-3)


def test_isolated_parts_score_otherwise(case: Case) -> None:
    assert case.isolated["bytes_embedding"] == 0
    assert max(abs(case.isolated[score] - case.whole[score]) for score in SCORES) > 2e-3


def test_better_than_any_constant_answer(case: Case) -> None:
    for trial in (case.whole, case.halves):
        assert trial["test_at_best_val"] > constant_answer(case.labels) + 0.03


def constant_answer(labels: np.ndarray) -> float:
    """Return the best score (accuracy or micro-F1) of any answer that is the same for every node."""
    if labels.ndim == 1:
        return float(np.bincount(labels).max() / len(labels))
    # The k most frequent labels are the best answer of k labels.
    hits = np.sort(labels.sum(0))[::-1].cumsum()
    answered = len(labels) * np.arange(1, labels.shape[1] + 1)
    return float((2 * hits / (answered + labels.sum())).max())
