"""What a rank needs of memory, by component, worked out from its sizes.

Bytes of the memory that the tensors live in: the machine's on a CPU, the GPU's on a GPU. Left out are the
interpreter and its libraries (some hundred MB a rank) and memory-mapped files, which are page cache that a
host's ranks share. A figure that is measured as a process's resident set contains both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.models.gnn import GNN
from harness.runtime.layer_memory import BlockSize, eq3_values, evaluation_values, training_values

if TYPE_CHECKING:
    from harness.runtime.minibatch import MiniBatchOptions
    from harness.runtime.worker import Worker

Components = dict[str, int]
"""Bytes by component; the sum is the rank's. One component may be negative: "layers, beside Eq. 3"."""


@dataclass(frozen=True)
class PartSize:
    """A rank's part of a graph.

    Attributes:
        inner, boundary: nodes.
        edges: entries of the inner rows.
        cut: those of them that come from boundary nodes.
    """

    inner: int
    boundary: int
    edges: int
    cut: int

    def sampled(self, share: float) -> PartSize:
        """Return the part with a share of its boundary, and the same share of the cut edges."""
        cut = round(share * self.cut)
        return PartSize(self.inner, round(share * self.boundary), self.edges - self.cut + cut, cut)

    @property
    def block(self) -> BlockSize:
        """Sizes of the block of all inner rows."""
        return BlockSize(self.inner, self.inner + self.boundary, self.edges)


@dataclass(frozen=True)
class MemoryCase:
    """What the memory of a rank depends on, besides the method and its options.

    Attributes:
        train: the rank's part of the graph that is trained on.
        evaluated: its part of the graph that is evaluated on; None leaves evaluations out, as measured
            peaks do.
        train_nodes: the rank's training nodes.
        nodes, edges: of the whole graph that is trained on.
        model: the replica.
        parts: number of ranks.
        itemsize: bytes of a value.
        moments: vectors as long as the weights that the optimizer keeps (Adam 2, SGD 0).
        inductive: `evaluated` is of another graph than `train`.
        multilabel: a label is a row of classes.
        weighted: edges have weights.
        cuda: the tensors live on a GPU.
        torch_engine: SpMM by torch, which keeps its own copy of each matrix with 8-byte columns and values.
        least: where a method can only bound what it needs, give what it needs in any case, not the most.
    """

    train: PartSize
    evaluated: PartSize | None
    train_nodes: int
    nodes: int
    edges: int
    model: GNN
    parts: int = 1
    itemsize: int = 4
    moments: int = 2
    inductive: bool = False
    multilabel: bool = False
    weighted: bool = False
    cuda: bool = False
    torch_engine: bool = False
    least: bool = False


def full_graph_memory(
    case: MemoryCase, *, kept: float = 1, precompute: bool = False, narrow: bool = False
) -> Components:
    """Return the components of a method whose layers run on the inner nodes and a share of the boundary.

    - "layers (Eq. 3)": sum over layers of (3 n_in + n_bd) * input width, n_bd = 0 for linear ones (Eq. 3 of
      BNS-GCN, Wan et al., MLSys 2022: input, aggregation and activation of each inner node, input of each
      boundary node, n_bd the *kept* ones).
    - "layers, beside Eq. 3": what this code has more than that at its peak, less if negative: buffers of
      exchange and backward pass are more; that an aggregated layer keeps no boundary row is less.
    - "adjacency": CSR and transpose; where the boundary is sampled, those of
      the whole part and of the sample.

    Args:
        case: the rank.
        kept: share of the boundary nodes in an epoch.
        precompute: the first layer's aggregation is kept, and neither exchanged nor computed again.
        narrow: H W is exchanged where it is narrower.
    """
    sampled = kept < 1 and case.parts > 1
    part = case.train.sampled(kept) if sampled else case.train
    blocks = [part.block] * case.model.depth
    peak = training_values(
        case.model, blocks, exchanged=case.parts > 1 and kept > 0, precompute=precompute, narrow=narrow,
        loss_rows=case.train_nodes, cuda=case.cuda, itemsize=case.itemsize, least=case.least,
    )  # fmt: skip
    features = case.train.inner * case.model.widths[0][0] * case.itemsize
    # A GPU holds the sample only; the whole part stays on the host.
    whole = matrices_memory(case, case.train.block) if sampled and not case.cuda else 0
    return {
        "input features": features,
        **({"aggregated features": features} if precompute else {}),
        "labels": _labels(case, case.train.inner + case.train_nodes),
        **_layers(case, blocks, peak),
        "adjacency": matrices_memory(case, part.block) + whole,
        "weights and optimizer": _weights(case),
        **_evaluation(case, peak, stored=not case.inductive),
    }


