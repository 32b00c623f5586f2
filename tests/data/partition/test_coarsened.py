"""A coarsened graph: its clusters, what a contraction keeps, and that a part is only made better."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.data.partition import partition_nodes
from harness.data.partition.streaming import Level, _move
from harness.spec import PartitionSpec

ONCE = settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def levels(draw: st.DrawFn) -> tuple[Level, np.ndarray]:
    """A symmetric graph of a few nodes, with weights or without, and its matrix."""
    n, seed = draw(st.integers(1, 12)), draw(st.integers(0, 99))
    rng = np.random.default_rng(seed)
    matrix = np.triu(rng.integers(1, 9, (n, n)) * (rng.random((n, n)) < draw(st.floats(0, 1))), 1)
    matrix = matrix + matrix.T
    weighted = draw(st.booleans())
    if not weighted:
        matrix = (matrix > 0).astype(np.int64)
    indptr = np.concatenate([[0], np.cumsum((matrix > 0).sum(1))])
    edges = matrix[matrix > 0].astype(np.int32) if weighted else np.empty(0, np.int32)
    weights = rng.integers(1, 5, n) if weighted else np.ones(n, np.int64)
    return Level(indptr, np.nonzero(matrix)[1].astype(np.int32), edges, weights.astype(np.int64)), matrix


def cut(matrix: np.ndarray, part: np.ndarray) -> int:
    return int(matrix[part[:, None] != part[None]].sum())


@ONCE
@given(found=levels(), most=st.integers(1, 20), passes=st.integers(1, 3))
def test_a_contraction_adds_up_what_it_joins(
    tmp_path: Path, found: tuple[Level, np.ndarray], most: int, passes: int
) -> None:
    level, matrix = found
    cluster = level.clusters(most, passes)
    count = cluster.max() + 1
    assert set(cluster) == set(range(count))
    joined = np.eye(count, dtype=np.int64)[cluster]
    sizes = np.bincount(cluster, level.nodes)
    assert (sizes <= np.maximum(most, np.where(joined.sum(0) == 1, sizes, 0))).all()
    coarse = level.contracted(cluster, tmp_path)
    expected = joined.T @ matrix @ joined
    np.fill_diagonal(expected, 0)
    dense = np.zeros_like(expected)
    rows = np.repeat(np.arange(count), np.diff(coarse.indptr))
    np.add.at(dense, (rows, coarse.indices), coarse.edges)
    assert np.array_equal(dense, expected)
    assert len(set(zip(rows.tolist(), coarse.indices.tolist(), strict=True))) == rows.size
    assert np.array_equal(coarse.nodes, sizes)


@ONCE
@given(found=levels(), parts=st.integers(1, 4), seed=st.integers(0, 99), slack=st.floats(0, 1))
def test_moves_cut_no_more_and_keep_to_the_room(
    found: tuple[Level, np.ndarray], parts: int, seed: int, slack: float
) -> None:
    level, matrix = found
    before = np.random.default_rng(seed).integers(0, parts, level.nodes.size).astype(np.int32)
    part, load = before.copy(), np.bincount(before, level.nodes, parts).astype(np.int64)
    capacity = (1 + slack) * level.nodes.sum() / parts
    allowed = np.maximum(load, capacity)
    _move(level.indptr, level.indices, level.edges, level.nodes, capacity, part, load)
    assert cut(matrix, part) <= cut(matrix, before)
    assert np.array_equal(load, np.bincount(part, level.nodes, parts))
    assert (load <= allowed).all()


@pytest.mark.parametrize("balance", ["nodes", "edges"])
def test_a_planted_partition_is_found_from_a_tenth_of_the_nodes(balance: str) -> None:
    """Rings of 100 nodes, joined by few edges: parts of whole rings cut these alone."""
    rng, rings, size = np.random.default_rng(0), 40, 100
    nodes = np.arange(rings * size)
    around = nodes // size * size + (nodes + 1) % size
    pairs = {
        (i, j) for step in (1, 2, 3) for i, j in zip(nodes, around - around % size + (nodes + step) % size, strict=True)
    }
    pairs |= {(int(i), int(j)) for i, j in rng.integers(0, nodes.size, (40, 2)) if i != j}
    both = np.array(sorted({*pairs, *((j, i) for i, j in pairs)}))
    indptr = np.searchsorted(both[:, 0], np.arange(nodes.size + 1))
    spec = PartitionSpec(parts=4, method="coarsened", balance=balance, options={"coarsest": 400})
    part = partition_nodes(indptr, both[:, 1].astype(np.int32), spec)
    assert (part[both[:, 0]] != part[both[:, 1]]).sum() <= 2 * 40 + 8 * 3 * 4
    assert np.bincount(part).max() <= 1.03 * 1000 + size
    assert np.array_equal(part, partition_nodes(indptr, both[:, 1].astype(np.int32), spec))
