"""Masks of nodes and features that explain a prediction, and the explainer, which learns them beside the training."""

from __future__ import annotations

import copy
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import kl_div, logsigmoid
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from harness import MemoryCase, Metric
from harness.metrics import STAT
from harness.models import GNN, BlockSize
from harness.runtime import Clock, Components

from .guided_sampling import ExplanationGraph

FIRST_NODE, FIRST_FEATURE = 1.0, 0.0  # logits that masks start from

MOMENTUM, MEMORY = 0.9, 0.9  # decay of Adam's moments; in tens of steps, 0.999 would forget nothing

INPUT_WEIGHTS = ("weight", "weight_self")  # of a graph layer: those that multiply its input

TINY = 1e-20  # Adam's epsilon: a node's gradient falls with 1/R, and must not be lost against it


class ExplanationError(Exception):
    """Masks that could not be trained: a loss or a mask is not a finite number."""


@dataclass(frozen=True)
class ExplainSpec:
    """How masks are trained.

    The defaults of the factors and of `lr` are this project's, chosen on planted graphs and twins. A remote
    node's SN is held against the weight 1 of local ones, so `node_size` says how much is sent: at 2, in 50
    steps, SN has a mean of 0.2 to 0.25 (5 to 95 %: about 0.1 to 0.5); at 0.5 of 0.2 to 0.6, at no better
    order of the nodes. Below 0.2 noise stays near 1 where the divergence is large; an entropy's factor of
    0.05 or more drives logits up from their start, whatever a node is worth.
    """

    steps: int = 50  # at most (T_E of DGS)
    threshold: float = 0.01  # training ends at a loss of at most this
    lr: float = 0.05  # Adam's, on the masks' logits
    node_size: float = 2.0  # factors of the means of the masks
    feature_size: float = 0.3
    node_entropy: float = 0.01  # factors of the means of the masks' binary entropies (nats)
    feature_entropy: float = 0.01


@dataclass(frozen=True, eq=False)
class Masks:
    """Trained masks, on the CPU."""

    nodes: Tensor  # float32 [R] in [0, 1]: what each remote node of the explanation graph is worth (SN)
    features: Tensor  # float32 [F] in [0, 1]: what each feature is worth (SF)
    losses: list[float] = field(repr=False)  # of each step, before its update

    @property
    def steps(self) -> int:
        """Number of training steps."""
        return len(self.losses)


def explain(
    model: GNN, graph: ExplanationGraph, spec: ExplainSpec, stop: Callable[[], bool] = lambda: False
) -> Masks | None:
    """Train the masks of a rank's remote nodes and of the features (DGS, section III-C, Algorithm 1).

    The prediction to be kept is that of the local nodes' mean logits, inferred on the edges between them.
    (The mean of their probabilities would be less certain than v_G, whose features are a mean: telling nodes
    and features would then count as harm.) v_G's is inferred on the star, features multiplied by SF and what
    a remote node sends, in every layer (with GCN and GAT to itself too), by SN. The loss is GNNExplainer's
    (Ying et al., NeurIPS 2019, Eq. 3 to 6, and the regularisers of its code), with all regularisers as means
    over a mask, so that none grows with R or F:

        KL(kept || inferred) + node_size mean(SN) + feature_size mean(SF)
            + node_entropy mean(H(SN)) + feature_entropy mean(H(SF))

    The divergence is the cross-entropy less a constant; of many labels, the mean of their divergences.
    No random numbers: equal models give equal masks.

    Args:
        model: on the CPU, in the graph's dtype; it is left as it is, and must stay so during the call.
        graph: the explanation graph.
        spec: how to train.
        stop: asked before each step; True: the call gives up.

    Returns:
        The masks, or None where `stop` said so.

    Raises:
        ExplanationError: a loss or a mask is not finite.
    """
    model = copy.deepcopy(model).eval().requires_grad_(False)
    kept = _kept(model, graph)
    first = graph.features[0]
    nodes = first.new_full((graph.remote.size,), FIRST_NODE, requires_grad=True)
    features = first.new_full((first.numel(),), FIRST_FEATURE, requires_grad=True)
    optimizers = _Adam(nodes, spec.lr, shared=True), _Adam(features, spec.lr, shared=False)
    losses: list[float] = []
    while len(losses) < spec.steps:
        if stop():
            return None
        loss = objective(model, graph, spec, kept, nodes, features)
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            raise ExplanationError(f"the loss of step {len(losses)} is {losses[-1]}")
        if losses[-1] <= spec.threshold:
            break
        gradients = torch.autograd.grad(loss, (nodes, features))
        for optimizer, gradient in zip(optimizers, gradients, strict=True):
            optimizer.step(gradient)
    sn, sf = (logits.detach().sigmoid().float() for logits in (nodes, features))
    if not (sn.isfinite().all() and sf.isfinite().all()):
        raise ExplanationError("a mask is not finite")
    return Masks(sn, sf, losses)


