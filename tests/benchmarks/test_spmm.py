"""Sparse times dense: engines beside each other, slabs of columns and splits between threads, and growth.

Engines take turns (A B C C B A), each first once untimed; with one thread it is CPU time, with two wall time,
the least in both. "Of a copy" is the rate at which source rows are read, over the rate at which as many
threads copy 512 MB in the same run (bytes read and written); it is above 1 where rows come from a cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from benchmarks.cases import case_topology
from benchmarks.conftest import random_rows
from benchmarks.growth import measure

from harness.graph.csr import CSR
from harness.graph.spmm import (
    ENGINES,
    LINE,
    MOST,
    choose_engine,
    engine_problem,
    held_vectors,
    multiply_by_numba,
    multiply_rows,
    run_chunks,
)
from harness.sampling.sample import Tables
from harness.sampling.subgraphs import induced

CPU = torch.device("cpu")
ON_CPUS = [name for name in ENGINES if name != "triton"]
WIDTHS = (50, 128, 200, 512, 602, 1024)
SIZE = 8000
LEAST = 0.05  # seconds for which each engine is timed at least

Work = Callable[[], object]


def subgraph() -> CSR:
    """Edges between 8,000 nodes of case233k, drawn by degree."""
    topology = case_topology("case233k")
    tables = Tables(topology.num_nodes)
    degree = topology.degree(np.arange(topology.num_nodes))
    chances = degree / degree.sum()
    nodes = np.random.default_rng(0).choice(topology.num_nodes, SIZE, replace=False, p=chances)
    found = induced(topology, np.sort(nodes), tables)
    return CSR(torch.from_numpy(found.indptr), torch.from_numpy(found.columns), nodes.size)


def case50k() -> CSR:
    topology = case_topology("case50k")
    indptr, indices = (torch.from_numpy(np.array(part)) for part in (topology.indptr, topology.indices))
    return CSR(indptr, indices, topology.num_nodes)


def uniform() -> CSR:
    """100,000 nodes with 50 entries each, at random."""
    columns = np.random.default_rng(0).integers(0, 100_000, 5_000_000, dtype=np.int32)
    return CSR(torch.arange(0, 5_000_001, 50), torch.from_numpy(columns), 100_000)


CASES = {"subgraph": (subgraph, WIDTHS), "case50k": (case50k, (50, 128, 602)), "uniform": (uniform, (128,))}


@contextmanager
def threads_of(count: int) -> Iterator[None]:
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(1)


def least_seconds(works: dict[str, Work], threads: int) -> dict[str, float]:
    """Return the least seconds of each, which take turns."""
    clock = time.process_time if threads == 1 else time.perf_counter
    took: dict[str, list[float]] = {name: [] for name in works}
    turn = 0
    while turn < 4 or min(map(sum, took.values())) < LEAST:
        for name in list(works)[:: 1 if turn % 2 else -1]:
            start = clock()
            works[name]()
            took[name].append(clock() - start)
        turn += 1
    return {name: min(seconds[1:]) for name, seconds in took.items()}


def copied(threads: int) -> float:
    """Return bytes a second, read and written, of a copy that fits into no cache."""
    source = np.ones(2**26)
    target = np.zeros_like(source)
    bounds = np.linspace(0, source.size, threads + 1).astype(int)

    def part(number: int) -> None:
        span = slice(bounds[number], bounds[number + 1])
        np.copyto(target[span], source[span])

    seconds = least_seconds({"copy": lambda: run_chunks(part, threads)}, threads)["copy"]
    return 2 * source.nbytes / seconds


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_engines_on_a_gpu(case: str) -> None:
    """Print milliseconds of both products, in turns; what `choose_engine` takes is to follow from it."""
    make, widths = CASES[case]
    matrix = make().to(torch.device("cuda"))
    print(f"\n{torch.cuda.get_device_name()}: {case}, {matrix.nnz} entries")
    for width in widths:
        x = torch.rand((matrix.num_cols, width), device="cuda")
        times: dict[str, list[float]] = {"triton": [], "torch": []}
        for turn in range(21):
            for name, taken in times.items():
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                ENGINES[name].multiply(matrix, x)
                end.record()
                end.synchronize()
                if turn:  # the first one compiles
                    taken.append(start.elapsed_time(end))
        print(f"{width:>6}", {name: round(float(np.median(taken)), 3) for name, taken in times.items()})


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_engines(benchmark: Any, case: str, threads: int) -> None:
    make, widths = CASES[case]
    plain = make()
    random = np.random.default_rng(1)
    values = torch.from_numpy(random.random(plain.nnz, np.float32))
    weighted = CSR(plain.indptr, plain.indices, plain.num_cols, values)
    names = [name for name in ON_CPUS if name != "dgl" or engine_problem("dgl") is None]

    def table() -> Iterator[str]:
        bandwidth = copied(threads)
        yield f"\n{case}, {plain.nnz} entries, {threads} threads; a copy: {bandwidth / 1e9:.1f} GB/s"
        for width in widths:
            x = torch.from_numpy(random.random((plain.num_cols, width), np.float32))
            for kind, matrix in (("plain", plain), ("weighted", weighted)):
                works: dict[str, Work] = {
                    name: partial(choose_engine(name, device=CPU).multiply, matrix, x) for name in names
                }
                seconds = least_seconds(works, threads)
                rate = 4 * width * plain.nnz / seconds["numba"]
                others = ", ".join(f"x{seconds[name] / seconds['numba']:.2f} {name}" for name in names[:-1])
                yield (
                    f"{width:>6} {kind:<9}{1e3 * seconds['numba']:>9.2f} ms {rate / 1e9:>6.1f} GB/s, "
                    f"{rate / bandwidth:.2f} of a copy; {others}"
                )

    with threads_of(threads):
        benchmark.pedantic(lambda: print(*table(), sep="\n"), rounds=1)


@pytest.mark.parametrize("threads", [1, 2])
def test_slabs(benchmark: Any, threads: int) -> None:
    """Slabs of several widths, and columns rather than rows for each thread."""
    matrix = subgraph()

    def table() -> Iterator[str]:
        yield f"\nsubgraph, {threads} threads: ms with slabs of so many bytes"
        for width in WIDTHS:
            x = torch.rand(matrix.num_cols, width)
            works: dict[str, Work] = {
                str(held * LINE): partial(multiply_in_slabs, matrix, x, held) for held in (2, 4, 8, MOST)
            }
            if threads > 1:
                works["by columns"] = partial(by_columns, matrix, x, threads)
            seconds = least_seconds(works, threads)
            yield f"{width:>6}" + "".join(f"   {name}: {1e3 * took:.2f}" for name, took in seconds.items())

    with threads_of(threads):
        benchmark.pedantic(lambda: print(*table(), sep="\n"), rounds=1)


def multiply_in_slabs(matrix: CSR, x: torch.Tensor, held: int) -> torch.Tensor:
    with mock.patch("harness.graph.spmm.held_vectors", return_value=held):
        return multiply_by_numba(matrix, x)


def by_columns(matrix: CSR, x: torch.Tensor, threads: int) -> torch.Tensor:
    """Multiply, each thread all rows of columns of its own, which begin at cache lines."""
    out = torch.empty(matrix.num_rows, x.shape[1])
    lanes = LINE // x.itemsize
    bounds = np.linspace(0, -(-x.shape[1] // lanes), threads + 1).astype(int) * lanes
    structure = matrix.indptr.numpy(), matrix.indices.numpy(), None

    def part(number: int) -> None:
        columns = slice(bounds[number], bounds[number + 1])
        dense = x.numpy()[:, columns], out.numpy()[:, columns]
        multiply_rows(0, matrix.num_rows, *structure, *dense, held_vectors())

    run_chunks(part, threads)
    return out


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("name", ON_CPUS)
def test_growth(benchmark: Any, name: str, weighted: bool, edges: int) -> None:
    """64 columns."""
    if name == "dgl" and (problem := engine_problem("dgl")):
        pytest.skip(problem)
    indptr, indices, rows = random_rows(edges)
    values = torch.from_numpy(np.random.default_rng(1).random(edges, np.float32)) if weighted else None
    matrix = CSR(torch.from_numpy(indptr), torch.from_numpy(indices), rows, values)
    engine = choose_engine(name, device=CPU)
    dense = torch.ones(rows, 64)
    kind = "weighted" if weighted else "plain"
    measure(benchmark, lambda: engine.multiply(matrix, dense), f"spmm {name} {kind}", edges)
