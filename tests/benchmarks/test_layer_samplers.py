"""Layer-wise sampling at one thread: LADIES, 5 layers of 512 nodes for 512 targets, with its Blocks.

On the graph case233k, see `cases`. Run with `-s` to see batches a second.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
from benchmarks.cases import case_topology
from benchmarks.growth import WARMUP, slope
from harness_methods.fastgcn import GlobalSampler
from scipy import sparse

from harness.graph.block import MEAN, SYMMETRIC, Propagation
from harness.graph.csr import Topology
from harness.sampling.layerwise import LayerSampler
from harness.sampling.sample import Tables

BATCH, SIZES = 512, [512] * 5
BATCHES = 30
CPU = torch.device("cpu")

Kind = Literal["poisson", "ladies", "fastgcn"]
Case = tuple[Topology, list[np.ndarray]]


@pytest.fixture(scope="module")
def case() -> Case:
    """The graph, and the targets of batches."""
    topology, rng = case_topology("case233k"), np.random.default_rng(0)
    return topology, [rng.choice(topology.num_nodes, BATCH, replace=False) for _ in range(BATCHES)]


def make_sampler(kind: Kind, topology: Topology, norm: Propagation) -> LayerSampler | GlobalSampler:
    tables = Tables(topology.num_nodes)
    if kind == "fastgcn":
        return GlobalSampler(topology, norm, tables)
    return LayerSampler(topology, norm, tables, estimator=kind)


def sampling(
    topology: Topology, batches: list[np.ndarray], sampler: LayerSampler | GlobalSampler, sizes: list[int]
) -> Callable[[], None]:
    """Work that samples the next batch and builds its Blocks."""
    turns = itertools.count()

    def work() -> None:
        turn = next(turns)
        for layer in sampler.sample(batches[turn % len(batches)], sizes, turn).layers:
            layer.block(topology, device=CPU, dtype=torch.float32)

    return work


@pytest.mark.parametrize("norm", [MEAN, SYMMETRIC])
@pytest.mark.parametrize("kind", ["poisson", "ladies", "fastgcn"])
def test_batches(benchmark: Any, case: Case, kind: Kind, norm: Propagation) -> None:
    topology, batches = case
    work = sampling(topology, batches, make_sampler(kind, topology, norm), SIZES)
    benchmark.pedantic(work, rounds=2 * BATCHES, warmup_rounds=WARMUP)
    if benchmark.stats:
        print(f" {1 / benchmark.stats.stats.median:.0f} batches/s", end="")


@pytest.mark.parametrize("norm", [MEAN, SYMMETRIC])
@pytest.mark.parametrize("kind", ["poisson", "ladies"])
def test_beside_the_public_procedure(benchmark: Any, case: Case, kind: Kind, norm: Propagation) -> None:
    """In turn, a batch each; CPU seconds of the one thread, which other processes disturb least."""
    topology, batches = case
    ours = sampling(topology, batches, make_sampler(kind, topology, norm), SIZES)
    works, seconds = (ours, public_procedure(topology, batches)), []

    def turn() -> None:
        clock = [time.thread_time()]
        for work in works:
            work()
            clock.append(time.thread_time())
        seconds.append(np.diff(clock))

    benchmark.pedantic(turn, rounds=BATCHES, warmup_rounds=WARMUP)
    taken = np.array(seconds[WARMUP:] or seconds)
    low, ratio, high = np.percentile(taken[:, 1] / taken[:, 0], (10, 50, 90))
    fast, slow = 1 / np.median(taken, axis=0)
    best, theirs = 1 / taken.min(0)
    print(
        f"\n{kind}, {norm}: {fast:.0f} batches/s, the public procedure {slow:.1f}; median ratio of turns"
        f" {ratio:.1f} (80 % of them {low:.1f} to {high:.1f}); at best {best:.0f} and {theirs:.1f}"
    )


def public_procedure(topology: Topology, batches: list[np.ndarray]) -> Callable[[], None]:
    """LADIES as the authors' code goes about it, with scipy and numpy.

    The Laplacian is D^-1 (A + I). For each layer: slice its rows, sum their squares by column, choose nodes
    without replacement in proportion, add the batch's, slice the columns, scale them by 1 / (s p), normalise
    the rows, and make a torch matrix of it.
    """
    nodes = topology.num_nodes
    ones = np.ones(topology.indices.size, np.float32)
    own = sparse.eye(nodes, dtype=np.float32, format="csr")
    looped = sparse.csr_matrix((ones, topology.indices, topology.indptr), (nodes, nodes)) + own
    laplacian = sparse.diags(1 / looped.sum(1).A1) @ looped
    rng, turns = np.random.default_rng(0), itertools.count()

    def work() -> None:
        batch = batches[next(turns) % len(batches)]
        above = batch
        for size in reversed(SIZES):
            rows = laplacian[above]
            squares = rows.multiply(rows).sum(0).A1
            p = squares / squares.sum()
            size = min(size, np.count_nonzero(p))
            below = np.union1d(rng.choice(nodes, size, replace=False, p=p), batch)
            block = rows[:, below].multiply(1 / (size * p[below])).tocsr()
            total = block.sum(1).A1
            block = (sparse.diags(1 / np.where(total > 0, total, 1)) @ block).tocoo()
            places = torch.from_numpy(np.stack([block.row, block.col]).astype(np.int64))
            torch.sparse_coo_tensor(places, torch.from_numpy(block.data.astype(np.float32)), block.shape)
            above = below

    return work


@pytest.mark.parametrize("kind", ["poisson", "ladies", "fastgcn"])
def test_growth(benchmark: Any, case: Case, kind: Kind) -> None:
    """CPU time by the edges into the destinations: from 128 targets to a seventh of the nodes."""
    topology, _ = case
    sampler, rng = make_sampler(kind, topology, SYMMETRIC), np.random.default_rng(0)

    def work() -> dict[int, float]:
        least: dict[int, float] = {}
        for targets in 2 ** np.arange(7, 16):
            batches = [rng.choice(topology.num_nodes, targets, replace=False) for _ in range(10)]
            draw, seconds = sampling(topology, batches, sampler, [targets]), []
            for _ in batches:
                start = time.thread_time()
                draw()
                seconds.append(time.thread_time() - start)
            least[int(np.mean([topology.degree(batch).sum() for batch in batches]))] = min(seconds)
        return least

    least = benchmark.pedantic(work, rounds=1, warmup_rounds=1)
    by_edge = ", ".join(f"{1e9 * seconds / edges:.1f} ns at {edges:,}" for edges, seconds in least.items())
    print(f"\n{kind}: time ~ (scanned edges)^{slope(least)}; an edge takes {by_edge}")
