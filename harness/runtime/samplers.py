"""Samplers of mini-batch methods: the kernels of harness.graph, layer by layer, as `Sampler`s."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.graph.guided_sampling import draw_guided
from harness.graph.layer_sample import LayerSample
from harness.graph.random import batch_seed
from harness.graph.sampling import draw_neighbours
from harness.runtime.layer_memory import BlockSize
from harness.runtime.memory_model import Components, MemoryCase, mini_batch_memory
from harness.runtime.source import Sample, Source

if TYPE_CHECKING:
    from harness.graph.layer_sampling import GlobalSampler, LayerSampler
    from harness.graph.subgraph_sampling import Subgraphs
    from harness.runtime.minibatch import MiniBatchOptions, NodeBatchOptions


def per_layer(value: int | list[int], depth: int, key: str) -> list[int]:
    """Return an option's number for each graph layer, input layer first; in mixhop for each of its hops.

    Raises:
        UserError: it is a list of another length.
    """
    if isinstance(value, int):
        return [value] * depth
    if len(value) != depth:
        raise UserError(
            f"{len(value)} numbers for {depth} graph layers",
            key=key,
            fix="give one a layer; a layer of mixhop counts `order` times",
        )
    return value


class FanoutSampler:
    """Draws at most so many in-neighbours of every node, layer by layer (GraphSAGE, Algorithm 2).

    Args:
        source: the view.
        fanouts: neighbours of a node, input layer first; -1: all.
        node_weights: float64 [N] or None: see `draw_neighbours`.
    """

    def __init__(
        self, source: Source, fanouts: Sequence[int], node_weights: NDArray[np.float64] | None = None
    ) -> None:
        self._source, self._fanouts, self._weights = source, fanouts, node_weights

    def sample(self, targets: NDArray[np.int64], seed: int) -> Sample:
        """See `Sampler`."""
        source = self._source

        def draw(nodes: NDArray[np.int64], fanout: int, seed: int) -> LayerSample:
            return draw_neighbours(
                source.topology, nodes, fanout, seed, source.tables, node_weights=self._weights
            )

        return _by_layer(draw, targets, self._fanouts, seed)


class GuidedSampler:
    """Draws at most so many in-neighbours of every node, remote ones by their importance (DGS).

    Args:
        source: the view.
        fanouts: neighbours of a node, input layer first; -1: all.
        importance: float32 [N]: of remote nodes, where a local one has 1.
        deviation: share of a fan-out that is moved from local to remote neighbours.
        unbiased: see `draw_guided`.
    """

    def __init__(
        self,
        source: Source,
        fanouts: Sequence[int],
        importance: NDArray[np.float32],
        *,
        deviation: float,
        unbiased: bool,
    ) -> None:
        self._source, self._fanouts, self._importance = source, fanouts, importance
        self._deviation, self._unbiased = deviation, unbiased

    def sample(self, targets: NDArray[np.int64], seed: int) -> Sample:
        """See `Sampler`."""
        source = self._source

        def draw(nodes: NDArray[np.int64], fanout: int, seed: int) -> LayerSample:
            return draw_guided(
                source.topology, nodes, fanout, seed, source.tables,
                local=source.local, importance=self._importance,
                deviation=self._deviation, unbiased=self._unbiased,
            )  # fmt: skip

        return _by_layer(draw, targets, self._fanouts, seed)


class LayerwiseSampler:
    """Draws so many nodes a layer, for all of its destinations together.

    Figures: `stat_candidates`, nodes that could be drawn; `stat_alpha`, the factors of local nodes, of which
    `stat_alphas` are summed: all three over an epoch's steps and layers.

    Args:
        sampler: what draws.
        sizes: nodes of a layer, input layer first; -1: all candidates.
    """

    def __init__(self, sampler: LayerSampler | GlobalSampler, sizes: Sequence[int]) -> None:
        self._sampler, self._sizes = sampler, sizes

    def sample(self, targets: NDArray[np.int64], seed: int) -> Sample:
        """See `Sampler`."""
        drawn = self._sampler.sample(targets, self._sizes, seed)
        stats = {
            "candidates": sum(drawn.candidates),
            "alpha": sum(drawn.alphas),
            "alphas": len(drawn.alphas),
        }
        return Sample(drawn.layers, targets.size, stats=stats)


class SubgraphSampler:
    """Draws the nodes of a subgraph, on which every layer runs; takes no targets.

    Args:
        subgraphs: what draws.
        depth: the model's graph layers.
        stats: figures that are recorded with each draw, e.g. `alpha`, the factor of local nodes, of which
            `alphas` are summed over an epoch.
    """

    def __init__(self, subgraphs: Subgraphs, depth: int, stats: dict[str, float] | None = None) -> None:
        self._subgraphs, self._depth, self._stats = subgraphs, depth, stats or {}

    def sample(self, targets: NDArray[np.int64], seed: int) -> Sample:
        """See `Sampler`."""
        drawn = self._subgraphs.sample(seed)
        return Sample([drawn.layer] * self._depth, None, drawn.weights, self._stats)


def _by_layer(
    draw: Callable[[NDArray[np.int64], int, int], LayerSample],
    targets: NDArray[np.int64],
    fanouts: Sequence[int],
    seed: int,
) -> Sample:
    """Draw neighbours of the targets, then of all that was drawn, by `draw(nodes, fanout, seed)`."""
    layers, nodes = [], targets
    for depth, fanout in enumerate(reversed(fanouts)):
        layers.append(draw(nodes, fanout, batch_seed(seed, 0, 0, depth)))
        nodes = layers[-1].sources
    return Sample(layers[::-1], targets.size)


def batch_rows(batch_size: int, case: MemoryCase) -> int:
    """Return the targets of the largest batch of a rank."""
    return min(batch_size or case.train_nodes, case.train_nodes)


def largest_blocks(rows: int, case: MemoryCase, drawn: Sequence[int], *, each: bool) -> list[BlockSize]:
    """Return bounds of a batch's blocks, input layer first, for `rows` targets.

    Of a layer's nodes only bounds are known: at most what is drawn, and never more than the graph has; at
    least the targets (whose draws may all coincide).

    Args:
        rows: targets.
        case: the rank.
        drawn: nodes drawn in a layer, input layer first; negative: all there are.
        each: for each destination, or for all of them together.
    """
    blocks = []
    for number in reversed(drawn):
        nodes = case.nodes if number < 0 else min(case.nodes, rows * number if each else number)
        entries = case.edges if number < 0 else min(case.edges, rows * number)
        blocks.append(
            BlockSize(rows, rows, 0)
            if case.least
            else BlockSize(rows, max(rows, min(case.nodes, rows + nodes)), entries)
        )
        rows = blocks[-1].src
    return blocks[::-1]


def drawn_memory(
    case: MemoryCase, options: NodeBatchOptions, drawn: int | list[int], key: str, *, each: bool
) -> Components:
    """Return the components of a method whose largest batch has the bounds of `largest_blocks`.

    Args:
        case: the rank.
        options: the method's.
        drawn: its option `key`, nodes drawn in a layer.
        key: the option's name.
        each: see `largest_blocks`.
    """
    numbers = per_layer(drawn, case.model.depth, key)
    blocks = largest_blocks(batch_rows(options.batch_size, case), case, numbers, each=each)
    return mini_batch_memory(case, blocks, options)


def subgraph_memory(
    case: MemoryCase, options: MiniBatchOptions, size: int, *, chances: bool = True
) -> Components:
    """Return the components of a method on drawn subgraphs of `size` nodes (-1: all; see `subgraph_blocks`).

    "probabilities" are those of all nodes, where `chances` are known.
    """
    components = mini_batch_memory(case, subgraph_blocks(case, size), options)
    return components | ({"probabilities": 0 if case.cuda else 8 * case.nodes} if chances else {})


def subgraph_blocks(case: MemoryCase, size: int) -> list[BlockSize]:
    """Return bounds of a subgraph's blocks: `size` nodes (-1: all) and every edge there can be."""
    nodes = case.nodes if size < 0 else min(size, case.nodes)
    edges = 0 if case.least else min(case.edges, nodes * nodes)
    return [BlockSize(nodes, nodes, edges)] * case.model.depth
