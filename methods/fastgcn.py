"""FastGCN: layer-wise importance sampling over all nodes."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from harness import (
    GlobalSampler,
    LayerwiseSampler,
    MemoryCase,
    MiniBatchMethod,
    NodeBatchOptions,
    Sampler,
    Source,
    drawn_memory,
    per_layer,
)


class FastGCNOptions(NodeBatchOptions):
    """Options of layer-wise sampling."""

    sizes: int | list[int] = Field(
        512, description="nodes drawn for a layer, input layer first, or one number for all; -1: all of them"
    )


class FastGCN(MiniBatchMethod[FastGCNOptions]):
    """Layer-wise importance sampling over all nodes (FastGCN, Chen, Ma and Xiao, ICLR 2018).

    For each layer every node j of the training graph is drawn independently with p_j = min(1, c q_j),
    q_j = sum_i A_ij^2 over all i, c such that `sizes` nodes are expected (the paper draws with replacement);
    edges count A_ij / p_j, which is unbiased. Most of what is drawn has no edge into the layer above, and a
    node may be left without any neighbour. Its self loop, or own row, is always there. Drawn nodes that no
    edge leads from are not fetched. Exact with all nodes and all training nodes in one batch.
    Bytes: see `MiniBatchMethod`.
    """

    name = "fastgcn"
    Options = FastGCNOptions
    exact: ClassVar[dict[str, Any]] = {"sizes": -1, "batch_size": 0}
    unbiased: ClassVar[dict[str, Any]] = {"sizes": 25, "batch_size": 8}

    def make_sampler(self, source: Source) -> Sampler:
        """See `MiniBatchMethod`."""
        sizes = per_layer(self.options.sizes, source.depth, "sizes")
        return LayerwiseSampler(GlobalSampler(source.topology, source.norm, source.tables), sizes)

    @classmethod
    def memory(cls, options: FastGCNOptions, case: MemoryCase) -> dict[str, int]:
        """See `drawn_memory`."""
        return drawn_memory(case, options, options.sizes, "sizes", each=False)
