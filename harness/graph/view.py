"""A rank's part of the training graph or of the whole graph, with its features, labels and splits."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.data.graph import GraphData
from harness.graph.partition import Partition
from harness.graph.topology import Topology

SPLITS = ("train", "val", "test")


class View:
    """One rank's inner nodes of a partitioned graph and what the data set says of them.

    Attributes:
        partition: the rank's part.
        nodes: int64 [N], the data set's node of each node of the view (memory-mapped).
    """

    def __init__(
        self, graph: GraphData, view: Path, rank: int, *, engine: str, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.partition = Partition(view, rank, engine=engine, device=device, dtype=dtype)
        self._graph, self._view, self._device, self._dtype = graph, view, device, dtype
        self.nodes: NDArray[np.int64] = np.load(view / "nodes.npy", mmap_mode="r")
        self._nodes: NDArray[np.int64] = np.asarray(self.nodes[self.partition.inner])

    def features(self) -> Tensor:
        """Read the features [n_in, F] of the inner nodes from the memory-mapped data set."""
        return torch.from_numpy(self._graph.features[self._nodes]).to(self._device, self._dtype)

    @cached_property
    def labels(self) -> Tensor:
        """Labels of the inner nodes: int64 [n_in], or the dtype of the model [n_in, C] if multi-label."""
        labels = torch.from_numpy(np.array(self._graph.labels[self._nodes]))
        return labels.to(self._device, self._dtype if self._graph.multilabel else torch.int64)

    @cached_property
    def rows(self) -> dict[str, Tensor]:
        """Inner rows (int64, ascending) of the labelled nodes of each split."""
        labelled = np.ones(self._nodes.size, bool)
        if not self._graph.multilabel:
            labelled = np.asarray(self._graph.labels[self._nodes]) >= 0
        masks = {split: getattr(self._graph, f"{split}_mask")[self._nodes] & labelled for split in SPLITS}
        return {split: torch.from_numpy(np.flatnonzero(mask)).to(self._device) for split, mask in masks.items()}

    @cached_property
    def owner(self) -> NDArray[np.int32]:
        """Rank that owns each node of the view (memory-mapped)."""
        return self._shared("parts")

    @cached_property
    def local_row(self) -> NDArray[np.int32]:
        """Row of each node of the view among its owner's inner nodes (memory-mapped)."""
        return self._shared("local")

    @cached_property
    def topology(self) -> Topology:
        """The view's whole graph, memory-mapped: one copy a host."""
        return Topology.open(Path(self.partition.meta["topology"]), self.partition.meta["weighted"])

    def _shared(self, name: str) -> NDArray[Any]:
        array: NDArray[Any] = np.load(self._view / f"{name}.npy", mmap_mode="r")
        return array
