"""Passes over the entries of a CSR by torch's operations: where it is on a device, nothing of it comes to the host.

Each gives what the compiled kernel of the same name in `harness.graph.csr` gives, entry for entry. The host waits once
where a result's size is not known before, and a docstring says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.deferred import torch

if TYPE_CHECKING:
    from torch import Tensor


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
    """Return the sums of `values` [n] of each `group` [n], 0 to groups - 1: [groups].

    Each is added up in the order of the values, or in one that depends on nothing but their numbers: no atomics.
    """
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

    `place` int64 [entries] is where in its row an entry is, and `most` how many a row has at most. A row's sums are of
    its own entries alone, so that large ones elsewhere cost no digits; in log2(most) passes.
    """
    step = 1
    while step < most:
        before = torch.cat([values.new_zeros(min(step, values.numel())), values[:-step]])
        values = values + torch.where(place >= step, before, 0)
        step *= 2
    return values


def transpose(indptr: Tensor, indices: Tensor, num_cols: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return pointers, columns (int32, ascending in each row) and places in `indices` of the transpose."""
    # Rows are in order already: a stable sort by column leaves them so.
    ordered, order = indices.sort(stable=True)
    columns = torch.arange(num_cols + 1, dtype=indices.dtype, device=indices.device)
    starts = torch.searchsorted(ordered, columns)
    return starts, row_of_entries(indptr, indices.numel())[order].int(), order


def induce_columns(indptr: Tensor, indices: Tensor, first: int, new_column: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Keep columns below `first`, and those from `first` on whose `new_column` [cols - first] is not -1.

    Returns pointers, columns (int32) and places in `indices` of the matrix over the kept columns. The host waits for
    their number.
    """
    below = torch.arange(first, dtype=torch.int32, device=indices.device)
    columns = torch.cat([below, new_column])[indices]
    kept = columns >= 0
    places = kept.nonzero().squeeze(1)
    return pointers(kept)[indptr], columns[places], places


def select_rows(indptr: Tensor, indices: Tensor, first: int, kept: Tensor, entries: int) -> tuple[Tensor, Tensor]:
    """Return pointers and columns of the rows below `first`, then `first + kept[k]`, which have so many entries."""
    rows = torch.cat([torch.arange(first, device=indptr.device), first + kept])
    starts = indptr[rows]
    out = pointers(indptr[rows + 1] - starts)
    places = (starts - out[:-1]).repeat_interleave(out.diff(), output_size=entries)
    return out, indices[places + torch.arange(entries, device=indptr.device)]
