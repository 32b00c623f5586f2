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


@pytest.mark.parametrize(("norm", "model"), [(MEAN, "sage"), (SYMMETRIC, "gcn")])
def test_rounded_sums_are_of_scaled_rows_in_bfloat16_and_own_rows_are_not_rounded(
    norm: Propagation, model: str
) -> None:
    whole = block(30)
    whole.degree = whole.degree.float()
    h, direction = torch.randn(30, 5, requires_grad=True), torch.randn(30, 5)
    out = whole.aggregate(h, norm, rounded=True)
    (gradient,) = torch.autograd.grad(out, h, direction)
    degree = torch.from_numpy(DENSE.sum(1)).unsqueeze(1)
    edges, symmetric = torch.from_numpy(DENSE), model == "gcn"
    left = (degree + 1).rsqrt() if symmetric else 1 / degree.clamp(min=1)
    right, loop = (left, left**2) if symmetric else (torch.ones_like(left), torch.zeros_like(left))

    def sums(matrix: torch.Tensor, rows: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        return after * (matrix @ (rows * before.float()).bfloat16().double()) + loop * rows

    for found, want in ((out, sums(edges, h, right, left)), (gradient, sums(edges.T, direction, left, right))):
        torch.testing.assert_close(found.double(), want, rtol=1e-5, atol=1e-5)
    assert (whole.aggregate(h, norm) - out).abs().max() > 1e-5


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
