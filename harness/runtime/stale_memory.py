"""Memory of pipelined methods: that of a full-graph method, and what lives on between iterations."""

from __future__ import annotations

from dataclasses import replace

from harness.runtime.memory_model import Components, MemoryCase, full_graph_memory, matrices_memory
from harness.runtime.pipelined import PipelinedOptions


def stale_memory(
    case: MemoryCase,
    options: PipelinedOptions,
    *,
    rate: float = 1,
    cached: float = 0,
    averages: bool = False,
) -> Components:
    """Return the components of a pipelined method, `full_graph_memory` and:

    - "late rows": received rows and gradients of `staleness` iterations, and those that are being sent;
    - "edge sampling": probabilities, and the matrices of the graphs that are drawn but not yet trained on;
    - "cached features": of the cached share of the boundary;
    - "moving averages": of what is received.

    Where edges are sampled, a boundary node is taken to be in a graph with the chance that one of its cut /
    boundary edges is drawn uniformly. As many inner rows are taken to be sent as boundary rows are received.

    Args:
        case: the rank.
        options: of the method.
        rate: expected share of edges in a graph.
        cached: share of the boundary nodes whose input features are cached.
        averages: received values are averaged.
    """
    whole = case.train
    chance = 1 - (1 - rate) ** (whole.cut / whole.boundary) if whole.boundary else 0
    boundary = round(chance * whole.boundary)
    part = replace(whole, boundary=boundary, edges=round(rate * whole.edges), cut=round(rate * whole.cut))
    found = full_graph_memory(replace(case, train=part), precompute=options.precompute, narrow=options.narrow)
    if rate < 1:
        drawn = matrices_memory(replace(case, weighted=True), part.block)
        found["adjacency"] = matrices_memory(case, whole.block)
        found["edge sampling"] = drawn * (options.staleness + 2) + 9 * whole.edges
    if case.parts == 1:
        return found
    forward = [
        min(widths) if options.narrow and case.model.narrows(i) else widths[0]
        for i, widths in enumerate(case.model.widths)
    ]
    if options.precompute:
        forward[0] = 0
    late = case.itemsize * boundary * (sum(forward) + sum(forward[case.model.spec.hops :]))
    found["late rows"] = late * (options.staleness + 1) if options.staleness else 0
    if cached:
        found["cached features"] = round(cached * whole.boundary) * forward[0] * case.itemsize
    if averages:
        found["moving averages"] = late
    return found
