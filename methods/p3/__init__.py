"""P3: the first layer by columns of the features on all ranks, which exchange its partial sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import model_validator

from harness import Bytes, BytesCase, Metric, Sample, Step, Worker, torch
from harness import numpy as np
from harness.plugin import Block, Communicator, Drawn, LayerSample, Loaded, MemoryCase, gather_arrays, take, upload

from ..graphsage import GraphSAGE, SAGEOptions
from .columns import FirstByColumns

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


class P3Options(SAGEOptions):
    """Options of P3: those of neighbour sampling, but for what concerns the fetch of features."""

    @model_validator(mode="after")
    def _fetches_no_features(self) -> Self:
        for option in ("storage", "on_disk", "cache", "feature_rate", "feature_loss", "scope"):
            if getattr(self, option) != type(self).model_fields[option].default:
                raise ValueError(f"{option}: p3 fetches no features: leave it out")
        return self


@dataclass(frozen=True, eq=False)
class Shared(Loaded):
    """A batch, and what all ranks' batches have of the first layer: nodes that `inputs` are of, and blocks by rank."""

    nodes: NDArray[np.int64]
    blocks: list[list[Block]]


class P3(GraphSAGE):
    """Neighbour sampling whose first layer all ranks compute, by columns of the features (Gandhi and Iyer, OSDI 2021).

    A rank has F/P columns of the features of all N nodes. It draws the batches of `graphsage`, but fetches no features:
    it sends the first layer's block to all ranks. Each computes, for all P batches, aggregation and product on its
    columns with the matching rows of the weights, and sends each batch's rank a partial sum. That rank adds these up,
    and the bias, and goes on data-parallel (section 3.2, push-pull). Backward, it sends the gradient of the sum to all
    ranks, each of which has the gradient of its rows of the weights. The trainer's sum of gradients has these too,
    though all ranks but one have 0 there: the paper leaves them out. Its pipeline of mini-batches on stale weights
    (section 3.3) is left out. Dropout of the features is drawn by the columns' ranks; without dropout losses are those
    of `graphsage`, up to rounding.

    The first layer must be a sum over columns, as of sage, gcn and mixhop; of one that attends H W of the sources is
    summed. Another is refused in set-up.

    Bytes of an epoch: P - 1 times the first layer's outputs (of one that attends H W of its sources), forward
    (embedding) and backward (gradient). To each peer, as control: 4 for each source, row and edge of the first layer;
    an itemsize for the scale of each row, but with `weights: propagation` or `importance`; an itemsize for the value of
    each edge, with these or in a weighted graph; 8 a step for the length of each of these arrays; and what `topology:
    owner` asks. Set-up: a rank's rows, without their columns that stay with it (feature), N F (P - 1)/P
    values where P divides F. Sampled scores read whole rows at their owners.
    """

    name = "p3"
    colour = "#443322"
    on_device = False
    Options = P3Options
    baseline: ClassVar[dict[str, Any] | None] = None
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric.of_method("shared_edges", "of the first layer, edges that are sent to every other rank"),
    )

    def __init__(self, worker: Worker, options: P3Options) -> None:
        super().__init__(worker, options)
        layer, _ = worker.model.layer_of(0)
        bounds = [layer.inputs * rank // worker.world for rank in range(worker.world + 1)]
        self._first = FirstByColumns(worker.model.spec, layer, slice(*bounds[worker.rank : worker.rank + 2]))
        sizes = np.bincount(worker.view.owner, minlength=worker.world)
        self._start = sizes.cumsum() - sizes  # of each owner's rows among those of all nodes
        with worker.traffic.during("setup"):
            self._rows = self._deal(bounds, sizes.tolist())
        del self.store, worker.features  # no epoch reads them; sampled scores have them read again

    def _deal(self, bounds: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """Return this rank's columns of all nodes, owner by owner."""
        rows, between, own = self.worker.features.inner, list(pairwise(bounds)), self._first.columns
        width = own.stop - own.start
        return self.worker.comm.exchange_rows(
            torch.cat([rows[:, start:stop].flatten() for start, stop in between]),
            [len(rows) * (stop - start) for start, stop in between], [size * width for size in sizes],
            purpose="feature", layer=0,
        ).view(sum(sizes), width)  # fmt: skip

    def fetch(self, drawn: Drawn, comm: Communicator) -> Shared:
        """Exchange the first layer's blocks and read all batches' columns; every rank must call."""
        hops, view = self.worker.model.hops, self.worker.view
        own: Sequence[Any] = drawn.sample.layers[:hops]
        with comm.clock.phase("fetch"):
            samples = self._share(own, comm)
            nodes = np.concatenate([layers[0].sources for layers in samples])
            places = self._start[view.owner[nodes]] + view.local_row[nodes]
            inputs = take(self._rows, upload(places, self._rows.device), None)
            blocks = [
                drawn.blocks[:hops] if rank == comm.rank else self.blocks(Sample(layers, None), self.source)
                for rank, layers in enumerate(samples)
            ]
        metrics = {"input_nodes": own[0].sources.size, "shared_edges": sum(layer.edges for layer in own)}
        stats = self.stats_of(drawn.sample, metrics)
        return Shared(drawn, inputs, self._loss(drawn, comm), stats, nodes, blocks)

    def _share(self, own: Sequence[LayerSample], comm: Communicator) -> list[list[LayerSample]]:
        """Return each rank's samples of the first layer's hops; `own` are this rank's."""
        arrays, dtype = [own[0].sources.astype(np.int32)], np.dtype(f"f{self.worker.dtype.itemsize}")
        for layer in own:
            floats = [array.astype(dtype) for array in (layer.values, layer.dst_scale) if array is not None]
            arrays += [np.diff(layer.indptr).astype(np.int32), layer.indices, *floats]
        samples = []
        for first, *rest in gather_arrays(comm, arrays):
            nodes, left, layers = first.astype(np.int64), iter(rest), list[LayerSample]()
            for layer in own:  # other ranks' have values and scales where this one's have
                indptr, indices = np.concatenate([[0], next(left).cumsum()]), next(left)
                values, scale = (None if each is None else next(left) for each in (layer.values, layer.dst_scale))
                layers.append(LayerSample(nodes, indptr, indices, values, scale))
                nodes = nodes[: indptr.size - 1]
            samples.append(layers)
        return samples

    def step(self, loaded: Loaded) -> Step:
        """See `MiniBatchMethod`; `nodes` are those of all ranks' batches."""
        assert isinstance(loaded, Shared)
        first = self._first.on(loaded.blocks, self.worker.comm)
        return replace(super().step(loaded), nodes=loaded.nodes, first=first)

    @classmethod
    def bytes_per_epoch(cls, options: SAGEOptions, case: BytesCase) -> Bytes:
        """Return the bytes of partial sums, of their gradients, and of the first layer's blocks."""
        layer, _ = case.model.layer_of(0)
        rows = [case.count(f"nodes_layer{hop}") for hop in range(layer.hops + 1)]  # sources, and those of each hop
        edges, weighs = case.count("shared_edges"), options.weights == "propagation" or options.importance > 0
        has = not weighs, weighs or case.weighted  # scales of rows, values of edges
        floats = has[0] * sum(rows[1:]) + has[1] * edges
        sums = (rows[0] * layer.transformed if layer.attends else rows[-1] * layer.outputs) * case.itemsize
        arrays = 1 + layer.hops * (2 + sum(has))
        control = (case.parts - 1) * (4 * (sum(rows) + edges) + case.itemsize * floats)
        control += 8 * arrays * case.pairs * case.steps + case.asked(options)
        return {"embedding": (case.parts - 1) * sums, "gradient": (case.parts - 1) * sums, "control": control}

    @classmethod
    def memory(cls, options: SAGEOptions, case: MemoryCase) -> dict[str, int]:
        """Return the components of `graphsage`, and of what all batches have of the first layer.

        "set-up" is by how much it needs more than the training: own rows, twice, and the columns.
        """
        found, (layer, _) = super().memory(options, case), case.model.layer_of(0)
        blocks = cls.largest(options, case)[: layer.hops]
        sums = blocks[0].src * layer.transformed if layer.attends else blocks[-1].dst * layer.outputs
        others = case.parts - 1
        found |= {
            "input features": case.nodes * -(-layer.inputs // case.parts) * case.itemsize,
            "others' blocks": (1 + options.prefetch) * others * sum(map(case.matrices, blocks)),
            "partial sums": 3 * others * sums * case.itemsize,
        }
        rest = sum(size for name, size in found.items() if name not in ("labels", "weights and optimizer"))
        return found | {"set-up": max(0, 3 * found["input features"] - rest) if others else 0}
