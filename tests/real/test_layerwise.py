"""What layer-wise sampling reads of real graphs, beside a simulation of the paper's rule by sparse matrices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from harness_methods.skewed import Skew
from scipy import sparse
from support.draws import inclusion

from harness.graph.block import SYMMETRIC
from harness.graph.csr import Topology
from harness.sampling.layerwise import LayerSampler
from harness.sampling.sample import Tables

pytestmark = [pytest.mark.data, pytest.mark.slow, pytest.mark.timeout(300)]

PARTS, LAYERS, SIZE, BATCHES = 4, 5, 512, 80  # five layers of 512, batch 512, random parts: section 5 of the paper
DISTORTIONS = (1, 4, 8, 16)


@dataclass(frozen=True)
class Case:
    topology: Topology
    squares: sparse.csr_matrix  # A_ij^2 of GCN, with its self loops
    owner: np.ndarray
    train: np.ndarray

    def batch(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Which nodes are local, and the targets."""
        local = self.owner == number % PARTS
        own = self.train[local[self.train]]
        return local, np.random.default_rng(number).choice(own, SIZE, replace=False)


@pytest.fixture(scope="module", params=["flickr", "ogbn_arxiv"])
def case(request: pytest.FixtureRequest, data_dir: Path) -> Case:
    with np.load(data_dir / f"{request.param}.npz") as graph:
        indptr, indices = graph["indptr"], graph["indices"]
        train = np.flatnonzero(graph["train_mask"])
    degree = np.diff(indptr) + 1.0
    n = degree.size
    edges = 1 / (np.repeat(degree, np.diff(indptr)) * degree[indices])
    squares = (sparse.csr_matrix((edges, indices, indptr), (n, n)) + sparse.diags(degree**-2.0)).tocsr()
    return Case(Topology(indptr, indices), squares, np.random.default_rng(0).integers(0, PARTS, n), train)


def simulated(case: Case, number: int, distortion: int) -> tuple[int, int]:
    """Input nodes and remote ones of a batch by the paper's rule: a layer's nodes are those drawn, nothing more."""
    local, nodes = case.batch(number)
    rng = np.random.default_rng([number, distortion])
    for _ in range(LAYERS):
        q = np.asarray(case.squares[nodes].sum(0)).ravel()
        candidates = np.flatnonzero(q)
        near = local[candidates]
        spare, far = candidates.size - SIZE, np.count_nonzero(~near)
        alpha = 1 + (distortion - 1) * spare / far if spare > 0 and far else 1  # Formula 12
        p = inclusion((q[candidates] * np.where(near, alpha, 1))[None], SIZE)[0]
        nodes = candidates[rng.random(p.size) < p]
    return nodes.size, int(np.count_nonzero(~local[nodes]))


def sampled(case: Case, number: int, distortion: int, tables: Tables) -> tuple[int, int]:
    local, targets = case.batch(number)
    skew = Skew("formula", distortion)
    sampler = LayerSampler(case.topology, SYMMETRIC, tables, reads_own=False, local=local, skew=skew)
    nodes = sampler.sample(targets, [SIZE] * LAYERS, number).layers[0].sources
    return nodes.size, int(np.count_nonzero(~local[nodes]))


def test_input_nodes_are_those_drawn_and_skewing_saves_what_the_rule_saves(case: Case) -> None:
    tables = Tables(case.owner.size)
    mine, rule = (
        {d: np.mean([read(number, d) for number in range(BATCHES)], axis=0) for d in DISTORTIONS}
        for read in (lambda n, d: sampled(case, n, d, tables), lambda n, d: simulated(case, n, d))
    )
    for distortion in DISTORTIONS:
        assert mine[distortion][0] == pytest.approx(SIZE, rel=0.02)
        reductions = [float(found[1][1] / found[distortion][1]) for found in (mine, rule)]
        assert reductions[0] == pytest.approx(reductions[1], rel=0.1), distortion
    assert mine[1][1] / mine[16][1] > 8
