"""Histories."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from harness import LayerSample
from harness.graph import Topology
from harness.sampling import Tables


@dataclass(frozen=True, eq=False)
class HistorySample(LayerSample):
    """A layer's edges from fresh rows and from historical ones.

    Attributes:
        fresh: the first so many `sources` are fresh rows, of distinct nodes; the others are historical rows,
            of distinct nodes too, which may be the same.
    """

    fresh: int = 0

    @property
    def historical(self) -> NDArray[np.int64]:
        """The nodes whose historical rows are read."""
        return self.sources[self.fresh :]


def with_history(topology: Topology, drawn: LayerSample, tables: Tables, *, linear: bool = True) -> HistorySample:
    """Return the edges of a layer that reads historical rows where `drawn` has no fresh ones.

    `linear`: the estimate of an aggregation with its history as control variate,
    z_i = sum over drawn j of (deg_i / k_i) A_ij (h_j - hbar_j) + sum over all neighbours j of A_ij hbar_j,
    for fresh rows h and historical ones hbar: unbiased whatever hbar is, and exact where it is h. An edge
    from a fresh row counts deg/k, from a historical one 1 - deg/k if it was drawn and 1 if not, times its own
    weight; a row whose neighbours were all drawn reads nothing historical.

    Otherwise all edges, each from a fresh row if there is any, else from a historical one: for attention,
    which is not linear in the rows.

    Takes time linear in the destinations' degrees.

    Args:
        topology: the graph.
        drawn: k_i of the deg_i neighbours of each destination i, drawn uniformly (`draw_neighbours`).
        tables: of the graph's nodes; two are borrowed.
        linear: see above.
    """
    graph = topology.indptr, topology.indices, topology.weights
    with tables.borrow() as fresh, tables.borrow() as historical:
        if linear:
            sample = drawn.indptr, drawn.indices, drawn.sources
            indptr, columns, values, nodes = _control_variate(*graph, *sample, fresh, historical)
        else:
            indptr, columns, values, nodes = _complete(*graph, drawn.num_dst, drawn.sources, fresh, historical)
    return HistorySample(
        np.concatenate([drawn.sources, nodes]),
        indptr,
        columns,
        values if linear or topology.weights is not None else None,
        fresh=drawn.sources.size,
    )


@numba.njit(cache=True, nogil=True)
def _control_variate(indptr, indices, weights, drawn_ptr, drawn, sources, fresh, historical):  # type: ignore[no-untyped-def]
    """Return pointers, columns, values, nodes; `fresh` tells the columns that are drawn for a destination."""
    size = drawn_ptr.size - 1
    pointers, columns, values, nodes = _room(indptr, sources[:size], drawn.size, fresh.size)
    met, filled = 0, 0
    for i in range(size):
        start, end = indptr[sources[i]], indptr[sources[i] + 1]
        row = drawn[drawn_ptr[i] : drawn_ptr[i + 1]]
        factor = (end - start) / max(row.size, 1)
        for c in row:
            fresh[sources[c]] = c
        for e in range(start, end):
            node, weight, rest = indices[e], 1.0 if weights is None else weights[e], 1.0
            if fresh[node] >= 0:
                columns[filled], values[filled] = fresh[node], factor * weight
                filled, rest = filled + 1, 1 - factor
            if rest != 0:
                met = _number(node, historical, nodes, met, sources.size)
                columns[filled], values[filled] = historical[node], rest * weight
                filled += 1
        pointers[i + 1] = filled
        for c in row:
            fresh[sources[c]] = -1
    _clear(historical, nodes[:met])
    return pointers, columns[:filled].copy(), values[:filled].copy(), nodes[:met].copy()


@numba.njit(cache=True, nogil=True)
def _complete(indptr, indices, weights, size, sources, fresh, historical):  # type: ignore[no-untyped-def]
    """Return pointers, columns, values, nodes; `fresh` tells the columns of all fresh rows."""
    pointers, columns, values, nodes = _room(indptr, sources[:size], 0, fresh.size)
    met, filled = 0, 0
    for c in range(sources.size):
        fresh[sources[c]] = c
    for i in range(size):
        for e in range(indptr[sources[i]], indptr[sources[i] + 1]):
            node = indices[e]
            if fresh[node] >= 0:
                columns[filled] = fresh[node]
            else:
                met = _number(node, historical, nodes, met, sources.size)
                columns[filled] = historical[node]
            values[filled] = 1.0 if weights is None else weights[e]
            filled += 1
        pointers[i + 1] = filled
    _clear(fresh, sources)
    _clear(historical, nodes[:met])
    return pointers, columns, values, nodes[:met].copy()


@numba.njit(inline="always")
def _room(indptr, destinations, extra, num_nodes):  # type: ignore[no-untyped-def]
    """Return pointers, and columns, values and nodes as many as there can be."""
    entries = extra
    for node in destinations:
        entries += indptr[node + 1] - indptr[node]
    return (
        np.zeros(destinations.size + 1, np.int64),
        np.empty(entries, np.int32),
        np.empty(entries, np.float64),
        np.empty(min(entries, num_nodes), np.int64),
    )


@numba.njit(inline="always")
def _number(node, table, nodes, met, first):  # type: ignore[no-untyped-def]
    """Give `node` the next column if it has none; return how many have one."""
    if table[node] < 0:
        table[node] = first + met
        nodes[met] = node
        met += 1
    return met


@numba.njit(inline="always")
def _clear(table, nodes):  # type: ignore[no-untyped-def]
    for node in nodes:
        table[node] = -1
