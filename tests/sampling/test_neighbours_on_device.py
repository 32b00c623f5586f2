"""Draws by torch's operations are those of the compiled kernels; tests by chance err once in a million runs."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import stats
from support.draws import DrawCase

from harness.graph.kernels import below, below_on_device, next_u64, stream, stream_bits
from harness.sampling.neighbours import draw_neighbours as draw_on_host
from harness.sampling.neighbours import draw_on_device, sample_layers, sample_on_device
from harness.sampling.sample import GraphOnDevice, LayerOnDevice, LayerSample

NODES, CPU, ERROR = 50, torch.device("cpu"), 1e-6


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "weighted"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DrawCase:
    return DrawCase(tmp_path_factory.mktemp("graph"), NODES, request.param)


@pytest.mark.parametrize("seed", [0, 1, 2**40 + 3, 2**63 - 1])
def test_streams_are_those_of_kernels(seed: int) -> None:
    indices, bounds = np.array([0, 1, 7, 2**31, 2**40]), np.array([1, 2, 1000, 2**31 - 1, 2**31])
    bits = stream_bits(seed, torch.from_numpy(indices), 4)
    for column, index in enumerate(indices):
        state = np.uint64(stream(seed, index))  # to a kernel a small int of Python's is signed
        for row in range(4):
            state, value = map(np.uint64, next_u64(state))
            assert int(bits[row, column]) % 2**64 == int(value)
            got = below_on_device(bits[row, column].expand(bounds.size), torch.from_numpy(bounds))
            assert got.tolist() == [below(value, bound) for bound in bounds]


def same(layer: LayerOnDevice, host: LayerSample, case: DrawCase) -> None:
    for name in ("sources", "indptr", "indices", "dst_scale"):
        found, want = getattr(layer, name).numpy(), getattr(host, name)
        assert found.dtype == want.dtype
        np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(layer.degree.numpy(), case.topology.degree(host.sources))
    assert (layer.values is None) == (host.values is None)
    if layer.values is not None:
        np.testing.assert_array_equal(layer.values.numpy(), host.values)
    assert layer.num_dst == host.num_dst
    assert layer.edges == host.edges
    np.testing.assert_array_equal(layer.destinations.numpy(), host.destinations)


@pytest.mark.parametrize("fanout", [0, 1, 2, 3, 8, 100, -1])
@pytest.mark.parametrize("size", [0, 1, 20, NODES])
def test_a_draw_is_the_kernels(case: DrawCase, fanout: int, size: int) -> None:
    graph = GraphOnDevice.of(case.topology, CPU)
    for seed in (0, 5, 2**62 + 1):
        targets = np.random.default_rng(seed).permutation(NODES)[:size]
        layer = draw_on_device(graph, torch.from_numpy(targets), fanout, seed)
        same(layer, draw_on_host(case.topology, targets, fanout, seed, case.tables), case)


def test_layers_are_those_of_the_host(case: DrawCase) -> None:
    graph, fanouts = GraphOnDevice.of(case.topology, CPU), [2, -1, 3]
    targets = np.array([4, 40, 11])

    def draw(nodes: np.ndarray, fanout: int, seed: int, *, own: bool) -> LayerSample:
        return draw_on_host(case.topology, nodes, fanout, seed, case.tables, own=own)

    found, want = sample_on_device(graph, targets, fanouts, 9), sample_layers(draw, targets, fanouts, 9)
    assert found.targets == want.targets == 3
    for layer, host in zip(found.layers, want.layers, strict=True):
        same(layer, host, case)
        blocks = [each.block(case.topology, device=CPU, dtype=torch.float32) for each in (layer, host)]
        rows = torch.rand(len(host.sources), 3)
        assert torch.equal(blocks[0].multiply(rows), blocks[1].multiply(rows))
        assert torch.equal(blocks[0].degree, blocks[1].degree)
        assert torch.equal(blocks[0].dst_scale, blocks[1].dst_scale)


@pytest.mark.quick(1)
def test_of_a_row_every_subset_is_as_likely(case: DrawCase) -> None:
    graph, degrees = GraphOnDevice.of(case.topology, CPU), np.diff(case.topology.indptr)
    node = int(np.flatnonzero((degrees >= 6) & (degrees <= 8))[0])
    subsets = dict.fromkeys(combinations(np.flatnonzero(case.matrix[node]).tolist(), 3), 0)
    for seed in range(60 * len(subsets)):
        layer = draw_on_device(graph, torch.tensor([node]), 3, seed)
        subsets[tuple(layer.sources[1:].sort().values.tolist())] += 1  # a KeyError if one is there twice
    assert stats.chisquare(list(subsets.values())).pvalue > ERROR
