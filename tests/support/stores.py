"""What ranks of the row stores' tests do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness_methods.dgs import ColumnStore
from numpy.typing import NDArray
from support.wire import communicator
from torch import Tensor

from harness.graph.disk import RowsOnDisk
from harness.runtime.batches import Background
from harness.runtime.comm import Communicator
from harness.runtime.features import FeatureStore, RowStore


@dataclass(frozen=True)
class Sharded:
    """Rows [N, F] of nodes, and who owns them. Read-only arrays, as the memory-mapped ones are."""

    rows: NDArray[np.float32]
    owner: NDArray[np.int32]

    def local(self) -> NDArray[np.int32]:
        """Return each node's row among its owner's nodes, by definition."""
        row = [int((self.owner[:i] == self.owner[i]).sum()) for i in range(self.owner.size)]
        return _read_only(np.array(row, np.int32))

    def store(self, comm: Communicator, folder: Path | None = None) -> FeatureStore:
        """Return a rank's store, of rows in a file if there is a folder for it."""
        own, disk = self.rows[self.owner == comm.rank], None
        if folder is not None:
            np.save(file := folder / f"rank{comm.rank}.npy", own)
            own, disk = own[:0], RowsOnDisk(file)
        return FeatureStore(comm, torch.from_numpy(own), _read_only(self.owner), self.local(), disk=disk)


@dataclass
class Gathered:
    """What a rank got, the bytes it sent and read for it by purpose, and the figures that `read` told."""

    rows: NDArray[np.float32] | None
    control: int
    feature: int
    disk: int
    described: dict[str, int] = field(default_factory=dict)


def gather_each(
    rank: int,
    world: int,
    data: Sharded,
    asks: list[list[NDArray[np.int64]]],
    columns: NDArray[np.int64] | None,
    cached: list[NDArray[np.int64]],
    *,
    aside: bool,
    folder: Path | None = None,
) -> list[Gathered]:
    """Fill the cache, which comes first in the results, then gather `asks[k][rank]` for each k.

    With a `folder` rows are in files there, and the memory holds own ones among those that are cached.
    """
    comm = communicator(rank, world)
    store, background = data.store(comm, folder), Background(comm)
    chosen = None if columns is None else torch.from_numpy(columns)
    if folder is not None:
        store.hold(cached[rank])
    found = [_counted(comm, partial(store.fill, cached[rank]))]
    for ask in asks:
        work = partial(store.read, ask[rank], chosen)
        found.append(_counted(comm, partial(_beside, background, work) if aside else work))
    background.close()
    return found


@dataclass(frozen=True)
class Asked:
    """Nodes whose rows a rank asks for, and the columns of remote ones."""

    ids: NDArray[np.int64]
    columns: NDArray[np.int64] | None


def gather_columns(
    rank: int, world: int, data: Sharded, calls: list[list[Asked]], cached: list[NDArray[np.int64]], *, aside: bool
) -> list[Gathered]:
    """Fill the cache, then make the rank's calls of a store of columns, `calls[k][rank]` for each k."""
    comm = communicator(rank, world)
    plain, background = data.store(comm), Background(comm)
    store = ColumnStore(comm, plain.inner, plain.owner, plain.row, tables=plain.tables)
    store.fill(cached[rank])
    found = []
    for call in calls:
        ids, columns = call[rank].ids, call[rank].columns
        work = partial(store.read, ids, None if columns is None else torch.from_numpy(columns))
        found.append(_counted(comm, partial(_beside, background, work) if aside else work))
    background.close()
    return found


Read = tuple[Tensor, dict[str, int]]


def _beside(background: Background, work: Callable[..., Read]) -> Read:
    return background.run(lambda comm: work(comm=comm)).wait()


def _counted(comm: Communicator, work: Callable[[], Read | None]) -> Gathered:
    before = comm.traffic.sent("setup")
    read = work()
    after = comm.traffic.sent("setup")
    known = ("control", "feature", "disk")
    assert all(after[p] == before[p] for p in after if p not in known)
    counted = [after[p] - before[p] for p in known]
    if read is None:
        return Gathered(None, *counted)
    return Gathered(read[0].numpy(), *counted, read[1])


def put_and_read(
    rank: int, world: int, data: Sharded, puts: list[list[NDArray[np.int64]]], as_tensors: bool
) -> tuple[list[NDArray[np.float32]], list[dict[str, int]]]:
    """Put rows of `100 * round + rank + node / 1024` each round; return all rows after it, and its bytes.

    `as_tensors`: the nodes are known on the device alone.
    """
    comm = communicator(rank, world)
    owner, row = _read_only(data.owner), data.local()
    inner = torch.from_numpy(data.rows[data.owner == rank])
    store = RowStore(comm, inner, owner, row, purpose="embedding", layer=1, direction="none")
    states, sent = [], []
    for number, put in enumerate(puts):
        ids = put[rank]
        rows = torch.full((ids.size, data.rows.shape[1]), 100.0 * number + rank, requires_grad=True)
        before = comm.traffic.sent("setup")
        values = rows + torch.from_numpy(ids).unsqueeze(1) / 1024
        store.put(torch.from_numpy(ids) if as_tensors else ids, values)
        after = comm.traffic.sent("setup")
        sent.append({purpose: after[purpose] - before[purpose] for purpose in after})
        states.append(store.gather(np.arange(data.owner.size)).numpy())
    return states, sent


def put_twice(rank: int, world: int, data: Sharded) -> str:
    """Put a remote node twice; returns what is raised."""
    comm = communicator(rank, world)
    remote = np.flatnonzero(data.owner != rank)[[0, 1, 0]]
    try:
        data.store(comm).put(remote, torch.zeros(3, data.rows.shape[1]))
    except ValueError as error:
        return str(error)
    return "nothing"


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    copy = array.copy()
    copy.flags.writeable = False
    return copy
