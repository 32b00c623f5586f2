"""Training with stale boundary rows, simulated in one process on dense float64 matrices.

Written from Algorithm 1 of PSC-GCN and the formulas of the papers with numpy and torch only; nothing of the
product is used. All parts are computed at once: row i of a propagation matrix is what the rank of node i
drew; of its columns those of the same rank read this iteration's rows, the others an older one's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from harness.check import oracle


@dataclass(frozen=True)
class Rule:
    """What is stale: tau, what is read before iteration tau, and the decay of smoothing (None: off)."""

    staleness: int
    warmup: Literal["absent", "sync"] = "absent"
    decay: float | None = None


@dataclass(frozen=True)
class Model:
    """The network: its kind, whether LayerNorm is between layers, the layers that send H W for H, powers."""

    name: Literal["sage", "gcn", "mixhop"]
    norm: bool
    transform_first: Collection[int] = ()
    order: int = 1


@dataclass(frozen=True)
class Result:
    """Loss of each iteration, gradients of the last, weights after it."""

    losses: list[float]
    gradients: dict[str, np.ndarray]
    after: dict[str, np.ndarray]


def drawn_matrix(drawn: np.ndarray, adjacency: np.ndarray, model: str) -> Tensor:
    """Return the propagation matrix [N, N] of a drawn graph; degrees and self loops are the whole graph's.

    Args:
        drawn: [N, N], a_ij / p_ij where the edge was drawn, else 0.
        adjacency: [N, N], the whole graph a.
        model: sage or gcn.
    """
    whole = oracle.propagation_matrix(adjacency, model)
    factor = torch.from_numpy(drawn / np.where(adjacency > 0, adjacency, 1))
    return torch.where(torch.eye(len(whole), dtype=torch.bool), whole, whole * factor)


@oracle.one_thread()
def train(
    matrices: list[Tensor],
    parts: np.ndarray,
    x: np.ndarray,
    loss: Callable[[Tensor], Tensor],
    before: dict[str, np.ndarray],
    model: Model,
    rule: Rule,
    optimizer: Callable[[list[Tensor]], torch.optim.Optimizer],
    aggregated: Tensor | None = None,
) -> Result:
    """Take one optimizer step for each matrix.

    Args:
        matrices: [N, N], what iteration t trains on: the propagation matrix of g_{t-tau}.
        parts: rank of each node, int [N].
        x: input features, float64 [N, F].
        loss: of the logits [N, C].
        before: the weights at first, by name.
        model: the network.
        rule: what is stale.
        optimizer: makes the optimizer of the weights.
        aggregated: the first layer's aggregation [N, F], where it was computed once, exactly.
    """
    weights = {name: torch.from_numpy(value.copy()).requires_grad_() for name, value in before.items()}
    steps, losses, history = optimizer(list(weights.values())), [], _History(rule)
    same = torch.from_numpy(parts[:, None] == parts[None, :])
    depth = sum(f"graph_layers.{i}.weight" in weights for i in range(len(weights)))
    for t, matrix in enumerate(matrices):
        steps.zero_grad()
        history.begin(t)
        h = torch.from_numpy(x)
        for i in range(depth):
            w, transform_first = weights[f"graph_layers.{i}.weight"], i in model.transform_first
            if model.name == "mixhop":
                powers = [h]
                for hop in range(model.order):
                    seen = history.read(model.order * i + hop, powers[-1])
                    powers.append((matrix * same) @ powers[-1] + (matrix * ~same) @ seen)
                found = [t @ part for t, part in zip(powers, w.chunk(model.order + 1, 1), strict=True)]
                out = torch.cat(found, 1) if i + 1 < depth else torch.stack(found).sum(0)
            elif i == 0 and aggregated is not None:
                out = aggregated @ w
            else:
                sent = h @ w if transform_first else h
                out = (matrix * same) @ sent + (matrix * ~same) @ history.read(i, sent)
                out = out if transform_first else out @ w
            out = out + weights[f"graph_layers.{i}.bias"]
            if model.name == "sage":
                out = out + h @ weights[f"graph_layers.{i}.weight_self"]
            if i + 1 < depth:
                out = oracle.normalised(out, weights, i) if model.norm else out
                out = torch.relu(out)
            h = out
        value = loss(h)
        # The gradient of <H, J> is J: what peers sent joins the fresh gradient at H and flows on from there.
        (value + history.received).backward()
        history.end()
        losses.append(value.item())
        steps.step()
    return Result(
        losses,
        {name: w.grad.numpy().copy() for name, w in weights.items()},
        {name: w.detach().numpy().copy() for name, w in weights.items()},
    )


@dataclass
class _History:
    """What was sent: by (iteration, layer), [N, width] by node; gradients are the sum of all readers'."""

    rule: Rule
    rows: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    gradients: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    means: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    def begin(self, t: int) -> None:
        self.t, self.received = t, torch.zeros((), dtype=torch.float64)
        self.seen: dict[int, Tensor] = {}

    def read(self, layer: int, sent: Tensor) -> Tensor:
        """Send this iteration's rows; return what the readers of other ranks see in their place."""
        rule, past = self.rule, (self.t - self.rule.staleness, layer)
        self.rows[self.t, layer] = sent.detach()
        if past in self.gradients and rule.staleness:
            stale = self._smoothed("gradients", layer, self.gradients[past])
            self.received = self.received + (sent * stale).sum()
        if rule.staleness == 0 or (past[0] < 0 and rule.warmup == "sync"):
            seen = sent * 1  # waited for, and so are its gradients
        elif past[0] < 0:
            seen = torch.zeros_like(sent).detach()
        else:
            seen = self._smoothed("rows", layer, self.rows[past]).clone()
        if sent.requires_grad:  # of input features no gradient is sent
            self.seen[layer] = seen.requires_grad_()
            seen.retain_grad()
        return seen

    def end(self) -> None:
        for layer, seen in self.seen.items():
            assert seen.grad is not None
            self.gradients[self.t, layer] = seen.grad.clone()

    def _smoothed(self, kind: str, layer: int, value: Tensor) -> Tensor:
        if self.rule.decay is not None:
            mean = self.means.get((kind, layer), value)
            value = self.rule.decay * mean + (1 - self.rule.decay) * value
            self.means[kind, layer] = value
        return value
