from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.check.graphs import dense_adjacency, random_graph
from harness.check.oracle import propagation_matrix
from harness.graph.block import MEAN, SYMMETRIC, Block, Propagation
from harness.graph.csr import CSR

GRAPH = random_graph(41, nodes=30, degree=6)
DENSE = dense_adjacency(GRAPH)


def block(rows: int, scale: torch.Tensor | None = None, values: np.ndarray | None = None) -> Block:
    """Edges into the first `rows` nodes, from all."""
    part = DENSE[:rows]
    indptr = np.concatenate([[0], np.cumsum((part != 0).sum(1))])
    csr = CSR(
        torch.from_numpy(indptr),
        torch.from_numpy(np.nonzero(part)[1].astype(np.int32)),
        30,
        None if values is None else torch.from_numpy(values[:rows][part != 0]),
    )
    weights = DENSE if values is None else DENSE * values
    return Block(csr, torch.from_numpy(weights.sum(1)), dst_scale=scale)


@pytest.mark.parametrize(("norm", "model"), [(MEAN, "sage"), (SYMMETRIC, "gcn")])
@pytest.mark.parametrize("rows", [30, 12])
@pytest.mark.parametrize("weighted", [False, True])
def test_aggregation_and_its_gradient_equal_the_dense_matrix(
    norm: Propagation, model: str, rows: int, weighted: bool
) -> None:
    values = np.random.default_rng(0).random((30, 30)) + 0.5 if weighted else np.ones((30, 30))
    matrix = propagation_matrix(DENSE * values, model)[:rows]
    h = torch.randn(30, 5, dtype=torch.float64, requires_grad=True)
    out = block(rows, values=values if weighted else None).aggregate(h, norm)
    torch.testing.assert_close(out, matrix @ h)
    direction = torch.randn_like(out)
    (gradient,) = torch.autograd.grad(out, h, direction)
    torch.testing.assert_close(gradient, matrix.T @ direction)


def test_destination_scale_multiplies_neighbours_not_the_self_loop() -> None:
    scale = torch.rand(30, dtype=torch.float64) + 1
    h = torch.randn(30, 4, dtype=torch.float64)
    degree = torch.from_numpy(DENSE.sum(1))
    own = h / (degree + 1).unsqueeze(1)
    want = (propagation_matrix(DENSE, "gcn") @ h - own) * scale.unsqueeze(1) + own
    torch.testing.assert_close(block(30, scale).aggregate(h, SYMMETRIC), want)


def test_gradcheck() -> None:
    h = torch.randn(30, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: block(10).aggregate(x, SYMMETRIC), h)


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="30 source rows, the matrix 29"):
        block(30).aggregate(torch.zeros(29, 2), MEAN)
    csr = CSR(torch.zeros(6, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), 4)
    with pytest.raises(ValueError, match="destinations first"):
        Block(csr, torch.ones(4))
