"""Masks of nodes and features that explain a prediction."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import kl_div, logsigmoid

from harness.models import GNN

from .explanation_graph import ExplanationGraph

FIRST_NODE, FIRST_FEATURE = 1.0, 0.0  # logits that masks start from

MOMENTUM, MEMORY = 0.9, 0.9  # decay of Adam's moments; in tens of steps, 0.999 would forget nothing

INPUT_WEIGHTS = ("weight", "weight_self")  # of a graph layer: those that multiply its input

TINY = 1e-20  # Adam's epsilon: a node's gradient falls with 1/R, and must not be lost against it


class ExplanationError(Exception):
    """Masks that could not be trained: a loss or a mask is not a finite number."""


@dataclass(frozen=True)
class ExplainSpec:
    """How masks are trained.

    Attributes:
        steps: at most (T_E of DGS).
        threshold: training ends at a loss of at most this.
        lr: Adam's, on the masks' logits.
        node_size, feature_size: factors of the means of the masks.
        node_entropy, feature_entropy: factors of the means of the masks' binary entropies (nats).

    The defaults of the factors and of `lr` are this project's, chosen on planted graphs and twins. A remote
    node's SN is held against the weight 1 of local ones, so `node_size` says how much is sent: at 2, in 50
    steps, SN has a mean of 0.2 to 0.25 (5 to 95 %: about 0.1 to 0.5); at 0.5 of 0.2 to 0.6, at no better
    order of the nodes. Below 0.2 noise stays near 1 where the divergence is large; an entropy's factor of
    0.05 or more drives logits up from their start, whatever a node is worth.
    """

    steps: int = 50
    threshold: float = 0.01
    lr: float = 0.05
    node_size: float = 2.0
    feature_size: float = 0.3
    node_entropy: float = 0.01
    feature_entropy: float = 0.01


@dataclass(frozen=True, eq=False)
class Masks:
    """Trained masks, on the CPU.

    Attributes:
        nodes: float32 [R] in [0, 1]: what each remote node of the explanation graph is worth (SN).
        features: float32 [F] in [0, 1]: what each feature is worth (SF).
        losses: of each step, before its update.
    """

    nodes: Tensor
    features: Tensor
    losses: list[float] = field(repr=False)

    @property
    def steps(self) -> int:
        """Number of training steps."""
        return len(self.losses)


def never() -> bool:
    """Return False: nobody wants it to stop."""
    return False


def explain(model: GNN, graph: ExplanationGraph, spec: ExplainSpec, stop: Callable[[], bool] = never) -> Masks | None:
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
    masks = Masks(_mask(nodes), _mask(features), losses)
    if not (masks.nodes.isfinite().all() and masks.features.isfinite().all()):
        raise ExplanationError("a mask is not finite")
    return masks


def objective(
    model: GNN, graph: ExplanationGraph, spec: ExplainSpec, kept: Tensor, nodes: Tensor, features: Tensor
) -> Tensor:
    """Return the loss of masks' logits `nodes` [R] and `features` [F]; see `explain`.

    Args:
        model: in evaluation mode.
        graph: the explanation graph.
        spec: the coefficients.
        kept: [C], the prediction to be kept.
        nodes, features: the logits.
    """
    inferred = _star_logits(model, graph, nodes.sigmoid(), features.sigmoid())
    return (
        _divergence(kept, inferred, graph.multilabel)
        + _regulariser(nodes, spec.node_size, spec.node_entropy)
        + _regulariser(features, spec.feature_size, spec.feature_entropy)
    )


class _Adam:
    """Adam on a mask's logits, with a second moment of each or, `shared`, one of them all.

    With one of each, all logits move about equally fast, however large their gradients. For nodes, whose
    gradients are alike in scale, that would leave nothing of an order but on which side of the size's factor
    a node is.
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


def _mask(logits: Tensor) -> Tensor:
    return logits.detach().sigmoid().float()


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
