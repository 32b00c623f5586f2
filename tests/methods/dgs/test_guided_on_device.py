"""Guided draws by torch's operations are those of the compiled kernel; chances are also found by search."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from harness_methods.dgs.guided_sampling import GuidedSampler, GuidedSamplerOnDevice, RowsOnDevice
from support.draws import DrawCase
from support.draws import inclusion as by_search

from harness.graph.csr import pointers, row_of_entries, running_sums
from harness.sampling.layer_kernels import inclusion
from harness.sampling.sample import GraphOnDevice

NODES, CPU = 60, torch.device("cpu")
RNG = np.random.default_rng(4)
LOCAL = RNG.random(NODES) < 0.4
IMPORTANCE = RNG.random(NODES).astype(np.float32)
IMPORTANCE[::7] = 0


def rows_of(sizes: list[int]) -> RowsOnDevice:
    ends = pointers(torch.tensor(sizes))
    return RowsOnDevice.of(ends, row_of_entries(ends, sum(sizes)), max(sizes, default=0))


@pytest.mark.parametrize("sizes", [[], [0], [1, 0, 9, 3, 0], [4, 4], [33, 1, 64, 65]])
def test_running_sums_are_of_a_row_alone(sizes: list[int]) -> None:
    rows, rng = rows_of(sizes), np.random.default_rng(len(sizes))
    values = torch.from_numpy(rng.exponential(size=sum(sizes)) * 10.0 ** (15 * rng.integers(-1, 2, sum(sizes))))
    found = torch.split(running_sums(values, rows.place, rows.most), sizes)
    for got, row in zip(found, torch.split(values, sizes), strict=True):
        np.testing.assert_allclose(got.numpy(), np.cumsum(row.numpy()), rtol=1e-14)


KINDS: dict[str, Any] = {
    "level": lambda rng, n: np.ones(n),
    "random": lambda rng, n: rng.exponential(size=n),
    "zeros": lambda rng, n: rng.exponential(size=n) * (rng.random(n) < 0.5),
    "steep": lambda rng, n: 10.0 ** -rng.integers(0, 60, n),
    "nothing": lambda rng, n: np.zeros(n),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("whole", [True, False])
def test_chances_of_rows_are_those_of_the_host(kind: str, whole: bool) -> None:
    rng, degrees = np.random.default_rng(7), [5, 0, 1, 12, 40, 0]
    rows = rows_of(degrees)
    for _ in range(20):
        weights, sizes = KINDS[kind](rng, sum(degrees)), rng.uniform(0, 14, len(degrees))
        sizes = np.round(sizes) if whole else sizes
        found = rows.inclusion(torch.from_numpy(weights), torch.from_numpy(sizes)).numpy()
        parts = np.split(found, np.cumsum(degrees)[:-1]), np.split(weights, np.cumsum(degrees)[:-1])
        for got, row, size in zip(*parts, sizes, strict=True):
            np.testing.assert_allclose(got, inclusion(row, size), rtol=1e-12)
            if kind in ("level", "random"):
                np.testing.assert_allclose(got, by_search(row[None], size)[0], rtol=1e-9)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "weighted"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DrawCase:
    return DrawCase(tmp_path_factory.mktemp("graph"), NODES, request.param)


@pytest.mark.quick(8)
@pytest.mark.parametrize("fanout", [0, 1, 3, 6, 100, -1])
@pytest.mark.parametrize("deviation", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("unbiased", [False, True], ids=["mean", "unbiased"])
def test_a_draw_is_that_of_the_kernel(case: DrawCase, fanout: int, deviation: float, unbiased: bool) -> None:
    source: Any = SimpleNamespace(topology=case.topology, tables=case.tables, local=LOCAL)
    host = GuidedSampler(source, [fanout, fanout], IMPORTANCE, deviation, unbiased)
    given = torch.from_numpy(LOCAL), [fanout, fanout], torch.from_numpy(IMPORTANCE)
    on_device = GuidedSamplerOnDevice(GraphOnDevice.of(case.topology, CPU), *given, deviation, unbiased)
    for seed, count in ((0, 0), (1, 1), (2, 20), (3, NODES), (2**62 + 1, NODES)):
        targets = np.random.default_rng(seed).permutation(NODES)[:count].astype(np.int64)
        found, want = on_device.sample(targets, seed), host.sample(targets, seed)
        assert found.targets == want.targets == count
        for layer, layer_of_host in zip(found.layers, want.layers, strict=True):
            for name in ("sources", "indptr", "indices"):
                tensor, array = getattr(layer, name).numpy(), getattr(layer_of_host, name)
                assert tensor.dtype == array.dtype
                np.testing.assert_array_equal(tensor, array)
            for name in ("values", "dst_scale"):
                tensor, array = getattr(layer, name), getattr(layer_of_host, name)
                assert (tensor is None) == (array is None)
                if array is not None:
                    np.testing.assert_allclose(tensor.numpy(), array, rtol=1e-12)
            np.testing.assert_array_equal(layer.degree.numpy(), case.topology.degree(layer_of_host.sources))
