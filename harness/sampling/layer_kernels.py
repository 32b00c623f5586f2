"""Compiled loops of layer-wise sampling; serial, and linear in the edges and candidates that they visit.

A batch numbers the nodes that it meets in the order of first sight; arrays `by number` have a place for each.
`edges` holds the rows of the destinations one after another, row i from `starts[i]`, a neighbour by its
number; the weights of edges are in the same places. An array with a step is read at `index * step`: 0 where one
value stands for all.

The loops over edges wait for memory, not for arithmetic. So they avoid branches on what they load, which would stop
the processor from loading ahead, and their indices are unsigned, which saves numba's test for negative ones.
"""

from __future__ import annotations

from harness.deferred import numba
from harness.deferred import numpy as np
from harness.graph.csr import Floats
from harness.graph.kernels import stream, uniform

CACHE_LINE = 16  # int32 numbers
SLACK = 1e-11  # relative; above the rounding of a sum, so that a pass never finds more of p = 1 than `size`
TINY = 2.0**-600  # a sum below it, of numbers that may be subnormal, may not be exact


def inclusion(weights: Floats, size: int) -> Floats:
    """Return p_j = min(1, c w_j) with sum p = size, float64 [n].

    Where `size` is at least the number of positive weights, those have p = 1. A weight of 0 has p = 0. c comes from
    passes over the weights: each leaves out those found to have p = 1 and shares the rest of `size` anew. Almost
    always a handful do; only weights that fall by a factor of about `size` from one to the next need one each.

    `weights` are float64 [n], finite and not negative; `size` is the expected number of draws, a ValueError if it is
    negative.
    """
    if size < 0:
        raise ValueError(f"a sample has a size of at least 0, not {size}")
    out = np.empty(weights.size)
    write_inclusion(np.asarray(weights, np.float64), size, out)
    return out


@numba.njit(cache=True, nogil=True)
def write_inclusion(weights, size, out):  # type: ignore[no-untyped-def]
    """`inclusion`, written into `out` float64 [n], for other kernels."""
    scale, share = solve(weights, size)
    for j in range(weights.size):
        p = weights[j] * scale * share if weights[j] > 0 else 0.0
        out[j] = 1.0 if p > 1 else p


@numba.njit(cache=True, nogil=True)
def solve(weights, size):  # type: ignore[no-untyped-def]
    """Return two factors of c, `inclusion`'s p_j = min(1, w_j scale share); their product may overflow.

    c is infinite where `size` is at least the number of positive weights.
    """
    if size == 0 or size >= _split(weights, 0.0, 1.0)[0]:  # all that are positive
        return 1.0, np.inf if size > 0 else 0.0
    # What is above the bound has p = 1. The scale, a power of 2, keeps the sum of the rest from overflow and,
    # where only tiny weights are left, from loss.
    bound, certain, scale = np.inf, -1, 1.0
    while True:
        found, rest = _split(weights, bound, scale)
        if rest == np.inf or rest < TINY:
            scale = scale * TINY if rest == np.inf else scale / TINY
            continue
        share = (size - found) / rest
        if found == certain:
            return scale, share
        certain, bound = found, (1 + SLACK) / share / scale


# Sums in any order, so that the loop runs in vectors.
@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "nsz"})
def _split(weights, bound, scale):  # type: ignore[no-untyped-def]
    """How many weights are above `bound`, and the sum of the others times `scale`."""
    above, rest = 0, 0.0
    for j in range(weights.size):
        is_above = weights[j] > bound
        above += is_above
        rest += 0.0 if is_above else weights[j] * scale
    return above, rest


@numba.njit(cache=True, nogil=True)
def meet(indptr, indices, rows, fresh, first, number, known, node, starts, edges):  # type: ignore[no-untyped-def]
    """Add the destinations `fresh`, rows `first`, `first` + 1, ...; returns how many nodes are known then.

    Their neighbours are those of `rows` of the topology. Writes `number` by node, -1 before; `node` by number;
    `starts`, `edges`.
    """
    # Rows are anywhere in a graph that fits no cache; the numbering below waits for each, this loop for none.
    _read_ahead(indptr, indices, rows)
    unnumbered, at = np.uint64(known), np.uint64(starts[first])
    for i in range(fresh.size):
        k = number[fresh[i]]
        if k < 0:
            number[fresh[i]] = unnumbered
            node[unnumbered] = fresh[i]
            unnumbered += np.uint64(1)
        for e in range(np.uint64(indptr[rows[i]]), np.uint64(indptr[rows[i] + 1])):
            j = np.uint64(indices[e])
            k = number[j]
            # Without a branch: whether a neighbour is new is as good as random to the processor. What
            # is written past the last node is overwritten by the next new one.
            new = k < 0
            k = np.int32(unnumbered) if new else k
            number[j] = k
            node[unnumbered] = j
            unnumbered += np.uint64(new)
            edges[at] = k
            at += np.uint64(1)
        starts[first + i + 1] = at
    return np.int64(unnumbered)


