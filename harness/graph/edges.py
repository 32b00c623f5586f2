"""Edges: the entries of a CSR, and what each counts in an attention's softmax."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.graph.csr import CSR

SLOPE = 0.2  # of LeakyReLU below 0


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges by rows of a CSR, and what each counts: its value, times a factor of its row and of its column.

    Attributes:
        matrix: the edges.
        row_scale: [rows], or None for ones.
        column_scale: [cols], or None for ones.
    """

    matrix: CSR
    row_scale: Tensor | None = None
    column_scale: Tensor | None = None

    def reversed(self, transposed: CSR) -> Edges:
        """Return the same edges by rows of their sources, given the transposed matrix."""
        return Edges(transposed, self.column_scale, self.row_scale)

    def spelled_out(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return row and column of every edge, int64 [nnz], and what it counts, [nnz, 1]."""
        matrix = self.matrix
        column = matrix.indices.long()
        row = torch.arange(matrix.num_rows, device=like.device).repeat_interleave(
            matrix.indptr.diff(), output_size=matrix.nnz
        )
        count = like.new_ones(matrix.nnz) if matrix.values is None else matrix.values.to(like.dtype)
        for scale, index in ((self.row_scale, row), (self.column_scale, column)):
            count = count if scale is None else count * scale.to(like.dtype)[index]
        return row, column, count.unsqueeze(1)
