"""Compressed sparse rows, the linear passes that build and reverse them, and a whole graph in them.

On the host compiled kernels make the passes, on a device torch's operations (`..._on_device`): the results are equal,
entry for entry, and nothing of the matrix comes to the host, which waits only for sizes that are not known before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from harness.deferred import numba, torch
from harness.deferred import numpy as np
from harness.graph.devices import upload

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

Ints: TypeAlias = "NDArray[np.int64]"
Floats: TypeAlias = "NDArray[np.float64]"
Places: TypeAlias = "Ints | Tensor"
"""Positions, int64: on the host, or on the device of what they are positions in."""
Parts: TypeAlias = "tuple[Tensor, ...]"
"""Pointers int64, columns int32, and of some places int64, of a matrix."""
DEGREES_AT_ONCE = 1 << 22


def on_host(places: Places) -> Ints:
    """Return positions in the host's memory; where they are on a device the host waits for them."""
    return places if isinstance(places, np.ndarray) else places.cpu().numpy()


@dataclass(frozen=True, eq=False)
class CSR:
    """A sparse matrix by rows."""

    indptr: Tensor  # int64 [rows + 1]
    indices: Tensor  # int32 [nnz]
    num_cols: int
    values: Tensor | None = None  # [nnz]; None: every stored entry counts one
    handles: dict[Any, Any] = field(default_factory=dict, repr=False)  # what SpMM engines derive, once

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.indptr.numel() - 1

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return self.indices.numel()

    def _work(self, on_device: Callable[..., Parts], kernel: Callable[..., Any], *arguments: Any) -> Parts:
        """Return pointers, columns and maybe places that torch's operations or, on the host, a kernel makes."""
        if self.indptr.device.type != "cpu":
            return on_device(self.indptr, self.indices, *arguments)
        return tuple(map(torch.from_numpy, kernel(self.indptr.numpy(), self.indices.numpy(), *arguments)))

    def _taken(self, parts: Parts, num_cols: int) -> CSR:
        starts, columns, places = parts
        return CSR(starts, columns, num_cols, None if self.values is None else self.values[places])

    def transpose(self) -> CSR:
        """Return the transpose by one counting pass; columns come out ascending in every row."""
        found = self._work(transpose_on_device, transpose, self.num_cols, self.values is not None)
        return self._taken(found, self.num_rows)

    def transpose_symmetric(self) -> CSR:
        """Return the transpose of a matrix on the host whose structure is symmetric: same arrays, new values.

        For every entry (i, j) there is one (j, i), whose value may differ, and columns ascend in each row: a graph's
        adjacency, or a subgraph's over ascending nodes. Rows are then met, for every column, in the order of that
        column's own row, and one pass puts each value where it belongs (Algorithm 6 of Zeng et al., JPDC 2021).
        Without values it is its own transpose. ValueError if there are values, and the structure is not as said.
        """
        if self.values is None:
            return self
        values, symmetric = _permute(self.indptr.numpy(), self.indices.numpy(), self.values.numpy())
        if self.num_rows != self.num_cols or not symmetric:
            raise ValueError("the structure is not symmetric, or columns do not ascend in each row")
        return CSR(self.indptr, self.indices, self.num_cols, torch.from_numpy(values))

    def select_columns(self, first: int, kept: Places) -> CSR:
        """Return the columns below `first`, then `first + kept[k]` (ascending); the host waits for a device once."""
        count, width = len(kept), self.num_cols - first
        if isinstance(kept, np.ndarray):
            new: Any = np.full(width, -1, np.int32)
            new[kept] = np.arange(first, first + count, dtype=np.int32)
        else:
            new = torch.full((width,), -1, dtype=torch.int32, device=kept.device)
            new[kept] = torch.arange(first, first + count, dtype=torch.int32, device=kept.device)
        found = self._work(induce_columns_on_device, induce_columns, first, new, self.values is not None)
        return self._taken(found, first + count)

    def select_rows(self, first: int, kept: Places, entries: int) -> CSR:
        """Return the rows below `first`, then `first + kept[k]`, which have so many entries; values are left out."""
        starts, columns = self._work(select_rows_on_device, select_rows, first, kept, entries)
        return CSR(starts, columns, self.num_cols)

    def take_rows(self, rows: Tensor) -> CSR:
        """Return the matrix of `rows`, int64, with their values; the host waits for a device once."""
        starts, places = places_of_rows(self.indptr, rows)
        return CSR(starts, self.indices[places], self.num_cols, None if self.values is None else self.values[places])

    def split_columns(self, part: NDArray[np.int32], column: NDArray[np.int32], widths: Sequence[int]) -> list[CSR]:
        """Return matrices on the host, of the same rows, that each have some of the columns.

        Column c is number `column[c]` of the matrix `part[c]`, which has `widths[part[c]]` columns. A row's entries
        stay in their order.
        """
        structure = self.indptr.numpy(), self.indices.numpy()
        pointers, indices, order = _split(*structure, part, column, len(widths), self.values is not None)
        values = None if self.values is None else self.values[torch.from_numpy(order)]
        ends, columns = pairwise(np.cumsum([0, *pointers[:, -1]])), torch.from_numpy(indices)
        return [
            CSR(torch.from_numpy(starts), columns[first:last], width, None if values is None else values[first:last])
            for starts, (first, last), width in zip(pointers, ends, widths, strict=True)
        ]

    def to(self, device: torch.device) -> CSR:
        """Return the matrix on `device` (itself where it is there already)."""
        if self.indptr.device == device:
            return self
        move = torch.Tensor.cpu if device.type == "cpu" else partial(upload, device=device)
        values = None if self.values is None else move(self.values)
        return CSR(move(self.indptr), move(self.indices), self.num_cols, values)


