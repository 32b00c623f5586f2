"""Edges of a part, their probabilities and their draws: compiled kernels on the host, torch's operations on a device.

Arrays describe a matrix of E edges by rows, as `CSR` holds it: `indptr` int64 [num_inner + 1], a row for each inner
node, and `indices` int32 [E], the source of every edge, inner nodes first, then boundary nodes. `weights` float [E]
are the edges', or None for ones; `probabilities` are float64 [E] in (0, 1], or one for all edges. Everything heavy
runs in kernels that release the GIL, so that the next graph can be drawn in a thread while the main one trains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness import Worker, numba, torch
from harness import numpy as np
from harness.plugin import CSR, Partition, Places, kind_of, pointers, row_of_entries, sums_of_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


LEAST = 1e-30  # of a probability: 1/p is a finite float32, and rows of any length still sum to their budget

NEGLIGIBLE = 1e-290  # a smaller sqrt(score) |w| counts as 0: the inverse of its sum would overflow

PASSES = 8  # over a row, each finding some of p = 1, before the row is sorted

SLACK = 1e-11  # relative; above the rounding of a sum, so that a pass never finds more of p = 1 than the budget


@dataclass(frozen=True, eq=False)
class EdgeSample:
    """The drawn edges of a part; columns of `adjacency` are the inner nodes, then the boundary nodes `kept`.

    The edges of a row stand in the order of the whole graph.
    """

    adjacency: CSR  # [num_inner, num_inner + len(kept)], values w_ij / p_ij
    transposed: CSR
    kept: Places  # int64, ascending positions of the boundary nodes with a drawn edge


class HostEdges:
    """Draws edges of a part on the host, each with a probability of its own: at first all with the same, the rate."""

    def __init__(self, partition: Partition, rate: float, rng: np.random.Generator, dtype: torch.dtype) -> None:
        whole = partition.structure
        self._indptr, self._indices = whole.indptr.numpy(), whole.indices.numpy()
        self._weights, self._dtype = None if whole.values is None else whole.values.numpy(), dtype
        self._nodes = partition.num_inner, partition.num_boundary
        self._rate, self._rng = rate, rng
        self._probabilities: NDArray[np.float64] | float = rate

    def draw(self) -> EdgeSample:
        """Draw every edge independently."""
        edges = self._indptr, self._indices, self._probabilities, self._weights
        return draw_edges(*edges, *self._nodes, self._rng, self._dtype)

    def learn(self, score: Tensor | None, uniform: float) -> None:
        """Take the probabilities of least variance for a score of each source (see `optimal_probabilities`).

        `uniform` is the share of the rate in them. None: the rate.
        """
        if score is None:
            self._probabilities = self._rate
            return
        best = optimal_probabilities(self._indptr, self._indices, score.numpy(), self._weights, self._rate)
        if uniform:
            best += uniform * (self._rate - best)
        self._probabilities = best

    def included(self) -> Tensor:
        """Return the chance of each boundary node to have a drawn edge, float64 [num_boundary]."""
        return torch.from_numpy(inclusion_probabilities(self._indices, self._probabilities, *self._nodes))


class DeviceEdges:
    """A `HostEdges` on a device; the edges are those of the partition's block, and all stays on its device."""

    def __init__(self, partition: Partition, rate: float, rng: np.random.Generator, dtype: torch.dtype) -> None:
        self._part = PartOnDevice.of(partition.full_block.adjacency, partition.num_inner)
        self._rate, self._rng, self._dtype = rate, rng, dtype
        self.learn(None, 0)

    def draw(self) -> EdgeSample:
        """See `HostEdges`; the host waits for the numbers of edges and of boundary nodes."""
        numbers = uniform_numbers(self._part.edges.nnz, self._probabilities.device, self._rng)
        return draw_on_device(self._part, self._probabilities, numbers, self._dtype)

    def learn(self, score: Tensor | None, uniform: float) -> None:
        """See `HostEdges`; the host waits as `optimal_on_device` says."""
        if score is None:
            size, device = (self._part.edges.nnz,), self._part.edges.indptr.device
            self._probabilities = torch.full(size, self._rate, dtype=torch.float64, device=device)
            return
        best = optimal_on_device(self._part.edges, score, self._rate)
        self._probabilities = best + uniform * (self._rate - best) if uniform else best

    def included(self) -> Tensor:
        """See `HostEdges`."""
        return included_on_device(self._part, self._probabilities)


