"""Integrity: sees that a trial trains the suite's model from its seed, on training nodes, in the trainer's steps alone.

A rule that is broken makes the trial `invalid`, with one line; docs/integrity.md is the table of the rules.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from harness.graph.partition import HIDDEN
from harness.runtime.step import Loss

_ONLY = "only the trainer's optimizer may change them"
MODEL, REPLACED, SETUP, EVALUATION, BETWEEN, STEP, LABELS = RULES = (
    "the model is not the suite's: it was replaced, or has other weights",
    "a weight was replaced by another tensor, which the trainer's optimizer does not change",
    f"the method's set-up changed the weights: {_ONLY}",
    f"an evaluation changed the weights: {_ONLY}",
    f"the weights changed between two epochs: {_ONLY}",
    f"the weights changed between two steps: {_ONLY}",
    "the loss reads rows that are no training nodes: their labels are not handed out",
)
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Integrity:
    """Watches a model whose weights are views of the vector `values`, from before its method is made.

    Nothing is raised: what one rank finds all must hear of before they end. See `Trainer.check_replicas`.

    Attributes:
        broken: the first of RULES that was; None so far.
    """

    def __init__(self, model: nn.Module, values: nn.Parameter) -> None:
        self.broken: str | None = None
        self._model, self._values, self._parameters = model, values, list(model.parameters())
        self._places, self._versions = self._seen_places(), self._seen_versions()
        self._sum, self._first = self._seen_sum(), True
        self._labels: Tensor | None = None
        self._outsiders = self._written = torch.zeros((), dtype=torch.bool, device=values.device)

    def unchanged(self, model: nn.Module, rule: str) -> None:
        """See that the model is the suite's with the trainer's weights, and those are of the last look, bit for bit.

        `rule`: the one that other weights break: by what happened in between.
        """
        if model is not self._model or [id(p) for p in model.parameters()] != [id(p) for p in self._parameters]:
            self._break(MODEL)
        elif self._seen_places() != self._places:
            self._break(REPLACED)
        elif bool(self._seen_sum() != self._sum):
            self._break(rule)

    def begins_step(self) -> None:
        """See that nobody has written to a weight since the last step.

        torch counts writes to a tensor, but for those through `.data`: an epoch's first step looks at the weights, too.
        What it sees is for `ends_epoch`: a GPU is not waited for.
        """
        if self._seen_versions() != self._versions:
            self._break(STEP)
        if self._first:
            self._written = self._seen_sum() != self._sum
            self._first = False

    def ends_step(self) -> None:
        """Take note of what the trainer's optimizer has written."""
        self._versions = self._seen_versions()

    def ends_epoch(self) -> None:
        """Take note of the weights, and of what was seen in the epoch."""
        self._sum, self._first = self._seen_sum(), True
        if self._written:
            self._break(STEP)
        if self._outsiders:
            self._break(LABELS)

    def reads(self, loss: Loss) -> None:
        """Look for labels that were not handed out; what it sees is for `ends_epoch`."""
        labels = loss.labels
        if labels is not self._labels:  # of a full-graph method they are always the same
            self._labels = labels
            hidden = labels == HIDDEN if labels.dim() == 1 else labels.isnan()
            self._outsiders = self._outsiders | hidden.any()

    def _break(self, rule: str) -> None:
        self.broken = self.broken or rule

    def _seen_places(self) -> list[int]:
        return [parameter.data_ptr() for parameter in self._parameters]

    def _seen_versions(self) -> list[int]:
        return [self._values._version, *(parameter._version for parameter in self._parameters)]

    def _seen_sum(self) -> Tensor:
        """Return the sum of the weights' bit patterns, a scalar on the device."""
        values = self._values.detach()
        return values.view(_BITS[values.element_size()]).sum(dtype=torch.int64)
