"""Graph attention forward and backward, beside DGL's operations: 4 heads of 32, one thread.

The block is as large as a half of a graph of 50,000 nodes: 25,197 rows, 47,432 sources, 1.2 million edges.
`kept` is what autograd holds between the passes, of the rows z too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.graph.block import Block
from harness.graph.csr import CSR
from harness.graph.spmm import engine_problem

ROWS, SOURCES, EDGES, HEADS, WIDTH = 25_197, 47_432, 1_200_000, 4, 32


def structure() -> CSR:
    rng = np.random.default_rng(0)
    degrees = rng.multinomial(EDGES, np.full(ROWS, 1 / ROWS))
    indices = rng.integers(0, SOURCES, EDGES, dtype=np.int32)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    return CSR(torch.from_numpy(indptr), torch.from_numpy(indices), SOURCES)


def by_block(matrix: CSR) -> Callable[..., Tensor]:
    return Block(matrix, torch.ones(SOURCES)).attend


def by_dgl(matrix: CSR) -> Callable[..., Tensor]:
    """GATConv's operations, the self loops being edges."""
    import dgl
    from dgl import ops

    indptr = matrix.indptr + torch.arange(ROWS + 1)
    loop = torch.zeros(EDGES + ROWS, dtype=torch.bool)
    loop[indptr[1:] - 1] = True
    indices = torch.empty(EDGES + ROWS, dtype=torch.int32)
    indices[loop], indices[~loop] = torch.arange(ROWS, dtype=torch.int32), matrix.indices
    columns = ("csc", (indptr.int(), indices, torch.arange(EDGES + ROWS, dtype=torch.int32)))
    graph = dgl.create_block(columns, num_src_nodes=SOURCES, num_dst_nodes=ROWS)

    def attend(z: Tensor, to_key: Tensor, to_query: Tensor) -> Tensor:
        rows = z.view(-1, HEADS, WIDTH)
        key, query = (rows * to_key).sum(2, keepdim=True), (rows[:ROWS] * to_query).sum(2, keepdim=True)
        score = torch.nn.functional.leaky_relu(ops.u_add_v(graph, key, query), 0.2)
        return ops.u_mul_e_sum(graph, rows, ops.edge_softmax(graph, score)).flatten(1)

    return attend


def kept_bytes(work: Callable[[], Tensor]) -> int:
    """Bytes of the distinct storages that autograd saves."""
    sizes: dict[int, tuple[int, Tensor]] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage._cdata] = storage.nbytes(), tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        work()
    return sum(size for size, _ in sizes.values())


@pytest.mark.parametrize("name", ["block", "dgl"])
def test_attention(benchmark: Any, name: str) -> None:
    if name == "dgl" and (problem := engine_problem("dgl")):
        pytest.skip(problem)
    attend = (by_block if name == "block" else by_dgl)(structure())
    generator = torch.Generator().manual_seed(0)
    values = [
        torch.randn(shape, generator=generator).requires_grad_()
        for shape in ((SOURCES, HEADS * WIDTH), (HEADS, WIDTH), (HEADS, WIDTH))
    ]
    direction = torch.randn(ROWS, HEADS * WIDTH, generator=generator)
    benchmark.group = "attention, forward and backward"
    benchmark.extra_info["kept_mib"] = kept_bytes(lambda: attend(*values)) / 2**20
    print(f"{name}: {benchmark.extra_info['kept_mib']:.1f} MiB kept")
    benchmark.pedantic(lambda: torch.autograd.grad(attend(*values), values, direction), rounds=7, warmup_rounds=2)
