"""Attention over a Block's edges against the dense softmax, and its gradients against finite differences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from harness.check.graphs import dense_adjacency, on_disk, random_graph
from harness.check.oracle import attention
from harness.graph import attention as ours
from harness.graph import spmm as parts
from harness.graph.attention import Edges, Sums, spread, spread_by_torch
from harness.graph.block import MEAN, Block
from harness.graph.csr import CSR
from harness.graph.partition import Partition

HEADS, WIDTH = 3, 5
CPU = torch.device("cpu")


def csr(dense: np.ndarray) -> CSR:
    """Every entry that is not 0, with its value."""
    rows, columns = np.nonzero(dense)
    indptr = np.searchsorted(rows, np.arange(len(dense) + 1))
    indices = torch.from_numpy(columns.astype(np.int32))
    return CSR(torch.from_numpy(indptr), indices, dense.shape[1], torch.from_numpy(dense[rows, columns]))


def case(num_dst: int, num_src: int, seed: int = 0, degree: float = 6) -> tuple[Block, Tensor]:
    """Return a block with edge weights and both scales, and what its edges and self loops count, dense.

    Row 1 has its self loop only, row 2 an edge from every source, column 3 no edge.
    """
    rng = np.random.default_rng(seed)
    dense = np.where(rng.random((num_dst, num_src)) < degree / num_src, rng.uniform(0.2, 3, (num_dst, num_src)), 0)
    dense[2] = rng.uniform(0.2, 3, num_src)
    dense[1] = dense[:, 3] = 0
    rows, columns = (torch.from_numpy(rng.uniform(0.5, 4, n)) for n in (num_dst, num_src))
    block = Block(csr(dense), torch.ones(num_src, dtype=torch.float64), dst_scale=rows, src_scale=columns)
    counts = torch.from_numpy(dense) * rows[:, None] * columns[None, :] + torch.eye(num_dst, num_src)
    return block, counts


def inputs(num_src: int, heads: int = HEADS, width: int = WIDTH, scale: float = 1) -> list[Tensor]:
    """Return z, the two halves of a, and a bias."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(num_src, heads * width), (heads, width), (heads, width), (heads * width,)]
    made = [torch.randn(shape, generator=generator, dtype=torch.float64) * scale for shape in shapes]
    return [tensor.requires_grad_() for tensor in made]


@pytest.mark.quick(1)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("scale", [1, 12])  # 12: scores far apart, exponents beyond what exp can do
def test_rows_and_gradients_equal_the_dense_softmax(
    threads: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "LEAST_WORK", 1)
    block, counts = case(23, 40)
    z, source, target, bias = values = inputs(40, scale=scale)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    out = block.attend(*values)
    direction = torch.randn_like(out)
    gradients = torch.autograd.grad(out, values, direction)
    want = attention(counts, z, source, target).flatten(1) + bias
    torch.testing.assert_close(out, want, rtol=1e-12, atol=1e-12)
    for got, wanted in zip(gradients, torch.autograd.grad(want, values, direction), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10 * scale)


def test_gradcheck() -> None:
    block, _ = case(5, 8, degree=3)
    assert torch.autograd.gradcheck(block.attend, inputs(8, heads=2, width=2))


def test_float32_follows_float64() -> None:
    block, counts = case(23, 40)
    plain = Block(CSR(block.adjacency.indptr, block.adjacency.indices, 40), torch.ones(40))
    values = [tensor.detach().float().requires_grad_() for tensor in inputs(40)]
    wide = [tensor.detach().double().requires_grad_() for tensor in values]
    out = plain.attend(*values)
    loops = torch.eye(23, 40)
    want = attention((counts > loops) + loops.double(), *wide[:3]).flatten(1) + wide[3]
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    for got, wanted in zip(
        torch.autograd.grad(out.square().sum(), values), torch.autograd.grad(want.square().sum(), wide), strict=True
    ):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("values", [1, 70, 2**24])
