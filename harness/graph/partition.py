"""Partition: one rank's part of a graph, and what of it its peers need."""

from __future__ import annotations

import json
import math
import mmap
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.data.graph import GraphData
from harness.deferred import numpy as np
from harness.deferred import torch
from harness.graph.block import Block, HalvedBlock, OwnRows
from harness.graph.csr import CSR, Ints, Places, Topology
from harness.graph.devices import upload
from harness.graph.disk import RowsOnDisk
from harness.graph.spmm import choose_engine

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True)
class Halo:
    """Who sends which inner rows to whom, for one exchange of boundary rows."""

    send_index: Tensor  # int64 [sum(send_counts)], inner rows to send, grouped by peer in rank order
    send_counts: list[int]  # rows sent to each rank
    recv_counts: list[int]  # rows received from each rank; they arrive in the order of the receiver's boundary


def _mapped(directory: Path, name: str) -> NDArray[Any]:
    return np.load(directory / f"{name}.npy", mmap_mode="r")  # type: ignore[no-any-return]


class Partition:
    """The inner nodes of one rank, their in-edges, and the boundary (halo) those edges start from.

    Source rows are numbered inner nodes first, then boundary nodes sorted by (owner, node). Arrays are the
    memory-mapped files of `harness.data.partition.cached`; a rank opens only its own. `engine`: name of the SpMM engine
    of its blocks.
    """

    def __init__(self, view: Path, rank: int, *, engine: str, device: torch.device, dtype: torch.dtype) -> None:
        self.meta: dict[str, Any] = json.loads((view / "meta.json").read_text())
        self.view, self.rank, self.parts = view, rank, int(self.meta["parts"])
        self.engine, self._device, self._dtype = choose_engine(engine, device=device).name, device, dtype
        self.inner, self.boundary = self._load("inner"), self._load("boundary")
        self.num_inner, self.num_boundary = self.inner.size, self.boundary.size
        self.boundary_ptr = self._load("boundary_ptr")
        self.send_index, self.send_ptr = self._load("send_index"), self._load("send_ptr")

    def _load(self, name: str) -> NDArray[Any]:
        return _mapped(self.view / f"rank{self.rank}", name)

    @cached_property
    def structure(self) -> CSR:
        """All in-edges of the inner nodes, on the host: inner columns first, then boundary ones."""
        return self.read_structure()

    def read_structure(self) -> CSR:
        """Read what `structure` is, which nobody else then holds."""
        return self.edges_of(slice(0, self.num_inner))

    @cached_property
    def _edges(self) -> CSR:
        return self.structure if self._device.type == "cpu" else self._held_or_read().to(self._device)

    @cached_property
    def _reverse(self) -> CSR:
        return self._edges.transpose()

    @cached_property
    def _degree(self) -> Tensor:
        return upload(self.degree_of(slice(0, self.num_inner + self.num_boundary)), self._device)

    def inner_degree(self) -> Tensor:
        """Read the degrees of the inner nodes in the whole graph, float [num_inner] on the host."""
        return self.degree_of(slice(0, self.num_inner))

    def degree_of(self, sources: slice) -> Tensor:
        """Read the degrees of some source nodes in the whole graph, float [sources] on the host."""
        return torch.from_numpy(self._load("degree")[sources].astype(np.float64)).to(self._dtype)

    @property
    def pointers(self) -> Ints:
        """Where the inner nodes' rows of `structure` begin, and the last one ends, memory-mapped."""
        return self._load("indptr")

    def edges_of(self, rows: slice) -> CSR:
        """Read the in-edges of some inner nodes: some rows of `structure`."""
        pointers = self.pointers[rows.start : rows.stop + 1].astype(np.int64)
        entries, start = slice(*pointers[[0, -1]].tolist()), pointers[0]
        values = None
        if self.meta["weighted"]:
            values = torch.from_numpy(np.array(self._load("weights")[entries])).to(self._dtype)
        indices = torch.from_numpy(np.array(self._load("indices")[entries]))
        return CSR(torch.from_numpy(pointers - start), indices, self.num_inner + self.num_boundary, values)

    @cached_property
    def full_block(self) -> Block:
        """All in-edges of the inner nodes; its transpose is built when something is first trained on it."""
        return self.sampled_block(self._edges, None, np.arange(self.num_boundary))

    def block(self, kept: Places, scale: Tensor | None = None) -> Block:
        """Return the block induced on the inner nodes and the boundary at the ascending positions `kept`.

        `scale` [len(kept)] is what the kept nodes' edges count, 1/p of a sample; None where all of them are. On a
        device the edges are there, and the host waits for the block's number of them.
        """
        if len(kept) == self.num_boundary and (scale is None or not len(kept)):
            return self.full_block
        if self._device.type != "cpu":
            kept = upload(kept, self._device)
        adjacency = self._edges.select_columns(self.num_inner, kept)
        # Rows of the whole transpose, copied: no pass over the kept edges by column.
        unweighted = adjacency.values is None
        reverse = self._reverse.select_rows(self.num_inner, kept, adjacency.nnz) if unweighted else None
        if scale is not None:
            scale = torch.cat([scale.new_ones(self.num_inner), scale])
        return self.sampled_block(adjacency, reverse, kept, scale)

    def sampled_block(
        self, adjacency: CSR, transposed: CSR | None, kept: Places, src_scale: Tensor | None = None
    ) -> Block:
        """Return the block of the inner nodes with the edges `adjacency` [num_inner, num_inner + len(kept)] only.

        `transposed`: its transpose, or None where that is not known; `kept`: int64, ascending positions of the boundary
        nodes that its last columns are; `src_scale` is that of a `Block`.
        """
        device, degree = self._device, self._degree
        if len(kept) < self.num_boundary:
            degree = torch.cat([degree[: self.num_inner], degree[self.num_inner + upload(kept, device)]])
        if transposed is not None:
            transposed = transposed.to(device)
        return Block(adjacency.to(device), degree, src_scale=src_scale, engine=self.engine, transposed=transposed)

    def halves(self, kept: Places, scale: Tensor | None = None) -> HalvedBlock:
        """Return `block(kept, scale)` as the edges from the inner nodes, the same each time, and from the boundary."""
        if len(kept) == self.num_boundary and (scale is None or not len(kept)):
            return self._full_halves
        if self._device.type != "cpu":
            kept = upload(kept, self._device)
        whole = self._full_halves.halves[1]
        adjacency = whole.adjacency.select_columns(0, kept)
        unweighted = adjacency.values is None
        reverse = whole.transposed.select_rows(0, kept, adjacency.nnz) if unweighted else None
        return HalvedBlock(self._full_halves.halves[0], self._boundary_block(adjacency, reverse, kept, scale))

    @cached_property
    def _full_halves(self) -> HalvedBlock:
        side = np.repeat(np.array([0, 1], np.int32), [self.num_inner, self.num_boundary])
        column = np.concatenate([np.arange(self.num_inner), np.arange(self.num_boundary)]).astype(np.int32)
        halves = self._held_or_read().split_columns(side, column, [self.num_inner, self.num_boundary])
        inner, boundary = (half.to(self._device) for half in halves)
        own = Block(inner, self._degree[: self.num_inner], engine=self.engine)
        return HalvedBlock(own, self._boundary_block(boundary, None, np.arange(self.num_boundary)))

    def _boundary_block(
        self, adjacency: CSR, transposed: CSR | None, kept: Places, src_scale: Tensor | None = None
    ) -> Block:
        inner, none = self._degree[: self.num_inner], self._degree[:0]
        own = OwnRows(inner, none.long(), none.long(), none, none)
        degree = self._degree[self.num_inner + upload(kept, self._device)]
        return Block(adjacency, degree, src_scale=src_scale, engine=self.engine, transposed=transposed, own=own)

    @cached_property
    def full_halo(self) -> Halo:
        """The exchange of every boundary row."""
        return self.shares(1)[0][1]

    def pieces(self, count: int) -> list[tuple[CSR, Halo]]:
        """Return all in-edges and the exchange of every boundary row in pieces.

        Piece k has the k-th of `count` equal shares of each owner's boundary nodes: the exchange of their rows, and the
        matrix [num_inner, columns] of the edges from them. Columns are these nodes in their order; those of piece
        0 are the inner nodes first. All ranks must ask for equally many.
        """
        if count == 1:
            # What nothing is trained on is read anew: the caller alone holds it.
            if "full_block" in vars(self):
                whole = self.full_block.adjacency
            elif self._device.type != "cpu" and "_edges" in vars(self):
                whole = self._edges
            else:
                whole = replace(self._held_or_read(), handles={}).to(self._device)
            return [(whole, vars(self).get("full_halo") or self.shares(1)[0][1])]
        part = np.zeros(self.num_inner + self.num_boundary, np.int32)
        column = np.arange(part.size, dtype=np.int32)
        widths, halos = list[int](), list[Halo]()
        for k, (received, halo) in enumerate(self.shares(count)):
            first = 0 if k else self.num_inner
            part[self.num_inner + received] = k
            column[self.num_inner + received] = np.arange(first, first + received.size)
            widths.append(first + received.size)
            halos.append(halo)
        return list(zip(self._held_or_read().split_columns(part, column, widths), halos, strict=True))

    def shares(self, count: int) -> list[tuple[Ints, Halo]]:
        """Return for each of `count` equal shares of each owner's boundary nodes which they are, and their exchange.

        They are positions in `boundary`, int64, ascending. All ranks must ask for equally many.
        """
        shares = []
        for k in range(count):
            received, recv_counts = _share(self.boundary_ptr, k, count)
            shares.append((received, self.halo(*_share(self.send_ptr, k, count), recv_counts)))
        return shares

    def _held_or_read(self) -> CSR:
        return self.structure if "structure" in vars(self) else self.read_structure()

    @cached_property
    def routes(self) -> tuple[Tensor, Tensor, Tensor]:
        """`boundary_ptr`, `send_ptr` and `send_index` on the device, int64."""
        mapped = self.boundary_ptr, self.send_ptr, self.send_index
        boundary, ends, index = (upload(np.array(each, np.int64), self._device) for each in mapped)
        return boundary, ends, index

    def halo(self, entries: Places, send_counts: list[int], recv_counts: list[int]) -> Halo:
        """Return the exchange that sends the `entries` of `send_index` (int64, grouped by peer)."""
        if not isinstance(entries, np.ndarray):
            return Halo(self.routes[2][entries], send_counts, recv_counts)
        rows = upload(np.ascontiguousarray(self.send_index[entries]), self._device)
        return Halo(rows, send_counts, recv_counts)


