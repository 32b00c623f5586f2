"""Integrity: checks that a trial trains the suite's model from its seed, on training nodes, in the trainer's steps.

A broken rule makes the trial `invalid`, with one line; docs/integrity.md is the table of the rules.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from harness.deferred import numpy as np
from harness.deferred import torch
from harness.graph.csr import Places, on_host
from harness.graph.devices import upload
from harness.graph.partition import HIDDEN
from harness.runtime.step import Loss, Step

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from harness.models.gnn import Rows
    from harness.runtime.worker import Worker

_ONLY = "only the trainer's optimizer may change them"
MODEL, REPLACED, SETUP, EVALUATION, BETWEEN, STEP, LABELS, INPUTS = RULES = (
    "the model is not the suite's: it was replaced, or has other weights",
    "a weight was replaced by another tensor, which the trainer's optimizer does not change",
    f"the method's set-up changed the weights: {_ONLY}",
    f"an evaluation changed the weights: {_ONLY}",
    f"the weights changed between two epochs: {_ONLY}",
    f"the weights changed between two steps: {_ONLY}",
    "the loss reads rows that are no training nodes: their labels are not handed out",
    "what the first layer reads is not the data set's features",
)
_BITS = {2: "int16", 4: "int32", 8: "int64"}  # torch's dtypes


class Integrity:
    """Watches a model whose weights are views of the vector `values`, from before its method is made.

    Nothing is raised: all ranks must learn what one finds before they end. See `Trainer.check_replicas`.
    """

    def __init__(self, model: torch.nn.Module, values: torch.nn.Parameter) -> None:
        self.broken: str | None = None  # the first of RULES that was broken
        self._model, self._values, self._parameters = model, values, list(model.parameters())
        self._spec = getattr(model, "spec", None)
        self._places, self._versions = self._seen_places(), self._seen_versions()
        self._sum, self._first = self._seen_sum(), True
        self._labels: Tensor | None = None
        self._outsiders = self._written = torch.zeros((), dtype=torch.bool, device=values.device)

    def unchanged(self, model: torch.nn.Module, rule: str) -> None:
        """Check that the model is the suite's with the weights of the last look, bit for bit; others break `rule`."""
        if (
            model is not self._model
            or [id(p) for p in model.parameters()] != [id(p) for p in self._parameters]
            or "forward" in vars(model)
            or getattr(model, "spec", None) != self._spec
        ):
            self.violated(MODEL)
        elif self._seen_places() != self._places:
            self.violated(REPLACED)
        elif bool(self._seen_sum() != self._sum):
            self.violated(rule)

    def begins_step(self) -> None:
        """Check that no weight was written to since the last step."""
        if self._seen_versions() != self._versions:
            self.violated(STEP)
        # torch counts writes to a tensor, but for those through `.data`. A GPU is not waited for.
        if self._first:
            self._written = self._seen_sum() != self._sum
            self._first = False

    def ends_step(self) -> None:
        """Note the writes of the trainer's optimizer."""
        self._versions = self._seen_versions()

    def ends_epoch(self) -> None:
        """Note the weights, and the rules that were broken in the epoch."""
        self._sum, self._first = self._seen_sum(), True
        if self._written:
            self.violated(STEP)
        if self._outsiders:
            self.violated(LABELS)

    def resumed(self, broken: str | None) -> None:
        """Take the weights of a checkpoint for the trainer's; `broken`: as of when it was written."""
        self.ends_step()
        self._sum, self.broken = self._seen_sum(), self.broken or broken

    def reads(self, loss: Loss) -> None:
        """Look for labels that were not handed out; the result is for `ends_epoch`."""
        labels = loss.labels
        if labels is not self._labels:  # of a full-graph method they are always the same
            self._labels = labels
            hidden = labels == HIDDEN if labels.dim() == 1 else labels.isnan()
            self._outsiders = self._outsiders | hidden.any()

    def violated(self, rule: str) -> None:
        """Keep the first rule that was broken."""
        self.broken = self.broken or rule

    def _seen_places(self) -> list[int]:
        return [parameter.data_ptr() for parameter in self._parameters]

    def _seen_versions(self) -> list[int]:
        return [self._values._version, *(parameter._version for parameter in self._parameters)]

    def _seen_sum(self) -> Tensor:
        """Return the sum of the weights' bit patterns, a scalar on the device."""
        values = self._values.detach()
        return values.view(getattr(torch, _BITS[values.element_size()])).sum(dtype=torch.int64)


