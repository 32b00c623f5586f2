"""Draws of neighbours as matrices, and chances to be drawn found by search."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.optimize import brentq
from support.graphs import dense_adjacency, random_graph

from harness.graph.layer_sample import LayerSample, Tables
from harness.graph.topology import Topology


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
    matrix = np.zeros((sample.num_dst, nodes))
    np.add.at(matrix, (rows, sample.sources[sample.indices]), counts)
    return matrix


def inclusion(weights: np.ndarray, sizes: float | np.ndarray) -> np.ndarray:
    """Return p = min(1, c w) with sum p = size by search for c, row by row; one size, or one a row."""
    p = np.zeros_like(weights)
    for row, out, size in zip(weights, p, np.broadcast_to(sizes, len(weights)), strict=True):
        if size >= np.count_nonzero(row):
            out[row > 0] = 1
        elif size > 0:
            high = 2 * size / row[row > 0].min()
            c = brentq(
                lambda c, row=row, size=size: np.minimum(1, c * row).sum() - size,
                0,
                high,
                xtol=1e-16,
                rtol=1e-15,
            )
            out[:] = np.minimum(1, c * row)
    return p
