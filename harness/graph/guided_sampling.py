"""Neighbour sampling by the importance of remote nodes, with a quota of them that may be raised."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from harness.graph.layer_sample import LayerSample, Tables
from harness.graph.poisson import write_inclusion
from harness.graph.random import stream
from harness.graph.sampling import number_nodes, systematic, take, target_rows
from harness.graph.topology import Topology


def draw_guided(
    topology: Topology,
    targets: NDArray[np.int64],
    fanout: int,
    seed: int,
    tables: Tables,
    *,
    local: NDArray[np.bool_],
    importance: NDArray[np.float32],
    deviation: float = 0.0,
    unbiased: bool = False,
) -> LayerSample:
    """Draw at most `fanout` neighbours of every target by the importance of the remote ones.

    The sampling of DGS (section III-C, "Module Plug-in"). Neighbour j of target i weighs |w_ij| if it is
    local, |w_ij| importance_j if it is remote. k = min(fanout, neighbours of positive weight) are drawn,
    without replacement: p_ij = min(1, c_i weight), sum_j p_ij = k. Of the sum, remote neighbours have r and
    local ones l. The deviation moves min(deviation k, l) of it from the local to the remote ones, never more
    than makes all remote ones certain; then p is proportional to weight, up to 1, among each of the two. How
    it is drawn: see `draw_neighbours`, as for what a draw depends on and for layers' seeds. Time grows with
    the targets' degrees.

    By default drawn neighbours are averaged: they count w_ij, and their sum is multiplied by the sum of
    |w_ij| over all neighbours over that over the drawn ones (deg/k without edge weights). This is biased
    towards what is drawn often. Unbiased: neighbour j counts w_ij / p_ij; the deviation then leaves local
    neighbours at least half of l, since what is never drawn cannot be counted. Where everything of positive
    weight is drawn, and that is all neighbours, both are the full sum.

    Args:
        topology: the graph.
        targets: int64 [n], distinct nodes.
        fanout: neighbours of a target at most; -1 for all.
        seed: in [0, 2^63).
        tables: of the graph's size.
        local: bool [N], the nodes of this rank.
        importance: float32 [N], finite and not negative; that of local nodes is not read. 0: never drawn.
        deviation: share of k, in [0, 1].
        unbiased: what drawn neighbours count.

    Returns:
        The sample; its sources are the targets, then the other drawn nodes in the order of first sight.

    Raises:
        ValueError: a weight of a neighbour is negative or not finite.
    """
    graph = topology.indptr, topology.indices, topology.weights
    most = 0.5 if unbiased else 1.0
    pointers, entries, chances, scale = _guided(
        *graph, local, importance, targets, fanout, seed, float(deviation), most
    )
    values: NDArray[np.float64] | None = None
    if topology.weights is not None:
        values = take(topology.weights, entries, np.empty(entries.size))
    if unbiased:
        values = (1.0 if values is None else values) / chances
    columns = take(topology.indices, entries, np.empty(entries.size, np.int32))
    with tables.borrow() as table:
        sources = number_nodes(targets, columns, table)
    return LayerSample(sources, pointers, columns, values, None if unbiased else scale)


@numba.njit(cache=True, nogil=True)
def _guided(  # type: ignore[no-untyped-def]
    indptr, indices, edge_weights, local, importance, targets, fanout, seed, deviation, most
):
    """Pointers by target, the entries drawn, their chances, and the ratio of |w| by target."""
    starts, degrees, pointers, largest = target_rows(indptr, targets, fanout)
    entries, chances = np.empty(pointers[-1] + 1, np.int64), np.empty(pointers[-1])
    scale = np.ones(targets.size)
    work = np.empty((4, largest))
    at = 0
    for i in range(targets.size):
        start, degree = starts[i], degrees[i]
        weight, far, chance, spare = work[0, :degree], work[1, :degree], work[2, :degree], work[3, :degree]
        edges = None if edge_weights is None else edge_weights[start : start + degree]
        total = _weigh(indices[start : start + degree], edges, local, importance, weight, far)
        write_inclusion(weight, degree if fanout < 0 else fanout, chance)
        if deviation > 0:
            _move(weight, far, deviation, most, chance, spare)
        picks = entries[at:]
        count = systematic(chance, stream(seed, targets[i]), spare, picks)
        drawn = 0.0
        for k in range(count):
            place = np.uint64(picks[k])
            drawn += 1.0 if edges is None else abs(np.float64(edges[place]))
            chances[at + k] = chance[place]
            picks[k] += start
        if count > 0:
            scale[i] = total / drawn
        at += count
        pointers[i + 1] = at
    return pointers, entries[:at].copy(), chances[:at].copy(), scale


@numba.njit(cache=True, nogil=True)
def _weigh(nodes, edges, local, importance, weight, far):  # type: ignore[no-untyped-def]
    """Write a row's weights, and those of remote nodes alone (0: local); returns the sum of |w|."""
    valid, total = True, 0.0
    for k in range(nodes.size):
        node = np.uint64(nodes[k])
        edge = 1.0 if edges is None else abs(np.float64(edges[k]))
        near = local[node]
        weight[k] = edge * (1.0 if near else np.float64(importance[node]))
        far[k] = 0.0 if near else weight[k]
        valid &= (weight[k] >= 0) & (weight[k] < np.inf)
        total += edge
    if not valid:
        raise ValueError("weights of neighbours are finite and not negative")
    return total


@numba.njit(cache=True, nogil=True)
def _move(weight, far, deviation, most, chance, near):  # type: ignore[no-untyped-def]
    """Move `deviation` of the sum of `chance`, at most `most` of the local ones' sum, to the remote ones.

    `near` is to work in; `weight` becomes that of local nodes alone.
    """
    of_near, of_far, remote = _split(weight, far, chance)
    raised = min(of_far + min(deviation * (of_near + of_far), most * of_near), np.float64(remote))
    if raised <= of_far:
        return
    write_inclusion(weight, max(of_near - (raised - of_far), 0.0), near)
    write_inclusion(far, raised, chance)
    for k in range(chance.size):
        chance[k] += near[k]


# Sums in any order, so that the loop runs in vectors.
@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "nsz"})
def _split(weight, far, chance):  # type: ignore[no-untyped-def]
    """Sums of local and of remote chances, number of remote ones; `weight` becomes that of local nodes."""
    of_near, of_far, remote = 0.0, 0.0, 0
    for k in range(chance.size):
        is_far = far[k] > 0
        of_far += chance[k] if is_far else 0.0
        of_near += 0.0 if is_far else chance[k]
        remote += is_far
        weight[k] -= far[k]
    return of_near, of_far, remote
