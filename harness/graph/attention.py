"""Graph attention (GAT): softmax-weighted sums of neighbours' rows.

Destination i has for each head the weights alpha_ij = v_ij exp(e_ij) / sum_k v_ik exp(e_ik) over its
in-neighbours and itself, e_ij = LeakyReLU(query_i + key_j) (Velickovic et al., ICLR 2018, Eq. 3 and 4); v_ij
is what an edge counts, 1 for the self loop. Exponents are of differences to a row's largest. Nothing is kept
by edge: the backward pass computes the weights again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from harness.graph.attention_kernels import add
from harness.graph.attention_torch import leaky
from harness.graph.edges import Edges

if TYPE_CHECKING:
    from harness.graph.block import Block


Gradients = tuple[Tensor, Tensor, Tensor]
"""Of z, of keys and of queries."""


@dataclass(frozen=True)
class Sums:
    """Sums over edges of terms v_ij exp(e_ij - peak_i).

    Attributes:
        rows: [num_dst, heads, width], of terms times z_j.
        total: [num_dst, heads], of terms.
        peak: [num_dst, heads], the largest e_ij of those edges and of the self loop.
    """

    rows: Tensor
    total: Tensor
    peak: Tensor

    @classmethod
    def of_self_loops(cls, z: Tensor, key: Tensor, query: Tensor, own: slice) -> Sums:
        """Return the sums over the self loops of the destinations `own`; the others' are empty."""
        peak = leaky(query + key[: len(query)])
        rows, total = z.new_zeros((len(query), *z.shape[1:])), torch.zeros_like(query)
        rows[own], total[own] = z[own], 1
        return cls(rows, total, peak)

    def add(self, edges: Edges, z: Tensor, key: Tensor, query: Tensor) -> None:
        """Add the terms of `edges`, by rows of destinations; see `attention_kernels.add`."""
        add(edges, z, key, query, self.rows, self.total, self.peak)

    def merge(self, other: Sums) -> None:
        """Add the sums over other edges to the same destinations."""
        highest = torch.maximum(self.peak, other.peak)
        mine, theirs = (self.peak - highest).exp_(), (other.peak - highest).exp_()
        self.rows.mul_(mine.unsqueeze(2)).addcmul_(other.rows, theirs.unsqueeze(2))
        self.total.mul_(mine).addcmul_(other.total, theirs)
        self.peak.copy_(highest)

    def packed(self) -> Tensor:
        """Return all in one matrix, [num_dst, heads * (width + 2)]."""
        return torch.cat([self.rows.flatten(1), self.total, self.peak], 1)

    @classmethod
    def unpacked(cls, packed: Tensor, heads: int) -> Sums:
        """Return a copy of what was `packed`."""
        rows, total, peak = packed.split([packed.shape[1] - 2 * heads, heads, heads], 1)
        return cls(by_head(rows.contiguous(), heads), total.contiguous(), peak.contiguous())

    def weighted(self) -> Tensor:
        """Return the weighted rows [num_dst, heads, width]; they take the place of `rows`."""
        return self.rows.div_(self.total.unsqueeze(2))


def by_head(rows: Tensor, heads: int) -> Tensor:
    """Return a view [n, heads, width] of rows [n, heads * width]."""
    return rows.view(len(rows), heads, rows.shape[1] // heads)


def attend(block: Block, z: Tensor, to_key: Tensor, to_query: Tensor, bias: Tensor | None) -> Tensor:
    """Return the rows [num_dst, heads * width] that each head's attention adds up, and `bias`.

    Args:
        block: the edges; every rank must call if it communicates.
        z: [num_src, heads * width], the transformed rows W h.
        to_key, to_query: [heads, width], a_src and a_dst: the two halves of the vector a.
        bias: [heads * width] or None.
    """
    result: Tensor = _Attend.apply(z, to_key, to_query, bias, block)  # type: ignore[no-untyped-call]
    return result


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, z: Tensor, to_key: Tensor, to_query: Tensor, bias: Tensor | None, block: Block
    ) -> Tensor:
        z = z.contiguous()
        query = z[: block.num_dst] @ _matrix(to_query)
        sums = block.attention(z, _matrix(to_key), query)
        out = sums.weighted().view(block.num_dst, z.shape[1])
        if bias is not None:
            out += bias
        ctx.save_for_backward(z, to_key, to_query, bias, query, sums.total, sums.peak, out)
        ctx.block = block
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None, None]:
        z, to_key, to_query, bias, query, total, peak, out = ctx.saved_tensors
        grad, block = grads[0].contiguous(), ctx.block
        heads, own = len(to_key), z[: block.num_dst]
        product = grad * (out if bias is None else out - bias)
        state = torch.stack([query, peak, 1 / total, by_head(product, heads).sum(2)], 1)
        del product, out
        to_z, keys, queries = block.attention_backward(z, _matrix(to_key), by_head(grad, heads), state)
        to_z.addmm_(keys, _matrix(to_key).t())
        to_z[: block.num_dst].addmm_(queries, _matrix(to_query).t())
        return (
            to_z,
            _vectors(z.t() @ keys, to_key),
            _vectors(own.t() @ queries, to_query),
            None if bias is None else grad.sum(0),
            None,
        )


def _matrix(vectors: Tensor) -> Tensor:
    """Return the matrix [heads * width, heads] by which rows give each head's product with its vector."""
    heads = torch.eye(len(vectors), dtype=vectors.dtype, device=vectors.device)
    return (vectors.unsqueeze(2) * heads.unsqueeze(1)).view(-1, len(vectors))


def _vectors(gradient: Tensor, vectors: Tensor) -> Tensor:
    """Return the gradient of the vectors, given that of `_matrix`."""
    return gradient.view(*vectors.shape, -1).diagonal(dim1=0, dim2=2).t().contiguous()
