"""Matrices of the edges that start in one part, for several parts' rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from harness.graph.csr import CSR, induce_columns
from harness.graph.partition import Partition


def entries_from(owner: int, partition: Partition, local_row: NDArray[np.int32], start: int) -> CSR:
    """Return the entries of a partition's rows from nodes of `owner`, whose rows are columns from `start`."""
    whole, inner = partition.structure, partition.num_inner
    column = np.full(whole.num_cols, -1, np.int32)
    if owner == partition.rank:
        column[:inner] = np.arange(start, start + inner, dtype=np.int32)
    else:
        segment = slice(*partition.boundary_ptr[owner : owner + 2])
        column[inner:][segment] = start + local_row[partition.boundary[segment]]
    indptr, indices, order = induce_columns(
        whole.indptr.numpy(), whole.indices.numpy(), 0, column, whole.values is not None
    )
    values = None if whole.values is None else whole.values[torch.from_numpy(order)]
    return CSR(torch.from_numpy(indptr), torch.from_numpy(indices), whole.num_cols, values)


def stack(pieces: Sequence[CSR], columns: int) -> CSR:
    """Return the rows of all pieces, one after the other."""
    counts = torch.cat([torch.diff(piece.indptr) for piece in pieces])
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    values = [piece.values for piece in pieces if piece.values is not None]
    indices = torch.cat([piece.indices for piece in pieces])
    return CSR(indptr, indices, columns, torch.cat(values) if values else None)
