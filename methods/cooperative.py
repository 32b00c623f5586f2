"""Cooperative mini-batching: the ranks of a step share one batch, each with its own nodes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from harness import Bytes, BytesCase, Metric, MiniBatchMethod, NodeBatchOptions, Sample, Sampler, Source
from harness import numpy as np
from harness.plugin import (
    Batch,
    BlockSize,
    DrawCounts,
    Drawn,
    FeatureStore,
    Halo,
    HostStore,
    LayerSample,
    MemoryCase,
    OwnedTopology,
    RankRows,
    View,
    batch_seed,
    draw_labor,
    draw_neighbours,
    later,
    number_columns,
    per_layer,
    upload,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


class CooperativeOptions(NodeBatchOptions):
    """Options of batches that ranks share."""

    fanouts: DrawCounts = Field(
        10, description="neighbours drawn for a node, input layer first, or one number for all; -1: all of them"
    )
    sampler: Literal["neighbour", "labor"] = later(
        "neighbour", "draw so many neighbours of each node, or so many expected by numbers that all nodes share"
    )

    @property
    def asks_owners(self) -> bool:
        """See `MiniBatchOptions`: each layer's nodes are named to their owners, who draw for them."""
        return True

    @model_validator(mode="after")
    def _reads_own_rows_alone(self) -> Self:
        if self.cache != "none":
            raise ValueError("cache: a rank reads its own nodes' features alone: leave cache at 'none'")
        if self.feature_rate != 1:
            raise ValueError("feature_rate: rows are exchanged whole: leave it at 1")
        return self


class Cooperative(MiniBatchMethod[CooperativeOptions]):
    """Ranks share one batch and exchange its rows layer by layer (Balin, LaSalle and Çatalyürek, arXiv:2310.12403).

    A step's batch has the targets of all ranks, `batch_size` of each. From the last layer down a rank draws neighbours
    of its own nodes alone, names other ranks' among them to these, and what peers name to it joins its nodes of the
    layer below. So each node is drawn for, read and computed by its owner, once in a step, however many ranks need its
    row; independent batches (`graphsage`) do that once for each rank. A rank reads the topology and the features of its
    own nodes; then each layer exchanges rows as `full` does, embeddings with their gradients on the way back.

    Draws are those of `graphsage`, by seeds that all ranks share, and with `sampler: labor` by numbers of nodes that
    all ranks share: what is drawn is what one rank would draw for all targets. (For sampled scores each rank has seeds
    of its own.) Unbiased as `graphsage` is, and exact with all neighbours and all training nodes in one batch. No cache
    has anything to hold. The paper's batches that depend on one another are left out.

    Bytes of an epoch of S steps, with H_l the rows that layer l receives (`stat_halo_layer*`): H_l rows of the layer's
    width, features in the first layer, else embeddings and as many gradients. As control, with L layers,
    4 sum H_l + 8 S L P (P - 1). In mixhop each hop is such a layer. `storage: host` and `disk`: see
    `MiniBatchMethod`.
    """

    name = "cooperative"
    colour = "#440055"
    Options = CooperativeOptions
    space: ClassVar[dict[str, Any]] = {"batch_size": [256, 512, 1024], "fanouts": [5, 10, 25]}
    exact: ClassVar[dict[str, Any]] = {"fanouts": -1, "batch_size": 0}
    unbiased: ClassVar[dict[str, Any]] = {"fanouts": 3, "batch_size": 8}
    metrics = (
        Metric.of_method(
            "halo_layer*", "of each layer, nodes whose rows came from other ranks: in 0 features, else embeddings"
        ),
    )

    def make_sampler(self, source: Source) -> Sampler:
        """See `MiniBatchMethod`."""
        draw = draw_labor if self.options.sampler == "labor" else draw_neighbours
        return SharedSampler(source, per_layer(self.options.fanouts, source.depth, "fanouts"), draw)

    def make_store(self, view: View) -> FeatureStore | HostStore:
        """See `MiniBatchMethod`: of the rank's own rows."""
        store = super().make_store(view)
        return RankRows.of(store) if isinstance(store, FeatureStore) else store

    def draw(self, batch: Batch) -> Drawn:
        """See `MiniBatchMethod`; all ranks draw by one seed."""
        return replace(super().draw(replace(batch, seed=batch.common)), batch=batch)

    @classmethod
    def bytes_per_epoch(cls, options: CooperativeOptions, case: BytesCase) -> Bytes:
        """Return the bytes of the class's docstring."""
        depth = case.model.depth
        rows = [case.count(f"halo_layer{i}") for i in range(depth)]
        sent = case.boundary_rows(rows) | {"control": 4 * sum(rows) + 8 * case.pairs * case.steps * depth}
        if options.storage == "host":
            sent["swap"] = case.count("input_nodes") * case.model.widths[0][0] * case.itemsize
        return sent | case.read_from_disk(options)

    @classmethod
    def memory(cls, options: CooperativeOptions, case: MemoryCase) -> dict[str, int]:
        """See `MemoryCase.drawn`; a rank is taken to be named as many nodes as it names, all of them in its part."""
        fanouts = per_layer(options.fanouts, case.model.depth, "fanouts")
        part = replace(case, nodes=case.train.inner, edges=case.train.edges)
        edges: Any = "expected" if options.sampler == "labor" else "drawn"
        held = part.largest_blocks(case.batch_rows(options.batch_size), fanouts, each=True, edges=edges)
        received = case.train.boundary if case.parts > 1 else 0
        blocks = [BlockSize(block.dst, block.src + min(received, block.edges), block.edges) for block in held]
        return case.mini_batch(blocks, options)


