"""METIS."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pymetis
from numpy.typing import NDArray

from harness.data.graph import csr_from_edges, is_symmetric
from harness.data.partition.kernels import Ints
from harness.data.partition.partitioner import Partitioner, node_weights
from harness.spec import Spec

METIS_OBJECTIVE = {"cut": 0, "volume": 1}  # mobjtype_et of metis.h; pymetis takes the number only


class Metis(Partitioner[Spec]):
    """Multilevel k-way METIS: least communication volume or edge cut, balanced nodes or edges."""

    name = "metis"
    reads = frozenset(("objective", "balance", "seed"))

    def parts(self, indptr: Ints, indices: Ints) -> NDArray[np.int32]:
        """See `Partitioner`."""
        weight = node_weights(indptr, self.spec)
        if not is_symmetric(indptr, indices):
            graph_edges = partial(_edge_chunks, indptr, indices)
            indptr, indices = csr_from_edges(graph_edges, indptr.size - 1, symmetrise=True)
        # METIS copies anything that is not of its own index type, and gives up on lists this long
        index = pymetis.zero_copy_dtype()
        graph = pymetis.CSRAdjacency(indptr.astype(index, copy=False), indices.astype(index, copy=False))
        options = pymetis.Options(objtype=METIS_OBJECTIVE[self.spec.objective], seed=self.spec.seed % 2**31)
        # k-way for every P: recursive bisection, pymetis' default up to 8 parts, minimises the cut only
        result = pymetis.part_graph(
            self.spec.parts,
            graph,
            vweights=None if self.spec.balance == "nodes" else weight.astype(index, copy=False),
            recursive=False,
            options=options,
        )
        return np.asarray(result.vertex_part, dtype=np.int32)


def _edge_chunks(indptr: Ints, indices: Ints, rows: int = 1 << 16) -> Iterator[tuple[Ints, Ints]]:
    """Edges as (source, destination) arrays, `rows` CSR rows at a time."""
    for start in range(0, indptr.size - 1, rows):
        bounds = indptr[start : start + rows + 1]
        yield (indices[bounds[0] : bounds[-1]], np.repeat(np.arange(start, start + bounds.size - 1), np.diff(bounds)))
