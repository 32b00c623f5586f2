"""A topology whose rows are with the ranks that own the nodes, and come from there when they are read."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness.deferred import numba, torch
from harness.deferred import numpy as np
from harness.graph.csr import Floats, Ints, Topology
from harness.graph.devices import upload
from harness.graph.partition import View
from harness.runtime.comm import Communicator
from harness.runtime.row_plan import RowPlan
from harness.sampling.neighbours import draw_uniform, take_entries
from harness.sampling.sample import Tables

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass
class Asked:
    """What was asked of other ranks: nodes, the neighbours that came for them, and the seconds that it took."""

    nodes: int = 0
    neighbours: int = 0
    seconds: float = 0.0

    @property
    def metrics(self) -> dict[str, float]:
        """As metrics of `MiniBatchMethod`."""
        return {"asked_nodes": self.nodes, "asked_neighbours": self.neighbours, "asked_s": self.seconds}


@dataclass
class Line:
    """The communicator that a topology asks over, and what it has asked."""

    comm: Communicator
    asked: Asked = field(default_factory=Asked)


@dataclass(frozen=True, eq=False)
class OwnedTopology(Topology):
    """A view's graph of which a rank reads the rows of its own nodes only, and asks the owners for others.

    Every rank knows the degrees (`indptr`; with edge weights also their `sums`) and each node's owner. Where neighbours
    are drawn uniformly the owners draw them: that depends on the seed, the node and its neighbours alone, so that
    they draw what the asker would. One thread at a time may ask, and all ranks ask in the same order.

    Traffic of `rows`, unless nodes are `own`: 24 bytes a peer, 4 for each remote node, and 4 for each neighbour that
    comes for it (8 with edge weights), all control.
    """

    view: View = field(kw_only=True)
    tables: Tables = field(kw_only=True)
    sums: Floats | None = field(kw_only=True)  # [N], of each node's weights; None without weights
    line: Line = field(kw_only=True)

    @classmethod
    def of(cls, view: View, comm: Communicator, tables: Tables) -> OwnedTopology:
        """Return the topology of a view; every rank must call.

        Traffic with edge weights: 8 bytes for each inner node to each peer (control).
        """
        whole, inner = view.topology, np.asarray(view.partition.inner).astype(np.int64)
        sums = None
        if whole.weights is not None:
            sizes = np.bincount(view.owner, minlength=comm.world).tolist()
            degrees = np.tile(whole.degree(inner), comm.world)
            sums = np.empty(whole.num_nodes)
            sums[np.lexsort((view.local_row, view.owner))] = _move(comm, degrees, [inner.size] * comm.world, sizes)
        graph = whole.indptr, whole.indices, whole.weights
        return cls(*graph, view=view, tables=tables, sums=sums, line=Line(comm))

    @contextmanager
    def over(self, comm: Communicator) -> Iterator[Asked]:
        """Ask over `comm` in this context, which counts for itself."""
        line = self.line
        before = line.comm, line.asked
        line.comm, line.asked = comm, Asked()
        try:
            yield line.asked
        finally:
            line.comm, line.asked = before

    def degree(self, nodes: Ints) -> Floats:
        """See `Topology.degree`."""
        return super().degree(nodes) if self.sums is None else self.sums[nodes]

    def rows(self, nodes: Ints, *, own: bool = False, fanout: int = -1, seed: int = 0) -> tuple[Topology, Ints]:
        """See `Topology.rows`; of rows that are not `own` all neighbours, or those that are drawn.

        ValueError if nodes that are said to be `own` are not.
        """
        comm, asked, owner = self.line.comm, self.line.asked, self.view.owner
        is_own = owner[nodes] == comm.rank
        if own:
            if not is_own.all():
                raise ValueError("nodes of other ranks are said to be this rank's own")
            return self, nodes
        with self.tables.borrow() as table:
            uncached = np.empty(0, np.int32)
            plan = RowPlan.of(nodes, owner, self.view.local_row, uncached, table, rank=comm.rank, world=comm.world)
        degrees = self.indptr[nodes + 1] - self.indptr[nodes]
        lengths = degrees if fanout < 0 else np.minimum(degrees, fanout)
        start = time.perf_counter()
        answer = self._ask(plan, lengths[plan.asked_at], fanout, seed)
        asked.seconds += time.perf_counter() - start
        asked.nodes += plan.asked.size
        asked.neighbours += answer.indices.size
        at = np.flatnonzero(is_own)
        found = self._draw(nodes[at], fanout, seed)
        return _merge(lengths, np.concatenate([at, plan.asked_at]), [found, answer]), np.arange(nodes.size)

    def _ask(self, plan: RowPlan, lengths: Ints, fanout: int, seed: int) -> Topology:
        """Return the rows that the owners of the asked nodes send, `lengths` long, and send what peers ask for."""
        comm, ones = self.line.comm, [1] * self.line.comm.world
        questions = np.array([(count, fanout, seed) for count in plan.counts], np.int64)
        theirs = _move(comm, questions, ones, ones)
        counts = theirs[:, 0].tolist()
        wanted = np.asarray(self.view.partition.inner)[_move(comm, plan.asked, plan.counts, counts)].astype(np.int64)
        answers = [
            self._draw(nodes, int(fanout), int(seed))
            for nodes, (_, fanout, seed) in zip(np.split(wanted, np.cumsum(counts)[:-1]), theirs, strict=True)
        ]
        sent = [answer.indices.size for answer in answers]
        pointers = np.concatenate([[0], lengths.cumsum()])
        coming = np.diff(pointers[np.concatenate([[0], np.cumsum(plan.counts)])]).tolist()
        indices = _move(comm, np.concatenate([answer.indices for answer in answers]), sent, coming)
        if self.weights is None:
            return Topology(pointers, indices)
        weights = [answer.weights for answer in answers if answer.weights is not None]
        return Topology(pointers, indices, _move(comm, np.concatenate(weights), sent, coming))

    def _draw(self, nodes: Ints, fanout: int, seed: int) -> Topology:
        """Return a row for each of some own nodes, with what is drawn of theirs."""
        pointers, entries = draw_uniform(self.indptr, nodes, nodes, fanout, seed)
        weights = (
            None if self.weights is None else take_entries(self.weights, entries, np.empty(entries.size, np.float32))
        )
        return Topology(pointers, take_entries(self.indices, entries, np.empty(entries.size, np.int32)), weights)


def _move(comm: Communicator, array: NDArray[Any], send: list[int], receive: list[int]) -> NDArray[Any]:
    """Exchange rows that are in the host's memory; see `Communicator.exchange_rows`."""
    device = torch.device("cpu") if comm.by_sockets else comm.device
    moved = comm.exchange_rows(upload(array, device), send, receive, purpose="control")
    found: NDArray[Any] = moved.cpu().numpy()
    return found


def _merge(lengths: Ints, at: Ints, parts: Sequence[Topology]) -> Topology:
    """Return rows of `lengths`; those of the `parts`, one part after the other, are the rows `at`."""
    pointers = np.concatenate([[0], lengths.cumsum()])
    indices = _spread(pointers, at, np.concatenate([part.indices for part in parts]))
    weights = [part.weights for part in parts if part.weights is not None]
    return Topology(pointers, indices, _spread(pointers, at, np.concatenate(weights)) if weights else None)


@numba.njit(cache=True, nogil=True)
def _spread(pointers, at, values):  # type: ignore[no-untyped-def]
    """Return the values, which are those of the rows `at`, in the order of the rows."""
    out, read = np.empty_like(values), 0
    for row in at:
        for place in range(pointers[row], pointers[row + 1]):
            out[place] = values[read]
            read += 1
    return out
