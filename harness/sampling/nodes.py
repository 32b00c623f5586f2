"""GraphSAINT's node sampler: nodes are drawn independently, by importance; their chances are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.deferred import numba, torch
from harness.deferred import numpy as np
from harness.graph.block import Propagation
from harness.graph.csr import Floats, Ints, Topology
from harness.graph.kernels import next_u64, stream, stream_bits, uniform, uniform_on_device
from harness.sampling.graph_on_device import GraphOnDevice
from harness.sampling.layerwise import AlphaRule, Scaled, inclusion
from harness.sampling.sample import Tables
from harness.sampling.subgraphs import Induced, Normaliser, SubgraphBatch, Subgraphs, as_graph, as_layer
from harness.sampling.subgraphs_on_device import (
    InducedOnDevice,
    SubgraphBatchOnDevice,
    WeighOnDevice,
    as_layer_on_device,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class IndependentNodes(Normaliser):
    """Draws each node independently, with a chance of its own, and weighs by these chances.

    An edge j -> i of a subgraph counts w_ij / p_j: for a destination i that is in it, the sum has the full
    aggregation as its expectation. A node's loss counts 1/p_i: the sum of losses, were the logits exact, has the
    sum over all nodes as its expectation.
    """

    probabilities: Floats  # [N], p, in [0, 1]

    def sample(self, seed: int) -> Ints:
        """See `NodeSampler`."""
        nodes: Ints = _draw(self.probabilities, seed)
        return nodes

    def weigh(self, nodes: Ints, found: Induced) -> SubgraphBatch:
        """See `Normaliser`."""
        inverse = 1 / self.probabilities[nodes]
        layer = as_layer(nodes, as_graph(self.topology, found))
        return SubgraphBatch(replace(layer, src_scale=inverse), inverse)

    def draws_on_device(self, graph: GraphOnDevice) -> Callable[[int], Tensor]:
        """See `DeviceNodes`: the same nodes as on the host."""
        device = graph.indptr.device
        chances = torch.from_numpy(self.probabilities).to(device)
        first = torch.zeros(1, dtype=torch.int64, device=device)

        def draw(seed: int) -> Tensor:
            bits = stream_bits(seed, first, chances.numel()).squeeze(1)
            return (uniform_on_device(bits) < chances).nonzero().squeeze(1)

        return draw

    def on_device(self, graph: GraphOnDevice) -> WeighOnDevice:
        """See `Normaliser`."""
        inverse = 1 / torch.from_numpy(self.probabilities).to(graph.indptr.device)

        def weigh(nodes: Tensor, found: InducedOnDevice) -> SubgraphBatchOnDevice:
            layer = as_layer_on_device(graph, nodes, found)
            return SubgraphBatchOnDevice(replace(layer, src_scale=inverse[nodes]), inverse[nodes])

        return weigh


class ImportanceSubgraphs(Subgraphs):
    """Draws nodes independently, and induces (GraphSAINT, Zeng et al., ICLR 2020, section 3.4).

    Node j is drawn with p_j = min(1, c q_j), q_j = sum_i A_ij^2 over all nodes i of the graph, self loops
    left out; c is such that `size` nodes are expected. In the paper `size` are drawn with replacement, and
    chances are estimated from draws; here they are exact (see `IndependentNodes`). Nodes that no edge starts from
    have the smallest positive q, so that every node is seen.

    Args:
        topology, tables: the graph, all of whose nodes are candidates, and tables of them.
        propagation: the model's weighting of edges.
        size: nodes expected in a subgraph; -1, or as many as there are candidates: all of them.
        local: bool [N], nodes whose features are here; without it `skew` and `local_only` are a ValueError.
        skew: multiplies the q of local nodes by alpha.
        local_only: remote nodes are no candidates, and edges from them are missing (biased).

    Attributes:
        probabilities: float64 [N], p.
        alpha: what q of local nodes was multiplied with; 1 without `skew`.
    """

    def __init__(
        self,
        topology: Topology,
        propagation: Propagation,
        tables: Tables,
        size: int,
        *,
        local: NDArray[np.bool_] | None = None,
        skew: AlphaRule | None = None,
        local_only: bool = False,
    ) -> None:
        self.alpha, weights = 1.0, Scaled.of(topology, propagation).global_weights()
        positive = weights[weights > 0]
        weights[weights == 0] = positive.min() if positive.size else 1.0
        if skew is not None or local_only:
            if local is None:
                raise ValueError("to skew or to leave out remote nodes needs to know which are local")
            if local_only:
                weights[~local] = 0
            if skew is not None:
                own, remote = weights[local], weights[~local]
                candidates = own.size, int(np.count_nonzero(remote))
                self.alpha = skew.alpha_of(*candidates, float(own.sum()), float(remote.sum()), size)
                weights[local] *= self.alpha
        self.probabilities = inclusion(weights, size if size >= 0 else weights.size)
        nodes = IndependentNodes(topology, self.probabilities)
        super().__init__(topology, nodes, nodes, tables)


@numba.njit(cache=True, nogil=True)
def _draw(probabilities, seed):  # type: ignore[no-untyped-def]
    """Return the nodes drawn, int64, ascending: a uniform number for each is below its probability."""
    nodes = np.empty(probabilities.size + 1, np.int64)
    state = stream(seed, 0)
    at = 0
    for j in range(probabilities.size):
        state, value = next_u64(state)
        nodes[at] = j  # kept by moving on: a branch would be guessed wrong for every node drawn
        at += uniform(value) < probabilities[j]
    return nodes[:at].copy()