@numba.njit(cache=True, nogil=True)
def transpose(indptr, indices, num_cols, with_order):  # type: ignore[no-untyped-def]
    """Return pointers, columns and, with `with_order`, places in `indices` of the transpose."""
    # Counting sort: degrees, their running sums, then each entry goes to its column's next place. Rows are
    # read in order, so that columns of the transpose ascend without a sort.
    out_ptr = np.zeros(num_cols + 1, np.int64)
    for e in range(indices.size):
        out_ptr[indices[e] + 1] += 1
    for c in range(num_cols):
        out_ptr[c + 1] += out_ptr[c]
    cursor = out_ptr[:-1].copy()
    out = np.empty(indices.size, np.int32)
    order = np.empty(indices.size if with_order else 0, np.int64)
    for r in range(indptr.size - 1):
        for e in range(indptr[r], indptr[r + 1]):
            at = cursor[indices[e]]
            cursor[indices[e]] = at + 1
            out[at] = r
            if with_order:
                order[at] = e
    return out_ptr, out, order


def transpose_on_device(indptr: Tensor, indices: Tensor, num_cols: int, with_order: bool = True) -> Parts:
    """Return what `transpose` does, with the places."""
    # Rows are in order already: a stable sort by column leaves them so.
    ordered, order = indices.sort(stable=True)
    columns = torch.arange(num_cols + 1, dtype=indices.dtype, device=indices.device)
    starts = torch.searchsorted(ordered, columns)
    return starts, row_of_entries(indptr, indices.numel())[order].int(), order


@numba.njit(cache=True, nogil=True)
def _split(indptr, indices, part, column, parts, with_order):  # type: ignore[no-untyped-def]
    """Return the pointers of each part [parts, rows + 1], and all parts' indices and places, one behind the other."""
    rows = indptr.size - 1
    pointers = np.zeros((parts, rows + 1), np.int64)
    for r in range(rows):
        pointers[:, r + 1] = pointers[:, r]
        for e in range(indptr[r], indptr[r + 1]):
            pointers[part[indices[e]], r + 1] += 1
    # Rows are read in order, so that a part's next place is behind its last one.
    cursor = np.zeros(parts, np.int64)
    for k in range(1, parts):
        cursor[k] = cursor[k - 1] + pointers[k - 1, rows]
    out = np.empty(indices.size, np.int32)
    order = np.empty(indices.size if with_order else 0, np.int64)
    for e in range(indices.size):
        c = indices[e]
        at = cursor[part[c]]
        cursor[part[c]] = at + 1
        out[at] = column[c]
        if with_order:
            order[at] = e
    return pointers, out, order


