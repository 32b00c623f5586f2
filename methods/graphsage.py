"""GraphSAGE: neighbour sampling with mini-batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from harness import MiniBatchMethod, Sampler, Source
from harness import numpy as np
from harness.plugin import (
    BlockSize,
    DrawCounts,
    FanoutSampler,
    LaborSampler,
    MemoryCase,
    NeighbourOptions,
    Tables,
    Topology,
    View,
    later,
    per_layer,
    propagation_scales,
    reached,
    within,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


class SAGEOptions(NeighbourOptions):
    """Options of neighbour sampling."""

    fanouts: DrawCounts = Field(
        10, description="neighbours drawn for a node, input layer first, or one number for all; -1: all of them"
    )
    weights: Literal["uniform", "propagation"] = Field(
        "uniform", description="neighbours alike, or each as likely as its propagation weight is large"
    )
    scope: Literal["global", "local"] = later(
        "global", "draw from the whole graph, or each rank from its own part, with the degrees within it"
    )
    sampler: Literal["neighbour", "labor"] = later(
        "neighbour", "draw so many neighbours of each node, or so many expected by numbers that all nodes share"
    )
    importance: int = later(
        0, "sampler labor: iterations of its chances (LABOR-i): fewer nodes are read, more edges drawn", ge=0
    )

    @property
    def stays_in_part(self) -> bool:
        """See `MiniBatchOptions`."""
        return self.scope == "local"

    @property
    def knows_chances(self) -> bool:
        """See `MiniBatchOptions`."""
        return self.weights == "uniform" and self.topology == "shared"

    @model_validator(mode="after")
    def _local_reads_no_other(self) -> Self:
        if self.scope == "local" and (self.cache != "none" or self.topology != "shared"):
            raise ValueError("scope: 'local' reads no remote node: leave cache and topology out")
        return self

    @model_validator(mode="after")
    def _labor_has_its_own_chances(self) -> Self:
        if self.sampler == "labor" and self.weights != "uniform":
            raise ValueError("weights: sampler 'labor' has chances of its own: leave weights out")
        if self.sampler != "labor" and self.importance:
            raise ValueError("importance: only sampler 'labor' iterates: give it, or leave importance out")
        return self


class GraphSAGE(MiniBatchMethod[SAGEOptions]):
    """Neighbour sampling in mini-batches, remote features fetched (Hamilton et al., NeurIPS 2017).

    Each rank draws its targets from its own training nodes; of a node's deg neighbours k = `fanouts` are
    drawn without replacement and count deg/k (`weights: uniform`), or with the inclusion probabilities
    p_ij ~ A_ij, sum k, and count 1/p_ij (`weights: propagation`, A_ij the model's weight of the edge): both
    are unbiased. All layers' nodes are found first, then the input features are fetched from their owners.
    With `topology: owner` these draw, too, and send what is drawn, or with `weights: propagation` and `sampler: labor`
    whole rows.
    On a GPU what every rank draws uniformly is drawn there, from a copy of the graph: the same as on a CPU.
    Exact with all neighbours and all training nodes in one batch. Bytes: see `MiniBatchMethod`.

    `scope: local` trains each rank on its own part: neighbours of other parts are left out, as by `local`. No row is
    remote, nothing but the gradients of the weights is exchanged, and it is neither exact nor unbiased.

    `sampler: labor` (Balin and Çatalyürek, NeurIPS 2023) draws for all of a layer's nodes by one random number of each
    neighbour, anew for each rank, batch and layer: nodes have k of their neighbours expected, not exactly k, share more
    of them, and fewer rows are read. Those with p_ij = min(1, k/deg) count 1/p_ij, which is unbiased; the public code
    divides by the sum of 1/p_ij instead, which is not. `importance` iterations (LABOR-i) raise the chances of
    neighbours that many nodes share, at the same variance: fewer rows still, but more than k edges; a GPU leaves these
    to the host. See `draw_labor`.
    """

    name = "graphsage"
    colour = "#e69f00"
    on_device = True
    Options = SAGEOptions
    space: ClassVar[dict[str, Any]] = {"batch_size": [256, 512, 1024], "fanouts": [5, 10, 25]}
    exact: ClassVar[dict[str, Any]] = {"fanouts": -1, "batch_size": 0}
    baseline: ClassVar[dict[str, Any] | None] = {"feature_rate": 1.0, "feature_loss": 0.0}  # all that is read is there
    unbiased: ClassVar[dict[str, Any]] = {"fanouts": 3, "batch_size": 8}

    def make_topology(self, view: View, tables: Tables) -> Topology:
        """See `MiniBatchMethod`; by scope local the edges between the rank's own nodes."""
        found = super().make_topology(view, tables)
        if self.options.stays_in_part:
            found = within(found, np.asarray(view.partition.inner, np.int64), tables)
        return found

    def make_sampler(self, source: Source) -> Sampler:
        """See `MiniBatchMethod`."""
        fanouts, weights = per_layer(self.options.fanouts, source.depth, "fanouts"), None
        if self.options.sampler == "labor":
            return LaborSampler(source, fanouts, self.options.importance)
        if self.options.weights == "propagation":
            _, weights = propagation_scales(source.topology, source.propagation)
            if weights is None:
                weights = np.ones(source.topology.num_nodes)
        return FanoutSampler(source, fanouts, weights)

    def chances(self) -> NDArray[np.float64]:
        """See `MiniBatchMethod`: Proposition 1 of SALIENT++ (Kaler et al., MLSys 2023).

        A target is in a batch with the chance of its share; each layer's nodes are those of the layer above and their
        draws, which are taken for independent of one another.
        """
        topology, targets = self.source.topology, self.worker.view.split_nodes("train")
        chance = np.zeros(topology.num_nodes)
        chance[targets] = min(1.0, (self.options.batch_size or targets.size) / max(targets.size, 1))
        for fanout in reversed(per_layer(self.options.fanouts, self.source.depth, "fanouts")):
            chance = reached(topology.indptr, topology.indices, chance, fanout)
        return chance

    @classmethod
    def device_draws(cls, options: SAGEOptions) -> bool:
        """See `MiniBatchMethod`: uniform draws from a graph that every rank has."""
        return options.weights == "uniform" and not options.importance and super().device_draws(options)

    @property
    def warnings(self) -> list[str]:
        """See `Method.warnings`: fan-outs that were asked for and leave no neighbour out."""
        most = int(np.diff(self.source.topology.indptr).max(initial=0))
        asked = per_layer(self.options.fanouts, self.source.depth, "fanouts")
        whole = sorted({fanout for fanout in asked if fanout >= most})
        return [f"fan-out {fanout} takes all neighbours: no node has more than {most}" for fanout in whole]

    @classmethod
    def largest(cls, options: SAGEOptions, case: MemoryCase) -> list[BlockSize]:
        """Return bounds of the largest batch's blocks, input layer first; see `MemoryCase.largest_blocks`."""
        edges: Any = "any" if options.importance else "expected" if options.sampler == "labor" else "drawn"
        fanouts = per_layer(options.fanouts, case.model.depth, "fanouts")
        return case.largest_blocks(case.batch_rows(options.batch_size), fanouts, each=True, edges=edges)

    @classmethod
    def memory(cls, options: SAGEOptions, case: MemoryCase) -> dict[str, int]:
        """See `MemoryCase.mini_batch`; a GPU has the graph, too (`MemoryCase.drawn_on_device`).

        "own part" is the graph of scope local: the whole one is a map. Importance has two numbers of 8 bytes of a node.
        """
        blocks = cls.largest(options, case)
        components = case.mini_batch(blocks, options)
        if options.importance:
            components["sampling"] *= 5
        if options.stays_in_part:
            weights = 4 if case.weighted else 0
            components["own part"] = 8 * (case.nodes + 1) + (4 + weights) * (case.train.edges - case.train.cut)
        if not cls.device_draws(options):
            return components
        if options.sampler == "labor":  # reads all edges to find those that it draws
            return components | case.drawn_on_device(max(case.edges_of(b.dst) for b in blocks), options, entry=80)
        return components | case.drawn_on_device(max(block.edges for block in blocks), options)
