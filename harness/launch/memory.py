"""What a trial may need of memory, before anything of it exists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.models.spec import ModelSpec


@dataclass(frozen=True)
class GraphSize:
    """Published or counted figures of a graph; `edges` directed, as stored."""

    nodes: int
    edges: int
    features: int
    classes: int


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of a rank, without those of the interpreter and its libraries."""

    low: int
    high: int


def estimate(
    size: GraphSize, model: ModelSpec, parts: int, *, itemsize: int, full_graph: bool
) -> MemoryEstimate:
    """Return a range for a rank of a balanced partition.

    Layers as Eq. 3 of BNS-GCN: (3 n_in + n_bd) * input width, n_bd = 0 for linear ones; the input features
    (float32) of inner and boundary nodes; CSR and transpose (8-byte pointers, 4-byte columns). `low` has no
    boundary, `high` one as large as it can be: min(N - n_in, E / P). Methods on mini-batches hold no layer of
    the whole part while they train (`full_graph` False): their `low` is without layers; `high` keeps
    them, because evaluation is of the whole graph.
    """
    inner = -(-size.nodes // parts)
    entries = -(-size.edges // parts)
    boundary = min(size.nodes - inner, entries)
    low = _bytes(size, model, inner, 0, entries, itemsize if full_graph else 0)
    return MemoryEstimate(low, _bytes(size, model, inner, boundary, entries, itemsize))


def exact(
    table: Sequence[Mapping[str, Any]], size: GraphSize, model: ModelSpec, *, itemsize: int, full_graph: bool
) -> MemoryEstimate:
    """Return the range for the rank that needs most of a partition that is known (`partition_table`'s rows).

    `low` and `high` differ only for methods on mini-batches, see `estimate`.
    """
    rows = [row for row in table if row["part"] != "total"]

    def most(layers: int) -> int:
        return max(_bytes(size, model, row["inner"], row["boundary"], row["edges"], layers) for row in rows)

    return MemoryEstimate(most(itemsize if full_graph else 0), most(itemsize))


def _bytes(size: GraphSize, model: ModelSpec, inner: int, boundary: int, entries: int, itemsize: int) -> int:
    total = model.layers + model.linear_layers
    widths = [size.features, *[model.hidden] * (total - 1)]
    layers = sum(
        (3 * inner + (boundary if layer < model.layers else 0)) * width for layer, width in enumerate(widths)
    )
    features = 4 * (inner + boundary) * size.features
    sparse = 8 * (inner + 1) + 8 * (inner + boundary + 1) + 2 * 4 * entries
    return layers * itemsize + features + sparse
