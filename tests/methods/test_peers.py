"""Samplers of other libraries are held to what the shipped methods are, and their draws to the graph."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from harness_methods.peers import DGLNeighbor, PyGNeighbor, _Peer

from harness import Source
from harness.check import check_method
from harness.check.graphs import random_graph
from harness.graph.csr import Topology

GRAPH = random_graph(5, 80, degree=8, weighted=True)


def needed(peer: type[_Peer]) -> None:
    pytest.importorskip("dgl" if peer is DGLNeighbor else "torch_geometric")
    if peer is PyGNeighbor:
        from torch_geometric import typing

        if not (typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE):
            pytest.skip("torch_geometric draws nothing without pyg-lib or torch-sparse")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("peer", [DGLNeighbor, PyGNeighbor])
def test_a_peer_is_held_to_what_methods_are_held_to(peer: type[_Peer]) -> None:
    needed(peer)
    report = check_method(f"harness_methods.peers:{peer.__name__}", limit_s=100)
    assert report.ok, "\n".join(report.lines)
    assert {each.check for each in report.findings if each.state == "ok"} >= {"exact", "unbiased", "bytes", "resumes"}


@pytest.mark.parametrize("peer", [DGLNeighbor, PyGNeighbor])
def test_what_a_peer_draws_is_of_the_graph(peer: type[_Peer]) -> None:
    needed(peer)
    topology = Topology(GRAPH.indptr, GRAPH.indices, GRAPH.weights)
    sampler = peer.drawn_by(cast(Source, SimpleNamespace(topology=topology)), [2, 3])
    targets = np.array([7, 3, 50])
    drawn = sampler.sample(targets, 11)
    assert [each.tolist() for each in drawn.layers[-1].destinations.reshape(1, -1)] == [targets.tolist()]
    for layer, fanout in zip(drawn.layers, [2, 3], strict=True):
        assert len(set(layer.sources.tolist())) == layer.sources.size
        for at, node in enumerate(layer.destinations.tolist()):
            own = layer.indices[layer.indptr[at] : layer.indptr[at + 1]]
            row = slice(GRAPH.indptr[node], GRAPH.indptr[node + 1])
            assert GRAPH.weights is not None
            weights = dict(zip(GRAPH.indices[row].tolist(), GRAPH.weights[row].tolist(), strict=True))
            assert len(own) == min(fanout, len(weights))
            assert len(set(own.tolist())) == len(own)
            assert layer.values is not None
            found = layer.values[layer.indptr[at] : layer.indptr[at + 1]]
            assert found.tolist() == [weights[source] for source in layer.sources[own].tolist()]
            assert layer.dst_scale is not None
            assert layer.dst_scale[at] == len(weights) / max(1, len(own))
    again = sampler.sample(targets, 11)
    assert all(a.sources.tolist() == b.sources.tolist() for a, b in zip(drawn.layers, again.layers, strict=True))
    assert [each.edges for each in sampler.sample(targets[:0], 3).layers] == [0, 0]
