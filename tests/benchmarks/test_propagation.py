"""A SAGE layer on a subgraph of 8,000 nodes of case233k, forward and backward: what each choice is worth.

A step makes the Block anew, as a training on subgraphs does, and asks for the gradients of the weights; those
of H too, but for the input layer's. In a group of choices the first is what the others are held against, by
their least times; they take turns (A B C C B A). With one thread it is CPU time, with two wall time.
Degree-biased nodes, about 15 entries a row. About two minutes for one thread; run with `-s` to see tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.cases import case_topology
from numpy.typing import NDArray

from harness.graph.block import MEAN, Block
from harness.graph.csr import CSR, Topology
from harness.models.functional import ROUNDED_ROWS
from harness.models.layer import Products
from harness.models.shipped_layers import SageLayer
from harness.sampling.sample import Tables
from harness.sampling.subgraphs import ImportanceSubgraphs, induced

FEATURES, HIDDEN = (50, 200, 602), (128, 512, 1024)
SIZE, EXTRA = 8000, 137
TURNS = 5  # of which the first is not timed
PAYS = 1.02

Work = Callable[[], object]


@dataclass(frozen=True)
class Subgraph:
    """Edges between `rows` nodes, with edge weights of which those of an edge's two directions differ."""

    indptr: torch.Tensor
    indices: torch.Tensor
    degree: torch.Tensor
    values: torch.Tensor

    @classmethod
    def of(cls, topology: Topology, nodes: NDArray[np.int64], tables: Tables) -> Subgraph:
        found = induced(topology, nodes, tables)
        values = np.random.default_rng(0).random(found.columns.size, np.float32)
        degree = topology.degree(nodes).astype(np.float32)
        return cls(*map(torch.from_numpy, (found.indptr, found.columns, degree, values)))

    @property
    def rows(self) -> int:
        return self.degree.numel()

    def matrix(self, *, weighted: bool = False) -> CSR:
        return CSR(self.indptr, self.indices, self.rows, self.values if weighted else None)


def subgraphs() -> tuple[Subgraph, Subgraph]:
    """Return one whose nodes are some more than a multiple of a chunk's, and the same without those."""
    topology = case_topology("case233k")
    tables = Tables(topology.num_nodes)
    sampler = ImportanceSubgraphs(topology, MEAN, tables, SIZE)
    nodes = next(n for n in map(sampler.sampler.sample, range(1000)) if n.size % ROUNDED_ROWS == EXTRA)
    dropped = np.random.default_rng(0).choice(nodes.size, EXTRA, replace=False)
    return Subgraph.of(topology, nodes, tables), Subgraph.of(topology, np.delete(nodes, dropped), tables)


class Step:
    """Forward and backward passes of a layer, on its own input.

    Args:
        rows: of the input.
        sizes: width of the input and of the output.
        inner: ask for the input's gradient.
        products: the order of A H W.
    """

    def __init__(self, rows: int, sizes: tuple[int, int], *, inner: bool = True, products: Products = "auto") -> None:
        generator = torch.Generator().manual_seed(0)
        self.layer = SageLayer.as_module()(*sizes, products=products)
        self.layer.reset(generator)
        self._input = torch.randn(rows, sizes[0], generator=generator).requires_grad_(inner)
        self._direction = torch.randn(rows, sizes[1], generator=generator)

    def __call__(self, block: Block) -> None:
        out = self.layer(block, self._input, lambda rows: rows)
        asked = [x for x in (self._input, *self.layer.parameters()) if x.requires_grad]
        torch.autograd.grad(out, asked, self._direction)


def transposing(graph: Subgraph, sizes: tuple[int, int]) -> dict[str, Work]:
    step = Step(graph.rows, sizes)

    def work(transpose: Callable[[CSR], CSR]) -> Work:
        def run() -> None:
            matrix = graph.matrix(weighted=True)
            step(Block(matrix, graph.degree, transposed=transpose(matrix)))

        return run

    return {
        "counting pass": work(CSR.transpose),
        "Algorithm 6": work(CSR.transpose_symmetric),
        "none": work(lambda matrix: matrix),
    }


def ordering(graph: Subgraph, sizes: tuple[int, int], *, inner: bool) -> dict[str, Work]:
    """First the order that `auto` does not take, then, with a star, the one that it takes."""

    def work(products: Products) -> Work:
        step = Step(graph.rows, sizes, inner=inner, products=products)
        return lambda: step(symmetric_block(graph))

    entries, rows = graph.indices.numel(), graph.rows
    second = SageLayer(*sizes).transforms_first(entries, rows, rows, weights=True, inputs=inner)
    orders: tuple[Products, Products] = ("aggregate-first", "transform-first")
    other, taken = orders if second else orders[::-1]
    return {other: work(other), f"{taken}*": work(taken)}


def clipping(whole: Subgraph, clipped: Subgraph, sizes: tuple[int, int]) -> dict[str, Work]:
    def work(graph: Subgraph) -> Work:
        step = Step(graph.rows, sizes)
        return lambda: step(symmetric_block(graph))

    return {"any size": work(whole), "clipped": work(clipped)}


def symmetric_block(graph: Subgraph) -> Block:
    """Return a Block without edge weights, which is its own transpose."""
    matrix = graph.matrix()
    return Block(matrix, graph.degree, transposed=matrix)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("threads", [1, 2])
def test_propagation(benchmark: Any, threads: int) -> None:
    whole, clipped = subgraphs()
    print(f"\n{threads} threads, {clipped.rows} nodes, {clipped.indices.numel()} entries; ms, and times as fast")
    ratios: dict[str, list[float]] = {}

    def table() -> None:
        for sizes in [(f, h) for f in FEATURES for h in HIDDEN]:
            for title, works in groups(whole, clipped, sizes).items():
                least = turns(works, threads)
                first = least[0]
                cells = [f"{next(iter(works))} {first:.1f}"]
                for name, ms in list(zip(works, least, strict=True))[1:]:
                    label = "auto" if name.endswith("*") else name
                    ratios.setdefault(f"{title}: {label}", []).append(first / ms)
                    cells.append(f"{name} x{first / ms:.2f}")
                print(f"{f'{sizes[0]} to {sizes[1]}':<12}{title:<18}{', '.join(cells)}", flush=True)

    with torch_threads(threads):
        benchmark.pedantic(table, rounds=1)
    for name, found in ratios.items():
        middle = float(np.median(found))
        verdict = f"pays x{middle:.2f}" if middle > PAYS else f"does not pay (x{middle:.2f})"
        print(f"{name:<40}{verdict}, {min(found):.2f} to {max(found):.2f}")


def groups(whole: Subgraph, clipped: Subgraph, sizes: tuple[int, int]) -> dict[str, dict[str, Work]]:
    return {
        "transpose": transposing(clipped, sizes),
        "products, input": ordering(clipped, sizes, inner=False),
        "products, inner": ordering(clipped, sizes, inner=True),
        "nodes": clipping(whole, clipped, sizes),
    }


def turns(works: dict[str, Work], threads: int) -> list[float]:
    """Return the least milliseconds of each."""
    clock = time.process_time if threads == 1 else time.perf_counter
    least = [np.inf] * len(works)
    for turn in range(TURNS):
        order = list(enumerate(works.values()))
        for i, work in order if turn % 2 else reversed(order):
            start = clock()
            work()
            if turn:
                least[i] = min(least[i], 1e3 * (clock() - start))
    return least


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
