"""Layer-wise importance sampling: a number of nodes for all destinations of a layer together.

With A_ij = left_i w_ij right_j (`propagation_scales`), node j is drawn in proportion to q_j = sum_i A_ij^2:
over the layer's destinations i (`LayerSampler`; LADIES, Zou et al., NeurIPS 2019, Algorithm 1; skewed linear
weighted sampling, Eq. 7 and 10), or over all i (`GlobalSampler`; FastGCN, Chen, Ma and Xiao, ICLR 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.graph import layer_kernels as kernels
from harness.graph.block import Norm
from harness.graph.layer_front import Estimator, Front, Scaled
from harness.graph.layer_sample import LayerSample, Pool, Tables
from harness.graph.poisson import inclusion
from harness.graph.skew import Skew
from harness.graph.topology import Topology


@dataclass(frozen=True, eq=False)
class LayerBatch:
    """The layers of a batch, input layer first.

    Attributes:
        layers: the drawn edges.
        alphas: for each layer the factor that local candidates' weights had, 1 where there was no skew.
        candidates: for each layer the number of nodes that could be drawn.
    """

    layers: list[LayerSample]
    alphas: list[float]
    candidates: list[int]


class LayerSampler:
    """Draws a layer's nodes among the neighbours of its destinations.

    A layer's candidates are the nodes j with an edge to a destination (of a weight that is not 0); a
    destination too is drawn or not drawn for its edges, though it is a source in any case. Degrees, and
    with them A, are those of the whole graph, whatever is drawn or left out.

    Whether a node is drawn depends on the batch's seed, the layer, the node and its chance alone. Takes time
    linear in the edges into the layers' destinations. Threads may sample at the same time.

    Args:
        topology: the graph.
        norm: of the model's propagation.
        tables: of the graph's nodes.
        local: bool [N], which nodes are local; needed with `skew` or `local_only`.
        skew: None, or the rule for alpha: local candidates are drawn in proportion to alpha q_j.
        estimator: `poisson`: independent draws with p_j = min(1, c q_j), as many expected as the layer's
            size; an edge counts w_ij / p_j, which is unbiased. `ladies`: `size` draws one after another
            without replacement, pi_j = q_j / sum q; an edge counts w_ij / (s pi_j), times what makes a
            row's A-weights sum to those of all its candidates (the public code's row normalisation, up to
            the self loop, which is exact here; biased). A row without a drawn neighbour is 0.
        local_only: leave out remote candidates, and their edges.

    Raises:
        ValueError: `local` is missing.
    """

    def __init__(
        self,
        topology: Topology,
        norm: Norm,
        tables: Tables,
        *,
        local: NDArray[np.bool_] | None = None,
        skew: Skew | None = None,
        estimator: Estimator = "poisson",
        local_only: bool = False,
    ) -> None:
        if local is None and (skew is not None or local_only):
            raise ValueError("to favour local nodes a sampler must know them")
        graph = Scaled.of(topology, norm, local if local_only else None)
        self._tables, self._local, self._skew, self._estimator = tables, local, skew, estimator
        self._fronts = Pool(lambda: Front(graph))

    def sample(self, targets: NDArray[np.int64], sizes: Sequence[int], seed: int) -> LayerBatch:
        """Draw the layers of a batch.

        Args:
            targets: distinct nodes, the destinations of the last layer.
            sizes: nodes drawn for each layer, input layer first. -1, or as many as there are candidates:
                all of them, each with p = 1, for both estimators.
            seed: of the batch, >= 0.

        Raises:
            ValueError: a size is below -1.
        """
        _check(sizes)
        layers, alphas, candidates = [], [], []
        with self._fronts.borrow() as front, self._tables.borrow() as number:
            front.begin(number)
            sources = fresh = targets
            for depth, size in enumerate(reversed(sizes)):
                front.extend(fresh, sums=self._estimator == "ladies")
                alpha = self._alpha(front, size)
                count = front.weigh(self._local, alpha)
                whole = size < 0 or size >= count
                fresh = front.draw(-1 if whole else size, self._estimator, seed, depth)
                sources = np.concatenate([sources, fresh])
                layers.append(front.layer(sources, whole, self._estimator == "ladies" and not whole))
                alphas.append(alpha)
                candidates.append(count)
            front.end()
        return LayerBatch(layers[::-1], alphas[::-1], candidates[::-1])

    def _alpha(self, front: Front, size: int) -> float:
        if self._skew is None or self._local is None:
            return 1.0
        return self._skew.alpha_of(*front.tally(self._local), size)


class GlobalSampler:
    """Draws a layer's nodes among all nodes, whatever the destinations are (FastGCN).

    q_j = sum over all nodes i of A_ij^2, computed once; the candidates are the nodes of q > 0. Draws are
    independent, p_j = min(1, c q_j), as many expected as the layer's size; an edge counts w_ij / p_j, which
    is unbiased. Drawn nodes without an edge to a destination are no sources. Otherwise as `LayerSampler`.

    Args:
        topology: the graph.
        norm: of the model's propagation.
        tables: of the graph's nodes.
    """

    def __init__(self, topology: Topology, norm: Norm, tables: Tables) -> None:
        self._graph, self._tables = Scaled.of(topology, norm, None), tables
        graph = self._graph
        self._weights = kernels.global_weights(
            topology.indptr, topology.indices, *graph.weights, graph.left, *graph.right
        )
        self._candidates = int(np.count_nonzero(self._weights))
        self._inclusion: dict[int, NDArray[np.float64]] = {}

    def sample(self, targets: NDArray[np.int64], sizes: Sequence[int], seed: int) -> LayerBatch:
        """See `LayerSampler.sample`."""
        _check(sizes)
        topology, layers, sources = self._graph.topology, [], targets
        with self._tables.borrow() as row:
            row[targets] = np.arange(targets.size, dtype=np.int32)
            for depth, size in enumerate(reversed(sizes)):
                fresh, pointers, columns, values = kernels.gather_global(
                    topology.indptr, topology.indices, *self._graph.weights,
                    sources, self._chances(size), seed, depth, row,
                )  # fmt: skip
                whole = topology.weights is None and (size < 0 or size >= self._candidates)
                sources = np.concatenate([sources, fresh])
                layers.append(LayerSample(sources, pointers, columns, None if whole else values))
            row[sources] = -1
        return LayerBatch(layers[::-1], [1.0] * len(sizes), [self._candidates] * len(sizes))

    def _chances(self, size: int) -> NDArray[np.float64]:
        """Return p of every node for a layer's size; threads that both miss it compute the same."""
        if size not in self._inclusion:
            self._inclusion[size] = inclusion(self._weights, self._candidates if size < 0 else size)
        return self._inclusion[size]


def _check(sizes: Sequence[int]) -> None:
    if min(sizes, default=0) < -1:
        raise ValueError(f"a layer's size is at least 0, or -1 for all candidates, not {min(sizes)}")
