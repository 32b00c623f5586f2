"""Topology: a whole graph, of which a host's ranks map one copy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Topology:
    """A whole graph: `indptr` int64 [N + 1], `indices` int32 [E] of in-neighbours, `weights` [E] or None.

    Every edge is there in both directions, with a weight of its own; the in-neighbours of a node ascend.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    weights: NDArray[np.float32] | None = None

    @classmethod
    def open(cls, directory: Path, weighted: bool) -> Topology:
        """Memory-map the files of a prepared graph or partition view."""
        names = ["indptr", "indices", *(["weights"] if weighted else [])]
        return cls(*(np.load(directory / f"{name}.npy", mmap_mode="r") for name in names))

    @property
    def num_nodes(self) -> int:
        """Number of nodes N."""
        return self.indptr.size - 1

    def degree(self, nodes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the in-degree, or the sum of weights, of `nodes`."""
        degree: NDArray[np.float64]
        if self.weights is None:
            degree = _degree(self.indptr, nodes)
        else:
            degree = _weighted_degree(self.indptr, self.weights, nodes)
        return degree


@numba.njit(cache=True, nogil=True)
def _degree(indptr, nodes):  # type: ignore[no-untyped-def]
    degree = np.empty(nodes.size)
    for i in range(nodes.size):
        node = np.uint64(nodes[i])  # unsigned: numba asks of a signed index whether it counts from the end
        degree[i] = indptr[node + np.uint64(1)] - indptr[node]
    return degree


@numba.njit(cache=True, nogil=True)
def _weighted_degree(indptr, weights, nodes):  # type: ignore[no-untyped-def]
    degree = np.zeros(nodes.size)
    for i in range(nodes.size):
        for e in range(indptr[nodes[i]], indptr[nodes[i] + 1]):
            degree[i] += weights[e]
    return degree
