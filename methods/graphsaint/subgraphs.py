"""Subgraphs of a rank's own choice: who draws them, how often nodes and edges are in one, and what they count."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from harness import UserError, numba, torch
from harness import numpy as np
from harness.plugin import (
    GraphOnDevice,
    Induced,
    InducedOnDevice,
    LayerOnDevice,
    LayerSample,
    NodeSampler,
    Normaliser,
    SubgraphBatch,
    SubgraphBatchOnDevice,
    Tables,
    Topology,
    WeighOnDevice,
    as_graph,
    as_layer,
    as_layer_on_device,
    atomic_directory,
    batch_seed,
    fetch_ahead,
    gather,
    induced,
    locked,
    missing_degree,
    missing_degree_on_device,
)

from .frontier import FrontierSampler
from .node_samplers import EdgeEndsSampler, ForestFireSampler, MultiWalkSampler, WalkSampler

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from . import GraphSAINTOptions


_COUNTED = 2**32 - 1  # the epoch that no training comes to, and nothing else is drawn by
_ROUND = 256  # draws between two words of how far it is


@dataclass(frozen=True, eq=False)
class Counts:
    """How many of `draws` subgraphs each node and each edge was in; memory-mapped where they were saved."""

    draws: int  # C
    nodes: NDArray[np.int32]  # [N], C_i
    edges: NDArray[np.int32]  # [E], C_ij, aligned with the graph's `indices`
    seconds: float | None = None  # wall time of the counting, None of an earlier one's counts
    threads: int | None = None  # that drew, None likewise
    earlier_s: float | None = None  # wall time of an earlier one's counting; None if it is not known


def count(
    topology: Topology,
    sampler: NodeSampler,
    tables: Tables,
    draws: int,
    seed: int,
    threads: int,
    *,
    report: Callable[[int], None] | None = None,
) -> Counts:
    """Draw subgraphs, and count the nodes and edges that are in them (GraphSAINT, ICLR 2020, section 3.2).

    The k-th is that of `batch_seed(seed, 0, a number that no epoch has, k)`: the same for an equal seed, on
    every rank and for any number of threads, and none of training's. Memory: 4 bytes a node and an edge.
    What the first draw of a process needs, such as compiling, is left out of `seconds`.

    There are 1 to 2^31 - 1 `draws`, or a ValueError; `seed` is not negative. `threads` draw, and count in
    turn; `report` is called now and then with the number that is counted.
    """
    if not 0 < draws < 2**31:
        raise ValueError(f"{draws} draws: from 1 to 2^31 - 1 can be counted")
    nodes, edges = np.zeros(topology.num_nodes, np.int32), np.zeros(topology.indices.size, np.int32)
    turn = Lock()

    def add(index: int, times: int = 1) -> None:
        drawn = sampler.sample(batch_seed(seed, 0, _COUNTED, index))
        places = induced(topology, drawn, tables, places=True).places
        with turn:
            _add(nodes, drawn, times)
            _add(edges, places, times)

    add(0, times=0)  # what a process needs once is not timed
    start = time.perf_counter()
    with ThreadPoolExecutor(threads, "counts") as pool:
        for first in range(0, draws, _ROUND):
            last = min(first + _ROUND, draws)
            list(pool.map(add, range(first, last)))
            if report is not None:
                report(last)
    return Counts(draws, nodes, edges, time.perf_counter() - start, threads)


def saved_counts(keep: Path, key: str, make: Callable[[], Counts], *, recount: str | None = None) -> Counts:
    """Return the counts that are kept under `key`; the first process that asks makes them.

    Others wait meanwhile, and all map the one copy. Who mapped counts that are made again keeps those.

    Args:
        keep: a directory of the graph's own.
        key: names all that the counts depend on: the sampler, its options, seed and draws. A file's name.
        make: counts.
        recount: None, or who wants them made again, such as a trial: counts that were not made for it
            are replaced, so that of its ranks one alone counts.
    """
    target, made = keep / f"counts-{key}", None
    if not os.access(keep, os.W_OK | os.X_OK):  # a cache that is read-only: each counts for itself what is not there
        return _read(target) if target.exists() and recount is None else make()
    with locked(target):
        if not target.exists() or recount not in (None, _meta(target)["maker"]):
            made = make()
            with atomic_directory(target) as work:
                np.save(work / "nodes.npy", made.nodes)
                np.save(work / "edges.npy", made.edges)
                meta = {"draws": made.draws, "maker": recount, "seconds": made.seconds}
                (work / "meta.json").write_text(json.dumps(meta) + "\n")
        kept = _read(target)
    return kept if made is None else replace(kept, seconds=made.seconds, threads=made.threads, earlier_s=None)


def _read(target: Path) -> Counts:
    nodes, edges = (np.load(target / f"{name}.npy", mmap_mode="r") for name in ("nodes", "edges"))
    return Counts(_meta(target)["draws"], nodes, edges, earlier_s=_meta(target).get("seconds"))


def _meta(target: Path) -> dict[str, Any]:
    meta: dict[str, Any] = json.loads((target / "meta.json").read_text())
    return meta


@numba.njit(cache=True, nogil=True)
def _add(counts, places, times):  # type: ignore[no-untyped-def]
    for k in range(places.size):
        fetch_ahead(counts, places, k)
        counts[places[k]] += times


@dataclass(frozen=True, eq=False)
class CountedChances(Normaliser):
    """Weighs by chances that were counted (GraphSAINT, Zeng et al., ICLR 2020, section 3.2).

    An edge j -> i of a subgraph counts w_ij / alpha_ij, alpha_ij = C_ij / C_i: for a destination i that is in
    it, the sum has the full aggregation as its expectation, but for the error of the counts. The loss of
    node i counts 1 / lambda_i, lambda_i = C_i / C: the sum of losses, were the logits exact, has the sum
    over all nodes as its expectation. What no counted subgraph had, and one has now, counts as if one had had
    it: its chance is small, and not known better.

    The layer's values are w_ij / C_ij, symmetric where the weights are; C_i is its `dst_scale`.

    The graph's structure is symmetric, and its columns ascend; `counts` are of subgraphs that are drawn as those that
    are weighed.
    """

    counts: Counts
    needs_places = True

    def weigh(self, nodes: NDArray[np.int64], found: Induced) -> SubgraphBatch:
        """See `Normaliser`."""
        counts, layer = self.counts, as_layer(nodes, as_graph(self.topology, found))
        together = np.maximum(gather(counts.edges, found.places), 1)
        values = (1.0 if layer.values is None else layer.values) / together
        times = np.maximum(counts.nodes[nodes], 1).astype(np.float64)
        return SubgraphBatch(replace(layer, values=values, dst_scale=times), counts.draws / times)

    def on_device(self, graph: GraphOnDevice) -> WeighOnDevice:
        """See `Normaliser`; the device keeps the counts."""
        counts, device = self.counts, graph.indptr.device
        together, of_nodes = (
            torch.from_numpy(np.maximum(each, 1)).to(device) for each in (counts.edges, counts.nodes.astype(np.float64))
        )

        def weigh(nodes: Tensor, found: InducedOnDevice) -> SubgraphBatchOnDevice:
            layer, times = as_layer_on_device(graph, nodes, found), of_nodes[nodes]
            values = (1.0 if layer.values is None else layer.values.double()) / together[found.places].double()
            weights = torch.full_like(times, counts.draws) / times
            return SubgraphBatchOnDevice(replace(layer, values=values, dst_scale=times), weights)

        return weigh


@dataclass(frozen=True, eq=False)
class PresentMean(Normaliser):
    """Weighs nothing by chances: a node's aggregation is the mean of those neighbours that are there.

    The sum over them is scaled by deg_i / (its degree within the subgraph), degrees being sums of weights where edges
    have any: divided by deg_i, the full graph's, it is a mean. Biased towards nodes that are drawn often, and so is
    the loss, in which all nodes count alike. With all nodes in the subgraph nothing is scaled. The graph's structure is
    symmetric, and its columns ascend.
    """

    def weigh(self, nodes: NDArray[np.int64], found: Induced) -> SubgraphBatch:
        """See `Normaliser`."""
        graph = as_graph(self.topology, found)
        scale = missing_degree(self.topology, nodes, graph)
        return SubgraphBatch(replace(as_layer(nodes, graph), dst_scale=scale), None)

    def on_device(self, graph: GraphOnDevice) -> WeighOnDevice:
        """See `Normaliser`."""

        def weigh(nodes: Tensor, found: InducedOnDevice) -> SubgraphBatchOnDevice:
            layer = as_layer_on_device(graph, nodes, found)
            return SubgraphBatchOnDevice(replace(layer, dst_scale=missing_degree_on_device(graph, layer)), None)

        return weigh


@dataclass(frozen=True, eq=False)
class Part:
    """The part of a graph on the distinct, ascending `nodes`: all edges between them.

    What it is called with are layers of the part, which it puts into the whole graph: the sources become the whole's
    nodes, and what edges to other parts would count goes to those within the part, in proportion.
    """

    whole: Topology
    nodes: NDArray[np.int64]
    topology: Topology
    missing: NDArray[np.float64]  # [nodes], what a node's edges within the part are to be multiplied by

    @classmethod
    def of(cls, whole: Topology, nodes: NDArray[np.int64], tables: Tables) -> Part:
        """Find the part, in time linear in the sum of the nodes' degrees."""
        part = as_graph(whole, induced(whole, nodes, tables, places=whole.weights is not None))
        return cls(whole, nodes, part, missing_degree(whole, nodes, part))

    def __call__(self, layer: LayerSample) -> LayerSample:
        """Put a layer into the whole graph."""
        scale = self.missing[layer.sources] * (1.0 if layer.dst_scale is None else layer.dst_scale)
        return replace(layer, sources=self.nodes[layer.sources], dst_scale=scale)

    def on_device(self, device: torch.device) -> Callable[[LayerOnDevice], LayerOnDevice]:
        """Return what does so on a device, whose layers have their degrees with them."""
        nodes, missing, degree = (
            torch.from_numpy(each).to(device) for each in (self.nodes, self.missing, self.whole.degree(self.nodes))
        )

        def in_whole(layer: LayerOnDevice) -> LayerOnDevice:
            at = layer.sources
            scale = missing[at] if layer.dst_scale is None else missing[at] * layer.dst_scale
            return replace(layer, sources=nodes[at], degree=degree[at], dst_scale=scale)

        return in_whole


def make_node_sampler(options: GraphSAINTOptions, topology: Topology, size: int) -> NodeSampler:
    """Return what draws the nodes of a subgraph by a `sampler` other than `node`.

    The budget of all is `size`: `rw` makes size // (length + 1) walks, `edge` draws size // 2 edges, at least
    1; the others go on until there are `size` nodes, where so many can be reached. UserError for a frontier whose
    roots are as many.
    """
    name = options.sampler
    if why := options.no_room(size):
        raise UserError(why, key="frontier", fix="or leave it out")
    if name == "frontier":
        return FrontierSampler(
            topology, size, frontier=options.frontier_of(size), enlargement=options.enlargement, roots=options.roots,
            entered=options.entered,
        )  # fmt: skip
    if name == "rw":
        return WalkSampler(topology, size, length=options.length)
    if name == "mrw":
        return MultiWalkSampler(topology, size, walkers=options.frontier_of(size))
    if name == "edge":
        return EdgeEndsSampler(topology, size)
    return ForestFireSampler(topology, size, burn=options.burn)