def edges_of(worker: Worker, rate: float, rng: np.random.Generator) -> HostEdges | DeviceEdges:
    """Return the edges of a rank's part, each drawn with the probability `rate`."""
    on_host, how = worker.device.type == "cpu", (worker.partition, rate, rng, worker.dtype)
    return HostEdges(*how) if on_host else DeviceEdges(*how)


def uniform_numbers(count: int, device: torch.device, rng: np.random.Generator) -> Tensor:
    """Return `count` uniform numbers of the device, float64 in [0, 1), by a generator that `rng` seeds."""
    generator = kind_of(device).generator(device, int(rng.integers(2**63)))
    return torch.rand(count, dtype=torch.float64, device=device, generator=generator)


@dataclass(frozen=True, eq=False)
class PartOnDevice:
    """The edges of a part, [num_inner, num_inner + num_boundary], and those from each boundary node."""

    edges: CSR
    starts: Tensor  # int64 [num_boundary + 1], of each boundary node's edges in `order`
    order: Tensor  # int64, places of the edges from the boundary, by node

    @classmethod
    def of(cls, edges: CSR, num_inner: int) -> PartOnDevice:
        """Order the edges from the boundary; the host waits for their number."""
        ordered, order = edges.indices.sort(stable=True)
        columns = torch.arange(num_inner, edges.num_cols + 1, dtype=ordered.dtype, device=ordered.device)
        starts = torch.searchsorted(ordered, columns)
        return cls(edges, starts - starts[0], order[int(starts[0]) :].clone())


def draw_on_device(part: PartOnDevice, probabilities: Tensor, numbers: Tensor, dtype: torch.dtype) -> EdgeSample:
    """Return what `draw_edges` does, of a uniform number for each edge; both are float64 [E].

    The host waits for the numbers of drawn edges and of boundary nodes.
    """
    edges, device = part.edges, numbers.device
    num_boundary = part.starts.numel() - 1
    num_inner = edges.num_cols - num_boundary
    drawn = numbers < probabilities
    places = drawn.nonzero().squeeze(1)
    columns, values = edges.indices[places], 1 / probabilities[places]
    if edges.values is not None:
        values = edges.values[places] / probabilities[places]
    seen = torch.zeros(edges.num_cols, dtype=torch.bool, device=device)
    seen = seen.index_fill(0, columns.long(), True)[num_inner:]
    kept = seen.nonzero().squeeze(1)
    new = torch.cat([torch.arange(num_inner, device=device), num_inner - 1 + seen.cumsum(0)]).int()
    starts = pointers(drawn)[edges.indptr]
    adjacency = CSR(starts, new[columns], num_inner + kept.numel(), values.to(dtype))
    return EdgeSample(adjacency, adjacency.transpose(), kept)


def included_on_device(part: PartOnDevice, probabilities: Tensor) -> Tensor:
    """Return what `inclusion_probabilities` does, of `probabilities` [E]."""
    missed = torch.log1p(-probabilities[part.order])  # -inf where it is certain
    return -torch.expm1(sums_of_rows(part.starts, missed))


def optimal_on_device(edges: CSR, score: Tensor, rate: float) -> Tensor:
    """Return what `optimal_probabilities` does of a rate below 1, within the rounding of sums.

    The host waits once a pass, to see whether it found another edge of p = 1; nearly always there are a few.
    """
    row, degree = row_of_entries(edges.indptr, edges.nnz), edges.indptr.diff().double()
    value = score.sqrt()[edges.indices]
    value = value if edges.values is None else value * edges.values.abs()
    value = torch.where(value < NEGLIGIBLE, 0, value)
    total = sums_of_rows(edges.indptr, value)
    even = ~((total > 0) & total.isfinite())  # rows that are uniform
    value, total = torch.where(even[row], 0, value), torch.where(even, 0, total)
    budget, left, below = rate * degree, degree, torch.ones_like(row, dtype=torch.bool)
    while True:
        below &= value * budget[row] <= ((1 + SLACK) * total)[row]
        kept = pointers(below)[edges.indptr].diff().double()
        if torch.equal(kept, left):
            break
        budget, left = budget - (left - kept), kept
        total = sums_of_rows(edges.indptr, torch.where(below, value, 0))
    shared = (value * (budget / total)[row]).clamp(LEAST, 1)
    # Nothing is left to share in proportion where all of a positive score have p = 1.
    spent = torch.where(value > 0, 1, (budget / left)[row])
    found = torch.where((total > 0)[row], shared, spent)
    return torch.where(even[row], rate, found)


