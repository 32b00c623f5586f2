"""R-MAT graphs (stochastic Kronecker; Chakrabarti et al. 2004): GraphSAINT's synthetic set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from harness.data.catalog import DatasetInfo
from harness.data.generated import GENERATED, Settings, communities, made, noisy_features, resolve, split_masks
from harness.data.graph import GraphData, compiled, csr_from_edges
from harness.data.partition.view import Ints
from harness.deferred import numpy as np
from harness.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK = 1 << 18


class KroneckerSettings(Settings):
    """Options of `kronecker`."""

    scale: int = Field(12, ge=1, le=30, description="the graph has 2^scale nodes")
    edge_factor: int = Field(16, ge=1, description="undirected edges drawn per node: half the mean degree, at most")
    a: float = Field(0.57, ge=0, le=1, description="probability of the upper left quadrant")
    b: float = Field(0.19, ge=0, le=1, description="of the upper right")
    c: float = Field(0.19, ge=0, le=1, description="of the lower left (the lower right has the rest)")
    features: int = Field(64, ge=1, description="feature width")
    classes: int = Field(8, ge=2, description="number of classes")
    noise: float = Field(0.5, ge=0, description="feature noise; classes are sqrt(2)/noise deviations apart")
    train: float = Field(
        0.6, ge=0, le=1, description="share of training nodes; the others validate and test, half each"
    )
    seed: int = Field(0, ge=0, description="seed")


def make(*, work: Path | None = None, **options: Any) -> GraphData:
    """Return the graph: symmetric, node numbers shuffled, a random split.

    Made to scale, not to be learnt: an R-MAT graph has no communities, so labels are drawn without regard
    to the edges and only the features follow them (a GNN does no better than an MLP); at noise 10 next to
    nothing. An edge is an entry in the rows of both of its ends; edges drawn twice and
    loops are dropped, so the mean degree is below 2 * edge_factor, the more so the smaller the graph. Many
    nodes are isolated (18 % at the defaults, 29 % at scale 16), as in every R-MAT graph.
    """
    s = _settings(options)
    nodes = 2**s.scale
    rng = np.random.default_rng([s.seed, 0])
    shuffle = rng.permutation(nodes)
    csr = csr_from_edges(partial(_edges, s, shuffle), nodes, symmetrise=True)
    community = communities(rng, nodes, s.classes)
    other = (1 - s.train) / 2
    split = split_masks(rng, nodes, (s.train, other, other))
    features, labels = noisy_features(community, s.features, s.noise, s.seed, work), (community, s.classes, False)
    return GraphData.of("kronecker", csr=csr, features=features, labels=labels, split=split, **GENERATED)


def info(options: Mapping[str, Any]) -> DatasetInfo:
    """What `make` would return; `edges` is before duplicates are dropped."""
    s = _settings(options)
    sizes = 2**s.scale, 2 * s.edge_factor * 2**s.scale, s.features, s.classes
    summary = "R-MAT graph with random labels, to measure how time grows"
    return made("kronecker", sizes, KroneckerSettings, summary, source="generated here (R-MAT)")


def _settings(options: Mapping[str, Any]) -> KroneckerSettings:
    s = resolve(KroneckerSettings, "kronecker", options)
    if s.a + s.b + s.c > 1 + 1e-9:
        raise UserError(f"a + b + c = {s.a + s.b + s.c:g}", key="dataset kronecker", fix="at most 1")
    if s.classes > 2**s.scale:
        raise UserError(f"{s.classes} classes of {2**s.scale} nodes", key="dataset kronecker", fix="fewer")
    return s


def _edges(s: KroneckerSettings, shuffle: Ints) -> Iterator[tuple[Ints, Ints]]:
    total = s.edge_factor * 2**s.scale
    for chunk, start in enumerate(range(0, total, CHUNK)):
        rng = np.random.default_rng([s.seed, 1, chunk])
        random = rng.random((min(CHUNK, total - start), s.scale), dtype=np.float32)
        source, destination = rmat(random, s.a, s.b, s.c)
        yield shuffle[source], shuffle[destination]


@compiled
def rmat(random: NDArray[np.float32], a: float, b: float, c: float) -> tuple[Ints, Ints]:
    """Descend one quadrant a column of `random` [edges, scale]: one bit of both ends each."""
    source = np.zeros(random.shape[0], np.int64)
    destination = np.zeros(random.shape[0], np.int64)
    for e in range(random.shape[0]):
        for level in range(random.shape[1]):
            r = random[e, level]
            source[e] = 2 * source[e] + (r >= a + b)
            destination[e] = 2 * destination[e] + ((a <= r < a + b) or r >= a + b + c)
    return source, destination