@numba.njit(cache=True, nogil=True)
def _read_ahead(indptr, indices, rows):  # type: ignore[no-untyped-def]
    """Bring rows into the cache, several at a time; the result is of no use."""
    anything = np.int32(0)
    for i in range(rows.size):
        for e in range(indptr[rows[i]], indptr[rows[i] + 1], CACHE_LINE):
            anything ^= indices[e]
    return anything


@numba.njit(cache=True, nogil=True)
def copy_weights(indptr, weights, rows, at, out):  # type: ignore[no-untyped-def]
    """Write the weights of the edges of `rows` into `out`, from `at` on."""
    for row in rows:
        for e in range(indptr[row], indptr[row + 1]):
            out[at] = weights[e]
            at += 1


@numba.njit(cache=True, nogil=True)
def describe(node, right, right_step, keep, keep_step, met, row, factor, norm):  # type: ignore[no-untyped-def]
    """Write what belongs to the nodes numbered from `met` on: no row, the factor, a sum of 0.

    The factor is right_j, or 0 where `keep` (by node) is False.
    """
    for k in range(met, node.size):
        row[k] = -1
        factor[k] = right[node[k] * right_step] if keep[node[k] * keep_step] else 0.0
        norm[k] = 0.0


@numba.njit(cache=True, nogil=True)
def add_rows(weights, weight_step, left, own, own_step, fresh, first, number, starts, edges, norm):  # type: ignore[no-untyped-def]
    """Add (left_i w_ij)^2 to the `norm` of the neighbours j of `fresh`, rows from `first` on; to their own `own`."""
    step = np.uint64(weight_step)
    for i in range(fresh.size):
        norm[number[fresh[i]]] += own[fresh[i] * own_step]
        # Squares are summed in float64, whatever the weights are.
        scale = left[fresh[i]] * left[fresh[i]]
        for e in range(np.uint64(starts[first + i]), np.uint64(starts[first + i + 1])):
            w = np.float64(weights[e * step])
            norm[np.uint64(edges[e])] += scale * (w * w)


@numba.njit(cache=True, nogil=True)
def tally(node, factor, norm, local):  # type: ignore[no-untyped-def]
    """Return n_L, n_R, Q_L and Q_R of the candidates (q > 0); `local` is by node."""
    count, total = np.zeros(2, np.int64), np.zeros(2)
    for k in range(node.size):
        q = norm[k] * (factor[k] * factor[k])
        side = np.int64(not local[node[k]])
        # Nodes that `keep` leaves out have q = 0 and are no candidates.
        count[side] += q > 0
        total[side] += q
    return count[0], count[1], total[0], total[1]


@numba.njit(cache=True, nogil=True)
def weigh(node, factor, norm, local, alpha, out):  # type: ignore[no-untyped-def]
    """Write alpha q_j of local and q_j of other nodes; returns how many are positive.

    `local` is by node, and not read where alpha is 1.
    """
    positive = 0
    for k in range(node.size):
        out[k] = norm[k] * (factor[k] * factor[k])
        positive += out[k] > 0
    # At 1 no side is asked for, which spares a read of `local` at a random place for every node.
    if alpha != 1:
        for k in range(node.size):
            if local[node[k]]:
                out[k] *= alpha
    return positive


@numba.njit(cache=True, nogil=True)
def forget(number, node):  # type: ignore[no-untyped-def]
    """Leave `number` as it was before the batch."""
    # Only what the batch wrote: `number` is as long as the graph.
    for k in range(node.size):
        number[np.uint64(node[k])] = -1


@numba.njit(cache=True, nogil=True)
def choose(node, weights, c, seed, depth, drawn):  # type: ignore[no-untyped-def]
    """Return the numbers of the nodes drawn with chance min(1, c w), int64.

    `drawn` is a scratch, longer than `node` by up to 7, to a multiple of 8.
    """
    count = 0
    for k in range(node.size):
        drawn[k] = node_uniform(seed, depth, node[k]) < c * weights[k]
        count += drawn[k]
    drawn[node.size :] = False
    chosen = np.empty(count + 1, np.int64)  # one more: what is not drawn is written too, and overwritten
    # Eight flags at a time.
    eights, count = drawn.view(np.uint64), 0  # most are 0
    for eight in range(eights.size):
        if eights[eight] != 0:
            for k in range(8 * eight, 8 * eight + 8):
                chosen[count] = k
                count += drawn[k]
    return chosen[:count]


