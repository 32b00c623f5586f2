"""Edges of a part and who draws them: compiled kernels on the host, or torch's operations on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from harness import Worker, torch
from harness import numpy as np
from harness.graph import CSR, Partition, kind_of, pointers, row_of_entries, sums_of_rows

from .probabilities import (
    LEAST,
    NEGLIGIBLE,
    SLACK,
    EdgeSample,
    draw_edges,
    inclusion_probabilities,
    optimal_probabilities,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


class Edges(Protocol):
    """Draws edges, each with a probability of its own: at first all with the same, the rate."""

    def draw(self) -> EdgeSample:
        """Draw every edge independently."""

    def learn(self, score: Tensor | None, uniform: float) -> None:
        """Take the probabilities of least variance for a score of each source (see `optimal_probabilities`).

        `uniform` is the share of the rate in them. None: the rate.
        """

    def included(self) -> Tensor:
        """Return the chance of each boundary node to have a drawn edge, float64 [num_boundary]."""


def edges_of(worker: Worker, rate: float, rng: np.random.Generator) -> Edges:
    """Return the edges of a rank's part, each drawn with the probability `rate`."""
    on_host, how = worker.device.type == "cpu", (worker.partition, rate, rng, worker.dtype)
    return HostEdges(*how) if on_host else DeviceEdges(*how)


class HostEdges:
    """See `Edges`."""

    def __init__(self, partition: Partition, rate: float, rng: np.random.Generator, dtype: torch.dtype) -> None:
        whole = partition.structure
        self._indptr, self._indices = whole.indptr.numpy(), whole.indices.numpy()
        self._weights, self._dtype = None if whole.values is None else whole.values.numpy(), dtype
        self._nodes = partition.num_inner, partition.num_boundary
        self._rate, self._rng = rate, rng
        self._probabilities: NDArray[np.float64] | float = rate

    def draw(self) -> EdgeSample:
        """See `Edges`."""
        edges = self._indptr, self._indices, self._probabilities, self._weights
        return draw_edges(*edges, *self._nodes, self._rng, self._dtype)

    def learn(self, score: Tensor | None, uniform: float) -> None:
        """See `Edges`."""
        if score is None:
            self._probabilities = self._rate
            return
        best = optimal_probabilities(self._indptr, self._indices, score.numpy(), self._weights, self._rate)
        if uniform:
            best += uniform * (self._rate - best)
        self._probabilities = best

    def included(self) -> Tensor:
        """See `Edges`."""
        return torch.from_numpy(inclusion_probabilities(self._indices, self._probabilities, *self._nodes))


class DeviceEdges:
    """See `Edges`; the edges are those of the partition's block, and all stays on its device."""

    def __init__(self, partition: Partition, rate: float, rng: np.random.Generator, dtype: torch.dtype) -> None:
        self._part = PartOnDevice.of(partition.full_block.adjacency, partition.num_inner)
        self._rate, self._rng, self._dtype = rate, rng, dtype
        self.learn(None, 0)

    def draw(self) -> EdgeSample:
        """See `Edges`; the host waits for the numbers of edges and of boundary nodes."""
        numbers = uniform_numbers(self._part.edges.nnz, self._probabilities.device, self._rng)
        return draw_on_device(self._part, self._probabilities, numbers, self._dtype)

    def learn(self, score: Tensor | None, uniform: float) -> None:
        """See `Edges`; the host waits as `optimal_on_device` says."""
        if score is None:
            size, device = (self._part.edges.nnz,), self._part.edges.indptr.device
            self._probabilities = torch.full(size, self._rate, dtype=torch.float64, device=device)
            return
        best = optimal_on_device(self._part.edges, score, self._rate)
        self._probabilities = best + uniform * (self._rate - best) if uniform else best

    def included(self) -> Tensor:
        """See `Edges`."""
        return included_on_device(self._part, self._probabilities)


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
