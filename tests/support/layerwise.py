"""The rule of skewed layer-wise sampling by sparse matrices, independent of the product's samplers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from harness_methods.skewed import Skew
from scipy import sparse
from support.draws import inclusion

from harness.graph.block import SYMMETRIC
from harness.graph.csr import Topology
from harness.sampling.layerwise import Estimator, LayerSampler
from harness.sampling.sample import Tables


@dataclass(frozen=True)
class LayerwiseCase:
    """A graph with random parts, and the numbers of a batch: `size` targets, and as many nodes for each of `layers`."""

    topology: Topology
    train: np.ndarray
    parts: int
    layers: int
    size: int

    def __post_init__(self) -> None:
        degree = np.diff(self.topology.indptr) + 1.0
        n, indices = degree.size, self.topology.indices
        edges = 1 / (np.repeat(degree, np.diff(self.topology.indptr)) * degree[indices])
        squares = sparse.csr_matrix((edges, indices, self.topology.indptr), (n, n)) + sparse.diags(degree**-2.0)
        owner = np.random.default_rng(0).integers(0, self.parts, n)
        vars(self).update(squares=squares.tocsr(), owner=owner, tables=Tables(n))  # A_ij^2 of GCN, with its self loops

    def batch(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return which nodes are local, and the targets."""
        local = vars(self)["owner"] == number % self.parts
        own = self.train[local[self.train]]
        return local, np.random.default_rng(number).choice(own, self.size, replace=False)

    def simulated(self, number: int, distortion: float, estimator: Estimator) -> tuple[int, int]:
        """Return input nodes and remote ones of a batch by the paper's rule: a layer's nodes are those drawn alone."""
        local, nodes = self.batch(number)
        rng = np.random.default_rng([number, int(distortion)])
        for _ in range(self.layers):
            q = np.asarray(vars(self)["squares"][nodes].sum(0)).ravel()
            candidates = np.flatnonzero(q)
            near = local[candidates]
            spare, far = candidates.size - self.size, np.count_nonzero(~near)
            alpha = 1 + (distortion - 1) * spare / far if spare > 0 and far else 1  # Formula 12
            weights = q[candidates] * np.where(near, alpha, 1)
            if spare <= 0:
                nodes = candidates
            elif estimator == "ladies":
                nodes = rng.choice(candidates, self.size, replace=False, p=weights / weights.sum())  # one by one
            else:
                nodes = candidates[rng.random(candidates.size) < inclusion(weights[None], self.size)[0]]
        return nodes.size, int(np.count_nonzero(~local[nodes]))

    def sampled(self, number: int, distortion: float, estimator: Estimator) -> tuple[int, int]:
        """Return the same of the product's sampler."""
        local, targets = self.batch(number)
        sampler = LayerSampler(
            self.topology, SYMMETRIC, vars(self)["tables"], reads_own=False, local=local,
            skew=Skew("formula", distortion), estimator=estimator,
        )  # fmt: skip
        nodes = sampler.sample(targets, [self.size] * self.layers, number).layers[0].sources
        return nodes.size, int(np.count_nonzero(~local[nodes]))