def optimal_probabilities(
    indptr: NDArray[Any], indices: NDArray[Any], score: NDArray[np.float64], weights: NDArray[Any] | None, rate: float
) -> NDArray[np.float64]:
    """Return the probabilities of least variance, float64 [E], all in (0, 1] (PSC-GCN, Theorem 2, eq. 17).

    For every row i of d entries they minimise sum_j score_j w_ij^2 (1/p_ij - 1) subject to
    sum_j p_ij = rate * d and p_ij <= 1: the largest have p = 1, the others p ~ sqrt(score_j) |w_ij|. Takes
    O(E) time but for rows that are sorted, because a few passes did not find all that have p = 1.

    Where the optimum is not attained, because some scores are 0: if fewer than rate * d are positive, those
    have p = 1 and the others share the rest evenly; else those of score 0 have p = 1e-30. A row is uniform,
    p = rate, if all its scores are 0 or one is negative or not finite.

    Args:
        indptr, indices, weights: see the module.
        score: float64 [num_src], a_j right_j^2 n_j: the factor of inner or boundary nodes, the squared right
            scaling of the propagation matrix, and sum_l ||H_j^(l) W^(l+1)||^2. What scales a whole row, such
            as its left scaling, cancels.
        rate: epsilon, the expected share of a row's edges that is drawn, 0 < rate <= 1.

    Raises:
        ValueError: `rate` is out of range.
    """
    if not 0 < rate <= 1:
        raise ValueError(f"a sampling rate is above 0 and at most 1, not {rate}")
    if rate == 1:
        return np.ones(indices.size)
    with np.errstate(invalid="ignore"):
        root = np.sqrt(score)  # a negative score becomes NaN, and its rows uniform
    result: NDArray[np.float64] = _optimal(indptr, indices, root, *_by_edge(weights), float(rate))
    return result


def inclusion_probabilities(
    indices: NDArray[Any], probabilities: NDArray[np.float64] | float, num_inner: int, num_boundary: int
) -> NDArray[np.float64]:
    """Return the chance that a boundary node has a drawn edge: 1 - prod_i (1 - p_ij), float64 [num_boundary].

    Summed as logarithms (PSC-GCN, section V.B), so that many edges of tiny p lose no digits.

    Sources below `num_inner` are inner nodes; a boundary node without an edge has 0.
    """
    missed: NDArray[np.float64] = _log_missed(indices, *_by_edge(probabilities), num_inner, num_boundary)
    included: NDArray[np.float64] = 0.0 - np.expm1(missed)
    return included


def draw_edges(
    indptr: NDArray[Any],
    indices: NDArray[Any],
    probabilities: NDArray[np.float64] | float,
    weights: NDArray[Any] | None,
    num_inner: int,
    num_boundary: int,
    rng: np.random.Generator,
    dtype: torch.dtype,
) -> EdgeSample:
    """Draw every edge independently with its probability; a drawn one weighs w/p (PSC-GCN, eq. 15).

    Takes one uniform number of `rng` for each edge, in the order of the edges.

    Args:
        indptr, indices, probabilities, weights: see the module.
        num_inner, num_boundary: numbers of nodes.
        rng: source of the draws; nothing else may draw from it meanwhile, because kernels take no lock.
        dtype: of the values, torch.float32 or torch.float64.
    """
    by_edge = _by_edge(probabilities)
    drawn, pointers, seen = _draw(indptr, indices, *by_edge, num_inner, num_boundary, rng)
    kept = np.flatnonzero(seen)
    column = np.empty(num_boundary, np.int32)
    column[kept] = np.arange(num_inner, num_inner + kept.size, dtype=np.int32)
    columns = torch.empty(int(pointers[-1]), dtype=torch.int32)
    values = torch.empty(int(pointers[-1]), dtype=dtype)
    _compact(drawn, indices, *by_edge, *_by_edge(weights), num_inner, column, columns.numpy(), values.numpy())
    adjacency = CSR(torch.from_numpy(pointers), columns, num_inner + kept.size, values)
    return EdgeSample(adjacency, adjacency.transpose(), kept)


def _by_edge(value: NDArray[Any] | float | None) -> tuple[NDArray[Any], int]:
    """Return an array and a step so that edge e's value is `array[e * step]`; None is 1 for every edge."""
    if isinstance(value, np.ndarray):
        return value, 1
    return np.array([1.0 if value is None else value]), 0


