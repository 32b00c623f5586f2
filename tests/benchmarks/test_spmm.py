"""Sparse times dense, by engine, with and without edge weights: 64 columns, one thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.conftest import random_rows
from benchmarks.growth import measure

from harness.graph.csr import CSR
from harness.graph.spmm import ENGINES, choose_engine, dgl_problem

WIDTH = 64


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("name", ENGINES)
def test_spmm(benchmark: Any, name: str, weighted: bool, edges: int) -> None:
    if name == "dgl" and (problem := dgl_problem()):
        pytest.skip(problem)
    indptr, indices, rows = random_rows(edges)
    values = np.random.default_rng(1).random(edges, dtype=np.float32) if weighted else None
    matrix = CSR(
        torch.from_numpy(indptr),
        torch.from_numpy(indices),
        rows,
        None if values is None else torch.from_numpy(values),
    )
    engine = choose_engine(name, weighted=weighted, device=torch.device("cpu"))
    dense = torch.ones(rows, WIDTH)
    measure(
        benchmark,
        lambda: engine.multiply(matrix, dense),
        f"spmm {name} {'weighted' if weighted else 'plain'}",
        edges,
    )