@numba.njit(cache=True, nogil=True)
def _permute(indptr, indices, values):  # type: ignore[no-untyped-def]
    """Return the values of the transpose, and whether the structure is symmetric with ascending columns."""
    cursor = indptr[:-1].copy()
    out = np.empty_like(values)
    # Entry (r, c) belongs into row c; rows ascend, so that the next free place of row c has to be column r.
    for r in range(indptr.size - 1):
        for e in range(np.uint64(indptr[r]), np.uint64(indptr[r + 1])):
            column = np.uint32(indices[e])
            # Checked where it is used: a pass of its own would read all indices again.
            if column >= cursor.size:
                return out, False
            at = np.uint64(cursor[column])
            if at >= np.uint64(indptr[column + 1]) or indices[at] != r:
                return out, False
            cursor[column] = at + 1
            out[at] = values[e]
    return out, True


@numba.njit(cache=True, nogil=True)
def induce_columns(indptr, indices, first, new_column, with_order):  # type: ignore[no-untyped-def]
    """Keep columns below `first`, and those from `first` on whose `new_column` [cols - first] is not -1.

    Returns `indptr` int64 and `indices` int32 of the matrix over the kept columns, and with `with_order` the
    places of the kept entries in `indices`.
    """
    rows = indptr.size - 1
    out_ptr = np.empty(rows + 1, np.int64)
    out = np.empty(indices.size, np.int32)
    order = np.empty(indices.size if with_order else 0, np.int64)
    at = 0
    out_ptr[0] = 0
    for r in range(rows):
        for e in range(indptr[r], indptr[r + 1]):
            c = indices[e]
            new = c if c < first else new_column[c - first]
            if new >= 0:
                out[at] = new
                if with_order:
                    order[at] = e
                at += 1
        out_ptr[r + 1] = at
    # A copy, or the view would keep memory for all entries.
    return out_ptr, out[:at].copy(), order[:at] if with_order else order


def induce_columns_on_device(
    indptr: Tensor, indices: Tensor, first: int, new_column: Tensor, with_order: bool = True
) -> Parts:
    """Return what `induce_columns` does, with the places. The host waits for their number."""
    below = torch.arange(first, dtype=torch.int32, device=indices.device)
    columns = torch.cat([below, new_column])[indices]
    kept = columns >= 0
    places = kept.nonzero().squeeze(1)
    return pointers(kept)[indptr], columns[places], places


@numba.njit(cache=True, nogil=True)
def select_rows(indptr, indices, first, kept, entries):  # type: ignore[no-untyped-def]
    """Return `indptr` and `indices` of the rows below `first`, then `first + kept[k]`, which have so many entries."""
    out_ptr = np.empty(first + kept.size + 1, np.int64)
    out_ptr[: first + 1] = indptr[: first + 1]
    for k in range(kept.size):
        row = first + kept[k]
        out_ptr[first + k + 1] = out_ptr[first + k] + indptr[row + 1] - indptr[row]
    out = np.empty(entries, np.int32)
    # The rows below `first` lie together and are copied as one.
    head = indptr[first]
    out[:head] = indices[:head]
    for k in range(kept.size):
        row = first + kept[k]
        out[out_ptr[first + k] : out_ptr[first + k + 1]] = indices[indptr[row] : indptr[row + 1]]
    return out_ptr, out


def select_rows_on_device(indptr: Tensor, indices: Tensor, first: int, kept: Tensor, entries: int) -> Parts:
    """Return what `select_rows` does."""
    out, places = places_of_rows(indptr, torch.cat([torch.arange(first, device=indptr.device), first + kept]), entries)
    return out, indices[places]


def places_of_rows(indptr: Tensor, rows: Tensor, entries: int | None = None) -> Parts:
    """Return the pointers of the matrix of `rows`, which have so many entries, and where these are: both int64."""
    starts = indptr[rows]
    out = pointers(indptr[rows + 1] - starts)
    entries = int(out[-1]) if entries is None else entries
    places = (starts - out[:-1]).repeat_interleave(out.diff(), output_size=entries)
    return out, places + torch.arange(entries, device=indptr.device)


