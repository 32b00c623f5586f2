"""CAGNET: row-block broadcasts, 1-D and 1.5-D."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from harness import Bytes, BytesCase, FullGraphMethod, FullGraphOptions, Metric, Step, Worker, torch
from harness import numpy as np
from harness.plugin import BlockSize, BoundarySampler, Loss, MemoryCase, PartSize, later, sample_boundary, upload

from .broadcast import BroadcastBlock, History, Label, Mesh, Sent, rank_groups

STALENESS = 10


class CAGNETOptions(FullGraphOptions):
    """Options of CAGNET."""

    replication: int = Field(
        1, ge=1, description="copies c of each row of H (1: 1-D, more: 1.5-D); must divide the number of parts"
    )
    rate: float = Field(
        1.0, ge=0, le=1, description="share p of the rows others read that a rank broadcasts in an epoch; 1: its block"
    )
    sampler: BoundarySampler = Field(
        "bernoulli", description="each such row with probability p, or exactly round(p n) of each owner's n"
    )
    drift: float = later(
        0.0, "relative change of its rows up to which a rank does not broadcast them again (SANCUS); 0: it does", ge=0
    )
    staleness: int = later(STALENESS, "with `drift`, broadcasts of a layer that a rank skips in a row, at most", ge=1)

    @model_validator(mode="after")
    def _skips_whole_blocks(self) -> Self:
        if self.drift and self.rate < 1:
            raise ValueError("drift: rows that are drawn anew in each epoch have no last ones: leave it or rate out")
        if self.staleness != STALENESS and not self.drift:
            raise ValueError("staleness: no broadcast is skipped without drift: give it, or leave staleness out")
        return self

    @model_validator(mode="after")
    def _broadcasts_rows_as_they_are(self) -> Self:
        if self.codec != "none":
            raise ValueError("codec: cagnet's ranks hold copies that are equal bit for bit: leave it out")
        return self


class CAGNET(FullGraphMethod[CAGNETOptions]):
    """Full-graph training by broadcasts of whole row blocks (CAGNET, Tripathy et al., SC 2020).

    Exact. In every layer every rank's H is broadcast in turn and multiplied in, needed or not (the
    paper's 1-D algorithm, section IV; a baseline of BNS-GCN, section 4); one foreign block is in memory at a
    time. With c = `replication` > 1 (the 1.5-D algorithm) c consecutive ranks hold copies of their c
    partitions' rows, fetched once before the first epoch; the j-th of each group broadcasts its own
    partition's rows to the j-th of the other groups, and a group adds up what its ranks have. (The paper's
    rank broadcasts all rows of some groups instead: as many bytes, but c^2 must divide P.) All else a group's
    ranks do alike: they draw the same dropout masks, and each of them counts 1/c in the loss. The last layer has all
    rows, however few are trained on.

    Bytes of a layer that sends width d, over all ranks, of N nodes: forward (P/c - 1 + 2 (c - 1)) N d *
    itemsize, of which 2 (c - 1) N d are the groups' sums; backward, for all layers but the first, (P/c -
    1 + c - 1) N d * itemsize. d is the input width; with `transform_before_exchange`, where that is fewer
    bytes, the output width, in the first layer backward too. Set-up with c > 1: (c - 1) N F * itemsize
    for the features, and as much again with `precompute`, after which the first layer sends nothing.

    With gat, whose weights depend on H W of every row, that is sent, `transform_before_exchange` or not:
    w = heads * head width values a row. Its backward pass, in the first layer too, needs those rows
    again, which are sent again rather than kept. Forward (P/c - 1) N w + 2 (c - 1) N (w + 2 heads),
    backward (P/c - 1) N (2 w + heads) + (c - 1) N (w + 3 heads), times itemsize.

    `rate` p < 1 plugs boundary sampling in. (That it can be, not how, says BNS-GCN, Wan et al., MLSys 2022,
    section 3.2.2.) There each reader draws what it wants. A broadcast goes to all readers: it would have to bear
    the union of their draws, of a row that r read 1 - (1 - p)^r. So the owner draws, once for all: in each epoch
    each of its rows that another group reads, with probability p (or a `fixed` number). These alone are
    broadcast, in all layers, and have gradients sent back; edges from them count 1/p, in gat before the softmax is
    normalised. Each reader's sum has the full one as its expectation; what one misses all miss. With c > 1 the
    groups are what BNS-GCN calls partitions: edges inside them all count.

    Bytes then: K for N where the factor is P/c - 1, the rows kept by all ranks (`broadcast_rows`), and control, 4
    (P/c - 1) K for which they are and 8 a peer for how many. Near p = 1 that is less than at p = 1, where rows that
    nobody else reads are broadcast, too. At p = 0 groups train alone.

    `drift` > 0 skips broadcasts (SANCUS, Peng et al., VLDB 2022): a rank sends a layer's rows again when they differ
    from those that it sent last by more than `drift` times the latter's norm, or `staleness` broadcasts of the layer
    were skipped; else the others take the last ones. Rows are compared as they are sent: gcn's are scaled by degree,
    and dropout's new masks are a change, too. Gradients of rows are sent in each epoch, as in the public code. A large
    `drift` is the paper's epoch-fixed rule: each layer once in `staleness` + 1 epochs. Bytes forward: the rows that
    all ranks broadcast in a layer (`broadcast_rows_layer*`) for N where the factor is P/c - 1, and 8 a peer (control)
    for who broadcasts; gat's backward pass sends no rows again, which are kept here.
    """

    name = "cagnet"
    colour = "#882e72"
    Options = CAGNETOptions
    exact: ClassVar[dict[str, Any]] = {}
    unbiased: ClassVar[dict[str, Any]] = {"rate": 0.3}
    metrics = (
        Metric.of_method("broadcast_rows", "rows drawn to be broadcast", heading="Broadcast rows"),
        Metric.of_method("broadcast_rows_layer*", "with `drift`, rows broadcast in each layer"),
    )

    def __init__(self, worker: Worker, options: CAGNETOptions) -> None:
        rank_groups(options.replication, worker.world)  # a user's mistake ends the trial before anything is sent
        super().__init__(worker, options)
        sizes = [row["inner"] for row in worker.partition.meta["table"][: worker.world]]
        job = worker.job
        mesh = Mesh(worker.comm, sizes, options.replication)
        spmm = job.config.train.spmm
        views = [worker.view if rank == worker.rank else worker.open_view(job.train_view, rank) for rank in mesh.group]
        partitions = [view.partition for view in views]
        sampled = options.rate < 1
        self._history = History(options.drift, options.staleness) if options.drift else None
        self._block = BroadcastBlock(mesh, partitions, worker.view.local_row, engine=spmm, history=self._history)
        rows = [view.rows["train"] + mesh.rows[view.partition.rank].start for view in views]
        labels = [view.labels[view.rows["train"]] for view in views]
        self._loss = Loss(torch.cat(rows), torch.cat(labels), options.replication * worker.train_total)
        with worker.traffic.during("setup"):
            self._inputs = mesh.spread(worker.features.inner)
            if self.aggregated is not None:
                self.aggregated = mesh.spread(self.aggregated)
            read = np.empty(0, np.int64)  # inner rows, ascending, that a rank of another group reads
            if sampled:
                ends, index = worker.partition.send_ptr, worker.partition.send_index
                others = [rank for rank in range(worker.world) if rank not in mesh.group]
                read = np.unique(np.concatenate([read, *(index[ends[rank] : ends[rank + 1]] for rank in others)]))
            self._read = upload(read, worker.device)
            self._read_of = worker.comm.exchange_counts([read.size] * worker.world) if sampled else []

    def steps(self, epoch: int) -> Iterator[Step]:
        """Yield one step on the rows of this rank's group."""
        worker, copies = self.worker, self.options.replication
        if copies > 1:  # a group's ranks draw the same random numbers in this epoch
            key = (worker.job.config.seed, worker.rank // copies, epoch)
            torch.manual_seed(int(np.random.SeedSequence(key).generate_state(1)[0]))
        block, stats = self._block, dict[str, int]()
        if self.options.rate < 1:
            sent = self.draw()
            block, stats = block.sample(sent), {"broadcast_rows": sent[worker.rank].count}
        if self._history is not None:
            self._history.sent = stats
        yield Step(
            blocks=[block.at(layer) for layer in range(worker.model.depth)],
            inputs=self._inputs,
            loss=self._loss,
            transform_first=self.options.transform_before_exchange,
            aggregated=self.aggregated,
            stats=stats,
        )

    def draw(self) -> dict[int, Sent]:
        """Draw which rows this rank broadcasts, announce them to its column, and return what each of its ranks sends.

        Every rank must call. At rate 0 no rank sends or announces anything.
        """
        comm, mesh, rate = self.worker.comm, self._block.mesh, self.options.rate
        if rate == 0:
            return {rank: Sent(0, torch.empty(0, dtype=torch.int64, device=comm.device)) for rank in mesh.column}
        segment, sampler = np.array([0, self._read.numel()]), self.options.sampler
        kept, _ = sample_boundary(segment, rate, sampler, self.worker.rng, comm.device)
        rows = self._read[upload(kept, comm.device)].int()
        counts = dict(enumerate(comm.exchange_counts([len(kept)] * comm.world)))
        label = Label(purpose="control", layer=-1, direction="none")
        drawn = {comm.rank: rows} | dict(mesh.broadcast(rows, counts, label))
        factors = dict.fromkeys(drawn, 1 / rate)
        if sampler == "fixed":  # a rounded number of rows: its own inverse share keeps sums unbiased
            factors = {rank: self._read_of[rank] / max(counts[rank], 1) for rank in drawn}
        return {rank: Sent(counts[rank], found.long(), factors[rank]) for rank, found in drawn.items()}

    @property
    def warnings(self) -> list[str]:
        """See `Method.warnings`: a `drift` that skips nothing."""
        history, drift = self._history, self.options.drift
        if history is None or history.least == math.inf or history.least <= drift:
            return []
        return [f"rank {self.worker.rank} skipped no broadcast: drift is {drift:g}, the least was {history.least:.2g}"]

    def state(self) -> dict[str, Any]:
        """See `Method`: what was broadcast last."""
        return {} if self._history is None else self._history.state()

    def restore(self, state: dict[str, Any], done: int) -> None:
        """See `Method`."""
        if self._history is not None:
            self._history.restore(state, self.worker.device)

    @classmethod
    def memory(cls, options: CAGNETOptions, case: MemoryCase) -> dict[str, int]:
        """Return the components: c times the rank's inner rows, one foreign block, or its sample, for the boundary.

        Other partitions are taken to be as large as this one, and all their rows to be read. "adjacency" has the edges
        by owner, and at `rate` < 1 those of the sample besides.
        """
        copies, part = options.replication, case.train
        groups = len(rank_groups(copies, case.parts))
        foreign = round(options.rate * part.inner) if groups > 1 else 0
        # Without entries the layers are reckoned as A H first, then W, which is how they are computed.
        rows = PartSize(copies * part.inner, foreign, 0, 0)
        group = replace(case, train=rows, train_nodes=copies * case.train_nodes)
        on_disk = options.storage == "disk" and copies == 1  # copies of others' rows are in memory
        components = group.full_graph(stored=False, few=False, **options.for_memory | {"on_disk": on_disk})
        own = part.inner * case.model.widths[0][0] * case.itemsize
        pointers = 8 * (groups - 1) * (rows.inner + 1)
        sample = case.matrices(BlockSize(rows.inner, (groups - 1) * foreign, round(options.rate * part.cut)))
        sample += 8 * max(0, groups - 2) * (rows.inner + 1)
        # Of the column's ranks, this one too.
        last = groups * part.inner * sum(values for _, values, _ in exchanged(options, case)) * case.itemsize
        return components | {
            **({"broadcast last": last} if options.drift else {}),
            "input features": components["input features"] + (own if copies > 1 else 0),
            "adjacency": case.matrices(BlockSize(rows.inner, groups * part.inner, part.edges))
            + pointers
            + (sample if options.rate < 1 else 0),
        }

    @classmethod
    def expected_stats(cls, options: CAGNETOptions, case: BytesCase) -> dict[str, float]:
        """See `Method`."""
        return {} if options.drift else {"broadcast_rows": options.rate * case.nodes}

    @classmethod
    def bytes_per_epoch(cls, options: CAGNETOptions, case: BytesCase) -> Bytes | None:
        """Return the bytes of the class's docstring: `columns` (P/c - 1) N or K, `copies` (c - 1) N.

        With `drift` None before it is known what was skipped.
        """
        others, copies = case.parts // options.replication - 1, (options.replication - 1) * case.nodes
        columns = others * (case.nodes if options.rate == 1 else case.count("broadcast_rows"))
        control, forth = 4 * columns + 8 * case.pairs if 0 < options.rate < 1 else 0, [columns] * case.model.depth
        if options.drift:
            if not case.stats:
                return None
            forth = [others * case.count(f"broadcast_rows_layer{layer}") for layer in range(case.model.depth)]
            control = 8 * case.pairs * len(exchanged(options, case))
        if not case.model.attends:
            rows = [each + 2 * copies for each in forth]
            return case.boundary_rows(rows, backward=columns + copies, **options.for_costs) | {"control": control}
        sent, heads = {"feature": 0, "embedding": 0, "gradient": 0}, case.model.spec.heads
        again = 0 if options.drift else columns
        for layer, width, _ in exchanged(options, case):
            values = (forth[layer] + again) * width + 2 * copies * (width + 2 * heads)
            back = columns * (width + heads) + copies * (width + 3 * heads)
            sent["embedding" if layer else "feature"] += values * case.itemsize
            sent["gradient"] += back * case.itemsize
        return sent | {"control": control}


def exchanged(options: CAGNETOptions, case: BytesCase | MemoryCase) -> list[tuple[int, int, bool]]:
    """Return of each broadcast its layer, the values of a row, and whether gradients come back."""
    model = case.model
    if model.attends:
        return [(layer, model.layer_of(layer)[0].transformed, True) for layer in range(model.depth)]
    return list(model.exchanges(options.precompute, options.transform_before_exchange))
