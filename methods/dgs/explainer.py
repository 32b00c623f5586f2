"""The explainer: when masks are trained, at the same time as the model, and how samplers get them."""

from __future__ import annotations

import copy
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from harness import Metric, torch
from harness import numpy as np
from harness.plugin import STAT, BlockSize, Clock, Components, MemoryCase

from .explanations import ExplanationGraph, MaskOptions, Masks, explain

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from harness.plugin import GNN


def explanation_memory(case: MemoryCase, hops: int | None, batch: Components | None) -> Components:
    """Return the bytes of a rank's explanation graph and guidance, on the host: none of a GPU's.

    Of the remote nodes within several `hops` (None: the graph layers) the upper bound is known: all there are.
    "explaining" is what training masks takes besides: the passes on the star, and the remote rows times their mask;
    less the layers of a `batch`, whose components are given if they are gone by then.
    """
    if case.cuda:
        return {"explanation": 0}
    model, part = case.model, case.train
    remote = part.boundary if (hops or model.depth) == 1 else case.nodes - part.inner
    rows, width = remote + 1, model.widths[0][0]
    star = BlockSize(rows, rows, 2 * remote + 1)
    stars = [star] * (model.depth - 1) + [BlockSize(1, rows, remote)]
    own = BlockSize(part.inner, part.inner, part.edges - part.cut)
    held = case.matrices(own, transposed=False) + case.matrices(star) + rows * width * case.itemsize
    passes, gone = (
        sum(size for name, size in found.items() if name.startswith("layers"))
        for found in (case.mini_batch(stars), batch or {})
    )
    return {"explanation": held + 2 * 4 * case.nodes, "explaining": max(0, passes - gone)}


NICENESS = 10  # of the thread: where no core is free, the training goes first

_ENDED = (
    "wall time of those that ended, failed ones too; CPU time of their thread (not of the ones it shares "
    "products with, where `threads` is above 1). Counted in the epoch in which they are taken over, "
    "evaluations in between included"
)
_USED = (
    "of those that came into use, summed: steps, last losses, the divergences from the prediction in them, means of "
    "the masks of remote nodes and of features; / `stat_explanations`"
)
COUNTED = (
    Metric.of_method("explanations", "explanations that came into use", heading="Explanations"),
    Metric.of_method("explain_failed", "those that failed, so that the last good masks stayed"),
    Metric.of_method("explain_unmoved", "those that L ended at their first step, so that the last good masks stayed"),
    Metric.of_method("explain_late", "those that were due while the one before was under way, and left out"),
    Metric.of_method("explain_s", _ENDED, "s"),
    Metric.of_method("explain_cpu_s", _ENDED, "s"),
    *(Metric.of_method(f"explain_{name}", _USED) for name in ("steps", "loss", "divergence", "sn", "sf")),
    Metric.of_method(
        "explain_bytes", "what the rank holds for explanations in the host's memory, summed over those that "
        "came into use: / `stat_explanations`. Modelled as the component `explanation`", "B",
    ),
)  # fmt: skip
"""What an Explainer counts."""


@dataclass(frozen=True, eq=False)
class Guidance:
    """What an explanation says to samplers."""

    importance: NDArray[np.float32]  # [N]: SN of the remote nodes of the explanation graph, their mean elsewhere
    features: Tensor  # float32 [F]: SF
    step: int  # the training step whose model was explained


class _Running(NamedTuple):
    """An explanation under way: of the model of which step, and its weights."""

    step: int
    weights: Tensor
    future: Future[_Ended]


class _Ended(NamedTuple):
    """The masks of an explanation, or what went wrong, or None where it gave up; and what it took."""

    found: Masks | str | None
    wall_s: float
    cpu_s: float


