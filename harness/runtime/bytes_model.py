"""What the bytes that a method sends in an epoch follow from, and the closed forms of the families."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.models.gnn import GNN

if TYPE_CHECKING:
    from harness.runtime.minibatch import MiniBatchOptions

Bytes = dict[str, int]
"""Bytes sent in an epoch by all ranks together, by purpose; a purpose that is not named has none."""


@dataclass(frozen=True)
class BytesCase:
    """What the bytes of an epoch depend on, besides the method and its options.

    Attributes:
        epoch: 0-based.
        parts: number of ranks P.
        boundary: sum over ranks of |B_i|, the nodes of others with an edge into the rank's part.
        nodes: of the graph that is trained on.
        model: the replica.
        steps: of the epoch, the same number on each rank.
        stats: the epoch's `Step.stats`, summed over steps and ranks.
        itemsize: bytes of a value.
        label_bytes: of a node's label: 8, or a value for each class.
    """

    epoch: int
    parts: int
    boundary: int
    nodes: int
    model: GNN
    steps: int = 1
    stats: Mapping[str, float] = field(default_factory=dict)
    itemsize: int = 4
    label_bytes: int = 8

    @property
    def pairs(self) -> int:
        """P (P - 1), the pairs of a sender and a receiver."""
        return self.parts * (self.parts - 1)

    def count(self, name: str) -> int:
        """Return a metric of `stats` that counts something; 0 if no step told it."""
        return int(self.stats.get(name, 0))

    def boundary_rows(
        self, rows: int, *, backward: int | None = None, precompute: bool = False, transform_first: bool = False
    ) -> Bytes:
        """Return the bytes of a full-graph method whose ranks are sent `rows` rows in each layer.

        Forward rows * width * itemsize in each layer (in mixhop in each hop), width that of its input;
        backward the same in all layers but the first.

        Args:
            rows: that all ranks together receive, forward.
            backward: those whose gradients they send; default: the same.
            precompute: the first exchange is left out.
            transform_first: H W is sent where that is fewer bytes, in the first layer backward too.
        """
        backward = rows if backward is None else backward
        sent = {"feature": 0, "embedding": 0, "gradient": 0}
        for block, (width, _) in enumerate(self.model.widths):
            layer, _ = self.model.layer_of(block)
            transformed = transform_first and self.model.transforms_first(block)
            row = (layer.transformed if transformed else width) * self.itemsize
            if block or not precompute:
                sent["feature" if block == 0 else "embedding"] += rows * row
                # No row of the first layer depends on a weight, unless it is H W that is sent.
                sent["gradient"] += backward * row if block >= self.model.hops or transformed else 0
        return sent

    def mini_batch(self, options: MiniBatchOptions, *, labels: bool = False, width: int | None = None) -> Bytes | None:
        """Return the bytes of a mini-batch method that sends input features only; see `MiniBatchMethod`.

        Args:
            options: the method's.
            labels: the loss reads rows of other ranks, as many as inputs, whose labels are fetched.
            width: values of a row; default: the input features'.

        Returns:
            None with `labels` and `storage: host`, where no metric tells how many labels are fetched.
        """
        width = self.model.widths[0][0] if width is None else width
        row = self.itemsize * (width if options.feature_rate == 1 else max(1, round(width * options.feature_rate)))
        peers = 8 * self.pairs * self.steps
        if options.storage == "host":
            return None if labels else {"swap": self.count("input_nodes") * row}
        remote = self.count("remote_nodes")
        fetched = remote - self.count("cached_nodes")
        asked = remote * (4 + self.label_bytes) + peers if labels else 0
        return {"feature": fetched * row, "control": 4 * fetched + peers + asked}
