"""What layer-wise sampling reads of real graphs, beside a simulation of the paper's rule by sparse matrices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.layerwise import LayerwiseCase

from harness.graph.csr import Topology
from harness.sampling.layerwise import Estimator

pytestmark = [pytest.mark.data, pytest.mark.slow, pytest.mark.timeout(300)]

PARTS, LAYERS, SIZE, BATCHES = 4, 5, 512, 40  # five layers of 512, batch 512, random parts: section 5 of the paper
DISTORTIONS = (1, 4, 8, 16)
SAVED: dict[str, dict[Estimator, list[float]]] = {  # times fewer remote nodes at D = 4, 8, 16, of another simulation
    "flickr": {"ladies": [2.7, 5.1, 10.0], "poisson": [3.4, 7.2, 15.5]},
    "ogbn_arxiv": {"ladies": [2.3, 3.9, 7.3], "poisson": [2.6, 5.3, 9.5]},
}


@pytest.fixture(scope="module", params=list(SAVED))
def case(request: pytest.FixtureRequest, data_dir: Path) -> tuple[str, LayerwiseCase]:
    with np.load(data_dir / f"{request.param}.npz") as graph:
        topology = Topology(graph["indptr"], graph["indices"])
        return request.param, LayerwiseCase(topology, np.flatnonzero(graph["train_mask"]), PARTS, LAYERS, SIZE)


@pytest.mark.parametrize("estimator", ["ladies", "poisson"])
def test_input_nodes_are_those_drawn_and_skewing_saves_what_the_rule_saves(
    case: tuple[str, LayerwiseCase], estimator: Estimator
) -> None:
    name, graph = case
    mine, rule = (
        {d: np.mean([read(number, d, estimator) for number in range(BATCHES)], axis=0) for d in DISTORTIONS}
        for read in (graph.sampled, graph.simulated)
    )
    for distortion, known in zip(DISTORTIONS, [1.0, *SAVED[name][estimator]], strict=True):
        assert mine[distortion][0] == pytest.approx(SIZE, rel=0.02 if estimator == "poisson" else 0)
        reductions = [float(found[1][1] / found[distortion][1]) for found in (mine, rule)]
        assert reductions[0] == pytest.approx(reductions[1], rel=0.1), distortion
        assert reductions[0] == pytest.approx(known, rel=0.15), distortion
