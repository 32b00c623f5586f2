"""Layers with a history by torch's operations are those of the compiled kernels, entry for entry."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from harness_methods.vrgcn import HistoryOnDevice, HistorySample, HistorySampler, HistorySamplerOnDevice

from harness.check.graphs import random_graph
from harness.graph.csr import Topology
from harness.graph.kernels import batch_seed
from harness.sampling.sample import Tables

NODES, CPU = 70, torch.device("cpu")


def source_of(weighted: bool) -> Any:
    graph = random_graph(8, NODES, degree=6, weighted=weighted)
    assert (np.diff(graph.indptr) == 0).any()
    local = np.random.default_rng(2).random(NODES) < 0.4
    topology = Topology(graph.indptr, graph.indices, graph.weights)
    return SimpleNamespace(topology=topology, tables=Tables(NODES), local=local, device=CPU)


@pytest.mark.quick(3)
@pytest.mark.parametrize("fanouts", [[2, 3], [0, 1], [-1, 2], [2, -1], [100, 4]])
@pytest.mark.parametrize("attends", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("count", [0, 1, 15])
def test_a_batch_is_that_of_the_host(fanouts: list[int], attends: bool, weighted: bool, count: int) -> None:
    source = source_of(weighted)
    samplers = HistorySampler(source, fanouts, attends), HistorySamplerOnDevice(source, fanouts, attends)
    for batch in range(4):
        targets = np.random.default_rng(batch).permutation(NODES)[:count].astype(np.int64)
        want, found = (sampler.sample(targets, batch_seed(1, 0, 0, batch)) for sampler in samplers)
        assert found.stats == want.stats
        assert len(found.layers) == len(want.layers) == 3
        for layer, host in zip(found.layers, want.layers, strict=True):
            assert isinstance(layer, HistoryOnDevice) == isinstance(host, HistorySample)
            for name in ("sources", "indptr", "indices", "destinations"):
                tensor, array = getattr(layer, name).numpy(), getattr(host, name)
                assert tensor.dtype == array.dtype
                np.testing.assert_array_equal(tensor, array)
            for name in ("values", "dst_scale"):
                tensor, array = getattr(layer, name), getattr(host, name)
                assert (tensor is None) == (array is None)
                if array is not None:
                    np.testing.assert_array_equal(tensor.numpy(), array)
            np.testing.assert_array_equal(layer.degree.numpy(), source.topology.degree(host.sources))
            if isinstance(host, HistorySample) and isinstance(layer, HistoryOnDevice):
                assert layer.fresh == host.fresh
                np.testing.assert_array_equal(layer.historical.numpy(), host.historical)
