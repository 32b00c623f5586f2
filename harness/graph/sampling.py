"""Uniform neighbour sampling without replacement."""

from __future__ import annotations

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from harness.graph.block import Block
from harness.graph.csr import CSR
from harness.graph.topology import Topology


def sample_neighbours(
    topology: Topology,
    targets: NDArray[np.int64],
    fanout: int,
    *,
    rng: np.random.Generator,
    device: torch.device,
    dtype: torch.dtype,
    engine: str = "auto",
) -> tuple[Block, NDArray[np.int64]]:
    """Draw at most `fanout` neighbours of every target.

    Args:
        topology: the graph.
        targets: distinct nodes.
        fanout: neighbours of a target at most; -1 for all. A target with more than `fanout` gets a uniform
            sample without replacement whose sum counts deg/fanout (unbiased).
        rng: source of the draws.
        device: where the block is wanted.
        dtype: of the scalings.
        engine: name of the SpMM engine.

    Returns:
        The block, and its source nodes: the targets, then the other drawn nodes in the order of first sight.
    """
    indptr = topology.indptr
    seed = rng.integers(2**63, dtype=np.int64)
    pointers, entries = _draw(indptr, targets, fanout, seed)
    sources, columns = _relabel(targets, topology.indices[entries], np.int64(indptr.size - 1))
    scale = (indptr[targets + 1] - indptr[targets]) / np.maximum(np.diff(pointers), 1)
    weights = None if topology.weights is None else torch.from_numpy(topology.weights[entries]).to(dtype)
    adjacency = CSR(torch.from_numpy(pointers), torch.from_numpy(columns), sources.size, weights)
    block = Block(
        adjacency.to(device),
        torch.from_numpy(topology.degree(sources)).to(device, dtype),
        dst_scale=torch.from_numpy(scale).to(device, dtype),
        engine=engine,
    )
    return block, sources


@numba.njit(cache=True, nogil=True)
def _draw(indptr, targets, fanout, seed):  # type: ignore[no-untyped-def]
    """Draw entries of the targets' rows; returns a pointer by target and the entries' places."""
    np.random.seed(seed & 0x7FFFFFFF)
    pointers = np.zeros(targets.size + 1, np.int64)
    for i in range(targets.size):
        degree = indptr[targets[i] + 1] - indptr[targets[i]]
        pointers[i + 1] = pointers[i] + (degree if fanout < 0 else min(degree, fanout))
    entries = np.empty(pointers[-1], np.int64)
    for i in range(targets.size):
        start = indptr[targets[i]]
        degree = indptr[targets[i] + 1] - start
        out = entries[pointers[i] : pointers[i + 1]]
        if out.size == degree:
            for k in range(degree):
                out[k] = start + k
        else:
            _floyd(start, degree, out)
    return pointers, entries


@numba.njit(cache=True, nogil=True)
def _floyd(start, size, out):  # type: ignore[no-untyped-def]
    """Robert Floyd's algorithm: a uniform subset of start, ..., start + size - 1 in len(out) draws."""
    first = size - out.size
    for k in range(out.size):
        pick = start + np.random.randint(0, first + k + 1)
        for seen in out[:k]:
            if seen == pick:
                pick = start + first + k
                break
        out[k] = pick


@numba.njit(cache=True, nogil=True)
def _relabel(targets, drawn, num_nodes):  # type: ignore[no-untyped-def]
    position = np.full(num_nodes, -1, np.int32)
    sources = np.empty(targets.size + drawn.size, np.int64)
    sources[: targets.size] = targets
    for i in range(targets.size):
        position[targets[i]] = i
    count = targets.size
    columns = np.empty(drawn.size, np.int32)
    for e in range(drawn.size):
        node = drawn[e]
        if position[node] < 0:
            position[node] = count
            sources[count] = node
            count += 1
        columns[e] = position[node]
    return sources[:count].copy(), columns
