"""Draws of neighbours as matrices, and chances to be drawn found by search."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.optimize import brentq

from harness.check.graphs import dense_adjacency, random_graph
from harness.graph.csr import Topology
from harness.sampling.sample import LayerSample, Tables
from harness.sampling.subgraphs import Subgraphs


class DrawCase:
    """A graph, memory-mapped for reading, and its matrix; draws from it share their tables."""

    def __init__(self, folder: Path, nodes: int, weighted: bool) -> None:
        graph = random_graph(61, nodes=nodes, degree=9, weighted=weighted)
        if graph.weights is not None:
            graph.weights[::3] *= -1
        for name in ("indptr", "indices", *(["weights"] if weighted else [])):
            np.save(folder / f"{name}.npy", getattr(graph, name))
        self.topology = Topology.open(folder, weighted)
        self.matrix = dense_adjacency(graph)
        self.tables = Tables(nodes)


def as_matrix(sample: LayerSample, nodes: int) -> np.ndarray:
    """Return what the sample's edges count, float64 [targets, N]."""
    rows = np.repeat(np.arange(sample.num_dst), np.diff(sample.indptr))
    counts = np.ones(rows.size) if sample.values is None else sample.values.copy()
    if sample.dst_scale is not None:
        counts *= sample.dst_scale[rows]
    if sample.src_scale is not None:
        counts *= sample.src_scale[sample.indices]
    matrix = np.zeros((sample.num_dst, nodes))
    np.add.at(matrix, (rows, sample.sources[sample.indices]), counts)
    return matrix


def square(layer: LayerSample) -> np.ndarray:
    """Return what a subgraph's edges count, float64 [n, n]."""
    return as_matrix(layer, int(layer.sources.max(initial=-1)) + 1)[:, layer.sources]


def sums_over(sampler: Subgraphs, x: np.ndarray, draws: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draw subgraphs by the seeds 0 to draws - 1, and sum the rows `x` [N] of a subgraph's nodes over edges.

    Returns of each node, while it was there, the mean and variance of the sum (NaN if never), and how often
    it was; and of each draw the weighted sum over its nodes.
    """
    total, squares, times = np.zeros((3, x.size))
    losses = np.empty(draws)
    for seed in range(draws):
        batch = sampler.sample(seed)
        there = batch.layer.sources
        sums = square(batch.layer) @ x[there]
        total[there] += sums
        squares[there] += sums**2
        times[there] += 1
        losses[seed] = batch.weights @ x[there]
    with np.errstate(invalid="ignore"):
        mean = total / times
        return mean, squares / times - mean**2, times, losses


def inclusion(weights: np.ndarray, sizes: float | np.ndarray) -> np.ndarray:
    """Return p = min(1, c w) with sum p = size by search for c, row by row; one size, or one a row."""
    p = np.zeros_like(weights)
    for row, out, size in zip(weights, p, np.broadcast_to(sizes, len(weights)), strict=True):
        if size >= np.count_nonzero(row):
            out[row > 0] = 1
        elif size > 0:
            high = 2 * size / row[row > 0].min()
            c = brentq(
                lambda c, row=row, size=size: np.minimum(1, c * row).sum() - size, 0, high, xtol=1e-16, rtol=1e-15
            )
            out[:] = np.minimum(1, c * row)
    return p
