"""Explanations: the graph that a rank explains its predictions on, and the training of masks of nodes and features."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from harness import MethodOptions, numba, torch
from harness import numpy as np
from harness.plugin import CSR, Block, FeatureStore, Presets, Topology, View, induce, missing_degree

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from harness.plugin import GNN

INPUT_WEIGHTS = ("weight", "weight_self")  # of a graph layer: those that multiply its input

TINY = 1e-20  # Adam's epsilon: a node's gradient falls with 1/R, and must not be lost against it

HARNESS: Mapping[str, Any] = {
    "node_size": 2.0, "node_reduction": "mean", "node_entropy": 0.01, "feature_size": 0.3, "feature_entropy": 0.01,
    "mask_lr": 0.05, "mask_adam": "shared", "node_start": 1.0, "node_spread": 0.0, "feature_start": 0.0,
}  # fmt: skip
"""This project's constants, chosen on planted graphs and twins so that masks distinguish nodes.

A remote node's SN is held against the weight 1 of local ones, so `node_size` says how much is sent: at 2, where the
threshold does not end them in 50 steps, SN has a mean of 0.2 to 0.25 (5 to 95 %: about 0.1 to 0.5); at 0.5 of 0.2 to
0.6, at no better order of the nodes. Below 0.2 noise stays near 1 where the divergence is large; an entropy's factor of
0.05 or more drives logits up from their start, whatever a node is worth.
"""


def within_hops(topology: Topology, nodes: NDArray[np.int64], hops: int) -> NDArray[np.int64]:
    """Return `nodes` and all from which they are reached over at most `hops` (>= 0) edges, int64, ascending.

    These are the nodes whose features as many layers' outputs at `nodes` (int64, in any order, which may repeat; of
    a topology whose rows are with several ranks this rank's own) depend on. Takes time linear in the graph's nodes
    and the in-edges of those returned.
    """
    met = np.zeros(topology.num_nodes, np.bool_)
    met[nodes] = True
    fresh = np.flatnonzero(met)
    for hop in range(hops):
        found, rows = topology.rows(fresh, own=hop == 0)
        fresh = _reached(found.indptr, found.indices, rows, met)
    return np.flatnonzero(met)


@numba.njit(cache=True, nogil=True)
def _reached(indptr, indices, rows, met):  # type: ignore[no-untyped-def]
    """Return the neighbours in `rows` that were not met yet, int64; they are then."""
    fresh = np.empty(met.size + 1, np.int64)  # one more: a node met before is written too, and overwritten
    end = 0
    for row in rows:
        for e in range(indptr[row], indptr[row + 1]):
            node = indices[e]
            fresh[end] = node
            end += not met[node]
            met[node] = True
    return fresh[:end].copy()


CHUNK = 16384  # remote rows fetched at a time, so that no second matrix of them all is made

ENGINE = "numba"  # keeps to torch's number of threads also in a thread of its own, where dgl takes all cores


@dataclass(frozen=True, eq=False)
class ExplanationGraph:
    """What a rank explains its predictions on (DGS, section III-B), in the memory of the CPU.

    Row 0 of the star is v_G, all inner nodes in one; rows 1, 2, ... are the remote nodes within as many hops
    as count, each linked with v_G in both directions. The links to v_G count 1/R each, so that every row of
    the star has degree 1: SAGE sees the mean over R remote nodes, and what GCN and GAT see does not grow
    with R either. (By the star's plain degrees the symmetric normalisation of GCN would multiply that mean
    by sqrt(R/2), a layer at a time.) v_G's self loop is the models' own: each adds a destination's row to
    that of its neighbours, SAGE by weights of its own.

    `local_block` has the inner nodes and all edges between them, with full degrees; sums over neighbours are multiplied
    by the full degree over that of these edges, so that means are of what is there.
    """

    remote: NDArray[np.int64]  # [R], ascending: nodes of the view
    features: Tensor  # [1 + R, F] of the star's rows; v_G's are the mean of the local ones
    local_features: Tensor  # [n_in, F], the store's own rows where those are on the CPU, or a file's, mapped
    local_block: Block
    blocks: list[Block]  # of each layer, or hop of one: the star, but that the last one has no destination but v_G
    multilabel: bool  # whether a node has any number of classes

    @classmethod
    def build(
        cls, view: View, topology: Topology, store: FeatureStore, *, hops: int, depth: int, dtype: torch.dtype
    ) -> ExplanationGraph:
        """Make a rank's explanation graph, of the view that is trained on and its topology; every rank must call.

        Remote nodes may be `hops` away; the model has weights of `dtype` and runs on `depth` blocks (`GNN.depth`).
        Traffic: what `store.gather` counts for each remote node, once, and 8 bytes a peer (control); what the
        topology's `rows` cost, hop by hop.
        """
        inner = np.asarray(view.partition.inner)
        remote = np.setdiff1d(within_hops(topology, inner, hops), inner, assume_unique=True)
        local = store.inner.to("cpu", dtype) if view.disk is None else view.host_features().to(dtype)
        features = torch.empty((1 + remote.size, local.shape[1]), dtype=dtype)
        features[0] = local.mean(0) if inner.size else 0
        chunks = -(-remote.size // CHUNK)
        for k in range(max(store.comm.exchange_counts([chunks] * store.comm.world))):  # as many calls on all ranks
            rows = slice(k * CHUNK, (k + 1) * CHUNK)
            features[1:][rows] = store.gather(remote[rows])
        sample = induce(topology, inner, store.tables)
        weights = None if sample.values is None else sample.values.astype(np.float32)
        scale = missing_degree(topology, inner, Topology(sample.indptr, sample.indices, weights))
        host = torch.device("cpu")
        block = replace(sample, dst_scale=scale).block(topology, device=host, dtype=dtype, engine=ENGINE)
        return cls(
            remote=remote, features=features, local_features=local, local_block=block,
            blocks=star(remote.size, depth, dtype), multilabel=view.labels.dim() > 1,
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes of what it holds, in the memory of the CPU; the local features are left out."""
        held = {id(block): block for block in (self.local_block, *self.blocks)}.values()
        matrices = [array for b in held for array in (b.adjacency.indptr, b.adjacency.indices, b.adjacency.values)]
        scales = [array for b in held for array in (b.degree, b.dst_scale)]
        return sum(array.nbytes for array in (self.features, *matrices, *scales) if array is not None)


