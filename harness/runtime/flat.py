"""FlatParameters: all weights in one vector, all gradients in another."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from harness.runtime.comm import Communicator


class FlatParameters:
    """Makes a model's weights and gradients views of two vectors, so that one all-reduce sums all gradients.

    One more element behind the gradients carries the loss, so that every rank knows the loss of all.
    """

    def __init__(self, model: nn.Module) -> None:
        parameters = list(model.parameters())
        self.values = nn.Parameter(torch.cat([p.detach().reshape(-1) for p in parameters]))
        self._buffer = self.values.new_zeros(self.values.numel() + 1).detach()
        self.values.grad = self._buffer[:-1]
        start = 0
        for parameter in parameters:
            end = start + parameter.numel()
            parameter.data = self.values.data[start:end].view_as(parameter)
            parameter.grad = self._buffer[start:end].view_as(parameter)
            start = end

    def zero_gradients(self) -> None:
        """Set all gradients to zero, in place."""
        self._buffer.zero_()

    def reduce(self, comm: Communicator, loss: Tensor) -> Tensor:
        """Sum gradients and loss over the ranks; returns the summed loss, a scalar on the device."""
        self._buffer[-1] = loss
        comm.all_reduce(self._buffer, purpose="model")
        return self._buffer[-1].to(torch.float64, copy=True)

    def bytes(self) -> bytes:
        """The weights' bits."""
        return self.values.detach().cpu().numpy().tobytes()
