"""LABOR: neighbour sampling whose destinations share the random number of a source, so that a batch has fewer nodes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from harness.deferred import numba, torch
from harness.deferred import numpy as np
from harness.graph.csr import Ints, Topology, pointers
from harness.graph.kernels import stream, streams, uniform, uniform_on_device
from harness.sampling.neighbours import FanoutSampler, number_sources, take_entries, target_rows
from harness.sampling.sample import GraphOnDevice, LayerOnDevice, LayerSample, Source, Tables, number_nodes

if TYPE_CHECKING:
    from torch import Tensor


def draw_labor(
    topology: Topology, targets: Ints, fanout: int, seed: int, tables: Tables, *, own: bool = False, importance: int = 0
) -> LayerSample:
    """Draw neighbours of every target by one number r_t of each source t, `fanout` (at least 1; -1: all) expected.

    LABOR-i (Balin and Çatalyürek, NeurIPS 2023), i = `importance`: the edge t -> s is drawn where
    r_t < p_ts = min(1, c_s pi_t), r_t uniform in [0, 1), and counts w_ts / p_ts: unbiased, and by destination Poisson
    sampling. c_s solves sum_t 1 / p_ts = d_s^2 / min(fanout, d_s), d_s the degree, so that a sum over neighbours has
    the variance of uniform chances where they are equally large. pi is 1, c_s = min(1, fanout / d_s), and each
    iteration takes pi_t max_s c_s for pi_t, which leaves fewer distinct sources expected or as many, at the price of
    edges: then at least `fanout` expected.

    What is drawn for a target depends on `seed`, `fanout` and its own neighbours, with `importance` on all targets.
    Time grows with the targets' degrees, times iterations. Arguments and the order of sources: see `draw_neighbours`;
    of a topology that asks for rows whole ones come.
    """
    found, rows = topology.rows(targets, own=own)
    graph, pi, values = (found.indptr, found.indices, rows), None, None
    chance = np.ones(rows.size)
    if fanout >= 0:
        chance = fanout / np.maximum(found.indptr[rows + 1] - found.indptr[rows], fanout)
    with tables.borrow() as table:
        if importance:
            chance, pi = importances(*graph, fanout, importance, table)
        starts, entries, inverse = keep(*graph, chance, pi, seed, table)
        if importance:
            _forget(*graph, table)
    if found.weights is not None:
        values = take_entries(found.weights, entries, np.empty(entries.size))
    if importance:
        values = inverse if values is None else values * inverse
    sources, columns = number_sources(found, targets, entries, tables)
    return LayerSample(sources, starts, columns, values, None if importance else 1 / chance)


@numba.njit(cache=True, nogil=True)
def keep(indptr, indices, rows, chance, pi, seed, table):  # type: ignore[no-untyped-def]
    """Return pointers by row, the entries drawn, and the inverses of their chances (empty where `pi` is None: 1).

    `chance` is c_s by row, `pi` by the number that `table` has of a node.
    """
    pointers, entries = np.zeros(rows.size + 1, np.int64), np.empty(64, np.int64)
    at = 0
    for i in range(rows.size):
        first, last = indptr[rows[i]], indptr[rows[i] + 1]
        if entries.size <= at + last - first:  # one more: what is not drawn is written too, and overwritten
            larger = np.empty(2 * (at + last - first), np.int64)
            larger[:at] = entries[:at]
            entries = larger
        for e in range(first, last):
            p = chance[i] if pi is None else chance[i] * pi[table[indices[e]]]
            entries[at] = e
            at += uniform(stream(seed, indices[e])) < p
        pointers[i + 1] = at
    inverse = np.empty(0 if pi is None else at)
    if pi is not None:
        for i in range(rows.size):
            for k in range(pointers[i], pointers[i + 1]):
                inverse[k] = 1 / min(1.0, chance[i] * pi[table[indices[entries[k]]]])
    return pointers, entries[:at].copy(), inverse


@numba.njit(cache=True, nogil=True)
def importances(indptr, indices, rows, fanout, iterations, table):  # type: ignore[no-untyped-def]
    """Return c_s by row, and pi_t after so many iterations by the numbers of neighbours that `table` then has."""
    starts, degrees, _, largest = target_rows(indptr, rows, fanout)
    count = 0
    for i in range(rows.size):
        for node in indices[starts[i] : starts[i] + degrees[i]]:
            if table[node] < 0:
                table[node] = count
                count += 1
    pi, top, chance, inverse = np.ones(count), np.empty(count), np.ones(rows.size), np.empty(largest)
    for iteration in range(iterations + 1):
        top[:] = 0
        for i in range(rows.size):
            degree, row = degrees[i], indices[starts[i] : starts[i] + degrees[i]]
            if 0 <= fanout < degree:  # else c stays 1, and with it pi of all neighbours
                for k in range(degree):
                    inverse[k] = 1 / pi[table[row[k]]]
                chance[i] = solve_chance(inverse[:degree], degree * degree / fanout)
            for k in range(degree):
                top[table[row[k]]] = max(top[table[row[k]]], chance[i])
        if iteration < iterations:
            pi *= top
    return chance, pi


@numba.njit(cache=True, nogil=True)
def solve_chance(inverse, total):  # type: ignore[no-untyped-def]
    """Return c of sum_t 1 / min(1, c pi_t) = `total`, more than there are terms; `inverse` is 1 / pi, float64 [n].

    By passes: those of c pi >= 1 count 1, the rest must sum to what is left. c only grows, and never beyond the
    solution, so that it is found when no other term comes to count 1.
    """
    c, certain = 0.0, -1
    while True:
        found, rest = 0, 0.0
        for k in range(inverse.size):
            is_certain = inverse[k] <= c
            found += is_certain
            rest += 0.0 if is_certain else inverse[k]
        if found <= certain:  # fewer by rounding alone
            return c
        certain, c = found, rest / (total - found)


@numba.njit(cache=True, nogil=True)
def _forget(indptr, indices, rows, table):  # type: ignore[no-untyped-def]
    for row in rows:
        for node in indices[indptr[row] : indptr[row + 1]]:
            table[node] = -1


def draw_labor_on_device(graph: GraphOnDevice, targets: Tensor, fanout: int, seed: int) -> LayerOnDevice:
    """Draw what `draw_labor` does without `importance`; the host waits for the numbers of edges and sources."""
    ends, entries, row = graph.rows(targets)
    degrees = ends.diff().double()
    # By a tensor: a number divided by one is a product with its inverse, which is rounded twice.
    chance = torch.ones_like(degrees) if fanout < 0 else torch.full_like(degrees, fanout) / degrees.clamp(min=fanout)
    is_drawn = uniform_on_device(streams(seed, graph.indices[entries].long())) < chance[row]
    entries = entries[is_drawn.nonzero().squeeze(1)]
    sources, columns = number_nodes(targets, graph.indices[entries], len(graph.indptr) - 1)
    values = None if graph.weights is None else graph.weights[entries]
    return LayerOnDevice(sources, pointers(is_drawn)[ends], columns, graph.degree(sources), values, 1 / chance)


class LaborSampler(FanoutSampler):
    """Draws in-neighbours of every node, so many expected, layer by layer; see `draw_labor`.

    Layers have different numbers r_t. A source may have its draws on a device, without `importance`: the same.
    """

    _draw_on_device = staticmethod(draw_labor_on_device)

    def __init__(self, source: Source, fanouts: Sequence[int], importance: int = 0) -> None:
        super().__init__(source, fanouts)
        if self.graph is not None and importance:
            raise ValueError("draws by importance are the host's")
        self._draw = partial(draw_labor, source.topology, tables=source.tables, importance=importance)