LOOKED_AT = 4  # rows an epoch
Nodes: TypeAlias = "Places | None"


class Inputs:
    """Holds rows that the first layer reads against the data set's features, a few of one step of each epoch.

    It also looks up a few rows of the step's loss among the training nodes. `Step.nodes` and `Step.outputs` say whose
    rows they are; without them they are the inner nodes', and where numbers do not match nothing is looked at. A value
    may be 0: it was left out. Rows of `Step.aggregated` are held against those that the worker remembers. Which step
    and which rows depends on the run, not on the seed: nothing is drawn from training's generators.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._random = random.Random(f"{worker.job.attempt} {worker.rank}")
        self._step, self._steps, self._chosen = 0, 0, 0
        self._taken: list[tuple[Tensor, Callable[[], Tensor]]] = []
        self._learnt: list[tuple[Tensor, Nodes]] = []

    def of(self, step: Step) -> tuple[Rows, Rows | None]:
        """Return the step's inputs and aggregated inputs, which are looked at when they are read, in a chosen step."""
        number, self._step = self._step, self._step + 1
        if number != self._chosen:
            return step.inputs, step.aggregated

        learnt = step.loss.rows
        known = step.outputs is not None or step.blocks[-1].num_dst == self._worker.partition.num_inner
        if known and learnt.numel() and learnt.dtype == torch.int64:
            self._learnt.append((_rows(learnt, self._some(learnt.numel())), step.outputs))

        def seen(rows: Rows, take: Callable[[Tensor, Nodes], None]) -> Rows:
            if isinstance(rows, torch.Tensor):
                take(rows, step.nodes)
                return rows

            def read(rows: Callable[[], Tensor] = rows) -> Tensor:
                take(found := rows(), step.nodes)
                return found

            return read

        aggregated = None if step.aggregated is None else seen(step.aggregated, self._take_aggregated)
        return seen(step.inputs, self._take_features), aggregated

    def ends_epoch(self) -> str | None:
        """Return the rule that a row of this epoch broke; None if all were right."""
        taken, self._taken = self._taken, []
        learnt, self._learnt = self._learnt, []
        self._steps, self._step = self._step, 0
        self._chosen = self._random.randrange(max(1, self._steps))
        for rows, stored in taken:
            found, want = rows.cpu(), stored()
            if found.shape != want.shape:
                return INPUTS
            if not ((found == want) | (found == 0) | (found.isnan() & want.isnan())).all():
                return INPUTS
        trained = (self._worker.view.trains(self._own(rows.cpu().numpy(), nodes)).all() for rows, nodes in learnt)
        return None if all(trained) else LABELS

    def _own(self, at: Any, nodes: Nodes) -> NDArray[np.int64]:
        """Return the nodes at rows of the inner nodes, or of `nodes`."""
        found: NDArray[np.int64] = np.asarray(self._worker.partition.inner)[at] if nodes is None else on_host(nodes)[at]
        return found

    def _some(self, count: int) -> list[int]:
        return [self._random.randrange(count) for _ in range(LOOKED_AT)]

    def _take_features(self, rows: Tensor, nodes: Nodes) -> None:
        worker = self._worker
        count = worker.partition.num_inner if nodes is None else len(nodes)
        if rows.shape[0] != count or not rows.numel():
            return
        at = self._some(count)

        def stored() -> Tensor:
            found = worker.stored_features[worker.view.nodes[self._own(at, nodes)]]
            return torch.from_numpy(np.array(found)).to(worker.dtype)

        self._taken.append((_rows(rows, at), stored))

    def _take_aggregated(self, rows: Tensor, nodes: Nodes) -> None:
        worker, known = self._worker, self._worker.aggregated_rows
        count = worker.partition.num_inner if nodes is None else len(nodes)
        if rows.shape[0] != count or not known:
            return
        if nodes is None:
            at = own = list(known)[:LOOKED_AT]
        else:
            inner = {int(worker.partition.inner[row]): row for row in known}
            nodes = on_host(nodes)
            at = np.flatnonzero(np.isin(nodes, [*inner]))[:LOOKED_AT].tolist()
            own = [inner[int(node)] for node in nodes[at]]
        if at:
            self._taken.append((_rows(rows, at), lambda: torch.stack([known[row] for row in own]).cpu()))


def _rows(rows: Tensor, at: list[int]) -> Tensor:
    return rows.detach()[upload(np.array(at), rows.device)]  # a step does not wait for a GPU
