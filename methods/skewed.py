"""Skewed linear weighted sampling: local nodes are drawn more often than remote ones.

S are the destinations of a layer, q_j = sum_{i in S} A_ij^2 a candidate's weight, Q_L and Q_R the sums of q
over the n_L local and n_R remote candidates, Q = Q_L + Q_R, n = n_L + n_R, s the size of the sample. Where j
is drawn with p_j = s w_j / (alpha Q_L + Q_R), w_j = alpha q_j of a local and q_j of a remote one, the
variance of the aggregation is, for rows of norm 1 (Eq. 5: sum_j q_j (1/p_j - 1)),

    V(alpha) = (alpha Q_L + Q_R) (n_L / alpha + n_R) / s - Q                                         (Eq. 11)

and V(1) = (n / s - 1) Q without a skew (Eq. 9). Theorem 1 asks for V(alpha) <= D V(1), that is

    (alpha Q_L + Q_R) (n_L / alpha + n_R) <= M Q,    M = D (n - s) + s.

Equality is the quadratic. Its coefficient of Q_L alone, alpha n_R + n_L <= M, is Formula 12; that of Q_R,
n_L / alpha + n_R <= M, then holds too, so that it suffices whatever the Q are. That is why it also holds for
p_j = min(1, c w_j): what has p = 1 only changes the Q of an equal inequality.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from harness import Bytes, BytesCase, MiniBatchMethod, Sampler, Source
from harness.plugin import (
    LAYERS,
    LAYERWISE_METRICS,
    LAYERWISE_SPACE,
    Batch,
    DrawCount,
    DrawCounts,
    ImportanceSubgraphs,
    Layers,
    LayerSampler,
    LayerwiseSampler,
    MemoryCase,
    NeighbourOptions,
    Presets,
    SubgraphSampler,
    SubgraphsOnDevice,
    node_batches,
    per_layer,
    subgraph_batches,
    subgraph_size,
    whole_subgraphs,
)

SIZE = 4500  # the paper's
NEGLIGIBLE = 1e-100  # share of Q; a smaller Q_L would ask for an alpha beyond all bounds

SkewKind = Literal["formula", "quadratic", "fixed"]


@dataclass(frozen=True)
class Skew:
    """The rule for alpha, the factor of local candidates' weights.

    `kind` is `formula` (Formula 12), `quadratic` (the largest root of the exact condition, not below the formula's) or
    `fixed`.
    """

    kind: SkewKind = "formula"
    distortion: float = 1.0  # D >= 1, how many times the bound of the variance may grow; 1 is the unskewed sampler
    alpha: float | None = None  # the constant of `fixed`, >= 1; None for the others

    def alpha_of(self, n_local: int, n_remote: int, q_local: float, q_remote: float, size: int) -> float:
        """Return alpha >= 1; 1 where there is nothing to choose.

        That is: no local or no remote candidates, or a sample that takes all of them. `n_local` and `n_remote` are
        the numbers of candidates, `q_local` and `q_remote` the sums of their q before the skew, `size` is s, or -1
        for all candidates.
        """
        spare = n_local + n_remote - size
        if n_local == 0 or n_remote == 0 or size < 0 or spare <= 0:
            return 1.0
        if self.alpha is not None:
            return self.alpha
        if self.distortion == 1:
            return 1.0  # of the quadratic too, which may have a second root of the same bound above it
        formula = 1 + (self.distortion - 1) * spare / n_remote  # = D + (D - 1) (n_L - s) / n_R
        total = q_local + q_remote
        if self.kind == "formula" or q_local <= NEGLIGIBLE * total:
            return formula
        # The larger alpha of (alpha Q_L + Q_R)(n_L / alpha + n_R) = M, with Q_L + Q_R = 1; the other one is below 1.
        q_local, q_remote = q_local / total, q_remote / total
        a, c = q_local * n_remote, q_remote * n_local
        b = q_local * n_local + q_remote * n_remote - (self.distortion * spare + size)
        return max(formula, (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a))


class SkewedOptions(NeighbourOptions):
    """Options of skewed sampling."""

    presets: ClassVar[Presets] = {"base": {"saint": {"estimator": "poisson", "layers": "paper"}}}

    base: Literal["ladies", "saint"] = Field(
        "ladies", description="draws nodes layer by layer (LADIES), or a subgraph's (GraphSAINT)"
    )
    version: Literal["full", "local", "skewed"] = Field(
        "skewed", description="not skewed; not skewed, remote nodes dropped; or skewed"
    )
    skew: SkewKind = Field("formula", description="factor of local nodes: Formula 12, the exact bound's, or `alpha`")
    distortion: float = Field(4.0, ge=1, description="D: how many times the bound of the variance may grow")
    alpha: float | None = Field(None, ge=1, description="factor of local nodes with `skew: fixed`")
    batch_size: int = Field(512, ge=0, description="base ladies: targets a step and rank; 0: all its training nodes")
    sizes: DrawCounts = Field(
        512, description="base ladies: nodes drawn for a layer, input layer first, or one number; -1: all"
    )
    size: DrawCount | None = Field(
        None, description="base saint: nodes of a subgraph; default: 4500, or an eighth of the training graph "
        "where those are fewer; -1: all"
    )  # fmt: skip
    estimator: Literal["poisson", "ladies"] = Field("ladies", description="see `ladies`; base saint: poisson")
    layers: Layers = Field("paper", description=f"base ladies: {LAYERS}")

    @model_validator(mode="after")
    def _alpha_where_it_is_fixed(self) -> Self:
        if (self.skew == "fixed") != (self.alpha is not None):
            raise ValueError("alpha: belongs to skew 'fixed', which needs one")
        if self.base == "saint" and self.estimator != "poisson":
            raise ValueError("estimator: base 'saint' has 'poisson' only")
        if self.base == "saint" and self.asks_owners:
            raise ValueError("topology: base 'saint' asks nobody for rows before it draws; leave it at 'shared'")
        return self

    def size_on(self, nodes: int) -> int:
        """Return the nodes of a subgraph (-1: all) of a training graph of so many."""
        return subgraph_size(self.size, SIZE, nodes)


class Skewed(MiniBatchMethod[SkewedOptions]):
    """Skewed linear weighted sampling (communication-efficient sampling, Jiang and Rumi, 2021).

    A layer's candidates j, the neighbours of its destinations i (`base: ladies`, see there) or all nodes of
    the training graph (`base: saint`, see `ImportanceSubgraphs`; the paper's "all training nodes"), are drawn in
    proportion to q_j = sum_i A_ij^2, local ones in proportion to alpha q_j (Eq. 10). Formula 12 gives
    alpha = D + (D - 1)(n_L - s) / n_R, at least 1, from the n_L local and n_R remote candidates and the s
    nodes drawn; `quadratic` takes the greatest alpha whose bound of the variance (Eq. 11) is D times the
    unskewed one (Eq. 9). With `estimator: poisson`, and of a subgraph, edges count A_ij / p_j: whatever alpha is, the
    aggregation is unbiased. With `estimator: ladies` s nodes are drawn without replacement (Eq. 8), which saves less.

    `version: full` is alpha = 1; `local` draws among local candidates only, so that remote neighbours count
    nothing (degrees stay those of the full graph), and sends no features. Only input features travel. On a GPU what
    needs no other rank is drawn there, as in `ladies`.
    Exact (D = 1, everything drawn) as a `full` version with all training nodes in one batch.
    Bytes: see `MiniBatchMethod`.
    """

    name = "skewed"
    colour = "#117733"
    on_device = True
    Options = SkewedOptions
    space: ClassVar[dict[str, Any]] = {"batch_size": [256, 512, 1024], "sizes": [256, 512, 1024], **LAYERWISE_SPACE}
    exact: ClassVar[dict[str, Any]] = {"distortion": 1.0, "sizes": -1, "batch_size": 0}
    unbiased: ClassVar[dict[str, Any]] = {"sizes": 10, "batch_size": 8, "distortion": 8.0, "estimator": "poisson"}
    plain: ClassVar[dict[str, Any]] = {"version": "full", "distortion": None, "skew": None, "alpha": None}
    metrics = LAYERWISE_METRICS

    def make_sampler(self, source: Source) -> Sampler:
        """See `MiniBatchMethod`."""
        options = self.options
        skew = Skew(options.skew, options.distortion, options.alpha) if options.version == "skewed" else None
        graph = source.topology, source.propagation, source.tables
        bias: dict[str, Any] = {"local": source.local, "skew": skew, "local_only": options.version == "local"}
        if options.base == "saint":
            nodes = ImportanceSubgraphs(*graph, options.size_on(source.topology.num_nodes), **bias)
            on_host = source.device.type == "cpu"
            subgraphs = nodes if on_host else SubgraphsOnDevice(nodes, source.device)
            return SubgraphSampler(subgraphs, source.depth, {"alpha": nodes.alpha, "alphas": 1})
        bias |= {"reads_own": source.reads_own, "layers": options.layers, "estimator": options.estimator}
        bias |= {"device": source.device}
        layers = LayerSampler(*graph, **bias)
        return LayerwiseSampler(layers.sample, per_layer(options.sizes, source.depth, "sizes"))

    def batches(self, epoch: int) -> list[Batch]:
        """See `MiniBatchMethod`, `node_batches` and `subgraph_batches`."""
        if self.options.base == "saint":
            size = self.options.size_on(self.source.topology.num_nodes)
            return subgraph_batches(self.worker, epoch, size)
        return node_batches(self.worker, epoch, self.options.batch_size)

    @property
    def draws_rows(self) -> bool:
        """See `Method`."""
        return self.options.base == "saint"

    @property
    def samples_targets(self) -> bool:
        """See `MiniBatchMethod`."""
        return self.options.base == "ladies"

    @classmethod
    def bytes_per_epoch(cls, options: SkewedOptions, case: BytesCase) -> Bytes | None:
        """See `BytesCase.mini_batch`; the loss of a subgraph reads rows of other ranks."""
        return case.mini_batch(options, labels=options.base == "saint")

    @classmethod
    def option_warnings(cls, options: SkewedOptions, case: MemoryCase) -> list[str]:
        """See `whole_subgraphs`, and `MiniBatchMethod`."""
        whole = whole_subgraphs(options.size, case.nodes) if options.base == "saint" else []
        return whole + super().option_warnings(options, case)

    @classmethod
    def memory(cls, options: SkewedOptions, case: MemoryCase) -> dict[str, int]:
        """See `MemoryCase.drawn` and `MemoryCase.subgraphs`; a GPU has the graph, too."""
        if options.base == "saint":
            components = case.subgraphs(options, options.size_on(case.nodes))
            if case.cuda:
                components |= case.drawn_on_device(case.edges, options)
                components["probabilities"] = 16 * case.nodes
            return components
        drawn = case.drawn(options, options.sizes, "sizes", each=False, layers=options.layers)
        return drawn | (case.read_on_device(options) if cls.device_draws(options) else {})