def objective(
    model: GNN, graph: ExplanationGraph, spec: ExplainSpec, kept: Tensor, nodes: Tensor, features: Tensor
) -> Tensor:
    """Return the loss of masks' logits `nodes` [R] and `features` [F]; see `explain`.

    The model is in evaluation mode, `kept` [C] the prediction to be kept.
    """
    inferred = _star_logits(model, graph, nodes.sigmoid(), features.sigmoid())
    return (
        _divergence(kept, inferred, graph.multilabel)
        + _regulariser(nodes, spec.node_size, spec.node_entropy)
        + _regulariser(features, spec.feature_size, spec.feature_entropy)
    )


class _Adam:
    """Adam on a mask's logits, with a second moment of each or, `shared`, one of them all.

    With one of each, all logits move about equally fast, however large their gradients. For nodes, whose gradients
    are alike in scale, that would leave nothing of an order but on which side of the size's factor a node is.
    """

    def __init__(self, logits: Tensor, lr: float, *, shared: bool) -> None:
        self._logits, self._lr, self._steps = logits, lr, 0
        self._first = torch.zeros_like(logits)
        self._second = logits.new_zeros(()) if shared else torch.zeros_like(logits)

    @torch.no_grad()
    def step(self, gradient: Tensor) -> None:
        """Move the logits."""
        self._steps += 1
        square = gradient.square()
        self._first.lerp_(gradient, 1 - MOMENTUM)
        self._second.lerp_(square if self._second.dim() else square.mean(), 1 - MEMORY)
        length = self._lr / (1 - MOMENTUM**self._steps)
        scale = (self._second / (1 - MEMORY**self._steps)).sqrt().add_(TINY)
        self._logits.sub_(self._first / scale, alpha=length)


@torch.no_grad()
def _kept(model: GNN, graph: ExplanationGraph) -> Tensor:
    """Return what the local nodes' mean logits predict, [C]: chances of classes, or of each label."""
    logits: Tensor = model([graph.local_block] * model.depth, graph.local_features, transform_first=True)
    mean = logits.mean(0)
    return mean.sigmoid() if graph.multilabel else mean.softmax(0)


def _star_logits(model: GNN, graph: ExplanationGraph, nodes: Tensor, features: Tensor) -> Tensor:
    """Return v_G's logits [C].

    (x f) W = x (f W): the mask of features is a factor of the first layer's weights, so that no matrix of all
    masked features is made. It would not do where a residual connection adds the input itself.
    """
    sent = torch.cat([nodes.new_ones(1), nodes]).unsqueeze(1)

    def exchange(rows: Tensor, layer: int) -> Tensor:
        return rows * sent

    inputs, folded = graph.features, {}
    first, _ = model.layer_of(0)
    if model.spec.residual and first.inputs == first.outputs:
        inputs = inputs * features
    else:
        folded = {
            f"graph_layers.0.{name}": weight * features.unsqueeze(1)
            for name, weight in first.named_parameters()
            if name in INPUT_WEIGHTS
        }
    logits: Tensor = functional_call(model, folded, (graph.blocks, inputs, exchange), {"transform_first": True})
    return logits[0]


def _divergence(kept: Tensor, logits: Tensor, multilabel: bool) -> Tensor:
    """KL(kept || inferred) in nats."""
    if not multilabel:
        return kl_div(logits.log_softmax(0), kept, reduction="sum")
    on = kl_div(logsigmoid(logits), kept, reduction="sum")
    off = kl_div(logsigmoid(-logits), 1 - kept, reduction="sum")
    return (on + off) / kept.numel()


def _regulariser(logits: Tensor, size: float, entropy: float) -> Tensor:
    """Mean size and mean binary entropy of a mask, weighted; 0 of an empty one."""
    mask = logits.sigmoid()
    entropies = -(mask * logsigmoid(logits) + (1 - mask) * logsigmoid(-logits))
    return (size * mask + entropy * entropies).sum() / max(mask.numel(), 1)


def explanation_memory(case: MemoryCase) -> Components:
    """Return the bytes of a rank's explanation graph and guidance, on the host: none of a GPU's.

    Of the remote nodes within K hops only bounds are known: at least the boundary, at most all there are.
    """
    if case.cuda:
        return {"explanation": 0}
    remote = case.train.boundary if case.least else case.nodes - case.train.inner
    width, hidden = max(case.model.widths[: case.model.hops])
    own = BlockSize(case.train.inner, case.train.inner, case.train.edges - case.train.cut)
    star = BlockSize(remote + 1, remote + 1, 2 * remote + 1)
    rows = (remote + 1) * (width + 2 * case.model.depth * hidden) + case.train.inner * hidden
    matrices = case.matrices(own, transposed=False) + case.matrices(star)
    return {"explanation": rows * case.itemsize + matrices + 2 * 4 * case.nodes}


NICENESS = 10  # of the thread: where no core is free, the training goes first

