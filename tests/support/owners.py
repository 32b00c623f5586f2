"""What ranks do in tests of rows that are with their owners: train where others' cannot be read, and fail."""

from __future__ import annotations

from dataclasses import dataclass
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from harness.check.training import Case, RankOutcome, train
from harness.graph.csr import Topology
from harness.graph.partition import View
from harness.runtime.minibatch import OwnedTopology


def own_rows(view: View) -> Topology:
    """Return the view's topology in which the rows of other ranks hold neither neighbours nor weights."""
    whole = OPEN(view)
    foreign = np.repeat(view.owner != view.partition.rank, np.diff(whole.indptr))
    indices = np.where(foreign, 0, whole.indices).astype(np.int32)
    weights = None if whole.weights is None else np.where(foreign, np.nan, whole.weights).astype(np.float32)
    return Topology(whole.indptr, indices, weights)


OPEN = View.topology.func


def train_on_own_rows(rank: int, world: int, cases: list[Case]) -> list[RankOutcome]:
    """Train each case, on a topology that is of no use beyond the rank's own rows."""
    with mock.patch.object(View, "topology", property(own_rows)):
        return train(rank, world, cases)


@dataclass
class Destinations:
    """The destinations of each layer of a batch, input layer first: nodes of the data set, the same in each."""

    layers: list[NDArray[np.int64]]


def destinations(rank: int, world: int, cases: list[Case]) -> list[list[Destinations]]:
    """Return what each case draws for in the steps of its first epoch."""
    return [_destinations(case.trainer(rank, world)) for case in cases]


def _destinations(trainer) -> list[Destinations]:  # type: ignore[no-untyped-def]
    method, nodes = trainer.method, trainer.worker.view.nodes
    samples = [method.draw(method.hand_out(batch)).sample for batch in method.batches(0)]
    method.close()
    return [Destinations([np.asarray(nodes[layer.destinations]) for layer in sample.layers]) for sample in samples]


def train_without_answers(rank: int, world: int, case: Case, after: int) -> None:
    """Train until the last rank fails to answer, after it has drawn for so many questions and layers of its own."""
    draw, left = OwnedTopology._draw, [after]

    def fail(topology: OwnedTopology, *args: object) -> Topology:
        left[0] -= 1
        if rank == world - 1 and left[0] < 0:
            raise OSError("no such row")
        return draw(topology, *args)  # type: ignore[arg-type]

    with mock.patch.object(OwnedTopology, "_draw", fail):
        train(rank, world, [case])
