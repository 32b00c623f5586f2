"""Subgraphs: induced on given nodes, and the clusters that METIS finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.data.partitioning import partition_nodes
from harness.data.spec import PartitionSpec
from harness.data.store import atomic_directory, locked
from harness.graph.induction import Induced, induced
from harness.graph.layer_sample import LayerSample, Tables
from harness.graph.prefetch import gather
from harness.graph.topology import Topology


def induce(topology: Topology, nodes: NDArray[np.int64], tables: Tables) -> LayerSample:
    """Return all edges between `nodes`, which are the destinations and the sources, in their order.

    Takes time linear in the sum of the nodes' degrees.

    Args:
        topology: the graph.
        nodes: int64 [n], distinct.
        tables: of the graph's nodes.

    Raises:
        ValueError: a node is given twice.
    """
    found = induced(topology, nodes, tables, places=topology.weights is not None)
    return as_layer(nodes, as_graph(topology, found))


def as_graph(topology: Topology, found: Induced) -> Topology:
    """Return what was induced as a graph of its own, whose edges have the weights that they had.

    `found` needs the places of its edges where there are weights.
    """
    weights = None if topology.weights is None else gather(topology.weights, found.places)
    return Topology(found.indptr, found.columns, weights)


def as_layer(nodes: NDArray[np.int64], graph: Topology) -> LayerSample:
    """Return the graph that was induced on `nodes` as a layer."""
    if graph.weights is None:
        return LayerSample(nodes, graph.indptr, graph.indices, symmetric="values")
    values = graph.weights.astype(np.float64)
    ascending = bool((nodes[1:] > nodes[:-1]).all())  # or a row's columns do not ascend
    return LayerSample(
        nodes, graph.indptr, graph.indices, values, symmetric="structure" if ascending else "no"
    )


def missing_degree(whole: Topology, nodes: NDArray[np.int64], graph: Topology) -> NDArray[np.float64]:
    """Return the degrees of `nodes` in a graph / those in the one induced on them; 1 where these are 0."""
    inside, outside = graph.degree(np.arange(nodes.size)), whole.degree(nodes)
    return np.divide(outside, inside, out=np.ones(nodes.size), where=inside > 0)


def clusters(topology: Topology, count: int, seed: int, *, keep: Path | None = None) -> NDArray[np.int32]:
    """Return the cluster of each node, int32 [N] with values 0..count-1, none of them empty.

    METIS cuts as few edges as it finds between clusters of equally many nodes (within 3 %), whatever the
    edges' weights; the same for an equal seed. It may take minutes, and several times the graph's memory.

    Args:
        topology: the graph.
        count: of clusters; 1 needs no METIS.
        seed: of METIS.
        keep: None, or a directory of the graph's own: whoever asks first puts the clusters there, others
            wait, and all map the one copy.

    Raises:
        UserError: more clusters than nodes.
    """
    if keep is None:
        spec = PartitionSpec(parts=count, objective="cut", seed=seed)
        return partition_nodes(topology.indptr, topology.indices, spec)
    target = keep / f"clusters-{count}-{seed}"
    with locked(target):
        if not target.exists():
            with atomic_directory(target) as work:
                np.save(work / "clusters.npy", clusters(topology, count, seed))
    found: NDArray[np.int32] = np.load(target / "clusters.npy", mmap_mode="r")
    return found