_ENDED = (
    "wall time of those that ended, failed ones too; CPU time of their thread (not of the ones it shares "
    "products with, where `threads` is above 1). Counted in the epoch in which they are taken over, "
    "evaluations in between included"
)
_USED = (
    "of those that came into use, summed: steps, last losses, means of the masks of remote nodes and of "
    "features; / `stat_explanations`"
)
COUNTED = (
    Metric.of_method("explanations", "explanations that came into use", heading="Explanations"),
    Metric.of_method("explain_failed", "those that failed, so that the last good masks stayed"),
    Metric.of_method("explain_late", "those that were due while the one before was under way, and left out"),
    Metric.of_method("explain_s", _ENDED, "s"),
    Metric.of_method("explain_cpu_s", _ENDED, "s"),
    *(Metric.of_method(f"explain_{name}", _USED) for name in ("steps", "loss", "sn", "sf")),
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


class _Ended(NamedTuple):
    """The masks of an explanation, or what went wrong, or None where it gave up; and what it took."""

    found: Masks | str | None
    wall_s: float
    cpu_s: float


class Explainer:
    """Explains a rank's model now and then, in a thread that the training never waits for, or in line.

    The model explained is that of the lowest loss so far (DGS, section III-C). An explanation that fails, by
    an exception or by numbers that are not finite, changes nothing: the last good guidance stays. So does one
    that is not done when the next is due, which is left out then.

    The model is copied, so that the replica's weights may change meanwhile. `num_nodes`: N, of the training graph;
    `period`: steps between explanations. Those in line are the phase `explain` of the trainer's clock.

    Attributes:
        guidance: of the last explanation that ended well; None before.
        steps: training steps that were observed.
    """

    def __init__(
        self,
        graph: ExplanationGraph,
        spec: ExplainSpec,
        model: GNN,
        clock: Clock,
        num_nodes: int,
        *,
        period: int,
        where: Literal["background", "inline"],
    ) -> None:
        self._graph, self._spec, self._clock, self._num_nodes = graph, spec, clock, num_nodes
        self._model = copy.deepcopy(model).cpu()
        self.guidance: Guidance | None = None
        self.steps, self._period, self._due = 0, period, period
        self._best = _Best(model)
        self._thread = ThreadPoolExecutor(1, "explanations", _yield_to_training) if where != "inline" else None
        self._stopped = threading.Event()
        self._running: tuple[int, Future[_Ended]] | None = None
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
            self._running = step, self._thread.submit(self._explain_aside, weights)
            return
        with self._clock.phase("explain"):
            self._take(step, self._explain(weights))

    def _poll(self) -> None:
        if self._running is not None and self._running[1].done():
            step, future = self._running
            self._running = None
            self._take(step, future.result())

    def rehearse(self) -> None:
        """Explain the model in a few steps, in line."""
        if self._graph.remote.size:
            step, weights = self._best.take()
            self._spec = replace(self._spec, steps=2)
            self._take(step, self._explain(weights))

    def news(self) -> dict[str, float]:
        """Return by how much what is `COUNTED` has grown since the last call."""
        news, self._news = self._news, _nothing()
        return news

    @property
    def remarks(self) -> list[str]:
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

    def _explain_aside(self, weights: Tensor) -> _Ended:
        with self._clock.working("explanations"):
            return self._explain(weights)

    def _explain(self, weights: Tensor) -> _Ended:
        start, cpu = time.perf_counter(), time.thread_time()
        found: Masks | str | None
        try:
            vector_to_parameters(weights, self._model.parameters())
            found = explain(self._model, self._graph, self._spec, self._stopped.is_set)
        except Exception as error:  # whatever it is: the training goes on
            found = f"{type(error).__name__}: {error}".splitlines()[0]
        return _Ended(found, time.perf_counter() - start, time.thread_time() - cpu)

    def _take(self, step: int, ended: _Ended) -> None:
        self._count(explain_s=ended.wall_s, explain_cpu_s=ended.cpu_s)
        masks = ended.found
        if isinstance(masks, str):
            self._problems.append(masks)
            self._count(explain_failed=1)
        elif masks is not None:
            mean = masks.nodes.mean().item()
            importance = np.full(self._num_nodes, mean, np.float32)
            importance[self._graph.remote] = masks.nodes.numpy()
            self.guidance = Guidance(importance, masks.features, step)
            self._count(explanations=1, explain_steps=masks.steps, explain_loss=masks.losses[-1])
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
        self._weights = parameters_to_vector(model.parameters()).detach()
        self._loss = self._weights.new_full((), torch.inf, dtype=torch.float64)
        self._step = torch.zeros((), dtype=torch.int64, device=self._weights.device)

    def observe(self, model: GNN, loss: Tensor, step: int) -> None:
        better = loss < self._loss
        weights = parameters_to_vector(model.parameters()).detach()
        self._weights = torch.where(better, weights, self._weights)
        self._loss = torch.where(better, loss, self._loss)
        self._step = torch.where(better, step, self._step)

    def take(self) -> tuple[int, Tensor]:
        """Return the step and its weights, on the host."""
        return int(self._step), self._weights.cpu()


def _yield_to_training() -> None:
    """Make the calling thread, and those it starts, the last to be given a core."""
    if sys.platform == "linux":  # elsewhere the number may be another process's
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
