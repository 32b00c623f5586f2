"""What `harness.graph.attention_kernels` does, in torch's operations: for devices that are no CPU.

Makes matrices [edges, heads], and for each head [edges, width].
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.graph.csr import CSR
from harness.graph.edges import SLOPE, Edges
from harness.graph.spmm import TorchEngine


def add_by_torch(
    edges: Edges, z: Tensor, key: Tensor, query: Tensor, rows: Tensor, total: Tensor, peak: Tensor
) -> None:
    """See `attention_kernels.add`."""
    target, source, count = edges.spelled_out(z)
    score = leaky(query[target] + key[source])
    highest = peak.scatter_reduce(0, target.unsqueeze(1).expand_as(score), score, "amax")
    kept = (peak - highest).exp_()
    peak.copy_(highest)
    term = score.sub_(highest[target]).exp_().mul_(count)
    total.mul_(kept).index_add_(0, target, term)
    rows.mul_(kept.unsqueeze(2))
    for head in range(z.shape[1]):
        rows[:, head] += _product(edges.matrix, term[:, head], z[:, head])


def spread_by_torch(
    edges: Edges, z: Tensor, key: Tensor, grad: Tensor, state: Tensor, own: slice
) -> tuple[Tensor, Tensor, Tensor]:
    """See `attention_kernels.spread`."""
    to_z, to_key = torch.empty_like(z), torch.zeros_like(key)
    to_query = key.new_zeros((grad.shape[0], key.shape[1]))
    loops = torch.arange(own.start, own.stop, device=z.device)
    source, target, count = edges.spelled_out(z)
    every = torch.cat([source, loops]), torch.cat([target, loops])
    count = torch.cat([count, count.new_ones((len(loops), 1))])
    query, peak, inverse, mean = state[every[1]].unbind(1)
    score = query + key[every[0]]
    weight = leaky(score).sub_(peak).exp_().mul_(inverse).mul_(count)
    steep = torch.where(score > 0, 1.0, SLOPE).to(z.dtype)
    for head in range(z.shape[1]):
        product = (grad[every[1], head] * z[every[0], head]).sum(1)
        change = product.sub_(mean[:, head]).mul_(weight[:, head]).mul_(steep[:, head])
        to_key[:, head].index_add_(0, every[0], change)
        to_query[:, head].index_add_(0, every[1], change)
        to_z[:, head] = _product(edges.matrix, weight[: len(source), head], grad[:, head])
        to_z[own, head] += weight[len(source) :, head].unsqueeze(1) * grad[own, head]
    return to_z, to_key, to_query


def _product(matrix: CSR, values: Tensor, x: Tensor) -> Tensor:
    """Return the product [rows, width] of the matrix with other values and `x`."""
    weighted = CSR(matrix.indptr, matrix.indices, matrix.num_cols, values.contiguous())
    return TorchEngine().multiply(weighted, x)


def leaky(x: Tensor) -> Tensor:
    """Return LeakyReLU of the scores."""
    return torch.nn.functional.leaky_relu(x, SLOPE)
