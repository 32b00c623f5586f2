"""Samplers of other libraries are held to what the shipped methods are, and their draws to the graph."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from harness_methods.peers import DGLSampler, OfClusters, PeerSampler, PyGSampler

from harness.check import check_method
from harness.check.graphs import random_graph
from harness.graph.csr import Topology
from harness.plugin import LayerSample, Tables, induce

GRAPH = random_graph(5, 80, degree=8, weighted=True)


def needed(library: str, *, draws: bool = True) -> None:
    pytest.importorskip("dgl" if library == "dgl" else "torch_geometric")
    if library == "pyg" and draws:
        from torch_geometric import typing

        if not (typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE):
            pytest.skip("torch_geometric draws with pyg-lib or torch-sparse, neither of which is installed")


def wrong(library: str) -> set[str]:
    """The checks that a library fails: torch-sparse never draws some neighbours (its issue 385)."""
    if library == "dgl" or importlib.util.find_spec("pyg_lib"):
        return set()
    indptr, neighbours = torch.tensor([0, 8] + [8] * 8), torch.arange(1, 9)
    draws = (torch.ops.torch_sparse.neighbor_sample(indptr, neighbours, torch.tensor([0]), [1], False, True)[3]
             for _ in range(400))  # fmt: skip
    return set() if 7 in torch.cat([*draws]).tolist() else {"unbiased"}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("library", ["dgl", "pyg"])
def test_a_peer_is_held_to_what_methods_are_held_to(library: str) -> None:
    needed(library)
    report = check_method(f"{library}-neighbor", plugin="harness_methods.peers", limit_s=100)
    held = {each.check for each in report.findings if each.state == "ok"}
    assert held >= {"exact", "bytes", "resumes", "deterministic"}, "\n".join(report.lines)
    assert {each.check for each in report.findings} - held == wrong(library), "\n".join(report.lines)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pygs_clusters_are_held_to_what_methods_are_held_to() -> None:
    needed("pyg", draws=False)
    report = check_method("pyg-cluster", plugin="harness_methods.peers", limit_s=100)
    held = {each.check for each in report.findings if each.state == "ok"}
    assert report.ok, "\n".join(report.lines)
    assert held >= {"exact", "bytes", "resumes", "deterministic"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pygs_walks_are_held_to_what_methods_are_held_to() -> None:
    pytest.importorskip("torch_sparse")
    report = check_method("pyg-saint", plugin="harness_methods.peers", limit_s=100)
    held = {each.check for each in report.findings if each.state == "ok"}
    assert report.ok, "\n".join(report.lines)
    assert held >= {"bytes", "resumes", "deterministic"}


def test_pygs_batch_of_clusters_is_the_subgraph_of_their_nodes() -> None:
    needed("pyg", draws=False)
    cluster = np.random.default_rng(0).integers(0, 6, 80)
    source: Any = SimpleNamespace(topology=Topology(GRAPH.indptr, GRAPH.indices, GRAPH.weights), depth=2)
    targets = np.concatenate([np.flatnonzero(cluster == each) for each in (4, 0, 3)])
    drawn = OfClusters(source, cluster, 6).sample(targets, 0)
    expected = induce(source.topology, targets, Tables(80))
    assert drawn.targets is None
    for layer in drawn.layers:
        assert isinstance(layer, LayerSample)
        assert sorted(layer.sources) == sorted(targets)  # in whatever order
        at = [targets.tolist().index(node) for node in layer.sources]
        assert np.array_equal(dense(layer), dense(expected)[np.ix_(at, at)])
    (nothing, _) = OfClusters(source, cluster, 6).sample(targets[:0], 0).layers
    assert nothing.edges == 0


def dense(layer: LayerSample) -> np.ndarray:
    matrix = np.zeros((layer.num_dst, layer.sources.size))
    assert layer.values is not None
    matrix[np.repeat(np.arange(layer.num_dst), np.diff(layer.indptr)), layer.indices] = layer.values
    return matrix


@pytest.mark.parametrize(("library", "made"), [("dgl", DGLSampler), ("pyg", PyGSampler)])
def test_what_a_peer_draws_is_of_the_graph(library: str, made: type[PeerSampler]) -> None:
    needed(library)
    assert GRAPH.weights is not None
    topology: Any = SimpleNamespace(topology=Topology(GRAPH.indptr, GRAPH.indices, GRAPH.weights))
    sampler = made(topology, [3, 3])
    targets = np.array([7, 3, 50])
    drawn = sampler.sample(targets, 11)
    assert np.asarray(drawn.layers[-1].destinations).tolist() == targets.tolist()
    for layer, fanout in zip(drawn.layers, [3, 3], strict=True):
        sources, indptr, indices = map(np.asarray, (layer.sources, layer.indptr, layer.indices))
        assert len(set(sources.tolist())) == sources.size
        for at, node in enumerate(np.asarray(layer.destinations).tolist()):
            own, row = slice(indptr[at], indptr[at + 1]), slice(GRAPH.indptr[node], GRAPH.indptr[node + 1])
            weights = dict(zip(GRAPH.indices[row].tolist(), GRAPH.weights[row].tolist(), strict=True))
            found = sources[indices[own]].tolist()
            assert len(found) == len(set(found)) == min(fanout, len(weights))
            assert layer.values is not None
            assert np.asarray(layer.values)[own].tolist() == [weights[source] for source in found]
            assert layer.dst_scale is not None
            assert layer.dst_scale[at] == len(weights) / max(1, len(found))
    again = sampler.sample(targets, 11)
    assert all(
        np.array_equal(np.asarray(a.sources), np.asarray(b.sources))
        for a, b in zip(drawn.layers, again.layers, strict=True)
    )
    assert [each.edges for each in sampler.sample(targets[:0], 3).layers] == [0, 0]
