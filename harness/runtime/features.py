"""FeatureStore: the only way to a remote feature."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.runtime.comm import Communicator


class FeatureStore:
    """Input features sharded by owner.

    Args:
        comm: the ranks' communicator.
        inner: [n_in, F], the features of this rank's inner nodes.
        owner: int32 [N], the rank that owns each node (memory-mapped, one copy a host).
        row: int32 [N], a node's row among its owner's inner nodes (memory-mapped).
    """

    def __init__(
        self, comm: Communicator, inner: Tensor, owner: NDArray[np.int32], row: NDArray[np.int32]
    ) -> None:
        self.comm, self.inner, self.owner, self.row = comm, inner, owner, row

    def gather(self, ids: NDArray[np.int64]) -> Tensor:
        """Return the features [len(ids), F] of the nodes `ids`; every rank must call, if with no ids.

        Traffic: 8 bytes a peer and 4 for each remote id (control), F values for each remote id (feature).
        """
        with self.comm.clock.phase("fetch"):
            rows = torch.from_numpy(self.row[ids].astype(np.int32, copy=False)).to(self.comm.device)
            if self.comm.world == 1:
                return self.inner.index_select(0, rows)
            owner = self.owner[ids]
            order = np.argsort(owner, kind="stable")
            counts = np.bincount(owner, minlength=self.comm.world).tolist()
            wanted = self.comm.exchange_counts(counts)
            asked = self.comm.exchange_rows(
                rows[torch.from_numpy(order).to(rows.device)], counts, wanted, purpose="control"
            )
            found = self.comm.exchange_rows(
                self.inner.index_select(0, asked),
                wanted,
                counts,
                purpose="feature",
                layer=0,
                direction="forward",
            )
            result = torch.empty_like(found)
            result[torch.from_numpy(order).to(found.device)] = found
            return result
