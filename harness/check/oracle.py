"""Single-process full-graph training on dense matrices in float64: what the distributed runs must equal.

Written from the papers' formulas with numpy and torch only; nothing of the product is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

Weights = dict[str, Tensor]


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread: on matrices this small a second one only waits, and takes a core to do it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def propagation_matrix(adjacency: np.ndarray, model: str) -> Tensor:
    """Return the dense propagation matrix: D^-1 A (sage), D^-1/2 (A + I) D^-1/2 with D of A + I (gcn).

    mixhop's is that of gcn. For gat, what each edge counts before the softmax is normalised: A + I.
    """
    degree = adjacency.sum(1)
    if model == "sage":
        return torch.from_numpy(adjacency / np.where(degree > 0, degree, 1)[:, None])
    looped = adjacency + np.eye(len(adjacency))
    if model == "gat":
        return torch.from_numpy(looped)
    root = 1 / np.sqrt(degree + 1)
    return torch.from_numpy(root[:, None] * looped * root[None, :])


def attention(counts: Tensor, z: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Return the heads' rows [n, heads, width] (Velickovic et al., Eq. 3 and 4).

    `counts` [n, m] multiplies the exponentials; z is [m, heads * width], the halves of a are [heads, width].
    """
    heads = []
    for rows, a_source, a_target in zip(z.chunk(len(source), 1), source, target, strict=True):
        score = (rows[: len(counts)] @ a_target)[:, None] + (rows @ a_source)[None, :]
        score = torch.where(score > 0, score, 0.2 * score)
        alpha = torch.softmax(score + counts.log(), 1)
        heads.append(alpha @ rows)
    return torch.stack(heads, 1)


def logits(
    matrix: Tensor,
    x: Tensor,
    weights: Weights,
    *,
    model: str,
    layers: int,
    linear: int,
    norm: bool,
    residual: bool,
    order: int = 1,
    last: bool = False,
) -> Tensor:
    """Return the logits [N, C] of all nodes; `order`: the highest power of mixhop, `last`: it has no other."""
    h = x
    total = layers + linear
    for i in range(total):
        if i < layers:
            w = {k.rsplit(".", 1)[1]: v for k, v in weights.items() if k.startswith(f"graph_layers.{i}.")}
            if model == "gat":
                heads = attention(matrix, h @ w["weight"], w["weight_src"], w["weight_dst"])
                out = (heads.flatten(1) if i + 1 < total else heads.mean(1)) + w["bias"]
            elif model == "mixhop":
                first = order if last else 0
                out = mixed(matrix, h, w["weight"], order, add=i + 1 == total, first=first) + w["bias"]
            else:
                out = matrix @ (h @ w["weight"]) + w["bias"]
            if model == "sage":
                out = out + h @ w["weight_self"]
        else:
            out = h @ weights[f"linear_layers.{i - layers}.weight"].T + weights[f"linear_layers.{i - layers}.bias"]
        if i + 1 < total:
            if residual and h.shape[1] == out.shape[1]:
                out = out + h
            if norm:
                out = normalised(out, weights, i)
            out = torch.where(out > 0, out, 0)  # no gradient at 0, where rows of zeros end up
        h = out
    return h


def mixed(matrix: Tensor, h: Tensor, weight: Tensor, order: int, *, add: bool, first: int = 0) -> Tensor:
    """Return the powers' rows M^k H W_k, k from `first` on, side by side or added up; W_k are columns of `weight`."""
    columns = enumerate(weight.chunk(order + 1 - first, 1), first)
    powers = [torch.linalg.matrix_power(matrix, k) @ h @ w for k, w in columns]
    return torch.stack(powers).sum(0) if add else torch.cat(powers, 1)


def normalised(out: Tensor, weights: Weights, layer: int) -> Tensor:
    """Return LayerNorm of the rows, with the weights behind `layer`."""
    mean, variance = out.mean(1, keepdim=True), out.var(1, unbiased=False, keepdim=True)
    out = (out - mean) / torch.sqrt(variance + 1e-5)
    return out * weights[f"norms.{layer}.weight"] + weights[f"norms.{layer}.bias"]


def mean_loss(output: Tensor, labels: np.ndarray, rows: np.ndarray) -> Tensor:
    """Return the mean over `rows` of the cross-entropy, or of the summed binary ones."""
    chosen = output[torch.from_numpy(rows)]
    if labels.ndim == 1:
        picked = chosen - chosen.logsumexp(1, keepdim=True)
        return -picked[torch.arange(len(rows)), torch.from_numpy(labels[rows])].mean()
    truth = torch.from_numpy(labels[rows].astype(np.float64))
    p = torch.sigmoid(chosen)
    return -(truth * p.log() + (1 - truth) * (1 - p).log()).sum(1).mean()


def scores(output: Tensor, labels: np.ndarray, rows: np.ndarray) -> float:
    """Return accuracy, or micro-F1, over `rows`, counted one by one."""
    values = output.detach().numpy()
    if labels.ndim == 1:
        return sum(int(values[r].argmax() == labels[r]) for r in rows) / len(rows)
    tp = fp = fn = 0
    for r in rows:
        for c in range(labels.shape[1]):
            guess, truth = values[r, c] > 0, labels[r, c] == 1
            tp, fp, fn = tp + (guess and truth), fp + (guess and not truth), fn + (truth and not guess)
    return 2 * tp / (2 * tp + fp + fn)
