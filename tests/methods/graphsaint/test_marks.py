"""Sets of nodes in bits, against numpy's and Python's."""

from __future__ import annotations

import numpy as np
import pytest
from harness_methods.graphsaint.node_samplers import Marks, ascending, mark, mark_unseen, marked
from scipy import stats

from harness.graph.kernels import stream


@pytest.mark.parametrize("nodes", [1, 63, 64, 65, 4096, 4097, 20_000])
def test_a_set_is_read_back_in_ascending_order_and_left_empty(nodes: int) -> None:
    marks = Marks(nodes)
    rng = np.random.default_rng(nodes)
    for count in (0, 1, nodes // 3, nodes, 2 * nodes):
        given = rng.integers(0, nodes, count)
        with marks.borrow() as (bits, words):
            new = [mark(bits, words, node) for node in given.tolist()]
            expected, first = np.unique(given, return_index=True)
            np.testing.assert_array_equal(np.flatnonzero(new), np.sort(first))
            for node in range(min(nodes, 200)):
                assert marked(bits, node) == (node in expected)
            found = ascending(bits, words, expected.size)
            assert found.dtype == np.int64
            np.testing.assert_array_equal(found, expected)
            assert not bits.any()
            assert not words.any()


def test_unseen_nodes_are_uniform() -> None:
    marks, state = Marks(70), stream(3, 0)
    seen, times = np.arange(0, 70, 3), np.zeros(70, int)
    with marks.borrow() as (bits, words):
        for _ in range(2000):
            for node in seen.tolist():
                mark(bits, words, node)
            state = np.uint64(mark_unseen(bits, words, 70, 4, state))
            found = ascending(bits, words, seen.size + 4)
            times[np.setdiff1d(found, seen)] += 1
    assert times.sum() == 4 * 2000
    unseen = np.setdiff1d(np.arange(70), seen)
    assert 1e-3 < stats.chisquare(times[unseen]).pvalue < 1 - 1e-3