def row_of_entries(indptr: Tensor, entries: int) -> Tensor:
    """Return the row of each of so many entries, int64."""
    rows = torch.arange(indptr.numel() - 1, device=indptr.device)
    return rows.repeat_interleave(indptr.diff(), output_size=entries)


def pointers(sizes: Tensor) -> Tensor:
    """Return where rows of these sizes begin, and the last one ends: int64 [rows + 1]."""
    out = sizes.new_zeros(sizes.numel() + 1, dtype=torch.int64)
    torch.cumsum(sizes, 0, out=out[1:])
    return out


def sums_by_group(values: Tensor, group: Tensor, groups: int) -> Tensor:
    """Return the sums of `values` [n] of each `group` [n], 0 to groups - 1: [groups], always in the same order."""
    ordered, order = group.sort(stable=True)
    ends = torch.arange(groups + 1, dtype=ordered.dtype, device=group.device)
    return sums_of_rows(torch.searchsorted(ordered, ends), values[order])


def sums_of_rows(indptr: Tensor, values: Tensor) -> Tensor:
    """Return the sums of the entries `values` [entries] of each row, 0 of an empty one: [rows]."""
    if not values.numel():
        return values.new_zeros(indptr.numel() - 1)
    return torch.segment_reduce(values, "sum", offsets=indptr, unsafe=True, initial=0)


def running_sums(values: Tensor, place: Tensor, most: int) -> Tensor:
    """Return of each entry the sum of its row up to it: [entries], of rows one behind the other.

    `place` int64 [entries] is where in its row an entry is, and `most` how many a row has at most.
    """
    step = 1  # a row's sums are of its own entries alone: large ones elsewhere cost no digits; in log2(most) passes
    while step < most:
        before = torch.cat([values.new_zeros(min(step, values.numel())), values[:-step]])
        values = values + torch.where(place >= step, before, 0)
        step *= 2
    return values


@dataclass(frozen=True, eq=False)
class Topology:
    """A whole graph: `indptr` int64 [N + 1], `indices` int32 [E] of in-neighbours, `weights` [E] or None.

    Every edge is there in both directions, with a weight of its own; the in-neighbours of a node ascend.
    """

    indptr: Ints
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

    def rows(self, nodes: Ints, *, own: bool = False, fanout: int = -1, seed: int = 0) -> tuple[Topology, Ints]:
        """Return a topology, and the rows in it that have the in-neighbours of `nodes`: here this one's own.

        Of a topology whose rows are with several ranks every rank must call, and what is returned may have of a row
        only the neighbours that `draw_neighbours` takes of it, uniformly, by this `fanout` (-1: all) and `seed`.
        `own`: on every rank the nodes are the rank's own.
        """
        return self, nodes

    def degree(self, nodes: Ints) -> Floats:
        """Return the in-degree, or the sum of weights, of `nodes`."""
        degree: Floats = _degree(self.indptr, self.weights, nodes)
        return degree

    def most_edges(self, rows: int) -> int:
        """Return how many edges those `rows` rows have together that have most."""
        falling = self._rows_of_degree[::-1]
        taken = np.clip(rows - (np.cumsum(falling) - falling), 0, falling)
        return int(taken @ np.arange(falling.size)[::-1])

    @cached_property
    def _rows_of_degree(self) -> Ints:
        # In pieces: the degrees of all nodes at once may take a GiB.
        counts = np.zeros(1, np.int64)
        for first in range(0, self.num_nodes, DEGREES_AT_ONCE):
            degrees = np.diff(self.indptr[first : first + DEGREES_AT_ONCE + 1])
            found = np.bincount(degrees, minlength=counts.size)
            found[: counts.size] += counts
            counts = found
        return counts


@numba.njit(cache=True, nogil=True)
def _degree(indptr, weights, nodes):  # type: ignore[no-untyped-def]
    degree = np.zeros(nodes.size)
    for i in range(nodes.size):
        node = np.uint64(nodes[i])  # unsigned: numba asks of a signed index whether it counts from the end
        first, last = indptr[node], indptr[node + np.uint64(1)]
        if weights is None:
            degree[i] = last - first
        else:
            for e in range(first, last):
                degree[i] += weights[e]
    return degree
