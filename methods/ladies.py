"""LADIES: layer-wise importance sampling among the neighbours of the layer above."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from harness import MiniBatchMethod, Sampler, Source
from harness.plugin import (
    LAYERS,
    LAYERWISE_METRICS,
    LAYERWISE_SPACE,
    DrawCounts,
    Layers,
    LayerSampler,
    LayerwiseSampler,
    MemoryCase,
    NeighbourOptions,
    per_layer,
)


class LADIESOptions(NeighbourOptions):
    """Options of layer-dependent sampling."""

    batch_size: int = Field(512, ge=0, description="targets a step and rank; 0: all its training nodes")
    sizes: DrawCounts = Field(
        512, description="nodes drawn for a layer, input layer first, or one number for all; -1: all of them"
    )
    estimator: Literal["poisson", "ladies"] = Field(
        "ladies", description="draws without replacement, rows normalised; or independent, counting 1/p (unbiased)"
    )
    layers: Layers = Field("paper", description=LAYERS)


class LADIES(MiniBatchMethod[LADIESOptions]):
    """Layer-wise importance sampling among neighbours (LADIES, Zou et al., NeurIPS 2019).

    For each layer, from the logits down, s = `sizes` nodes are drawn among the neighbours of the layer's
    destinations i, node j in proportion to q_j = sum_i A_ij^2 (Algorithm 1). `estimator: ladies`: s draws without
    replacement, A_ij / (s pi_j), each row scaled to the sum of all its weights, as the public code does: biased.
    `estimator: poisson`: independent draws with p_j = min(1, c q_j), s expected, edges count A_ij / p_j: unbiased, but
    the factors 1/p of layers multiply, and features in rows of different sums are hardly learnt without normalisation.
    `layers: paper`: the next layer's destinations are what was drawn, nothing more; a self loop, or the own row that a
    model reads besides its neighbours', is drawn like an edge (A is then all that a layer multiplies, [I, A] in
    GraphSAGE) and may be missing. `public`: the batch's targets are sources of every layer besides, as in the public
    code. `nested`: all destinations are, and own rows and self loops exact; reads the most. Exact with all neighbours
    and all training nodes in one batch.
    q_j needs the rows of all destinations: with `topology: owner` those of remote ones travel whole. On a GPU what
    needs no other rank is drawn there, from a copy of the graph: the same as on a CPU, but for rounding.
    Bytes: see `MiniBatchMethod`.
    """

    name = "ladies"
    colour = "#b66dff"
    on_device = True
    Options = LADIESOptions
    space: ClassVar[dict[str, Any]] = {"batch_size": [256, 512, 1024], "sizes": [256, 512, 1024], **LAYERWISE_SPACE}
    exact: ClassVar[dict[str, Any]] = {"sizes": -1, "batch_size": 0}
    unbiased: ClassVar[dict[str, Any]] = {"sizes": 10, "batch_size": 8, "estimator": "poisson"}
    metrics = LAYERWISE_METRICS

    def make_sampler(self, source: Source) -> Sampler:
        """See `MiniBatchMethod`."""
        sampler = LayerSampler(
            source.topology, source.propagation, source.tables, reads_own=source.reads_own,
            layers=self.options.layers, estimator=self.options.estimator, device=source.device,
        )  # fmt: skip
        return LayerwiseSampler(sampler.sample, per_layer(self.options.sizes, source.depth, "sizes"))

    @classmethod
    def memory(cls, options: LADIESOptions, case: MemoryCase) -> dict[str, int]:
        """See `MemoryCase.drawn`; a GPU has the graph, too (`MemoryCase.read_on_device`)."""
        drawn = case.drawn(options, options.sizes, "sizes", each=False, layers=options.layers)
        return drawn | (case.read_on_device(options) if cls.device_draws(options) else {})