@numba.njit(cache=True, nogil=True)
def _optimal(indptr, indices, root, weights, weight_step, rate):  # type: ignore[no-untyped-def]
    """Each row's probabilities; `root` is the square root of the score."""
    out = np.empty(indices.size)
    scratch = np.empty(np.max(np.diff(indptr)) if indptr.size > 1 else 0)
    for r in range(indptr.size - 1):
        first, last = indptr[r], indptr[r + 1]
        row = out[first:last]
        total = largest = 0.0
        for e in range(first, last):
            value = root[indices[e]] * abs(weights[e * weight_step])
            if value < NEGLIGIBLE:
                value = 0.0
            out[e] = value
            total += value
            largest = max(largest, value)
        if total == 0 or not np.isfinite(total):
            row[:] = rate
        elif rate * row.size * largest <= total:
            _scale(row, rate * row.size / total)
        else:
            _clip(row, rate, total, scratch[: row.size])
    return out


@numba.njit(cache=True, nogil=True)
def _scale(row, factor):  # type: ignore[no-untyped-def]
    for k in range(row.size):
        row[k] = min(1.0, max(LEAST, row[k] * factor))


@numba.njit(cache=True, nogil=True)
def _clip(row, rate, total, rest):  # type: ignore[no-untyped-def]
    """Theorem 2 for a row of which some have p = 1: the k smallest share what the others leave."""
    rest[:] = row
    budget, k = rate * row.size, row.size
    for _ in range(PASSES):
        before, bound, total, k = k, (1 + SLACK) * total, 0.0, 0
        for e in range(before):
            value = rest[e]
            rest[k] = value
            below = value * budget <= bound
            k += below
            total += value if below else 0.0
        budget -= before - k
        if k == before:
            break
    else:
        k, budget, total = _largest_k(rest[:k], budget)
    if total > 0:
        _scale(row, budget / total)
    else:
        for e in range(row.size):
            row[e] = 1.0 if row[e] > 0 else budget / k


@numba.njit(cache=True, nogil=True)
def _largest_k(values, budget):  # type: ignore[no-untyped-def]
    """The theorem's k, what of the budget its values share, and their sum; sorts `values`.

    Its inequality holds for all k up to the one wanted and for none above: the difference of the sides falls
    with k once budget + k > size, and before that the left one is not positive.
    """
    values.sort()
    excess = budget - values.size
    total = 0.0
    k = 0
    while k < values.size and (excess + k + 1) * values[k] <= total + values[k]:
        total += values[k]
        k += 1
    return k, excess + k, total


@numba.njit(cache=True, nogil=True)
def _log_missed(indices, probabilities, step, num_inner, num_boundary):  # type: ignore[no-untyped-def]
    """Log of the chance that no edge of a boundary node is drawn."""
    missed = np.zeros(num_boundary)
    for e in range(indices.size):
        if indices[e] >= num_inner:
            p = probabilities[e * step]
            missed[indices[e] - num_inner] += np.log1p(-p) if p < 1 else -np.inf
    return missed


@numba.njit(cache=True, nogil=True)
def _draw(indptr, indices, probabilities, step, num_inner, num_boundary, rng):  # type: ignore[no-untyped-def]
    """Which edges are drawn, the row pointers of those, and which boundary nodes they start from."""
    drawn = np.empty(indices.size, np.bool_)
    pointers = np.empty(indptr.size, np.int64)
    seen = np.zeros(num_boundary, np.bool_)
    count = 0
    for r in range(indptr.size - 1):
        pointers[r] = count
        for e in range(indptr[r], indptr[r + 1]):
            drawn[e] = rng.random() < probabilities[e * step]
            if drawn[e]:
                count += 1
                if indices[e] >= num_inner:
                    seen[indices[e] - num_inner] = True
    pointers[-1] = count
    return drawn, pointers, seen


@numba.njit(cache=True, nogil=True)
def _compact(  # type: ignore[no-untyped-def]
    drawn, indices, probabilities, step, weights, weight_step, num_inner, column, columns, values
):
    """Write the renumbered columns and the values w/p of the drawn edges."""
    at = 0
    for e in range(drawn.size):
        if drawn[e]:
            c = indices[e]
            columns[at] = c if c < num_inner else column[c - num_inner]
            values[at] = weights[e * weight_step] / probabilities[e * step]
            at += 1
