"""BoundaryCache: input features of boundary nodes that a rank keeps, so that they need not be sent again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.graph.partition import Halo, Partition
from harness.runtime.comm import Communicator
from harness.runtime.exchange import Wanted, ask


@dataclass(frozen=True, eq=False)
class BoundaryCache:
    """What this rank caches of its boundary, and what its peers cache of its inner rows. Never changed.

    Attributes:
        slot: int64 [num_boundary], row of each boundary node in `rows`, -1 where it is not cached.
        rows: [cached nodes, F], their input features.
        at_peers: bool [len(Partition.send_index)], which of the rows to send their receivers cache.
    """

    slot: NDArray[np.int64]
    rows: Tensor
    at_peers: NDArray[np.bool_]

    @classmethod
    def empty(cls, partition: Partition, features: Tensor) -> BoundaryCache:
        """Return a cache of nothing; `features` [n_in, F] says of what."""
        slot = np.full(partition.num_boundary, -1)
        return cls(slot, features[:0], np.zeros(partition.send_index.size, bool))

    def refilled(
        self, comm: Communicator, partition: Partition, features: Tensor, nodes: NDArray[np.int64]
    ) -> BoundaryCache:
        """Return the cache of the boundary nodes `nodes` (ascending positions); every rank must call.

        Traffic: 8 bytes a peer and 4 for each node (control), F values for each that was not cached before
        (feature, layer 0).
        """
        wanted = ask(comm, partition, nodes)
        at_peers = np.zeros_like(self.at_peers)
        at_peers[wanted.entries] = True
        new = self.slot[nodes] < 0
        halo = self._missing(partition, nodes, wanted)
        fetched = comm.exchange_rows(
            features.index_select(0, halo.send_index), halo.send_counts, halo.recv_counts,
            purpose="feature", layer=0, direction="forward",
        )  # fmt: skip
        rows = features.new_empty((nodes.size, features.shape[1]))
        rows[_index(np.flatnonzero(new), rows)] = fetched
        rows[_index(np.flatnonzero(~new), rows)] = self.rows[_index(self.slot[nodes[~new]], rows)]
        slot = np.full_like(self.slot, -1)
        slot[nodes] = np.arange(nodes.size)
        return BoundaryCache(slot, rows, at_peers)

    def inputs(self, partition: Partition, kept: NDArray[np.int64], wanted: Wanted) -> Inputs:
        """Return how the input features of the boundary nodes `kept` come together.

        `wanted` is what `ask` returned for them.
        """
        hit = self.slot[kept] >= 0
        return Inputs(
            self._missing(partition, kept, wanted),
            _index(np.flatnonzero(~hit), self.rows),
            _index(np.flatnonzero(hit), self.rows),
            self.rows[_index(self.slot[kept[hit]], self.rows)],
        )

    def _missing(self, partition: Partition, kept: NDArray[np.int64], wanted: Wanted) -> Halo:
        """Return the exchange of those rows of `wanted` that their receivers do not cache."""
        sent = ~self.at_peers[wanted.entries]
        asker = np.repeat(np.arange(partition.parts), wanted.send_counts)
        send_counts = np.bincount(asker[sent], minlength=partition.parts).tolist()
        missing = kept[self.slot[kept] < 0]
        recv_counts = np.diff(np.searchsorted(missing, partition.boundary_ptr)).tolist()
        return partition.halo(wanted.entries[sent], send_counts, recv_counts)


@dataclass(frozen=True, eq=False)
class Inputs:
    """Input features of a graph's boundary nodes: some are sent by their owners, some are cached.

    Attributes:
        halo: the exchange of those that are sent.
        sent, cached: int64, which of the boundary nodes are sent and which are cached.
        rows: [len(cached), F], features of the cached ones.
    """

    halo: Halo
    sent: Tensor
    cached: Tensor
    rows: Tensor

    def assemble(self, received: Tensor) -> Tensor:
        """Return the features [nodes, F] in the order of the boundary; `received` are those of `halo`."""
        if not self.cached.numel():
            return received
        features = received.new_empty((self.sent.numel() + self.cached.numel(), received.shape[1]))
        features[self.sent] = received
        features[self.cached] = self.rows
        return features


def _index(positions: NDArray[np.int64], like: Tensor) -> Tensor:
    return torch.from_numpy(positions).to(like.device)