def mini_batch_memory(
    case: MemoryCase, blocks: Sequence[BlockSize] = (), options: MiniBatchOptions | None = None
) -> Components:
    """Return the components of a method on mini-batches; without `blocks` nothing is said of a batch.

    Layers as in `full_graph_memory`, with a block's destinations for the inner nodes and its other sources
    for the boundary. "sampling" is the tables of the graph's nodes that samplers number their sources by, one
    for each thread that draws; "batches ahead" are the prefetched ones, their input rows included.

    Args:
        case: the rank.
        blocks: sizes of the largest batch's blocks, input layer first.
        options: the method's, for what is cached, prefetched, and stored elsewhere.
    """
    width = case.model.widths[0][0]
    row = width * case.itemsize
    # The host's copy is the data set's memory map.
    components = {
        "input features": 0 if options and options.storage == "host" else case.train.inner * row,
        "labels": _labels(case, case.train.inner),
    }
    if options and options.cache != "none":
        components["cached features"] = round(options.capacity * case.train.boundary) * row + 4 * case.nodes
    peak, ahead = 0, options.prefetch if options else 0
    if blocks:
        # Layers of a subgraph share their block.
        sampled = sum(
            matrices_memory(case, block) for block in {id(block): block for block in blocks}.values()
        )
        peak = training_values(
            case.model, blocks, exchanged=False, inputs_fetched=True, loss_rows=blocks[-1].dst,
            cuda=case.cuda, itemsize=case.itemsize, least=case.least,
        )  # fmt: skip
        components |= {
            **_layers(case, blocks, peak),
            "sampled blocks": sampled,
            "sampling": 0 if case.cuda else 4 * case.nodes * max(1, ahead),
        }
        if ahead:
            components["batches ahead"] = ahead * (sampled + blocks[0].src * row)
    return components | {"weights and optimizer": _weights(case)} | _evaluation(case, peak, stored=False)


def case_of(worker: Worker) -> MemoryCase:
    """Return the case of a rank that runs, from its real sizes, evaluations left out."""
    partition, train = worker.partition, worker.job.config.train
    # The table is there already; the structure would have to be read to count.
    row = partition.meta["table"][worker.rank]
    return MemoryCase(
        train=PartSize(row["inner"], row["boundary"], row["edges"], row["edges_cut"]),
        evaluated=None,
        train_nodes=int(worker.train_rows.numel()),
        nodes=partition.meta["nodes"],
        edges=partition.meta["edges"],
        model=worker.model,
        parts=worker.world,
        itemsize=worker.dtype.itemsize,
        moments=moments_of(train.optimizer),
        multilabel=worker.graph.multilabel,
        weighted=partition.meta["weighted"],
        cuda=worker.device.type == "cuda",
        torch_engine=uses_torch(train.spmm, worker.device.type),
    )


def moments_of(optimizer: str) -> int:
    """Return how many vectors as long as the weights an optimizer keeps."""
    return 2 if optimizer == "adam" else 0


def uses_torch(spmm: str, device: str) -> bool:
    """Return whether products are torch's, which keeps a copy of each matrix."""
    return spmm == "torch" or device == "cuda"


def _layers(case: MemoryCase, blocks: Sequence[BlockSize], peak: int) -> Components:
    eq3 = eq3_values(case.model, blocks)
    return {"layers (Eq. 3)": eq3 * case.itemsize, "layers, beside Eq. 3": (peak - eq3) * case.itemsize}


def matrices_memory(case: MemoryCase, block: BlockSize, *, transposed: bool = True) -> int:
    """Return the bytes of a CSR (8-byte pointers, 4-byte columns), of its transpose, degrees and scales."""
    entry = 4 + (case.itemsize if case.weighted else 0) + (8 + case.itemsize if case.torch_engine else 0)
    pointers = 8 * (block.dst + 1) + (8 * (block.src + 1) if transposed else 0)
    return pointers + entry * block.edges * (2 if transposed else 1) + case.itemsize * (block.dst + block.src)


def _labels(case: MemoryCase, rows: int) -> int:
    return rows * (case.model.outputs * case.itemsize if case.multilabel else 8)


def _weights(case: MemoryCase) -> int:
    return (2 + case.moments) * case.itemsize * sum(p.numel() for p in case.model.parameters())


def _evaluation(case: MemoryCase, training: int, *, stored: bool) -> Components:
    """What an evaluation needs beyond the training that it interrupts, whose layers are free by then."""
    part = case.evaluated
    if part is None:
        return {}
    values = evaluation_values(case.model, part.block, exchanged=case.parts > 1, least=case.least)
    own = 0 if stored else matrices_memory(case, part.block, transposed=False)
    labels = _labels(case, part.inner) if case.inductive else 0
    return {"evaluation": max(0, values - training) * case.itemsize + own + labels}
