"""Cost models: bytes that a method sends and memory that a rank needs, by component, worked out from sizes.

Memory is that which the tensors live in: the machine's on a CPU, the GPU's on a GPU. Left out are the
interpreter and its libraries (some hundred MB a rank) and memory-mapped files, which are page cache that a
host's ranks share. A metric that is measured as a process's resident set contains both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.graph.spmm import engine_problem
from harness.models.architecture import Architecture, eq3_values, evaluation_values, training_values
from harness.models.layer import BlockSize
from harness.runtime.codec import CodecName, row_bytes
from harness.runtime.evaluation import columns_at_once, pieces
from harness.runtime.run_config import EVALUATION_MIB, IN_CHUNKS, MiniBatchOptions, NodeBatchOptions
from harness.sampling.layerwise import Layers
from harness.sampling.sample import per_layer

# Bytes sent in an epoch by all ranks together, by purpose; a purpose that is not named has none.
Bytes = dict[str, int]

Edges = Literal["drawn", "expected", "any"]


@dataclass(frozen=True)
class BytesCase:
    """What the bytes of an epoch depend on, besides the method and its options."""

    epoch: int  # 0-based
    parts: int  # number of ranks P
    boundary: int  # sum over ranks of |B_i|, the nodes of others with an edge into the rank's part
    nodes: int  # of the graph that is trained on
    model: Architecture  # the replica
    steps: int = 1  # of the epoch, the same number on each rank
    stats: Mapping[str, float] = field(default_factory=dict)  # the epoch's `Step.stats`, summed over steps and ranks
    itemsize: int = 4  # bytes of a value
    label_bytes: int = 8  # of a node's label: 8, or a value for each class
    weighted: bool = False  # edges have weights

    @property
    def pairs(self) -> int:
        """P (P - 1), the pairs of a sender and a receiver."""
        return self.parts * (self.parts - 1)

    def reduced(self, parameters: int) -> int:
        """Return the bytes of an epoch's all-reduces of so many gradients and a loss: a ring's, of all ranks."""
        return 2 * (self.parts - 1) * (parameters + 1) * self.itemsize * self.steps

    def count(self, name: str) -> int:
        """Return a metric of `stats` that counts something; 0 if no step has it."""
        return int(self.stats.get(name, 0))

    def boundary_rows(
        self, rows: int | Sequence[int], *, backward: int | None = None, header: int = 0, precompute: bool = False,
        transform_first: bool = False, codec: CodecName = "none",
    ) -> Bytes:  # fmt: skip
        """Return the bytes of a full-graph method whose ranks are sent `rows` rows in each layer.

        Forward rows * width * itemsize in each layer (in mixhop in each hop), width that of its input;
        backward the same in all layers but the first.

        Args:
            rows: that all ranks together receive, forward, in each layer alike or by layer.
            backward: those whose gradients they send; default: the same.
            header: bytes that are sent with each row.
            precompute: the first exchange is left out.
            transform_first: H W is sent where that is fewer bytes, in the first layer backward too.
            codec: what the rows are packed by: `row_bytes` for width * itemsize.
        """
        sent = {"feature": 0, "embedding": 0, "gradient": 0}
        for block, values, learnt in self.model.exchanges(precompute, transform_first):
            row = row_bytes(codec, values, self.itemsize) + header
            forward = rows if isinstance(rows, int) else rows[block]
            sent["embedding" if block else "feature"] += forward * row
            sent["gradient"] += (forward if backward is None else backward) * row if learnt else 0
        return sent

    def mini_batch(self, options: MiniBatchOptions, *, labels: bool = False, width: int | None = None) -> Bytes | None:
        """Return the bytes of a mini-batch method that sends input features only; see `MiniBatchMethod`.

        With `labels` the loss reads rows of other ranks, as many as inputs, whose labels are fetched; None if it
        does with `storage: host`, where no metric counts them. A row has `width` values; default: the input
        features'. A rank that stays in its part is sent nothing. Of a disk whole rows are read, of all dimensions.
        """
        width = self.model.widths[0][0] if width is None else width
        row = self.itemsize * (width if options.feature_rate == 1 else max(1, round(width * options.feature_rate)))
        read = self.read_from_disk(options)
        if options.stays_in_part and options.storage != "host":
            return read
        labels = labels and not options.stays_in_part
        peers, drawn = 8 * self.pairs * self.steps, self.asked(options)
        if options.storage == "host":
            copied = self.count("input_nodes") - self.count("cached_nodes")
            return None if labels else {"swap": copied * row, "control": drawn}
        remote = self.count("remote_nodes")
        fetched = remote - self.count("cached_nodes")
        asked = remote * (4 + self.label_bytes) + peers if labels else 0
        return read | {"feature": fetched * row, "control": 4 * fetched + peers + asked + drawn}

    def read_from_disk(self, options: MiniBatchOptions) -> Bytes:
        """Return the bytes of rows that are read with `storage: disk`; none without."""
        if options.storage != "disk":
            return {}
        size = 4 if options.on_disk == "float32" else 2
        return {"disk": self.count("disk_nodes") * self.model.widths[0][0] * size}

    def asked(self, options: MiniBatchOptions) -> int:
        """Return the bytes of draws with `topology: owner` (see `OwnedTopology`), 0 without."""
        if not options.asks_owners:
            return 0
        questions = 24 * self.pairs * self.steps * (self.model.depth - 1)
        neighbours = (8 if self.weighted else 4) * self.count("asked_neighbours")
        return questions + 4 * self.count("asked_nodes") + neighbours


FEW_LEARNT = 0.25


def learns_few(model: Architecture, learnt: int, nodes: int) -> bool:
    """Return whether the last of several layers has the `learnt` rows of so many nodes alone (docs/design/numerics.md).

    With few of them that saves the products and logits of all others; with many, to pick rows takes as long.
    """
    return model.spec.layers > 1 and learnt < FEW_LEARNT * nodes


# Bytes by component; the sum is the rank's. One component may be negative: "layers, beside Eq. 3".
Components = dict[str, int]


@dataclass(frozen=True)
class PartSize:
    """A rank's part of a graph."""

    # inner, boundary: nodes
    inner: int
    boundary: int
    edges: int  # entries of the inner rows
    cut: int  # those of them that come from boundary nodes

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
    """What the memory of a rank depends on, besides the method and its options."""

    train: PartSize  # the rank's part of the graph that is trained on
    # its part of the graph that is evaluated on; None leaves evaluations out, as measured peaks do
    evaluated: PartSize | None
    train_nodes: int  # the rank's training nodes
    # nodes, edges: of the whole graph that is trained on
    nodes: int
    edges: int
    model: Architecture  # the replica
    parts: int = 1  # number of ranks
    itemsize: int = 4  # bytes of a value
    rounded: bool = False  # products keep their operands in bfloat16
    moments: int = 2  # vectors as long as the weights that the optimizer keeps (Adam 2)
    inductive: bool = False  # `evaluated` is of another graph than `train`
    multilabel: bool = False  # a label is a row of classes
    weighted: bool = False  # edges have weights
    cuda: bool = False  # the tensors live on a GPU
    torch_engine: bool = False  # SpMM by torch, which keeps 4-byte pointers of its own, and values where there are none
    threads: int = 1  # of the rank; as many batches are drawn at a time
    evaluation_mib: float = EVALUATION_MIB  # of boundary rows that an evaluation receives at once
    eval_memory: int | None = None  # of a chunked evaluation at most, in bytes; None: it has all inner nodes at once
    most_edges: Callable[[int], int] | None = None  # of so many rows of the graph, where it is there to be read

    def full_graph(
        self, *, kept: float = 1, precompute: bool = False, transform_first: bool = False, stored: bool = True,
        codec: CodecName = "none", feedback: bool = False, few: bool = True, on_disk: bool = False,
    ) -> Components:  # fmt: skip
        """Return the components of a method whose layers run on the inner nodes and a share of the boundary.

        - "layers (Eq. 3)": sum over layers of (3 n_in + n_bd) * input width, n_bd = 0 for linear ones (Eq. 3
          of BNS-GCN, Wan et al., MLSys 2022: input, aggregation and activation of each inner node, input of
          each boundary node, n_bd the *kept* ones).
        - "layers, beside Eq. 3": what this code has more than that at its peak, less if negative: buffers of
          exchange and backward pass are more; that an aggregated layer keeps no boundary row is less.
        - "adjacency": CSR and transpose; where the boundary is sampled, those of the whole part and of the sample.

        Args:
            kept: share of the boundary nodes in an epoch.
            precompute: the first layer's aggregation is kept, and neither exchanged nor computed again.
            transform_first: H W is exchanged where it is narrower.
            stored: evaluations find the edges of the whole part in memory.
            codec: the widest exchanged rows are there as bytes too, sent and received ones.
            feedback: what each row lost is there; a rank is taken to send as many rows as it receives.
            few: the last layer is that of `learns_few`.
            on_disk: a CPU maps its input features, and memory has a copy only where they are dropped out.
        """
        sampled = kept < 1 and self.parts > 1
        part = self.train.sampled(kept) if sampled else self.train
        blocks = [part.block] * self.model.depth
        layers, picked = blocks, 0
        if few and learns_few(self.model, self.train_nodes, self.train.inner):
            edges = part.edges * self.train_nodes // self.train.inner
            last = BlockSize(self.train_nodes, part.block.src, edges, self.train.inner)
            layers, picked = [*blocks[:-1], last], self.matrices(last)
        peak = training_values(
            self.model, layers, exchanged=self.parts > 1 and kept > 0, precompute=precompute,
            transform_first=transform_first, loss_rows=self.train_nodes, cuda=self.cuda, itemsize=self.itemsize,
            rounded=self.rounded,
        )  # fmt: skip
        features = self.train.inner * self.model.widths[0][0] * self.itemsize
        whole = self.matrices(self.train.block) if sampled else 0
        sent = list(self.model.exchanges(precompute, transform_first))
        packed = row_bytes(codec, max((values for _, values, _ in sent), default=0), self.itemsize)
        lost = sum(values * (1 + learnt) for _, values, learnt in sent) * self.itemsize
        return {
            "input features": 0 if on_disk and not self.cuda else features,
            **({"aggregated features": features} if precompute else {}),
            "labels": self._labels(self.train.inner + self.train_nodes),
            **self._layers(blocks, peak),
            **({} if codec == "none" else {"packed rows": 2 * part.boundary * packed}),
            **({"lost by rounding": part.boundary * lost} if feedback else {}),
            "adjacency": self.matrices(part.block) + whole + picked,
            "weights and optimizer": self._weights(),
            **self._evaluation(peak, stored=stored and not self.inductive),
        }

    def mini_batch(
        self, blocks: Sequence[BlockSize] = (), options: MiniBatchOptions | None = None, *, on_disk: bool = False
    ) -> Components:
        """Return the components of a method on mini-batches; without `blocks` those of a batch are left out.

        Layers as in `full_graph`, with a block's destinations for the inner nodes and its other sources for
        the boundary. "sampling" is the tables of the graph's nodes that samplers number their sources by, one
        for each thread that draws; "batches ahead" are the prefetched ones, their input rows included, or those of
        the pool but for the one that is trained on.

        Args:
            blocks: sizes of the largest batch's blocks, input layer first.
            options: the method's, for what is cached, drawn ahead, and stored elsewhere.
            on_disk: whether evaluations read features from files, of a method without such options.
        """
        width = self.model.widths[0][0]
        row = width * self.itemsize
        # The host's copy is the data set's memory map, and what is on a disk is there.
        components = {
            "input features": 0 if options and options.storage != "sharded" else self.train.inner * row,
            "labels": self._labels(self.train.inner),
        }
        if options and options.cache != "none":
            cacheable = self.nodes - (self.train.inner if options.storage == "sharded" else 0)
            cached = min(cacheable, round(options.capacity * self.nodes))
            components["cached features"] = cached * row + 4 * self.nodes
        peak, (ahead, pool) = 0, (options.prefetch, options.pool) if options else (0, 0)
        if blocks:
            # Layers of a subgraph share their block.
            sampled = sum(self.matrices(block) for block in {id(block): block for block in blocks}.values())
            peak = training_values(
                self.model, blocks, exchanged=False, inputs_fetched=True, loss_rows=blocks[-1].dst,
                cuda=self.cuda, itemsize=self.itemsize, rounded=self.rounded,
            )  # fmt: skip
            components |= {
                **self._layers(blocks, peak),
                "sampled blocks": sampled,
                "sampling": 0 if self.cuda else 4 * self.nodes * max(1, ahead, min(pool, self.threads)),
            }
            if ahead or pool:
                components["batches ahead"] = ahead * (sampled + blocks[0].src * row) + max(0, pool - 1) * sampled
        chunked = ("disk", "host") if self.cuda else ("disk",)
        in_chunks = on_disk or (options is not None and options.storage in chunked)
        evaluation = self._evaluation(peak, stored=False, in_chunks=in_chunks)
        return components | {"weights and optimizer": self._weights()} | evaluation

    def drawn(
        self, options: NodeBatchOptions, drawn: int | list[int], key: str, *, each: bool, layers: Layers = "nested",
        edges: Edges = "drawn",
    ) -> Components:  # fmt: skip
        """Return the components of a method whose largest batch has the bounds of `largest_blocks`.

        `drawn` is the value of its option `key`: nodes drawn in a layer; the rest is as for `largest_blocks`.
        """
        numbers, rows = per_layer(drawn, self.model.depth, key), self.batch_rows(options.batch_size)
        blocks = self.largest_blocks(rows, numbers, each=each, layers=layers, edges=edges)
        return self.mini_batch(blocks, options)

    def drawn_on_device(self, read: int, options: MiniBatchOptions, *, entry: int = 48) -> Components:
        """Return the components that batches are drawn from and with on a GPU; none without one.

        "graph" is the whole training graph, and with sharded features each node's owner and row there; "sampling" a
        table of the nodes, and for each of the edges `read` at a time `entry` bytes: half a dozen numbers.
        """
        if not self.cuda:
            return {}
        weights = (4 * self.edges + 8 * self.nodes) if self.weighted else 0
        places = 0 if options.storage == "host" else 8 * self.nodes
        return {
            "graph": 8 * (self.nodes + 1) + 4 * self.edges + weights + places,
            "sampling": 4 * self.nodes + entry * read,
        }

    def read_on_device(self, options: MiniBatchOptions) -> Components:
        """Return `drawn_on_device` of a layer all of whose destinations' edges are read, of which few are drawn.

        Those may be all edges, which are numbered and sorted. Of each node there are the factors of
        the propagation, and what it adds to its own weight.
        """
        components = self.drawn_on_device(self.edges, options, entry=80)
        return components | {"probabilities": 24 * self.nodes} if components else {}

    def subgraphs(self, options: MiniBatchOptions, size: int, *, chances: bool = True) -> Components:
        """Return the components of a method on subgraphs of `size` nodes (-1: all; see `subgraph_blocks`).

        "probabilities" are those of all nodes, where `chances` are known.
        """
        components = self.mini_batch(self.subgraph_blocks(size), options)
        return components | ({"probabilities": 0 if self.cuda else 8 * self.nodes} if chances else {})

    def subgraph_blocks(self, size: int) -> list[BlockSize]:
        """Return bounds of a subgraph's blocks: `size` nodes (-1: all) and every edge there can be."""
        nodes = self.nodes if size < 0 else min(size, self.nodes)
        return [BlockSize(nodes, nodes, min(self.edges_of(nodes), nodes * nodes))] * self.model.depth

    def largest_blocks(
        self, rows: int, drawn: Sequence[int], *, each: bool, layers: Layers = "nested", edges: Edges = "drawn"
    ) -> list[BlockSize]:
        """Return bounds of a batch's blocks, input layer first, for `rows` targets.

        In a layer `drawn` nodes (input layer first; negative: all there are) are drawn for `each` destination, or
        for all of them together, in which case `layers` (see `LayerSampler`) says what else are sources: no two draws
        coincide, but there are never more nodes than the graph has. `edges`: exactly what is drawn, or so
        many `expected` for each destination, or `any` number for as many distinct nodes expected.
        """
        blocks, targets = list[BlockSize](), rows

        def most(mean: int) -> int:
            """Independent draws of so many expected are at most 5 standard deviations above that."""
            return mean + math.ceil(5 * math.sqrt(max(mean, 0)))

        for number in reversed(drawn):
            nodes = rows * number if each else number
            nodes = self.nodes if number < 0 else min(self.nodes, nodes if each and edges == "drawn" else most(nodes))
            # Edges of one node are drawn together: all destinations may have most at once.
            entries = {"drawn": rows * number, "expected": rows * most(number), "any": self.edges}[edges]
            entries = min(self.edges_of(rows), entries if number >= 0 else self.edges)
            certain = {"nested": rows, "public": targets, "paper": 0}[layers]
            blocks.append(BlockSize(rows, max(certain, min(self.nodes, certain + nodes)), entries))
            rows = blocks[-1].src
        return blocks[::-1]

    def edges_of(self, rows: int) -> int:
        """Return how many edges so many rows have at most: without the graph all."""
        return self.edges if self.most_edges is None else self.most_edges(rows)

    def batch_rows(self, batch_size: int) -> int:
        """Return the targets of the largest batch of a rank."""
        return min(batch_size or self.train_nodes, self.train_nodes)

    def matrices(self, block: BlockSize, *, transposed: bool = True) -> int:
        """Return the bytes of a CSR (8-byte pointers, 4-byte columns), its transpose, degrees and scales.

        torch's engine has pointers of 4 bytes besides, and a value for each entry, which both share where all are one.
        """
        entry = 4 + (self.itemsize if self.weighted else 0)
        pointers = (12 if self.torch_engine else 8) * (block.dst + 1 + (block.src + 1 if transposed else 0))
        ones = self.itemsize * block.edges if self.torch_engine and not self.weighted else 0
        scales = self.itemsize * (block.dst + block.src)
        return pointers + entry * block.edges * (2 if transposed else 1) + ones + scales

    def _layers(self, blocks: Sequence[BlockSize], peak: int) -> Components:
        eq3 = eq3_values(self.model, blocks)
        return {"layers (Eq. 3)": eq3 * self.itemsize, "layers, beside Eq. 3": (peak - eq3) * self.itemsize}

    def _labels(self, rows: int) -> int:
        return rows * (self.model.outputs * self.itemsize if self.multilabel else 8)

    def _weights(self) -> int:
        return (2 + self.moments) * self.itemsize * self.model.num_weights

    def _evaluation(self, training: int, *, stored: bool, in_chunks: bool = False) -> Components:
        """Return the memory of an evaluation beyond the training that it interrupts, whose layers are free by then.

        It receives boundary rows piece by piece (`WholeBlock`), and reads all edges anew unless they are `stored`.
        `in_chunks`: the device has some rows and edges at a time (`ChunkedEvaluation`), and the labels of all splits,
        as with `eval_memory`.
        """
        part = self.evaluated
        if part is None:
            return {}
        if in_chunks or self.eval_memory is not None:
            most = round(IN_CHUNKS * self.evaluation_mib * 2**20) if self.eval_memory is None else self.eval_memory
            at_once = min(most, self.evaluation_values * self.itemsize)
            # On the host: where boundary rows go, and the tile and column of each source.
            index = 0 if self.cuda else 24 * part.boundary + 8 * (part.inner + part.boundary)
            return {"evaluation": max(0, at_once - training * self.itemsize) + self._labels(part.inner) + index}
        own = 0 if stored and self._pieces(part) == 1 else self.matrices(part.block, transposed=False)
        labels = self._labels(part.inner) if self.inductive else 0
        return {"evaluation": max(0, self.evaluation_values - training) * self.itemsize + own + labels}

    @property
    def evaluation_values(self) -> int:
        """The values at the peak of an exact evaluation, 0 where there is none; boundary rows come in pieces."""
        part = self.evaluated
        if part is None:
            return 0
        received = -(-part.boundary // self._pieces(part))
        block = BlockSize(part.inner, part.inner + received, part.edges)
        return evaluation_values(self.model, block, exchanged=self.parts > 1)

    def columns_at_once(self) -> int:
        """Return how many columns of X a rank propagates at once."""
        rows, width = self.train.inner + self.train.boundary, self.model.widths[0][0]
        return columns_at_once(width, rows, self.itemsize, self.eval_memory)

    def _pieces(self, part: PartSize) -> int:
        return pieces(part.boundary, self.model.widest_evaluated * self.itemsize, self.evaluation_mib)


def uses_torch(spmm: str, device: str) -> bool:
    """Return whether products are torch's, taking this machine's installation for the ranks'."""
    return spmm == "torch" or (spmm == "auto" and device != "cpu" and engine_problem("triton") is not None)