@numba.njit(cache=True, nogil=True)
def waits(node, weights, seed, depth):  # type: ignore[no-untyped-def]
    """Return -log(1 - u_j) / w_j of the nodes, which is exponential of rate w_j."""
    out = np.empty(node.size)
    for k in range(node.size):
        out[k] = -np.log1p(-node_uniform(seed, depth, node[k])) / weights[k]
    return out


@numba.njit(cache=True, nogil=True)
def node_uniform(seed, depth, node):  # type: ignore[no-untyped-def]
    """The number u_j in [0, 1) that decides on a node in a layer of the batch of this seed."""
    # A stream of the seed and the layer, and of it one of the node: every rank draws the same number without
    # a message.
    return uniform(stream(np.int64(stream(seed, depth) >> np.uint64(1)), node))


@numba.njit(cache=True, nogil=True)
def mark(chosen, inverse, node, row, first, bits, by_number):  # type: ignore[no-untyped-def]
    """Set the bits of the chosen numbers, of no others, and write `inverse`, by chosen, by number.

    Those that are no sources yet get the rows from `first` on; returns these nodes.
    """
    # A bit a number: the set of candidates stays in the cache while all edges are looked up in it.
    bits[: (node.size >> 6) + 1] = 0
    fresh, count = np.empty(chosen.size, np.int64), 0
    for c in range(chosen.size):
        k = np.uint64(chosen[c])
        bits[k >> np.uint64(6)] |= np.uint64(1) << (k & np.uint64(63))
        by_number[k] = inverse[c]
        if row[k] < 0:
            row[k] = first + count
            fresh[count] = node[k]
            count += 1
    return fresh[:count].copy()


@numba.njit(cache=True, nogil=True)
def gather(weights, weight_step, count, starts, edges, bits, row, inverse, columns, values):  # type: ignore[no-untyped-def]
    """Write the marked neighbours' rows and w_ij * inverse_j; returns the pointers by destination, `count` of them."""
    pointers = np.empty(count + 1, np.int64)
    at, step = np.uint64(0), np.uint64(weight_step)
    for i in range(count):
        pointers[i] = at
        for e in range(np.uint64(starts[i]), np.uint64(starts[i + 1])):
            k = np.uint64(edges[e])
            # The number's weight is fetched for drawn neighbours only.
            if bits[k >> np.uint64(6)] >> (k & np.uint64(63)) & np.uint64(1):
                columns[at] = row[k]
                values[at] = weights[e * step] * inverse[k]
                at += np.uint64(1)
    pointers[-1] = at
    return pointers


@numba.njit(cache=True, nogil=True)
def row_sums(weights, weight_step, first, end, starts, edges, factor, out):  # type: ignore[no-untyped-def]
    """Write sum_j w_ij right_j over all candidates, for the destinations of rows from `first` to `end`."""
    step = np.uint64(weight_step)
    for i in range(first, end):
        total = 0.0
        for e in range(np.uint64(starts[i]), np.uint64(starts[i + 1])):
            total += weights[e * step] * factor[np.uint64(edges[e])]
        out[i] = total


@numba.njit(cache=True, nogil=True)
def row_scales(pointers, columns, values, sources, right, right_step, own, sums):  # type: ignore[no-untyped-def]
    """Return what makes the rows of drawn edges, and `own`, sum to `sums`; 1 where nothing does."""
    scale = np.ones(pointers.size - 1)
    for i in range(scale.size):
        total = own[i]
        for e in range(pointers[i], pointers[i + 1]):
            total += values[e] * right[sources[columns[e]] * right_step]
        # A row of which nothing was drawn stays empty.
        if total != 0:
            scale[i] = sums[i] / total
    return scale


@numba.njit(cache=True, nogil=True)
def global_weights(indptr, indices, weights, weight_step, left, right, right_step, own, own_step):  # type: ignore[no-untyped-def]
    """Return q_j = sum over all i of A_ij^2, and what its own row adds, float64 [N]."""
    out = np.zeros(indptr.size - 1)
    for j in range(out.size):
        out[j] = own[j * own_step]
    for i in range(out.size):
        for e in range(indptr[i], indptr[i + 1]):
            w = left[i] * weights[e * weight_step]
            out[indices[e]] += w * w
    for j in range(out.size):
        out[j] *= right[j * right_step] * right[j * right_step]
    return out
