"""Skewed linear weighted sampling: local nodes are drawn more often than remote ones."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from harness import (
    Batch,
    Bytes,
    BytesCase,
    LayerSampler,
    LayerwiseSampler,
    MemoryCase,
    MiniBatchMethod,
    NodeBatchOptions,
    NodeSampler,
    Sampler,
    Skew,
    Source,
    SubgraphSampler,
    drawn_memory,
    mini_batch_bytes,
    node_batches,
    per_layer,
    subgraph_batches,
    subgraph_memory,
)


class SkewedOptions(NodeBatchOptions):
    """Options of skewed sampling."""

    base: Literal["ladies", "saint"] = Field(
        "ladies", description="draws nodes layer by layer (LADIES), or a subgraph's (GraphSAINT)"
    )
    version: Literal["full", "local", "skewed"] = Field(
        "skewed", description="not skewed; not skewed, remote nodes dropped; or skewed"
    )
    skew: Literal["formula", "quadratic", "fixed"] = Field(
        "formula", description="factor of local nodes: Formula 12, the exact bound's, or `alpha`"
    )
    distortion: float = Field(4.0, ge=1, description="D: how many times the bound of the variance may grow")
    alpha: float | None = Field(None, ge=1, description="factor of local nodes with `skew: fixed`")
    batch_size: int = Field(
        512, ge=0, description="base ladies: targets a step and rank; 0: all its training nodes"
    )
    sizes: int | list[int] = Field(
        512, description="base ladies: nodes drawn for a layer, input layer first, or one number; -1: all"
    )
    size: int = Field(4500, ge=-1, description="base saint: nodes of a subgraph; -1: all")
    estimator: Literal["poisson", "ladies"] = Field("poisson", description="base ladies: see `ladies`")

    @model_validator(mode="after")
    def _alpha_where_it_is_fixed(self) -> Self:
        if (self.skew == "fixed") != (self.alpha is not None):
            raise ValueError("alpha: belongs to skew 'fixed', which needs one")
        if self.size == 0:
            raise ValueError("size: a subgraph has at least 1 node, or -1 for all")
        if self.base == "saint" and self.estimator != "poisson":
            raise ValueError("estimator: base 'saint' has 'poisson' only")
        return self


class Skewed(MiniBatchMethod[SkewedOptions]):
    """Skewed linear weighted sampling (communication-efficient sampling, Jiang and Rumi, 2021).

    A layer's candidates j, the neighbours of its destinations i (`base: ladies`, see there) or all nodes of
    the training graph (`base: saint`, see `NodeSampler`; the paper's "all training nodes"), are drawn in
    proportion to q_j = sum_i A_ij^2, local ones in proportion to alpha q_j (Eq. 10). Formula 12 gives
    alpha = D + (D - 1)(n_L - s) / n_R, at least 1, from the n_L local and n_R remote candidates and the s
    nodes drawn; `quadratic` takes the greatest alpha whose bound of the variance (Eq. 11) is D times the
    unskewed one (Eq. 9). Edges count A_ij / p_j: whatever alpha is, the aggregation is unbiased.

    `version: full` is alpha = 1; `local` draws among local candidates only, so that remote neighbours count
    nothing (degrees stay those of the full graph), and sends no features. Only input features travel.
    Exact (D = 1, everything drawn) as a `full` version with all training nodes in one batch.
    Bytes: see `MiniBatchMethod`.
    """

    name = "skewed"
    Options = SkewedOptions
    exact: ClassVar[dict[str, Any]] = {"distortion": 1.0, "sizes": -1, "batch_size": 0}
    unbiased: ClassVar[dict[str, Any]] = {"sizes": 10, "batch_size": 8, "distortion": 8.0}

    def make_sampler(self, source: Source) -> Sampler:
        """See `MiniBatchMethod`."""
        options = self.options
        skew = Skew(options.skew, options.distortion, options.alpha) if options.version == "skewed" else None
        local_only = options.version == "local"
        if options.base == "saint":
            nodes = NodeSampler(
                source.topology, source.norm, source.tables, options.size,
                local=source.local, skew=skew, local_only=local_only,
            )  # fmt: skip
            return SubgraphSampler(nodes, source.depth, {"alpha": nodes.alpha, "alphas": 1})
        layers = LayerSampler(
            source.topology, source.norm, source.tables,
            local=source.local, skew=skew, estimator=options.estimator, local_only=local_only,
        )  # fmt: skip
        return LayerwiseSampler(layers, per_layer(options.sizes, source.depth, "sizes"))

    def batches(self, epoch: int) -> list[Batch]:
        """See `MiniBatchMethod`, `node_batches` and `subgraph_batches`."""
        if self.options.base == "saint":
            return subgraph_batches(self.worker, epoch, self.options.size)
        return node_batches(self.worker, epoch, self.options.batch_size)

    @property
    def samples_targets(self) -> bool:
        """See `MiniBatchMethod`."""
        return self.options.base == "ladies"

    @classmethod
    def bytes_per_epoch(cls, options: SkewedOptions, case: BytesCase) -> Bytes | None:
        """See `mini_batch_bytes`; the loss of a subgraph reads rows of other ranks."""
        return mini_batch_bytes(case, options, labels=options.base == "saint")

    @classmethod
    def memory(cls, options: SkewedOptions, case: MemoryCase) -> dict[str, int]:
        """See `drawn_memory`, and for subgraphs `subgraph_memory`."""
        if options.base == "saint":
            return subgraph_memory(case, options, options.size)
        return drawn_memory(case, options, options.sizes, "sizes", each=False)