def _share(pointers: Ints, k: int, count: int) -> tuple[Ints, list[int]]:
    """Return the places of the k-th of `count` shares of each segment, and their numbers."""
    sizes = np.diff(pointers)
    first, last = pointers[:-1] + sizes * k // count, pointers[:-1] + sizes * (k + 1) // count
    return np.concatenate([np.arange(*between) for between in zip(first, last, strict=True)]), (last - first).tolist()


SPLITS = ("train", "val", "test")
HIDDEN = -100  # the class of a node that is not trained on: torch's cross-entropy leaves it out, on a GPU too


class View:
    """One rank's inner nodes of a partitioned graph and what the data set says of them.

    Of each node of the view, memory-mapped: `nodes` int64 [N], the data set's node; `owner`, the rank that owns it;
    `local_row`, its row among its owner's inner nodes. `disk`: the features of the inner nodes, in files of a directory
    `rows` that `harness.data.partition.cached.ensure_rows` wrote; None: they are the data set's.
    """

    def __init__(
        self, graph: GraphData, view: Path, rank: int, *, engine: str, device: torch.device, dtype: torch.dtype,
        rows: Path | None = None,
    ) -> None:  # fmt: skip
        self.partition = Partition(view, rank, engine=engine, device=device, dtype=dtype)
        self._graph, self._device, self.dtype = graph, device, dtype
        self.nodes: Ints = _mapped(view, "nodes")
        self.owner: NDArray[np.int32] = _mapped(view, "parts")
        self.local_row: NDArray[np.int32] = _mapped(view, "local")
        self._nodes: Ints = np.asarray(self.nodes[self.partition.inner])
        self.disk = None if rows is None else RowsOnDisk(rows / view.name / f"rank{rank}.npy")

    def features(self) -> Tensor:
        """Read the features [n_in, F] of the inner nodes."""
        return self.host_features().to(self._device)

    def host_features(self) -> Tensor:
        """Read them to the host's memory; from a file that has them in this dtype, map them."""
        if self.disk is not None and self.disk.stored == self.dtype:
            return self.disk.mapped()
        return self.features_of(slice(0, self._nodes.size))

    def features_of(self, rows: slice) -> Tensor:
        """Read the features [rows, F] of some inner nodes, on the host."""
        if self.disk is not None:
            places = np.arange(*rows.indices(self._nodes.size))
            found = torch.empty((places.size, self.disk.width), dtype=self.dtype)
            self.disk.read(places, found)
            return found
        found = torch.from_numpy(self._graph.features[self._nodes[rows]]).to(self.dtype)
        if isinstance(file := getattr(self._graph.features, "base", None), mmap.mmap):
            file.madvise(mmap.MADV_DONTNEED)  # its pages are the kernel's, and not this process's
        return found

    @cached_property
    def labels(self) -> Tensor:
        """Labels of the inner nodes: int64 [n_in], or the dtype of the model [n_in, C] if multi-label.

        Those of nodes that are not trained on are HIDDEN, or NaN: only scores know them.
        """
        labels = self._all_labels()
        hidden = torch.ones(labels.shape[0], dtype=torch.bool, device=labels.device)
        hidden[self.rows["train"]] = False
        labels[hidden] = math.nan if self._graph.multilabel else HIDDEN
        return labels

    def scored_labels(self) -> dict[str, Tensor]:
        """Read the labels of the `rows` of each split, for scores alone."""
        labels = self._all_labels()
        return {split: labels[rows] for split, rows in self.rows.items()}

    def _all_labels(self) -> Tensor:
        labels = torch.from_numpy(np.array(self._graph.labels[self._nodes]))
        return labels.to(self._device, self.dtype if self._graph.multilabel else torch.int64)

    def trains(self, nodes: Ints) -> NDArray[np.bool_]:
        """Return which nodes of the view are training nodes."""
        return np.asarray(self._graph.train_mask[self.nodes[nodes]])

    @cached_property
    def rows(self) -> dict[str, Tensor]:
        """Inner rows (int64, ascending) of the labelled nodes of each split."""
        return {split: upload(rows, self._device) for split, rows in self._rows.items()}

    def split_nodes(self, split: str) -> Ints:
        """Return the nodes of the view that `rows` of a split are, int64 on the host."""
        return np.asarray(self.partition.inner)[self._rows[split]].astype(np.int64)

    @cached_property
    def _rows(self) -> dict[str, Ints]:
        labelled = np.ones(self._nodes.size, bool)
        if not self._graph.multilabel:
            labelled = np.asarray(self._graph.labels[self._nodes]) >= 0
        masks = {split: getattr(self._graph, f"{split}_mask")[self._nodes] & labelled for split in SPLITS}
        return {split: np.flatnonzero(mask) for split, mask in masks.items()}

    @cached_property
    def topology(self) -> Topology:
        """The view's whole graph, memory-mapped: one copy a host."""
        return Topology.open(Path(self.partition.meta["topology"]), self.partition.meta["weighted"])
