"""Hold twins against the published sets: boundary nodes by number of parts, as docs/design/twins.md has them.

    python -m tools.twins pubmed:1 reddit:0.1

prints a row for each set and scale: METIS' boundary nodes of all parts in 2, 4, 8 and 16 parts, in multiples of the
graph's nodes, how far that is from the set's, the largest part's over the mean's in 16, degree, homophily and seconds.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from harness.data.catalog import BOUNDARIES, published
from harness.data.generated.twin import SHAPES, make
from harness.data.graph import GraphData
from harness.data.partition import partition_nodes
from harness.spec import PartitionSpec

PARTS = (2, 4, 8, 16)
MEASURED = {  # METIS, edge cut, on the real graphs
    "flickr": (0.639, 1.369, 2.110, 2.892),
    "cora": (0.106, 0.172, 0.280, 0.420),
    "citeseer": (0.017, 0.035, 0.075, 0.134),
}


def wanted(of: str) -> tuple[float | None, ...]:
    """Return a set's boundary nodes in `PARTS` parts, in multiples of its nodes; None where nobody has said."""
    if of in BOUNDARIES:
        return tuple(BOUNDARIES[of].by_parts.get(parts) for parts in PARTS)
    return MEASURED.get(of, (None,) * len(PARTS))


def boundary(graph: GraphData, parts: int) -> np.ndarray:
    """Return the boundary nodes of each part that METIS makes."""
    part = partition_nodes(graph.indptr, graph.indices, PartitionSpec(parts=parts, objective="cut")).astype(np.int64)
    found = np.zeros(parts, np.int64)
    for own in range(parts):  # a part at a time: no pair of node and part is in memory
        nodes = np.flatnonzero(part == own)
        sizes = graph.indptr[nodes + 1] - graph.indptr[nodes]
        starts = np.repeat(graph.indptr[nodes] - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes)
        read = np.zeros(graph.nodes, bool)
        read[graph.indices[starts + np.arange(starts.size)]] = True
        found[own] = (read & (part != own)).sum()
    return found


def row(of: str, scale: float) -> str:
    """Return a row of the table."""
    start, graph = time.perf_counter(), make(of=of, scale=scale)
    made_s, cells, uneven = time.perf_counter() - start, [], 0.0
    for parts, want in zip(PARTS, wanted(of), strict=True):
        found = boundary(graph, parts)
        share, uneven = found.sum() / graph.nodes, found.max() / max(found.mean(), 1e-300)
        cells.append(f"{share:.3f}" if want is None else f"{share:.3f} ({100 * (share / want - 1):+.0f} %)")
    homophily = ""
    if not published()[of].info.multilabel:
        labels, source = graph.labels, np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
        homophily = f"{(labels[source] == labels[graph.indices]).mean():.2f} ({SHAPES[of].homophily:.2f})"
    degree = f"{graph.edges / graph.nodes:.1f}"
    return f"| {of} {scale:g} | {' | '.join(cells)} | {uneven:.2f} | {degree} | {homophily} | {made_s:.0f} |"


if __name__ == "__main__":
    for each in sys.argv[1:]:
        name, _, at = each.partition(":")
        print(row(name, float(at or 1)), flush=True)
