"""Methods with planted faults, which the checks must catch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness import Step
from methods.bns_gcn import BNSGCN
from methods.full import Full


class UnscaledBNS(BNSGCN):
    """BNS-GCN that forgets 1/p."""

    def sample(self) -> tuple[NDArray[np.int64], Tensor | None]:
        kept, _ = super().sample()
        return kept, None


class Drifting(Full):
    """Full-graph training in which one bit of rank 1's first weight flips in epoch 2."""

    def steps(self, epoch: int) -> Iterator[Step]:
        if epoch == 2 and self.worker.rank == 1:
            weight = next(self.worker.model.parameters())
            bits = weight.data.view(-1)[:1].view(
                torch.int32 if weight.dtype == torch.float32 else torch.int64
            )
            bits ^= 1
        yield from super().steps(epoch)


class Exploding(Full):
    """Full-graph training whose weights become NaN in epoch 2."""

    def steps(self, epoch: int) -> Iterator[Step]:
        if epoch == 2:
            next(self.worker.model.parameters()).data.fill_(float("nan"))
        yield from super().steps(epoch)
