"""Partitioners for graphs that METIS has no memory for: a stream of nodes, and KaMinPar."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from harness.data.graph import compiled
from harness.data.partition.view import Floats, Ints
from harness.data.prepared import chunk_rows
from harness.deferred import numpy as np
from harness.errors import UserError
from harness.spec import Spec

if TYPE_CHECKING:
    from numpy.typing import NDArray

FENNEL = 1.5  # the exponent of a part's cost
PARHIP = 0b111011  # no weights; offsets of 64 bits, all else of 32
WEIGHTED = 0b111001  # with weights of nodes


class StreamOptions(Spec):
    """Options of a stream."""

    rule: Literal["fennel", "ldg"] = Field("fennel", description="which part a node joins; see the class")
    passes: int = Field(1, ge=1, description="times that the stream is read: from the second on a node knows all parts")
    slack: float = Field(0.1, ge=0, description="how much larger than the mean a part may be")


class KaMinParOptions(Spec):
    """Options of KaMinPar."""

    preset: Literal["fast", "default", "eco", "strong"] = Field(
        "default", description="KaMinPar's settings: faster, or better"
    )
    slack: float = Field(0.03, ge=0, description="how much larger than the mean a part may be")
    threads: int = Field(1, ge=1, description="threads; with several the same seed gives other parts each time")


def stream(indptr: Ints, indices: Ints, weight: Floats, count: int, seed: int, options: StreamOptions) -> Ints:
    """Return the part of each node, int32 [N]: nodes join parts one after the other, in an order of their own."""
    order = np.random.default_rng([seed, len("stream")]).permutation(weight.size)
    total, edges = float(weight.sum()), indices.size / 2
    capacity = (1 + options.slack) * total / count
    cost = edges * count ** (FENNEL - 1) / total**FENNEL if options.rule == "fennel" else 0.0
    part, load = np.full(weight.size, -1, np.int32), np.zeros(count)
    for _ in range(options.passes):
        _stream(indptr, indices, order, weight, capacity, cost * FENNEL, part, load)
    return part


@compiled
def _best(there: Floats, load: Floats, weight: float, capacity: float, cost: float) -> int:
    """Return the part for a node with `there` neighbours in each: of those with room the best, else the emptiest."""
    best, most = -1, -np.inf
    for p in range(load.size):
        if load[p] + weight <= capacity:
            score = there[p] - cost * load[p] ** 0.5 if cost else (there[p] + 1e-9) * (1 - load[p] / capacity)
            if score > most:
                best, most = p, score
    return best if best >= 0 else int(load.argmin())


@compiled
def _stream(
    indptr: Ints, indices: Ints, order: Ints, weight: Floats, capacity: float, cost: float, part: Ints, load: Floats
) -> None:
    """Give each node of `order` a part, in place; `cost` 0: LDG's rule."""
    there = np.zeros(load.size)
    for node in order:
        if part[node] >= 0:
            load[part[node]] -= weight[node]
        for entry in range(indptr[node], indptr[node + 1]):
            at = part[indices[entry]]
            if at >= 0 and indices[entry] != node:
                there[at] += 1
        best = _best(there, load, weight[node], capacity, cost)
        part[node] = best
        load[best] += weight[node]
        for entry in range(indptr[node], indptr[node + 1]):
            at = part[indices[entry]]
            if at >= 0:
                there[at] = 0.0


def kaminpar(
    indptr: Ints, indices: Ints, weight: NDArray[np.int64] | None, count: int, seed: int, options: KaMinParOptions
) -> Ints:
    """Return the part of each node, int32 [N], of a symmetric graph; UserError where KaMinPar is not installed."""
    try:
        import kaminpar as library  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        fix = "pip install 'gnn-harness[kaminpar]'"
        raise UserError("kaminpar cannot be imported", key="partition.method", fix=fix) from error
    context: Any = library.context_by_name(options.preset)
    with tempfile.TemporaryDirectory(prefix="harness-kaminpar-") as place:  # it reads files, not arrays
        file = Path(place) / "graph.parhip"
        _write_parhip(file, indptr, indices, weight)
        graph = library.load_graph(str(file), library.GraphFileFormat.PARHIP)
    library.reseed(seed % 2**31)
    partitioner = library.KaMinPar(options.threads, context)
    return np.asarray(partitioner.compute_partition(graph, count, options.slack), np.int32)


def _write_parhip(file: Path, indptr: Ints, indices: Ints, weight: NDArray[np.int64] | None) -> None:
    """Write a graph in ParHIP's binary format: header, where each node's neighbours lie in the file, neighbours."""
    nodes, rows = indptr.size - 1, chunk_rows((1,), 8)
    with file.open("wb") as out:
        np.array([WEIGHTED if weight is not None else PARHIP, nodes, indices.size], np.uint64).tofile(out)
        for start in range(0, nodes + 1, rows):
            (24 + 8 * (nodes + 1) + 4 * indptr[start : start + rows].astype(np.uint64)).astype(np.uint64).tofile(out)
        for start in range(0, indices.size, rows):
            indices[start : start + rows].astype(np.uint32).tofile(out)
        if weight is not None:
            weight.astype(np.int32).tofile(out)
