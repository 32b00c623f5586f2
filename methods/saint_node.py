"""GraphSAINT's node sampler: training on subgraphs of nodes drawn by importance."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from harness import (
    Batch,
    MemoryCase,
    MiniBatchMethod,
    MiniBatchOptions,
    NodeSampler,
    Sampler,
    Source,
    SubgraphSampler,
    subgraph_batches,
    subgraph_memory,
)


class SAINTOptions(MiniBatchOptions):
    """Options of node-sampled subgraphs."""

    size: int = Field(4500, ge=-1, description="nodes expected in a subgraph; -1: all of them")

    @model_validator(mode="after")
    def _some_nodes(self) -> Self:
        if self.size == 0:
            raise ValueError("size: a subgraph has at least 1 node, or -1 for all")
        return self


class SAINTNode(MiniBatchMethod[SAINTOptions]):
    """Subgraphs of nodes drawn by importance (GraphSAINT's node sampler, Zeng et al., ICLR 2020).

    Each step every rank draws its own subgraph of the whole training graph, whoever owns the nodes: node j
    independently with p_j = min(1, c q_j), q_j = sum_i A_ij^2, `size` nodes expected (section 3.4; the
    paper draws with replacement). All layers run on it. Normalisation as in section 3.2, by chances that are
    known instead of estimated: edge j -> i counts A_ij / p_j, the loss of training node i 1/p_i, and the
    step's loss is divided by all training nodes and by P. Degrees are the full graph's. The aggregation
    of a node that is there is unbiased, and so, for exact logits, is the loss.

    An epoch has ceil(N / (P size)) steps, as many nodes as the graph; it may draw a node several times
    or never. Exact with all nodes, on which every rank then trains.
    Bytes of S steps, R nodes of whose subgraphs are other ranks' (`stat_remote_nodes`, of all ranks): R rows
    of features; as control 4 R + 8 S P (P - 1) with their ids and, for their labels, 12 R + 8 S P (P - 1), or
    with rows of classes (4 + row) R + 8 S P (P - 1). What a cache or `storage: host` changes: see
    `MiniBatchMethod`.
    """

    name = "saint-node"
    Options = SAINTOptions
    exact: ClassVar[dict[str, Any]] = {"size": -1}

    def make_sampler(self, source: Source) -> Sampler:
        """See `MiniBatchMethod`."""
        nodes = NodeSampler(source.topology, source.norm, source.tables, self.options.size)
        return SubgraphSampler(nodes, source.depth)

    def batches(self, epoch: int) -> list[Batch]:
        """See `subgraph_batches`."""
        return subgraph_batches(self.worker, epoch, self.options.size)

    @property
    def samples_targets(self) -> bool:
        """A subgraph is drawn for nobody."""
        return False

    @classmethod
    def memory(cls, options: SAINTOptions, case: MemoryCase) -> dict[str, int]:
        """See `subgraph_memory`."""
        return subgraph_memory(case, options, options.size)
