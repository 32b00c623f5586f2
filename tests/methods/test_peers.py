"""Samplers of other libraries are held to what the shipped methods are, and their draws to the graph."""

from __future__ import annotations

import numpy as np
import pytest
from harness_methods.peers import DGLSampler

from harness.check import check_method
from harness.check.graphs import random_graph
from harness.graph.csr import Topology

pytest.importorskip("dgl")
GRAPH = random_graph(5, 80, degree=8, weighted=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_dgls_sampler_is_held_to_what_methods_are_held_to() -> None:
    report = check_method("dgl-neighbor", plugin="harness_methods.peers", limit_s=100)
    assert report.ok, "\n".join(report.lines)
    assert {each.check for each in report.findings if each.state == "ok"} >= {"exact", "unbiased", "bytes", "resumes"}


def test_what_dgl_draws_is_of_the_graph() -> None:
    assert GRAPH.weights is not None
    sampler = DGLSampler(Topology(GRAPH.indptr, GRAPH.indices, GRAPH.weights), [2, 3])
    targets = np.array([7, 3, 50])
    drawn = sampler.sample(targets, 11)
    assert np.asarray(drawn.layers[-1].destinations).tolist() == targets.tolist()
    for layer, fanout in zip(drawn.layers, [2, 3], strict=True):
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
