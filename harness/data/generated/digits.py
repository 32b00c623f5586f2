"""scikit-learn's handwritten digits as a nearest-neighbour graph: real data that needs no download."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from harness.data.catalog import DatasetInfo
from harness.data.generated import Settings, made, resolve, split_masks
from harness.data.graph import GraphData, csr_from_edges
from harness.deferred import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

NODES, WIDTH, CLASSES = 1797, 64, 10
SPLIT = (0.6, 0.2, 0.2)
ONE_WAY = 0.37  # share of nearest neighbours whose nearest the node is not itself, at k = 10


class DigitsSettings(Settings):
    """Options of `digits`."""

    k: int = Field(10, ge=1, le=NODES - 1, description="each image is linked to its k nearest (Euclidean, on pixels)")
    seed: int = Field(0, ge=0, description="seed of the 60/20/20 split")


def make(*, work: Path | None = None, **options: Any) -> GraphData:
    """Return 1,797 images of 8 x 8 pixels in 0..1, linked where either is among the other's k nearest."""
    from sklearn.datasets import load_digits

    s = resolve(DigitsSettings, "digits", options)
    data = load_digits()
    near = nearest(data.data, s.k).ravel()
    images = np.repeat(np.arange(NODES), s.k)
    csr = csr_from_edges(lambda: iter([(near, images)]), NODES, symmetrise=True)
    split = split_masks(np.random.default_rng(s.seed), NODES, SPLIT)
    features, labels = (data.data / 16).astype(np.float32), (data.target.astype(np.int64), CLASSES, False)
    return GraphData.of("digits", csr=csr, features=features, labels=labels, split=split)


def nearest(points: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """Return the `k` nearest other rows of each of `points` [n, d], ties to the lower row: int64 [n, k].

    `points` hold whole numbers, so that squared distances are exact in float64: with rounded ones, ties would
    fall as the number of threads has it.
    """
    norms = (points**2).sum(1)
    distance = norms[:, None] + norms[None, :] - 2 * points @ points.T
    np.fill_diagonal(distance, np.inf)
    return np.argsort(distance, axis=1, kind="stable")[:, :k]


def info(options: Mapping[str, Any]) -> DatasetInfo:
    """What `make` would return; `edges` is an estimate (it depends on how many neighbours are mutual)."""
    s = resolve(DigitsSettings, "digits", options)
    sizes = NODES, min(round(NODES * s.k * (1 + ONE_WAY)), NODES * (NODES - 1)), WIDTH, CLASSES
    source = "scikit-learn's load_digits (UCI Optical Recognition of Handwritten Digits, CC BY 4.0)"
    summary = "handwritten digits as a k-nearest-neighbour graph; real, embedded"
    return made("digits", sizes, DigitsSettings, summary, source=source, origin="real")