class Explainer:
    """Explains a rank's model now and then, in a thread that the training never waits for, or in line.

    The model explained is that of the lowest loss so far (DGS, section III-C). An explanation that fails, by
    an exception or by numbers that are not finite, changes nothing: the last good guidance stays. So does one
    whose masks never moved from their start, and one that is not done when the next is due, which is left out then.

    The model is copied, so that the replica's weights may change meanwhile. `num_nodes`: N, of the training graph;
    `period`: steps between explanations; `seed`: that of an explanation by the step whose model is explained. Those in
    line are the phase `explain` of the trainer's clock.

    Attributes:
        guidance: of the last explanation that ended well; None before.
        steps: training steps that were observed.
    """

    def __init__(
        self,
        graph: ExplanationGraph,
        options: MaskOptions,
        model: GNN,
        clock: Clock,
        num_nodes: int,
        *,
        period: int,
        where: Literal["background", "inline"],
        seed: Callable[[int], int],
    ) -> None:
        self._graph, self._options, self._clock, self._num_nodes = graph, options, clock, num_nodes
        self._seed = seed
        self._model = copy.deepcopy(model).cpu()
        self.guidance: Guidance | None = None
        self.steps, self._period, self._due = 0, period, period
        self._best = _Best(model)
        self._thread = ThreadPoolExecutor(1, "explanations", _yield_to_training) if where != "inline" else None
        self._stopped = threading.Event()
        self._running: _Running | None = None
        self._news = _nothing()
        self._problems: list[str] = []

    def observe(self, model: GNN, loss: Tensor) -> None:
        """Note a step's loss, summed over ranks, and the model before its update."""
        if self._graph.remote.size:
            self._best.observe(model, loss, self.steps)
        self.steps += 1

    def advance(self) -> Guidance | None:
        """Return the latest guidance, after an explanation was taken over or, every `period` steps, begun."""
        self._poll()
        if self.steps >= self._due:
            self._due = (self.steps // self._period + 1) * self._period
            self._start()
        return self.guidance

    def _start(self) -> None:
        if self._running is not None:
            self._count(explain_late=1)
            return
        if not self._graph.remote.size:
            return
        step, weights = self._best.take()
        if self._thread is not None:
            self._start_aside(step, weights)
            return
        with self._clock.phase("explain"):
            self._take(step, self._explain(weights, step))

    def _start_aside(self, step: int, weights: Tensor) -> None:
        assert self._thread is not None
        self._running = _Running(step, weights, self._thread.submit(self._explain_aside, weights, step))

    def _poll(self) -> None:
        if self._running is not None and self._running.future.done():
            running, self._running = self._running, None
            self._take(running.step, running.future.result())

    def state(self) -> dict[str, Any]:
        """Return what guides the steps to come; one that is under way is named by the model that it explains."""
        self._poll()
        running = self._running
        return {
            "guidance": None if self.guidance is None else vars(self.guidance),
            "steps": self.steps,
            "due": self._due,
            "best": self._best.state(),
            "running": None if running is None else (running.step, running.weights),
            "news": self._news,
            "problems": self._problems,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from the `state` of another process; what was under way there begins anew."""
        self.guidance = None if state["guidance"] is None else Guidance(**state["guidance"])
        self.steps, self._due, self._news = state["steps"], state["due"], state["news"]
        self._problems = state["problems"]
        self._best.restore(state["best"])
        if state["running"] is not None:
            self._start_aside(*state["running"])

    def rehearse(self) -> None:
        """Explain the model in a few steps, in line."""
        if self._graph.remote.size:
            step, weights = self._best.take()
            self._options = self._options.model_copy(update={"explain_steps": 2, "threshold": -1.0})  # masks move
            self._take(step, self._explain(weights, step))

    def news(self) -> dict[str, float]:
        """Return by how much what is `COUNTED` has grown since the last call."""
        news, self._news = self._news, _nothing()
        return news

    @property
    def warnings(self) -> list[str]:
        """What a reader of the metrics must know: that explanations failed, and why the last one did."""
        if not self._problems:
            return []
        since = "the last good masks" if self.guidance else "no masks"
        return [f"explanations failed: {len(self._problems)} (the last: {self._problems[-1]}); trained on with {since}"]

    def close(self) -> None:
        """End what is under way, between two of its steps."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.shutdown()
        self._poll()

    def _explain_aside(self, weights: Tensor, step: int) -> _Ended:
        with self._clock.working("explanations"):
            return self._explain(weights, step)

    def _explain(self, weights: Tensor, step: int) -> _Ended:
        start, cpu = time.perf_counter(), time.thread_time()
        found: Masks | str | None
        try:
            torch.nn.utils.vector_to_parameters(weights, self._model.parameters())
            found = explain(self._model, self._graph, self._options, self._seed(step), self._stopped.is_set)
        except Exception as error:  # whatever it is: the training goes on
            found = f"{type(error).__name__}: {error}".splitlines()[0]
        return _Ended(found, time.perf_counter() - start, time.thread_time() - cpu)

    def _take(self, step: int, ended: _Ended) -> None:
        self._count(explain_s=ended.wall_s, explain_cpu_s=ended.cpu_s)
        masks = ended.found
        if isinstance(masks, str):
            self._problems.append(masks)
            self._count(explain_failed=1)
        elif masks is not None and not masks.moved:
            self._count(explain_unmoved=1)
        elif masks is not None:
            mean = masks.nodes.mean().item()
            importance = np.full(self._num_nodes, mean, np.float32)
            importance[self._graph.remote] = masks.nodes.numpy()
            self.guidance = Guidance(importance, masks.features, step)
            self._count(explanations=1, explain_steps=masks.steps, explain_loss=masks.losses[-1])
            self._count(explain_divergence=masks.divergences[-1])
            self._count(explain_sn=mean, explain_sf=masks.features.mean().item())
            self._count(explain_bytes=self._graph.nbytes + importance.nbytes)

    def _count(self, **more: float) -> None:
        for name, value in more.items():
            self._news[name] += value


def _nothing() -> dict[str, float]:
    return {metric.name.removeprefix(STAT): 0.0 for metric in COUNTED}


class _Best:
    """The weights of the lowest loss so far, kept on the model's device, so that no step waits for it."""

    def __init__(self, model: GNN) -> None:
        self._weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        self._loss = self._weights.new_full((), torch.inf, dtype=torch.float64)
        self._step = torch.zeros((), dtype=torch.int64, device=self._weights.device)

    def observe(self, model: GNN, loss: Tensor, step: int) -> None:
        better = loss < self._loss
        weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        self._weights = torch.where(better, weights, self._weights)
        self._loss = torch.where(better, loss, self._loss)
        self._step = torch.where(better, step, self._step)

    def state(self) -> dict[str, Tensor]:
        """Return weights, loss and step."""
        return {"weights": self._weights, "loss": self._loss, "step": self._step}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on from the `state` of another process."""
        device = self._weights.device
        self._weights, self._loss, self._step = (state[name].to(device) for name in ("weights", "loss", "step"))

    def take(self) -> tuple[int, Tensor]:
        """Return the step and its weights, on the host."""
        return int(self._step), self._weights.cpu()


def _yield_to_training() -> None:
    """Make the calling thread, and those it starts, the last to be given a core."""
    if sys.platform == "linux":  # elsewhere the number may be another process's
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
