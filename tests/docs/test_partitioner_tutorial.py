"""The partitioner of the tutorial, as it is written: LDG, with every method."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from docs.pages import block
from support.ranks import run_ranks

from harness.check.claims import EXACT_SPEC
from harness.check.graphs import OnDisk, random_graph
from harness.check.training import Case, RankOutcome, train
from harness.data.partition import partition_nodes
from harness.data.partition.cached import ensure_partitioned, partition_table
from harness.data.prepared import write_graph
from harness.models.layer import ModelSpec
from harness.registry import find_plugins
from harness.runtime.method import METHODS
from harness.spec import PartitionSpec, PluginSource
from harness.suite.expand import expand
from harness.suite.suite_file import load_suite


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("partitioner") / "ldg.py"
    path.write_text(block("partitioner", "python"))
    return path


@pytest.fixture(scope="module")
def source(file: Path) -> PluginSource:
    return find_plugins([str(file)])["partitioner", "ldg"]


def clustered(groups: int = 4, size: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the CSR of cliques of random edges with a few between them."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), size)
    edge = rng.random((group.size, group.size)) < np.where(group[:, None] == group[None, :], 0.3, 0.005)
    edge = np.triu(edge, 1)
    rows, columns = np.nonzero(edge | edge.T)
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=group.size))])
    return starts.astype(np.int64), columns.astype(np.int32)


def cut(indptr: np.ndarray, indices: np.ndarray, parts: np.ndarray) -> int:
    return int((np.repeat(parts, np.diff(indptr)) != parts[indices]).sum())


@pytest.mark.parametrize("balance", ["nodes", "edges"])
def test_it_cuts_less_than_random_parts_and_keeps_their_balance(balance: str, source: PluginSource) -> None:
    indptr, indices = clustered()
    weight = np.ones(indptr.size - 1) if balance == "nodes" else np.diff(indptr) + 1
    spec = PartitionSpec(parts=4, method="ldg", balance=balance, options={"slack": 0.1})
    parts = partition_nodes(indptr, indices, spec, source)
    load = np.bincount(parts, weight, 4)
    assert load.min() > 0
    assert load.max() <= 1.1 * load.mean()
    random = partition_nodes(indptr, indices, spec.model_copy(update={"method": "random", "options": {}}))
    assert cut(indptr, indices, parts) < 0.6 * cut(indptr, indices, random)
    assert np.array_equal(parts, partition_nodes(indptr, indices, spec, source))


def test_each_node_joins_the_part_that_the_rule_says(source: PluginSource) -> None:
    indptr, indices = clustered(2, 20, seed=3)
    spec = PartitionSpec(parts=2, method="ldg", seed=5, options={"slack": 0.2})
    parts = partition_nodes(indptr, indices, spec, source)
    capacity, load = 1.2 * 40 / 2, [0, 0]
    placed: dict[int, int] = {}
    for node in np.random.default_rng([5, 3]).permutation(40):
        near = [placed[j] for j in indices[indptr[node] : indptr[node + 1]] if j in placed]
        scores = [(near.count(p) + 1e-9) * (1 - load[p] / capacity) for p in (0, 1)]
        assert scores[parts[node]] == max(s for s, full in zip(scores, load, strict=True) if full + 1 <= capacity)
        placed[int(node)] = int(parts[node])
        load[parts[node]] += 1


def test_an_edit_is_another_partition(file: Path, source: PluginSource, tmp_path: Path) -> None:
    write_graph(random_graph(1, 40), tmp_path / "graph")
    (edited := file.with_name("edited.py")).write_text(file.read_text() + "\n")

    def place(of: PluginSource) -> Path:
        spec = PartitionSpec(parts=2, method="ldg")
        return ensure_partitioned(tmp_path / "graph", spec, inductive=False, cache=tmp_path, source=of).full

    assert place(source) == place(source) != place(find_plugins([str(edited)])["partitioner", "ldg"])


@pytest.mark.slow
def test_every_method_trains_on_its_parts(source: PluginSource, tmp_path: Path) -> None:
    """Exact settings are full-graph training, whatever the partition: all methods end with the same weights."""
    graph = random_graph(1, 60)
    write_graph(graph, tmp_path / "graph")
    spec = PartitionSpec(parts=2, method="ldg", options={"slack": 0.05})
    views = ensure_partitioned(tmp_path / "graph", spec, inductive=False, cache=tmp_path, source=source)
    assert [row["inner"] for row in partition_table(views.full)][:2] != [0, 60]
    stored = OnDisk(tmp_path / "graph", views, False)
    network = ModelSpec(layers=2, hidden=6, dropout=0)
    exact = {name: METHODS.load(name).exact for name in METHODS.names()}
    names = [name for name, options in exact.items() if options is not None and name != "sign"]  # another model
    cases = [Case(stored, name, exact[name], network, EXACT_SPEC) for name in names]
    ranks: list[list[RankOutcome]] = run_ranks(train, 2, cases, timeout_s=240)
    first = ranks[0][names.index("full")]
    for name, *outcomes in zip(names, *ranks, strict=True):
        for outcome in outcomes:
            for key, value in first.after.items():
                np.testing.assert_allclose(outcome.after[key], value, rtol=1e-7, atol=1e-10, err_msg=name)


def test_the_suite_names_it_with_its_options(file: Path) -> None:
    (file.parent / "ldg.yaml").write_text(block("partitioner", "yaml"))
    trials = expand(load_suite(file.parent / "ldg.yaml"), device="cpu")
    found = {trial.partition.method: (trial.partition.options, trial.plugins) for trial in trials}
    assert found["ldg"][0] == {"slack": 0.05}
    assert found["ldg"][1]["partitioner"].file == file
    assert found["metis"] == found["random"] == ({}, {})
    ids = {trial.id for trial in trials}
    assert len(ids) == len(trials) == 6
