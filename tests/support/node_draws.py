"""What node samplers are tested by: how often each set of nodes comes, against chances and references."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from scipy import stats

from harness.graph.csr import Topology
from harness.sampling.subgraphs import NodeSampler

Nodes = frozenset[int]


def topology_of(nodes: int, edges: Iterable[tuple[int, int]]) -> Topology:
    """Return the graph of undirected `edges`, whose weights differ by factors of a thousand."""
    dense = np.zeros((nodes, nodes), bool)
    for u, v in edges:
        dense[u, v] = dense[v, u] = True
    indptr = np.concatenate([[0], np.cumsum(dense.sum(1))]).astype(np.int64)
    indices = np.nonzero(dense)[1].astype(np.int32)
    return Topology(indptr, indices, (10.0 ** (indices % 4)).astype(np.float32))


def neighbours(topology: Topology, node: int) -> list[int]:
    return topology.indices[topology.indptr[node] : topology.indptr[node + 1]].tolist()


def drawn(sampler: NodeSampler, draws: int) -> Counter[Nodes]:
    """Count the sets that `sampler` finds with seeds 0..draws-1, all of them ascending and distinct."""
    found: Counter[Nodes] = Counter()
    for seed in range(draws):
        nodes = sampler.sample(seed)
        assert nodes.dtype == np.int64
        assert (np.diff(nodes) > 0).all()
        found[frozenset(nodes.tolist())] += 1
    return found


def unions(chances: Mapping[Nodes, float], times: int) -> Counter[Nodes]:
    """Return the chances of unions of so many independent sets."""
    result: Counter[Nodes] = Counter({frozenset(): 1.0})  # type: ignore[dict-item]
    for _ in range(times):
        longer: Counter[Nodes] = Counter()
        for so_far, p in result.items():
            for more, q in chances.items():
                longer[so_far | more] += p * q  # type: ignore[assignment]
        result = longer
    return result


def assert_chances(found: Counter[Nodes], chances: Mapping[Nodes, float]) -> None:
    """Chi-square; sets that are expected fewer than 5 times count together."""
    assert set(found) <= set(chances)
    total = found.total()
    rare = {nodes for nodes, chance in chances.items() if chance * total < 5}
    pairs = [(found[nodes], chance * total) for nodes, chance in chances.items() if nodes not in rare]
    if rare:
        pairs.append((sum(found[nodes] for nodes in rare), total * sum(chances[nodes] for nodes in rare)))
    assert len(pairs) > 5
    assert stats.chisquare(*zip(*pairs, strict=True)).pvalue > 1e-3


def assert_alike(found: Counter[Nodes], reference: Counter[Nodes]) -> None:
    """Chi-square of two samples; sets found fewer than 10 times in both count together."""
    table: Counter[tuple[Nodes | None, bool]] = Counter()
    for sample, is_reference in ((found, False), (reference, True)):
        for nodes, times in sample.items():
            table[nodes if found[nodes] + reference[nodes] >= 10 else None, is_reference] += times
    keys = {key for key, _ in table}
    assert len(keys) > 5
    counts = [[table[key, side] for key in keys] for side in (False, True)]
    assert stats.chi2_contingency(counts).pvalue > 1e-3


def assert_seed_decides(sampler: NodeSampler) -> None:
    """Whatever thread draws, and whatever was drawn before; other seeds find other nodes."""
    alone = [sampler.sample(seed).tolist() for seed in range(200)]
    with ThreadPoolExecutor(4) as pool:
        together = [nodes.tolist() for nodes in pool.map(sampler.sample, reversed(range(200)))]
    assert alone == together[::-1]
    assert len(set(map(tuple, alone))) > 150
