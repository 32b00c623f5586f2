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
