"""Which remote nodes' input features a mini-batch method keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.graph.random import batch_seed
from harness.runtime.batches import PRESAMPLED
from harness.runtime.cache import CachePolicy, choose
from harness.runtime.features import FeatureStore

if TYPE_CHECKING:
    from harness.runtime.minibatch import MiniBatchMethod


def fill_cache(method: MiniBatchMethod[Any], policy: CachePolicy, capacity: float) -> None:
    """Fill the method's cache once, for the whole training; every rank must call.

    `inclusion` takes the nodes that most batches of one epoch, drawn for nothing else, read: the estimate of
    their chance to be in a batch. `degree` takes the highest out-degrees (PaGraph). Traffic (set-up): what
    the features cost.

    Args:
        method: whose features and samples these are.
        policy: see `choose`.
        capacity: cached nodes, as a share of the rank's boundary nodes.
    """
    worker, source = method.worker, method.source
    remote = np.flatnonzero(~source.local)
    times = np.zeros(source.topology.num_nodes)
    if policy == "inclusion":
        for batch in method.batches(PRESAMPLED):
            times[method.sampler.sample(batch.targets, batch.seed).layers[0].sources] += 1
    out_degree: NDArray[np.int64] = np.zeros(times.size, np.int64)
    if policy == "degree":
        out_degree = np.bincount(source.topology.indices, minlength=times.size)
    chosen = choose(
        policy,
        round(capacity * worker.partition.num_boundary),
        inclusion=times[remote],
        out_degree=out_degree[remote],
        rng=np.random.default_rng(batch_seed(worker.job.config.seed, worker.rank, PRESAMPLED, 0)),
    )
    assert isinstance(method.store, FeatureStore)
    with worker.traffic.during("setup"):
        method.store.fill(remote[chosen])
