"""Caches of remote features: which nodes to keep.

A boundary node j is in the sampled graph with its inclusion probability p_j. Of a set C of cached nodes a
draw is expected to find sum_{j in C} p_j, whether or not draws depend on each other, because expectation is
linear. That sum is greatest for the nodes of greatest p_j, so no set of the same size has a better expected
hit rate than that of `inclusion` (PSC-GCN, section V.B).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from harness.deferred import numpy as np
from harness.graph.csr import on_host
from harness.graph.kernels import batch_seed
from harness.runtime.batches import PRESAMPLED
from harness.runtime.features import HostStore

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harness.runtime.minibatch import MiniBatchMethod


CachePolicy = Literal["none", "random", "degree", "inclusion"]


def choose(
    policy: CachePolicy,
    capacity: int,
    *,
    inclusion: NDArray[np.float64],
    out_degree: NDArray[Any],
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Return the cached nodes: int64, ascending positions in the boundary.

    Args:
        policy: `none`; `random`, drawn by `rng`; `degree`, the highest out-degrees (PaGraph); `inclusion`,
            the highest inclusion probabilities. Among equals the first positions are taken.
        capacity: number of nodes, not negative; all are cached if there are fewer.
        inclusion: float64 [num_boundary], chance that a node is in a sampled graph.
        out_degree: [num_boundary], edges from a node.
        rng: only `random` draws from it.
    """
    size = 0 if policy == "none" else min(capacity, inclusion.size)
    if size == 0:
        return np.empty(0, np.int64)
    if policy == "random":
        return np.sort(rng.choice(inclusion.size, size, replace=False))
    key = out_degree if policy == "degree" else inclusion
    least = np.partition(key, key.size - size)[key.size - size]  # in linear time
    taken = key > least
    taken[np.flatnonzero(key == least)[: size - np.count_nonzero(taken)]] = True
    return np.flatnonzero(taken)


def fill_cache(method: MiniBatchMethod[Any], policy: CachePolicy, capacity: float) -> None:
    """Fill the method's cache once, for the whole training; every rank must call.

    `inclusion` takes the nodes that most batches of one epoch, drawn for nothing else, read: the estimate of
    their chance to be in a batch. `degree` takes the highest out-degrees (PaGraph). `capacity` is a share of the
    rank's boundary nodes; of a `HostStore` every node may be cached, and it is one of all. Traffic (set-up): what the
    features cost.
    """
    with method.worker.spans("cache"):
        _fill(method, policy, capacity)


def _fill(method: MiniBatchMethod[Any], policy: CachePolicy, capacity: float) -> None:
    worker, source = method.worker, method.source
    of_host = isinstance(method.store, HostStore)
    remote = np.arange(source.topology.num_nodes) if of_host else np.flatnonzero(~source.local)
    times = np.zeros(source.topology.num_nodes)
    if policy == "inclusion":
        for batch in method.batches(PRESAMPLED):
            times[on_host(method.sampler.sample(batch.targets, batch.seed).layers[0].sources)] += 1
    out_degree: NDArray[np.int64] = np.zeros(times.size, np.int64)
    if policy == "degree":
        out_degree = np.diff(source.topology.indptr)  # every edge is there in both directions
    chosen = choose(
        policy,
        round(capacity * (remote.size if of_host else worker.partition.num_boundary)),
        inclusion=times[remote],
        out_degree=out_degree[remote],
        rng=np.random.default_rng(batch_seed(worker.job.config.seed, worker.rank, PRESAMPLED, 0)),
    )
    with worker.traffic.during("setup"):
        method.store.fill(remote[chosen])