def test_torchs_operations_do_what_the_kernels_do(values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that other devices take, for so many values at a time: edge by edge, by seven edges, and all at once."""
    monkeypatch.setattr(ours, "SPELLED_OUT", values)
    torch.manual_seed(0)
    block, _ = case(23, 40)
    edges = Edges(block.adjacency, block.dst_scale, block.src_scale)
    sources = Edges(block.transposed, block.src_scale, block.dst_scale)
    z, key, query = (torch.randn(shape, dtype=torch.float64) for shape in ((40, 2, 5), (40, 2), (23, 2)))
    grad, state = torch.randn(23, 2, 5, dtype=torch.float64), torch.rand(23, 4, 2, dtype=torch.float64)
    results = []
    for forward, backward in ((Sums.add, spread), (Sums.add_by_torch, spread_by_torch)):
        sums = Sums(torch.ones_like(grad), torch.ones_like(query), torch.zeros_like(query))
        forward(sums, edges, z, key, query)
        back = backward(sources, z, key, grad, state, slice(4, 20))
        results.append([sums.rows, sums.total, sums.peak, *back])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


class Largest(TorchDispatchMode):
    """Takes note of how many values the largest tensor has that is made."""

    values = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.values = max(self.values, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


def test_torchs_operations_spell_out_so_many_values_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20 edges a row, 1200 rows are 24,000 edges: of all of them nothing is made but the structure itself."""
    monkeypatch.setattr(ours, "SPELLED_OUT", 16_000)
    block, _ = case(1200, 1200, degree=20)
    z, key, query = torch.randn(1200, 2, 8), torch.randn(1200, 2), torch.randn(1200, 2)
    grad, state = torch.randn(1200, 2, 8), torch.rand(1200, 4, 2)
    edges, sources = Edges(block.adjacency), Edges(block.transposed)
    assert edges.matrix.nnz * 16 > 10 * 16_000
    with Largest() as seen:
        Sums(torch.ones_like(grad), torch.ones_like(query), torch.zeros_like(query)).add_by_torch(edges, z, key, query)
        spread_by_torch(sources, z, key, grad, state, slice(0, 1200))
    assert seen.values <= max(z.numel(), edges.matrix.nnz)


def test_a_sampled_boundary_counts_by_its_scale(tmp_path: Path) -> None:
    """A BNS-GCN rank's block: the kept boundary nodes' exponentials are scaled, not their rows."""
    graph = random_graph(71)
    parts = np.arange(60) % 2
    data = on_disk(graph, parts, 2, False, tmp_path)
    partition = Partition(data.parts.train, 0, engine="auto", device=CPU, dtype=torch.float64)
    kept = np.flatnonzero(np.random.default_rng(0).random(partition.num_boundary) < 0.4)
    scale = torch.from_numpy(np.random.default_rng(1).uniform(2, 4, kept.size))
    nodes = np.concatenate([partition.inner, partition.boundary[kept]])
    counts = torch.from_numpy(dense_adjacency(graph)[np.ix_(partition.inner, nodes)])
    counts[:, partition.num_inner :] *= scale
    counts += torch.eye(*counts.shape)
    z, source, target, _ = inputs(len(nodes))
    got = partition.block(kept, scale).attend(z, source, target)
    torch.testing.assert_close(got, attention(counts, z, source, target).flatten(1))


def test_a_whole_boundary_that_was_drawn_counts_by_its_scale_too(tmp_path: Path) -> None:
    data = on_disk(random_graph(72), np.arange(60) % 2, 2, False, tmp_path)
    partition = Partition(data.parts.train, 0, engine="auto", device=CPU, dtype=torch.float64)
    every = np.arange(partition.num_boundary)
    h = torch.randn(partition.num_inner + every.size, 2, dtype=torch.float64)
    block = partition.block(every, torch.full((every.size,), 2.0, dtype=torch.float64))
    doubled = torch.cat([h[: partition.num_inner], 2 * h[partition.num_inner :]])
    want = partition.full_block.aggregate(doubled, MEAN)
    torch.testing.assert_close(block.aggregate(h, MEAN), want)


@pytest.mark.parametrize("heads", [1, 8])
def test_few_rows_have_the_same_bits_with_any_number_of_threads(heads: int) -> None:
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 4):
            torch.set_num_threads(threads)
            results = []
            for rows in range(3, 65):
                block, _ = case(rows, rows + 4)
                plain = Block(CSR(block.adjacency.indptr, block.adjacency.indices, rows + 4), torch.ones(rows + 4))
                values = [tensor.detach().float().requires_grad_() for tensor in inputs(rows + 4, heads, 16)]
                out = plain.attend(*values)
                results.append([out, *torch.autograd.grad(out.square().sum(), values)])
            found.append(results)
    finally:
        torch.set_num_threads(before)
    for results in found[1:]:
        for rows, got, first in zip(range(3, 65), results, found[0], strict=True):
            assert all(map(torch.equal, got, first)), f"{rows} rows"


def test_an_empty_block_gives_no_rows() -> None:
    """A rank that has run out of batches."""
    block = Block(csr(np.zeros((0, 0))), torch.ones(0))
    values = inputs(0)
    out = block.attend(*values)
    assert out.shape == (0, HEADS * WIDTH)
    out.sum().backward()
    assert all(not tensor.grad.any() for tensor in values)


def test_wrong_sizes_are_refused() -> None:
    block, _ = case(5, 8)
    with pytest.raises(ValueError, match="8 source rows, the matrix 7"):
        block.attend(*inputs(7))
