"""Graphs on which it is planted which remote nodes and which features tell the labels."""

from __future__ import annotations

from dataclasses import dataclass
from unittest import mock

import numpy as np
import torch
from harness_methods.dgs import explanations as explain_graph
from harness_methods.dgs.explanations import ExplanationGraph
from numpy.typing import NDArray
from support.wire import communicator

from harness.check.graphs import OnDisk
from harness.check.training import Case
from harness.data.graph import GraphData
from harness.graph.block import MEAN
from harness.graph.partition import View
from harness.runtime.features import FeatureStore


@dataclass(frozen=True)
class Planted:
    """A graph of two parts, and the plant.

    Each part has a core of two classes of its own, `share` of its nodes of the first, and a rim. Edges join
    nodes of a core, most of them of one class, and lead from the rim of one part to the core of the other:
    the rim of the one is what is remote to the other, at any number of hops. A third of a rim are like nodes
    of the core they lead to, the others noise of the same size. A third of the features tell the class.

    Attributes:
        graph: the whole; rims are in no split.
        parts: int64 [N], 0 or 1.
        telling_nodes: bool [N], the telling third of both rims.
        telling_features: bool [F].
    """

    graph: GraphData
    parts: NDArray[np.int64]
    telling_nodes: NDArray[np.bool_]
    telling_features: NDArray[np.bool_]


def planted(
    seed: int, core: int = 600, rim: int = 240, features: int = 60, signal: float = 2.0, share: float = 0.95
) -> Planted:
    """Return a planted graph of 2 (core + rim) nodes; the class means are `signal` times the noise."""
    rng = np.random.default_rng(seed)
    part_size = core + rim
    parts = np.repeat([0, 1], part_size)
    in_core = np.tile(np.arange(part_size) < core, 2)
    telling = ~in_core & np.tile(np.arange(part_size) < core + rim // 3, 2)
    home = np.where(in_core, parts, 1 - parts)  # whose classes a node has
    labels = 2 * home + (rng.random(parts.size) >= share)
    telling_features = rng.permutation(features) < features // 3

    part_means, class_means = rng.choice([-1.0, 1.0], (2, features)), rng.choice([-1.0, 1.0], (4, features))
    means = signal * (part_means.repeat(2, 0) + 0.3 * class_means) * telling_features
    telling_cells = (in_core | telling)[:, None] & telling_features
    noise = rng.normal(size=(parts.size, features))
    # One variance for all: nothing can be told by its size.
    x = np.where(telling_cells, (means[labels] + noise) / np.sqrt(1 + 1.09 * signal**2), noise)

    indptr, indices = _edges(rng, in_core, home, labels)
    split = np.where(in_core, rng.choice(4, parts.size, p=[0.6, 0.2, 0.2, 0.0]), 3)
    graph = GraphData(
        name=f"planted{seed}",
        indptr=indptr,
        indices=indices,
        features=x.astype(np.float32),
        labels=labels.astype(np.int64),
        train_mask=split == 0,
        val_mask=split == 1,
        test_mask=split == 2,
        num_classes=4,
        multilabel=False,
        origin="generated",
        note="planted importance",
    )
    return Planted(graph, parts, telling, telling_features)


def _edges(
    rng: np.random.Generator, in_core: NDArray[np.bool_], home: NDArray[np.int64], labels: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """In-edges of every core node: both ways within its core, and from the other part's rim."""
    chance = np.where(labels[:, None] == labels[None, :], 0.03, 0.003)
    same = home[:, None] == home[None, :]
    within = np.triu((rng.random(same.shape) < chance) & same & in_core[:, None] & in_core[None, :], 1)
    across = (rng.random(same.shape) < 0.03) & same & in_core[:, None] & ~in_core[None, :]
    across[rng.choice(np.flatnonzero(in_core & (home == 0)), 1), ~in_core & (home == 0)] = True
    across[rng.choice(np.flatnonzero(in_core & (home == 1)), 1), ~in_core & (home == 1)] = True
    dense = within | within.T | across
    indptr = np.concatenate([[0], np.cumsum(dense.sum(1))])
    return indptr.astype(np.int64), np.nonzero(dense)[1].astype(np.int32)


def auc(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve: the chance that a positive scores higher, ties counting half."""
    difference = np.subtract.outer(scores[positive], scores[~positive])
    return float(((difference > 0) + 0.5 * (difference == 0)).mean())


class WholeStore(FeatureStore):
    """What one rank of several sees, without the others: all rows are at hand."""

    def __init__(self, view: View, rows: NDArray[np.float32], dtype: torch.dtype) -> None:
        inner = torch.from_numpy(rows[view.partition.inner]).to(dtype)
        super().__init__(communicator(0, 1), inner, view.owner, view.local_row)
        self.rows = torch.from_numpy(rows).to(dtype)

    def gather(self, ids, columns=None, comm=None):  # type: ignore[no-untyped-def]
        return self.rows[torch.from_numpy(ids)]


def explanation_graph(
    graph: GraphData, data: OnDisk, rank: int, *, hops: int = 2, depth: int = 2, dtype: torch.dtype = torch.float32
) -> ExplanationGraph:
    """Return a rank's explanation graph, made in this process alone."""
    view = View(graph, data.parts.full, rank, engine="numba", device=torch.device("cpu"), dtype=dtype)
    store = WholeStore(view, graph.features, dtype)
    return ExplanationGraph.build(view, view.topology, store, hops=hops, depth=depth, dtype=dtype)


@dataclass(frozen=True)
class Built:
    """An explanation graph as it is sent between processes, and the bytes sent for it by purpose."""

    remote: NDArray[np.int64]
    features: NDArray[np.float64]
    local_features: NDArray[np.float64]
    local_means: NDArray[np.float64]
    local_degree: NDArray[np.float64]
    nbytes: int
    sent: dict[str, int]


def build_each(rank: int, world: int, cases: list[Case], hops: list[int], chunk: int) -> list[Built]:
    """Build the explanation graph of each case, with features fetched in chunks."""
    built = []
    for case, hop in zip(cases, hops, strict=True):
        trainer = case.trainer(rank, world)
        worker = trainer.worker
        before = worker.traffic.sent("setup")
        with mock.patch.object(explain_graph, "CHUNK", chunk):
            graph = ExplanationGraph.build(
                worker.view,
                worker.view.topology,
                worker.features,
                hops=hop,
                depth=case.model.layers,
                dtype=worker.dtype,
            )
        after = worker.traffic.sent("setup")
        block = graph.local_block
        built.append(
            Built(
                graph.remote,
                graph.features.numpy(),
                graph.local_features.numpy(),
                block.aggregate(graph.local_features, MEAN).numpy(),
                block.degree.numpy(),
                graph.nbytes,
                {purpose: after[purpose] - before[purpose] for purpose in after},
            )
        )
    return built
