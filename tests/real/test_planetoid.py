"""Published accuracy on the public split: a two-layer GCN, whole and in four parts, exact and sampled."""

from __future__ import annotations

import pandas as pd
import pytest
from real.runs import SUITES, Runs

pytestmark = [pytest.mark.data, pytest.mark.slow, pytest.mark.timeout(600)]

# The shipped suite trains for 200 epochs; 80 are enough for these (its own: 81.8 and 70.9 %, whole), 60 are not.
EPOCHS = 80
LEAST = {"cora": 0.80, "citeseer": 0.68}
SAMPLING = {"full": 0.0, "bns-gcn": 0.015}  # what sampling may cost


@pytest.fixture(scope="module")
def results(runs: Runs) -> pd.DataFrame:
    settings = [
        f"train.epochs={EPOCHS}",
        "train.threads=1",
        "timing=off",
        "seeds=[0, 1]",
        "exclude=[{method: bns-gcn, parts: 1}]",
    ]
    return runs.run(SUITES / "planetoid.yaml", "dataset=cora|citeseer", settings)


@pytest.mark.parametrize(("method", "parts"), [("full", 1), ("full", 4), ("bns-gcn", 4)])
@pytest.mark.parametrize("dataset", ["cora", "citeseer"])
def test_accuracy(results: pd.DataFrame, dataset: str, method: str, parts: int) -> None:
    trials = results.loc[(dataset, method, parts)]
    assert sorted(trials["seed"]) == [0, 1]
    assert set(trials["origin"]) == {"real"}
    accuracy = trials["test_at_best_val"]
    assert accuracy.mean() >= LEAST[dataset] - SAMPLING[method], accuracy.to_list()


@pytest.mark.parametrize("dataset", ["cora", "citeseer"])
def test_half_the_boundary_was_sampled(results: pd.DataFrame, dataset: str) -> None:
    """The accuracy above is that of sampling, not of a rate that was never applied."""
    full, sampled = (results.loc[(dataset, method, 4)] for method in ("full", "bns-gcn"))
    assert (full["boundary_nodes"] > 100).all()
    for purpose in ("bytes_feature", "bytes_embedding", "bytes_gradient"):
        share = sampled[purpose].to_numpy() / full[purpose].to_numpy()
        assert share == pytest.approx(0.5, abs=0.03)
