"""Captured steps: forward and backward passes that recur are recorded on the device once, and replayed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from harness.deferred import torch
from harness.errors import UserError
from harness.graph.devices import kind_of

if TYPE_CHECKING:
    from torch import Tensor

    from harness.runtime.step import Step

WARM = 2  # steps before a capture: what is allocated or chosen at first use must not be captured


class CapturedSteps:
    """Runs the passes of a step as they are a few times, then captures and replays them (`train.cuda_graphs`).

    A replay reads and writes the same memory: steps must have the blocks, inputs, loss rows and gradients of the one
    that was captured.
    """

    def __init__(self, device: torch.device) -> None:
        self._kind = kind_of(device)
        self._stream = self._kind.new_stream()
        self._graph: Any = None
        self._of: list[Any] = []
        self._loss: Tensor | None = None
        self._taken = 0

    def run(self, step: Step, passes: Callable[[], Tensor]) -> Tensor:
        """Return the loss of `passes`, which calls the forward and backward pass of `step`; see `UserError`.

        Raises:
            UserError: the step is not the one that was captured.
        """
        read = [*step.blocks, step.inputs, step.aggregated, step.loss]
        if self._taken and not all(a is b for a, b in zip_longest(read, self._of)):
            raise UserError(
                "the method's steps differ from one another",
                key="train.cuda_graphs",
                fix="leave it out, or take `full`",
            )
        self._of, self._taken = read, self._taken + 1
        if self._graph is None and self._taken <= WARM:
            return self._aside(passes)
        if self._graph is None:
            self._graph = self._kind.graph()
            with self._kind.capture(self._graph):
                self._loss = passes()
        self._graph.replay()
        assert self._loss is not None
        return self._loss

    def _aside(self, passes: Callable[[], Tensor]) -> Tensor:
        """Run on a stream beside the current one, as what is captured will: autograd keeps to the first one it saw."""
        current = self._kind.current_stream()
        self._stream.wait_stream(current)
        with self._kind.on(self._stream):
            loss = passes()
        current.wait_stream(self._stream)
        self._kind.hold(loss)
        return loss


def why_not_captured(*, device: str, timing: str, parts: int, method: str, recurring: bool) -> tuple[str, str] | None:
    """Return why a trial's steps cannot be captured, and what to do; None if they can."""
    if device != "cuda":
        return f"device {device} has no CUDA graphs", "leave it out, or --device cuda"
    if not recurring:
        return f"the steps of {method} differ from one another", "leave it out, or take a method like `full`"
    if parts > 1:
        return f"{parts} ranks exchange rows inside a step", "partition.parts: 1"
    if timing in ("plain", "breakdown"):
        return f"timing {timing} looks into steps, and a replay cannot be looked into", "timing: wall"
    return None
