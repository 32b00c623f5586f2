"""Masks of nodes and features that explain a prediction: what they are trained for, and how."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from harness import MethodOptions, Presets, torch

from .guided_sampling import ExplanationGraph

if TYPE_CHECKING:
    from torch import Tensor

    from harness.models import GNN

INPUT_WEIGHTS = ("weight", "weight_self")  # of a graph layer: those that multiply its input

TINY = 1e-20  # Adam's epsilon: a node's gradient falls with 1/R, and must not be lost against it

HARNESS: Mapping[str, Any] = {
    "node_size": 2.0, "node_reduction": "mean", "node_entropy": 0.01, "feature_size": 0.3, "feature_entropy": 0.01,
    "mask_lr": 0.05, "mask_adam": "shared", "node_start": 1.0, "node_spread": 0.0, "feature_start": 0.0,
}  # fmt: skip
"""This project's constants, chosen on planted graphs and twins so that masks tell nodes apart.

A remote node's SN is held against the weight 1 of local ones, so `node_size` says how much is sent: at 2, where the
threshold does not end them in 50 steps, SN has a mean of 0.2 to 0.25 (5 to 95 %: about 0.1 to 0.5); at 0.5 of 0.2 to
0.6, at no better order of the nodes. Below 0.2 noise stays near 1 where the divergence is large; an entropy's factor of
0.05 or more drives logits up from their start, whatever a node is worth.
"""


class ExplanationError(Exception):
    """Masks that could not be trained: a loss or a mask is not a finite number."""


class MaskOptions(MethodOptions):
    """How masks are trained; the number of steps and the threshold are those of DGS (section V).

    DGS gives no other constant, but takes "the explanation module presented in" GNNExplainer (Ying et al., NeurIPS
    2019). The defaults are those of its authors' code, gnn-model-explainer. PyG's and DGL's have the same factors, but
    `mask_lr: 0.01` and `node_start: 0`; the entropy of the features' mask is in the loss of these two only, the
    authors' code works it out and leaves it out of the sum. Left out here is the authors' Laplacian of labels.
    """

    presets: ClassVar[Presets] = {"explainer": {"harness": HARNESS}}

    explain_steps: int = Field(50, ge=1, description="T_E: steps of an explanation at most")
    threshold: float = Field(
        0.01, ge=0, description="L: divergence from the prediction (nats) at which an explanation ends"
    )
    explainer: Literal["gnnexplainer", "harness"] = Field(
        "gnnexplainer", description="preset of the options below, each of which may be given all the same: "
        "GNNExplainer's constants, or this project's",
    )  # fmt: skip
    node_size: float = Field(0.005, ge=0, description="factor of the size of SN, the mask of remote nodes")
    node_reduction: Literal["mean", "sum"] = Field(
        "sum", description="that size: SN's mean, or its sum, which grows with the remote nodes"
    )
    node_entropy: float = Field(1.0, ge=0, description="factor of the mean binary entropy of SN (nats)")
    feature_size: float = Field(1.0, ge=0, description="factor of the mean of SF, the mask of features")
    feature_entropy: float = Field(0.1, ge=0, description="factor of the mean binary entropy of SF (nats)")
    mask_lr: float = Field(0.1, gt=0, description="learning rate of the masks' logits")
    mask_adam: Literal["shared", "usual"] = Field(
        "usual", description="Adam of the masks: the usual one, or decays of 0.9 and one second moment of all nodes"
    )
    node_start: float = Field(1.0, description="logit that SN starts from; the sigmoid of 1 is 0.73")
    node_spread: float = Field(
        1.0, ge=0, description="noise of that start: standard deviation in units of sqrt(2 / (R + 1)), R remote nodes"
    )
    feature_start: float = Field(0.0, description="logit that SF starts from")


@dataclass(frozen=True, eq=False)
class Masks:
    """Trained masks, on the CPU."""

    nodes: Tensor  # float32 [R] in [0, 1]: what each remote node of the explanation graph is worth (SN)
    features: Tensor  # float32 [F] in [0, 1]: what each feature is worth (SF)
    losses: list[float] = field(repr=False)  # of each step, before its update
    divergences: list[float] = field(repr=False)  # likewise

    @property
    def steps(self) -> int:
        """Number of steps at which the loss was worked out; at all but the last of a short one masks were moved."""
        return len(self.losses)


def explain(
    model: GNN, graph: ExplanationGraph, options: MaskOptions, seed: int = 0, stop: Callable[[], bool] = lambda: False
) -> Masks | None:
    """Train the masks of a rank's remote nodes and of the features (DGS, section III-C, Algorithm 1).

    The prediction to be kept is that of the local nodes' mean logits, inferred on the edges between them.
    (The mean of their probabilities would be less certain than v_G, whose features are a mean: telling nodes
    and features would then count as harm.) v_G's is inferred on the star, features multiplied by SF and what
    a remote node sends, in every layer (with GCN and GAT to itself too), by SN. The loss is GNNExplainer's
    (Ying et al., NeurIPS 2019, Eq. 3 to 6, and the regularisers of its code), H the binary entropy:

        KL(kept || inferred) + node_size mean(SN), or sum(SN), + feature_size mean(SF)
            + node_entropy mean(H(SN)) + feature_entropy mean(H(SF))

    The divergence is the cross-entropy less a constant; of many labels, the mean of their divergences. Training ends
    where it is at most `threshold`: the whole loss, which regularisers are part of, never comes to be so small.
    SN's logits start from N(`node_start`, `node_spread`^2 2 / (R + 1)), those of SF from `feature_start`. Without a
    spread there are no random numbers, and equal models have equal masks.

    Args:
        model: on the CPU, in the graph's dtype; it is left as it is, and must stay so during the call.
        graph: the explanation graph.
        options: how to train.
        seed: of the start, in [0, 2^63).
        stop: asked before each step; True: the call gives up.

    Returns:
        The masks, or None where `stop` said so.

    Raises:
        ExplanationError: a loss or a mask is not finite.
    """
    model = copy.deepcopy(model).eval().requires_grad_(False)
    kept = _kept(model, graph)
    nodes, features = _starts(graph, options, seed)
    usual = options.mask_adam == "usual"
    optimizers = [
        _Adam(nodes, options.mask_lr, shared=not usual, usual=usual),
        _Adam(features, options.mask_lr, shared=False, usual=usual),
    ]
    losses: list[float] = []
    divergences: list[float] = []
    while len(losses) < options.explain_steps:
        if stop():
            return None
        found = objective(model, graph, options, kept, nodes, features)
        losses.append(found.loss.item())
        divergences.append(found.divergence.item())
        if not math.isfinite(losses[-1]):
            raise ExplanationError(f"the loss of step {len(losses)} is {losses[-1]}")
        if divergences[-1] <= options.threshold:
            break
        gradients = torch.autograd.grad(found.loss, (nodes, features))
        for optimizer, gradient in zip(optimizers, gradients, strict=True):
            optimizer.step(gradient)
    sn, sf = (logits.detach().sigmoid().float() for logits in (nodes, features))
    if not (sn.isfinite().all() and sf.isfinite().all()):
        raise ExplanationError("a mask is not finite")
    return Masks(sn, sf, losses, divergences)


def _starts(graph: ExplanationGraph, options: MaskOptions, seed: int) -> tuple[Tensor, Tensor]:
    """Return the logits that masks start from, [R] and [F]."""
    remote, width = graph.remote.size, graph.features.shape[1]
    noise = torch.randn(remote, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    spread = options.node_spread * math.sqrt(2 / (remote + 1))
    nodes = (options.node_start + spread * noise).to(graph.features.dtype)
    features = graph.features.new_full((width,), options.feature_start)
    return nodes.requires_grad_(), features.requires_grad_()


class Objective(NamedTuple):
    """What masks are trained for, and the part of it that says whether the prediction is kept; scalars."""

    loss: Tensor
    divergence: Tensor


def objective(
    model: GNN, graph: ExplanationGraph, options: MaskOptions, kept: Tensor, nodes: Tensor, features: Tensor
) -> Objective:
    """Return the loss of masks' logits `nodes` [R] and `features` [F]; see `explain`.

    The model is in evaluation mode, `kept` [C] the prediction to be kept.
    """
    inferred = _star_logits(model, graph, nodes.sigmoid(), features.sigmoid())
    divergence = _divergence(kept, inferred, graph.multilabel)
    node_size = options.node_size * (nodes.numel() if options.node_reduction == "sum" else 1)
    regularisers = _regulariser(nodes, node_size, options.node_entropy) + _regulariser(
        features, options.feature_size, options.feature_entropy
    )
    return Objective(divergence + regularisers, divergence)


class _Adam:
    """Adam (Kingma and Ba, 2015, Algorithm 1) on a mask's logits.

    `usual`: as in the paper, as torch has it. Else both moments decay by 0.9 (in tens of steps 0.999 forgets
    nothing), and there is no epsilon to speak of. `shared`: all logits have one second moment, the mean of their
    squares. With one of each, all logits move about equally fast, however large their gradients; for nodes, whose
    gradients are alike in scale, that leaves nothing of an order but on which side of the size's factor a node is.
    """

    def __init__(self, logits: Tensor, lr: float, *, shared: bool, usual: bool) -> None:
        self._logits, self._lr, self._steps = logits, lr, 0
        self._decays, self._epsilon = ((0.9, 0.999), 1e-8) if usual else ((0.9, 0.9), TINY)
        self._first = torch.zeros_like(logits)
        self._second = logits.new_zeros(()) if shared else torch.zeros_like(logits)

    def step(self, gradient: Tensor) -> None:
        """Move the logits."""
        self._steps += 1
        first, second = self._decays
        with torch.no_grad():
            square = gradient.square()
            self._first.lerp_(gradient, 1 - first)
            self._second.lerp_(square if self._second.dim() else square.mean(), 1 - second)
            length = self._lr / (1 - first**self._steps)
            scale = (self._second / (1 - second**self._steps)).sqrt().add_(self._epsilon)
            self._logits.sub_(self._first / scale, alpha=length)


def _kept(model: GNN, graph: ExplanationGraph) -> Tensor:
    """Return what the local nodes' mean logits predict, [C]: chances of classes, or of each label."""
    with torch.no_grad():
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
    logits: Tensor = torch.func.functional_call(
        model, folded, (graph.blocks, inputs, exchange), {"transform_first": True}
    )
    return logits[0]


def _divergence(kept: Tensor, logits: Tensor, multilabel: bool) -> Tensor:
    """KL(kept || inferred) in nats."""
    kl_div, logsigmoid = torch.nn.functional.kl_div, torch.nn.functional.logsigmoid
    if not multilabel:
        return kl_div(logits.log_softmax(0), kept, reduction="sum")
    on = kl_div(logsigmoid(logits), kept, reduction="sum")
    off = kl_div(logsigmoid(-logits), 1 - kept, reduction="sum")
    return (on + off) / kept.numel()


def _regulariser(logits: Tensor, size: float, entropy: float) -> Tensor:
    """Mean size and mean binary entropy of a mask, weighted; 0 of an empty one."""
    mask = logits.sigmoid()
    logsigmoid = torch.nn.functional.logsigmoid
    entropies = -(mask * logsigmoid(logits) + (1 - mask) * logsigmoid(-logits))
    return (size * mask + entropy * entropies).sum() / max(mask.numel(), 1)
