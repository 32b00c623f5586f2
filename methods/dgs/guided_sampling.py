"""Neighbour sampling by importance."""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np
from numpy.typing import NDArray

from harness import LayerSample, Sample, Source
from harness.graph import Topology, stream
from harness.sampling import Tables, number_sources, sample_layers, systematic, take, target_rows, write_inclusion


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
        topology, targets, fanout, seed, tables: as for `draw_neighbours`.
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
    sources, columns = number_sources(topology, targets, entries, tables)
    return LayerSample(sources, pointers, columns, values, None if unbiased else scale)


@numba.njit(cache=True, nogil=True)
def _guided(  # type: ignore[no-untyped-def]
    indptr, indices, edge_weights, local, importance, targets, fanout, seed, deviation, most
):
    """Pointers by target, the entries drawn, their chances, and the ratio of |w| by target."""
    starts, degrees, pointers, largest = target_rows(indptr, targets, fanout)
    entries, chances = np.empty(pointers[-1] + 1, np.int64), np.empty(pointers[-1])
    scale = np.ones(targets.size)
    # Of one dimension each: numba knows no row of a matrix as contiguous.
    weight_of, remote_of, chance_of = np.empty(largest), np.empty(largest), np.empty(largest)
    spare_of = np.empty(largest)
    at = 0
    for i in range(targets.size):
        start, degree = starts[i], degrees[i]
        weight, remote = weight_of[:degree], remote_of[:degree]
        chance, spare = chance_of[:degree], spare_of[:degree]
        edges = None if edge_weights is None else edge_weights[start : start + degree]
        _look_up(indices[start : start + degree], local, importance, weight, remote)
        total = _weigh(edges, weight, remote)
        write_inclusion(weight, degree if fanout < 0 else fanout, chance)
        if deviation > 0:
            _move(weight, remote, deviation, most, chance, spare)
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


# By itself: loads from all over the graph, which then wait for nothing.
@numba.njit(cache=True, nogil=True)
def _look_up(nodes, local, importance, weight, remote):  # type: ignore[no-untyped-def]
    """Write neighbours' importance into `weight`, and 1 or 0 into `remote`."""
    for k in range(nodes.size):
        node = np.uint64(nodes[k])
        weight[k] = importance[node]
        remote[k] = not local[node]


@numba.njit(cache=True, nogil=True)
def _weigh(edges, weight, remote):  # type: ignore[no-untyped-def]
    """Make `weight` the weights of neighbours, `remote` 0 where that is 0, and return the sum of |w|."""
    valid, total = True, 0.0
    for k in range(weight.size):
        edge = 1.0 if edges is None else abs(np.float64(edges[k]))
        w, is_remote = weight[k], remote[k]
        w = edge * (w if is_remote > 0 else 1.0)
        weight[k] = w
        remote[k] = is_remote if w > 0 else 0.0
        valid &= (w >= 0) & (w < np.inf)
        if edges is not None:
            total += edge
    if not valid:
        raise ValueError("weights of neighbours are finite and not negative")
    return np.float64(weight.size) if edges is None else total


@numba.njit(cache=True, nogil=True)
def _move(weight, remote, deviation, most, chance, spare):  # type: ignore[no-untyped-def]
    """Move `deviation` of the sum of `chance`, at most `most` of the local ones' sum, to the remote ones.

    `weight` and `spare` are overwritten.
    """
    near, far, number = _sums(chance, remote)
    raised = min(far + min(deviation * (near + far), most * near), number)
    if raised <= far:
        return
    for k in range(weight.size):
        spare[k] = weight[k] * remote[k]
        weight[k] -= spare[k]
    write_inclusion(spare, raised, remote)
    write_inclusion(weight, max(near - (raised - far), 0.0), chance)
    for k in range(chance.size):
        chance[k] += remote[k]


# Sums in any order, so that the loop runs in vectors.
@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "nsz"})
def _sums(chance, remote):  # type: ignore[no-untyped-def]
    """Sums of local and of remote chances, and the number of these."""
    near, far, number = 0.0, 0.0, 0.0
    for k in range(chance.size):
        near += chance[k] * (1 - remote[k])
        far += chance[k] * remote[k]
        number += remote[k]
    return near, far, number


class GuidedSampler:
    """Draws at most so many in-neighbours of every node, remote ones by their importance (DGS).

    Args:
        source: the view.
        fanouts: neighbours of a node, input layer first; -1: all.
        importance: float32 [N]: of remote nodes, where a local one has 1.
        deviation: share of a fan-out that is moved from local to remote neighbours.
        unbiased: see `draw_guided`.
    """

    def __init__(
        self,
        source: Source,
        fanouts: Sequence[int],
        importance: NDArray[np.float32],
        *,
        deviation: float,
        unbiased: bool,
    ) -> None:
        self._source, self._fanouts, self._importance = source, fanouts, importance
        self._deviation, self._unbiased = deviation, unbiased

    def sample(self, targets: NDArray[np.int64], seed: int) -> Sample:
        """See `Sampler`."""
        source = self._source

        def draw(nodes: NDArray[np.int64], fanout: int, seed: int) -> LayerSample:
            return draw_guided(
                source.topology, nodes, fanout, seed, source.tables,
                local=source.local, importance=self._importance,
                deviation=self._deviation, unbiased=self._unbiased,
            )  # fmt: skip

        return sample_layers(draw, targets, self._fanouts, seed)
