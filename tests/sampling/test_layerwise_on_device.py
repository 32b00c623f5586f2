"""Layers by torch's operations are those of the compiled kernels: the same nodes, and counts but for rounding."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
import torch
from harness_methods.fastgcn import GlobalSampler, GlobalSamplerOnDevice
from harness_methods.skewed import Skew
from support.draws import inclusion as by_search

from harness.check.graphs import random_graph
from harness.graph.block import MEAN, SYMMETRIC, Propagation
from harness.graph.csr import Topology
from harness.graph.kernels import node_uniforms, uniform_on_device
from harness.sampling.layer_kernels import inclusion, node_uniform
from harness.sampling.layerwise import (
    LayerBatch,
    Layers,
    LayerSampler,
    LayersOnDevice,
    Scaled,
    ScaledOnDevice,
    inclusion_on_device,
)
from harness.sampling.sample import LayerOnDevice, LayerSample, Tables

NODES, CPU, RTOL = 300, torch.device("cpu"), 1e-12
LAYERS: tuple[Layers, ...] = get_args(Layers)
VERSIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "ladies": {"estimator": "ladies"},
    "formula": {"skew": Skew("formula", 4)},
    "quadratic": {"skew": Skew("quadratic", 4), "estimator": "ladies"},
    "local": {"local_only": True},
    "local ladies": {"local_only": True, "estimator": "ladies"},
}
SIZES = [[-1, 60, 20], [40, 0, 5], [1, 100, NODES]]


def graph(weighted: bool) -> Topology:
    found = random_graph(5, nodes=NODES, degree=12, weighted=weighted)
    return Topology(found.indptr, found.indices, found.weights)


@pytest.mark.parametrize("seed", [0, 1, 2**62 + 5, 2**63 - 1])
@pytest.mark.parametrize("depth", [0, 1, 7])
def test_numbers_of_nodes_are_those_of_kernels(seed: int, depth: int) -> None:
    nodes = np.array([0, 1, 99, 2**31 - 1])
    found = node_uniforms(seed, depth, torch.from_numpy(nodes))
    assert found.tolist() == [node_uniform(seed, depth, node) for node in nodes]
    ends = uniform_on_device(torch.tensor([-1, 0]))  # all bits, none
    assert ends.tolist() == [1 - 2.0**-53, 0]


WEIGHTS = {
    "uniform": np.ones(50),
    "random": np.random.default_rng(0).exponential(size=50),
    "zeros": np.random.default_rng(1).exponential(size=50) * (np.arange(50) % 3 > 0),
    "steep": 2.0 ** -np.arange(0, 100, 2),
    "tiny": np.where(np.arange(50) < 3, 1.0, 1e-200),
    "huge": np.random.default_rng(2).exponential(size=50) * 1e300,
}


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("size", [0, 1, 2, 3, 10, 31])
def test_chances_are_those_of_the_host(kind: str, size: int) -> None:
    weights = WEIGHTS[kind]
    found = inclusion_on_device(torch.from_numpy(weights), size).numpy()
    np.testing.assert_allclose(found, inclusion(weights, size), rtol=1e-13)
    assert found.sum() == pytest.approx(size, rel=1e-12)
    if kind in ("uniform", "random", "zeros"):
        np.testing.assert_allclose(found, by_search(weights[None], size)[0], rtol=1e-9)


def same(layer: LayerOnDevice, host: LayerSample, topology: Topology) -> None:
    for name in ("sources", "indptr", "indices", "destinations"):
        found, want = getattr(layer, name).numpy(), getattr(host, name)
        assert found.dtype == want.dtype
        np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(layer.degree.numpy(), topology.degree(host.sources))
    for name in ("values", "dst_scale"):
        found, want = getattr(layer, name), getattr(host, name)
        assert (found is None) == (want is None)
        if want is not None:
            np.testing.assert_allclose(found.numpy(), want, rtol=RTOL)
    assert (layer.num_dst, layer.edges) == (host.num_dst, host.edges)
    assert (layer.own is None) == (host.own is None)
    blocks = [each.block(topology, device=CPU, dtype=torch.float64) for each in (layer, host)]
    if host.own is not None:
        for name in ("degree", "at", "rows", "scale", "loop"):
            torch.testing.assert_close(*(getattr(block.own, name) for block in blocks), rtol=RTOL, atol=0)
    rows = torch.rand(len(host.sources), 3, dtype=torch.float64)
    for norm in (MEAN, SYMMETRIC):
        torch.testing.assert_close(*(block.aggregate(rows, norm) for block in blocks), rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(*(block.own_rows(rows) for block in blocks), rtol=RTOL, atol=0)


def same_batch(found: LayerBatch, want: LayerBatch, topology: Topology) -> None:
    assert found.candidates == want.candidates
    assert found.alphas == pytest.approx(want.alphas, rel=RTOL)
    for layer, host in zip(found.layers, want.layers, strict=True):
        assert isinstance(layer, LayerOnDevice)
        assert isinstance(host, LayerSample)
        same(layer, host, topology)


@pytest.mark.quick(8)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("norm", [MEAN, SYMMETRIC])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("layers", LAYERS)
def test_layers_are_those_of_the_host(version: str, norm: Propagation, weighted: bool, layers: Layers) -> None:
    topology, local = graph(weighted), np.random.default_rng(3).random(NODES) < 0.4
    options = {"reads_own": norm is MEAN, "layers": layers, "local": local, **VERSIONS[version]}
    sampler = LayerSampler(topology, norm, Tables(NODES), **options)
    keep = local if options.get("local_only") else None
    scaled = Scaled.of(topology, norm, reads_own=None if layers == "nested" else norm is MEAN, keep=keep)
    how = options.get("skew"), options.get("estimator", "poisson"), layers
    on_device = LayersOnDevice(ScaledOnDevice.of(scaled, CPU), torch.from_numpy(local), *how)
    for seed, sizes in enumerate(SIZES):
        for count in (0, 1, 25):
            targets = np.random.default_rng(seed).permutation(NODES)[:count].astype(np.int64)
            found = LayerBatch(*on_device.sample(targets, sizes, seed))
            same_batch(found, sampler.sample(targets, sizes, seed), topology)


@pytest.mark.parametrize("norm", [MEAN, SYMMETRIC])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("layers", LAYERS)
def test_draws_among_all_nodes_are_those_of_the_host(norm: Propagation, weighted: bool, layers: Layers) -> None:
    topology = graph(weighted)
    sampler = GlobalSampler(topology, norm, Tables(NODES), reads_own=norm is MEAN, layers=layers)
    for seed, sizes in enumerate(SIZES):
        on_device = GlobalSamplerOnDevice(sampler, topology, layers, sizes, CPU)
        for count in (0, 1, 25):
            targets = np.random.default_rng(seed).permutation(NODES)[:count].astype(np.int64)
            same_batch(on_device.sample(targets, sizes, seed), sampler.sample(targets, sizes, seed), topology)