def star(remote: int, depth: int, dtype: torch.dtype) -> list[Block]:
    """Return the blocks of a star of `remote` nodes around row 0; see `ExplanationGraph.blocks`."""
    spokes = torch.arange(1, 1 + remote, dtype=torch.int32)
    hub = torch.zeros(remote, dtype=torch.int32)
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), remote + torch.arange(1 + remote)])
    scale = torch.ones(1 + remote, dtype=dtype)
    scale[0] = 1 / max(remote, 1)
    degree = torch.ones(1 + remote, dtype=dtype)

    def block(indptr: Tensor, indices: Tensor) -> Block:
        adjacency = CSR(indptr, indices, 1 + remote)
        return Block(adjacency, degree, dst_scale=scale[: adjacency.num_rows], engine=ENGINE)

    last = block(ends[:2], spokes)
    return [last] if depth == 1 else [*[block(ends, torch.cat([spokes, hub]))] * (depth - 1), last]


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
    moved: bool = True  # False: the first divergence was within the threshold, and the masks are where they started

    @property
    def steps(self) -> int:
        """Number of steps at which the loss was worked out; at all but the last of a short one masks were moved."""
        return len(self.losses)


def explain(
    model: GNN, graph: ExplanationGraph, options: MaskOptions, seed: int = 0, stop: Callable[[], bool] = lambda: False
) -> Masks | None:
    """Train the masks of a rank's remote nodes and of the features (DGS, section III-C, Algorithm 1).

    The prediction to be kept is that of the local nodes' mean logits, inferred on the edges between them. v_G's is
    inferred on the star, features multiplied by SF and what a remote node sends, in every layer (with GCN and GAT to
    itself too), by SN. The loss is GNNExplainer's (Ying et al., NeurIPS 2019, Eq. 3 to 6, and the regularisers of its
    code), H the binary entropy:

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
    return Masks(sn, sf, losses, divergences, moved=len(losses) > 1 or divergences[0] > options.threshold)


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
    # Not the mean of their probabilities: that is less certain than v_G, whose features are a mean, so that nodes and
    # features that inform would count as harm.
    with torch.no_grad():
        block, x, last = graph.local_block, graph.local_features, model.spec.layers - 1
        for index in range(last):
            x = model.behind(index, x, [block] * model.hops, transform_first=True)
        # The logits of some nodes at a time; a layer of several hops would aggregate for each of them anew.
        chunks = torch.arange(block.num_dst).split(CHUNK if model.hops == 1 else max(1, block.num_dst))
        total = x.new_zeros(model.outputs)
        for rows in chunks:
            own = block if len(chunks) == 1 else block.into(rows)
            logits = model.behind(last, x, [*[block] * (model.hops - 1), own], transform_first=own is block)
            for index in range(last + 1, last + 1 + model.spec.linear_layers):
                logits = model.behind(index, logits)
            total += logits.sum(0)
        mean = total / max(1, block.num_dst)
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