class SharedSampler:
    """Draws a rank's part of a batch that all ranks share, layer by layer; every rank must call.

    `draw(topology, nodes, fanout, seed, tables, own=True)` draws for own nodes, as `draw_neighbours` does; `fanouts`
    are by layer, input layer first. The source's topology is an `OwnedTopology`.
    """

    def __init__(self, source: Source, fanouts: Sequence[int], draw: Any) -> None:
        assert isinstance(source.topology, OwnedTopology)
        self._topology, self._tables, self._fanouts = source.topology, source.tables, fanouts
        self._draw = partial(draw, source.topology, tables=source.tables, own=True)

    def sample(self, targets: NDArray[np.int64], seed: int) -> Sample:
        """See `Sampler`; a layer's sources are first the rank's own, then those that it is sent."""
        layers, halos, nodes = list[LayerSample](), list[Halo](), targets
        for depth, fanout in enumerate(reversed(self._fanouts)):
            layer, halo = self._share(self._draw(nodes, fanout, batch_seed(seed, 0, 0, depth)))
            layers.insert(0, layer)
            halos.insert(0, halo)
            nodes = layer.sources[: layer.sources.size - sum(halo.recv_counts)]
        stats: dict[str, float] = {f"halo_layer{i}": sum(halo.recv_counts) for i, halo in enumerate(halos)}
        return Sample(layers, targets.size, stats=stats, halos=halos)

    def _share(self, drawn: LayerSample) -> tuple[LayerSample, Halo]:
        """Return what was drawn with the own nodes that other ranks name behind the own ones, and the exchange."""
        topology, sources = self._topology, drawn.sources
        plan, counts, named = topology.announce(sources)
        is_own = topology.view.owner[sources] == topology.line.comm.rank
        places = named.astype(np.int32)
        own = number_columns(sources[is_own], places, self._tables)
        numbers = np.empty(sources.size, np.int32)
        numbers[is_own] = np.arange(np.count_nonzero(is_own))
        numbers[plan.asked_at] = own.size + np.arange(plan.asked_at.size)
        halo = Halo(upload(places.astype(np.int64), topology.line.comm.device), counts, plan.counts)
        everything = np.concatenate([own, sources[plan.asked_at]])
        return replace(drawn, sources=everything, indices=numbers[drawn.indices]), halo
