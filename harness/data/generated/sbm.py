"""Planted partition with class-dependent noisy features: the smallest set on which a GNN has to work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.data.catalog import DatasetInfo
from harness.data.generated.attributes import communities, label_sets, noisy_features, split_masks
from harness.data.generated.options import option, options_of, resolve
from harness.data.generated.planted import PlantedGraph
from harness.data.graph import GraphData
from harness.errors import UserError

SPLIT = (0.6, 0.2, 0.2)


@dataclass(frozen=True)
class Settings:
    """Options of `sbm`."""

    nodes: int = option(2000, "number of nodes", 2)
    degree: float = option(10.0, "mean degree", 0)
    classes: int = option(5, "number of classes", 2)
    features: int = option(32, "feature width", 1)
    homophily: float = option(0.6, "share of edges inside a community", 0, 1)
    noise: float = option(0.6, "feature noise; classes are sqrt(2)/noise deviations apart", 0)
    multilabel: bool = option(False, "label sets that depend on the community instead of one label")
    seed: int = option(0, "seed", 0)


def make(*, work: Path | None = None, **options: Any) -> GraphData:
    """Return the graph: communities of equal size, Poisson degrees, a random 60/20/20 split.

    Single-label: the label is the community. Multi-label: as many communities as classes; see `label_sets`.
    A node that would be isolated gets one edge.
    """
    s = resolve(Settings, "sbm", options)
    if s.classes > s.nodes:
        raise UserError(f"{s.classes} classes of {s.nodes} nodes", key="dataset sbm: classes", fix="fewer")
    rng = np.random.default_rng([s.seed, 0])
    community = communities(rng, s.nodes, s.classes)
    planted = PlantedGraph(
        np.ones(s.nodes), community, edges=s.nodes * s.degree / 2, homophily=s.homophily, seed=s.seed
    )
    indptr, indices = planted.csr()
    train, val, test = split_masks(rng, s.nodes, SPLIT)
    return GraphData(
        name="sbm",
        indptr=indptr,
        indices=indices,
        features=noisy_features(community, s.features, s.noise, s.seed, work),
        labels=label_sets(rng, community, s.classes) if s.multilabel else community,
        train_mask=train,
        val_mask=val,
        test_mask=test,
        num_classes=s.classes,
        multilabel=s.multilabel,
        origin="generated",
        note="generated",
    )


def info(options: Mapping[str, Any]) -> DatasetInfo:
    """What `make` would return; `edges` is what it aims at."""
    s = resolve(Settings, "sbm", options)
    return DatasetInfo(
        name="sbm",
        nodes=s.nodes,
        edges=round(s.nodes * s.degree),
        features=s.features,
        classes=s.classes,
        multilabel=s.multilabel,
        inductive=False,
        origin="generated",
        normalize="none",
        options=options_of(Settings),
        source="generated here",
        size_bytes=0,
        summary="planted partition, class-dependent noisy features",
    )
