from __future__ import annotations

import numpy as np
import pytest
import torch
from harness_methods.vrgcn import HistorySample, with_history

from harness.check import oracle
from harness.check.graphs import dense_adjacency, random_graph
from harness.graph.block import MEAN, SYMMETRIC
from harness.graph.csr import Topology
from harness.sampling.neighbours import draw_neighbours
from harness.sampling.sample import LayerSample, Tables

NODES, WIDTH, DRAWS = 40, 3, 1500
NORMS = {"sage": MEAN, "gcn": SYMMETRIC}
TARGETS = np.array([7, 3, 20, 31, 12, 0])  # node 20 has no neighbours
RNG = np.random.default_rng(5)
FRESH, HISTORY = RNG.normal(size=(NODES, WIDTH)), RNG.normal(size=(NODES, WIDTH))


def graph_of(*, weighted: bool) -> tuple[Topology, np.ndarray]:
    graph = random_graph(8, NODES, degree=6, weighted=weighted)
    # Read-only like a memory map.
    arrays = [
        a if a is None else np.frombuffer(a.tobytes(), a.dtype) for a in (graph.indptr, graph.indices, graph.weights)
    ]
    return Topology(*arrays), dense_adjacency(graph)


def drawn_mask(sample: LayerSample) -> np.ndarray:
    """Return bool [targets, N]: which neighbours were drawn."""
    mask = np.zeros((sample.num_dst, NODES), bool)
    for i in range(sample.num_dst):
        mask[i, sample.sources[sample.indices[sample.indptr[i] : sample.indptr[i + 1]]]] = True
    return mask


def aggregate(topology: Topology, sample: HistorySample, model: str, history: np.ndarray) -> np.ndarray:
    rows = np.concatenate([FRESH[sample.sources[: sample.fresh]], history[sample.historical]])
    block = sample.block(topology, device=torch.device("cpu"), dtype=torch.float64, engine="torch")
    return block.aggregate(torch.from_numpy(rows), NORMS[model]).numpy()


def formula(dense: np.ndarray, drawn: np.ndarray, model: str, history: np.ndarray) -> np.ndarray:
    """deg/k A_drawn (h - hbar) + A hbar, and GCN's self loop on h."""
    matrix = oracle.propagation_matrix(dense, model).numpy()[TARGETS]
    edges = dense[TARGETS] > 0
    factor = edges.sum(1) / np.maximum(drawn.sum(1), 1)
    off = np.where(edges, matrix, 0)
    own = np.where(edges, 0, matrix)  # the self loop, or nothing
    return factor[:, None] * (off * drawn) @ (FRESH - history) + off @ history + own @ FRESH


@pytest.mark.quick(1)
@pytest.mark.parametrize("model", NORMS)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_block_is_the_formula_of_the_control_variate(model: str, weighted: bool) -> None:
    topology, dense = graph_of(weighted=weighted)
    tables = Tables(NODES)
    for fanout, seed in [(2, 1), (2, 2), (3, 3), (0, 4), (100, 5)]:
        drawn = draw_neighbours(topology, TARGETS, fanout, seed, tables)
        sample = with_history(topology, drawn, tables)
        for history in (HISTORY, np.zeros_like(HISTORY)):  # at first it is 0
            want = formula(dense, drawn_mask(drawn), model, history)
            np.testing.assert_allclose(aggregate(topology, sample, model, history), want, atol=1e-12)
        assert np.array_equal(sample.sources[: sample.fresh], drawn.sources)
        assert len(set(sample.historical)) == sample.historical.size
        assert (sample.historical.size == 0) == (fanout == 100)  # nothing historical counts 0


def test_it_is_exact_with_an_up_to_date_history_whatever_is_drawn() -> None:
    topology, dense = graph_of(weighted=True)
    tables, matrix = Tables(NODES), oracle.propagation_matrix(dense, "gcn").numpy()[TARGETS]
    for seed in range(5):
        sample = with_history(topology, draw_neighbours(topology, TARGETS, 2, seed, tables), tables)
        got = aggregate(topology, sample, "gcn", FRESH)
        np.testing.assert_allclose(got, matrix @ FRESH, atol=1e-12)


def test_it_is_unbiased_given_a_history() -> None:
    topology, dense = graph_of(weighted=False)
    tables, want = Tables(NODES), oracle.propagation_matrix(dense, "sage").numpy()[TARGETS] @ FRESH
    got = np.array(
        [
            aggregate(
                topology,
                with_history(topology, draw_neighbours(topology, TARGETS, 2, seed, tables), tables),
                "sage",
                HISTORY,
            )
            for seed in range(DRAWS)
        ]
    )
    deviation = got.std(0) / np.sqrt(DRAWS)
    varies = deviation > 1e-12
    assert varies.sum() > 10
    assert np.abs((got.mean(0) - want)[varies] / deviation[varies]).max() < 4.5
    np.testing.assert_allclose(got.mean(0)[~varies], want[~varies], atol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_for_attention_every_edge_is_there_once_from_a_fresh_row_if_there_is_one(weighted: bool) -> None:
    topology, dense = graph_of(weighted=weighted)
    tables = Tables(NODES)
    drawn = draw_neighbours(topology, TARGETS, 2, 1, tables)
    sample = with_history(topology, drawn, tables, linear=False)
    got = np.zeros((TARGETS.size, NODES))
    for i in range(TARGETS.size):
        for e in range(sample.indptr[i], sample.indptr[i + 1]):
            got[i, sample.sources[sample.indices[e]]] += 1 if sample.values is None else sample.values[e]
            historical = sample.indices[e] >= sample.fresh
            assert historical == (sample.sources[sample.indices[e]] not in drawn.sources)
    np.testing.assert_allclose(got, dense[TARGETS])
    assert (sample.values is None) == (not weighted)


def test_tables_are_given_back_clear() -> None:
    topology, _ = graph_of(weighted=False)
    tables = Tables(NODES)
    drawn = draw_neighbours(topology, TARGETS, 2, 1, tables)
    for linear in (True, False):
        with_history(topology, drawn, tables, linear=linear)
        with tables.borrow() as first, tables.borrow() as second:
            assert (first == -1).all()
            assert (second == -1).all()
