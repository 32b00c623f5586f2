"""Counts of subgraphs, against dense matrices of what was picked; and the copies that are kept of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Lock

import numpy as np
import pytest
from harness_methods.graphsaint.subgraphs import Counts, count, saved_counts
from numpy.typing import NDArray

from harness.check.graphs import random_graph
from harness.graph.csr import Topology
from harness.graph.kernels import batch_seed
from harness.sampling.sample import Tables

NODES = 40
GRAPH = random_graph(81, NODES, degree=6)
TOPOLOGY = Topology(GRAPH.indptr, GRAPH.indices)
ROWS = np.repeat(np.arange(NODES), np.diff(GRAPH.indptr))


class Recorder:
    """Picks a third of the nodes, the first ones more often, and keeps what it picked by seed."""

    def __init__(self) -> None:
        self.picked: dict[int, NDArray[np.int64]] = {}
        self._lock = Lock()

    def sample(self, seed: int) -> NDArray[np.int64]:
        chances = np.linspace(0.6, 0.1, NODES)
        nodes = np.flatnonzero(np.random.default_rng(seed).random(NODES) < chances)
        with self._lock:
            self.picked[seed] = nodes
        return nodes


def counted(sampler: Recorder, draws: int, threads: int = 1, **options) -> Counts:
    return count(TOPOLOGY, sampler, Tables(NODES), draws, 5, threads, **options)


@pytest.mark.quick(1)
@pytest.mark.parametrize("threads", [1, 3])
def test_counts_are_those_of_what_was_picked_whatever_threads_there_are(threads: int) -> None:
    """Of each draw a dense matrix of what is in it; one more draw than a whole round."""
    sampler = Recorder()
    found = counted(sampler, 257, threads)
    assert len(sampler.picked) == 257
    inside = np.zeros((257, NODES), np.int64)
    for k, nodes in enumerate(sampler.picked.values()):
        inside[k, nodes] = 1
    np.testing.assert_array_equal(found.nodes, inside.sum(0))
    np.testing.assert_array_equal(found.edges, (inside.T @ inside)[ROWS, GRAPH.indices])
    assert (found.nodes.dtype, found.edges.dtype) == (np.int32, np.int32)
    assert (found.draws, found.threads) == (257, threads)
    assert found.seconds > 0
    training = {batch_seed(5, rank, epoch, batch) for rank in (0, 1) for epoch in (0, 1) for batch in (0, 1)}
    assert not training & set(sampler.picked)


def test_as_many_draw_at_a_time_as_there_are_threads() -> None:
    class Meeting(Recorder):
        """Whoever picks waits for another who does, but for the first, which is drawn for nothing."""

        both = Barrier(2, timeout=20)

        def sample(self, seed: int) -> NDArray[np.int64]:
            if self.picked:
                self.both.wait()
            return super().sample(seed)

    assert counted(Meeting(), 10, 2).nodes.sum() > 0


def test_progress_is_told_to_the_end() -> None:
    told: list[int] = []
    counted(Recorder(), 520, report=told.append)
    assert told == [256, 512, 520]


@pytest.mark.parametrize("draws", [0, -1, 2**31])
def test_as_many_draws_as_an_int32_counts(draws: int) -> None:
    with pytest.raises(ValueError, match=f"{draws} draws"):
        counted(Recorder(), draws)


def test_a_node_sampler_that_fails_ends_the_counting() -> None:
    class Broken(Recorder):
        def sample(self, seed: int) -> NDArray[np.int64]:
            if len(self.picked) == 9:
                raise RuntimeError("no more")
            return super().sample(seed)

    with pytest.raises(RuntimeError, match="no more"):
        counted(Broken(), 100, 2)


class Maker:
    """Makes counts that tell how many were made before."""

    def __init__(self) -> None:
        self.made = 0
        self.first = counted(Recorder(), 3)

    def __call__(self) -> Counts:
        self.made += 1
        return replace(self.first, nodes=self.first.nodes + np.int32(100 * self.made), seconds=7.0, threads=2)


def test_counts_that_are_kept_are_made_once_and_mapped(tmp_path: Path) -> None:
    make = Maker()
    own = saved_counts(tmp_path, "a", make)
    again = saved_counts(tmp_path, "a", make)
    assert make.made == 1
    assert (own.seconds, own.threads, again.seconds, again.threads) == (7.0, 2, None, None)
    for found in (own, again):
        assert isinstance(found.nodes, np.memmap)
        assert isinstance(found.edges, np.memmap)
        assert found.draws == 3
        np.testing.assert_array_equal(found.nodes, make.first.nodes + 100)
        np.testing.assert_array_equal(found.edges, make.first.edges)
    assert saved_counts(tmp_path, "b", make).nodes[0] == make.first.nodes[0] + 200


def test_of_all_who_ask_at_once_one_makes_them(tmp_path: Path) -> None:
    make = Maker()
    for made, recount in ((1, None), (2, "trial"), (2, None)):
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: saved_counts(tmp_path, "a", make, recount=recount), range(4)))  # noqa: B023
        assert make.made == made
        assert sum(counts.seconds is not None for counts in found) == (made == 1 or recount is not None)
        assert {int(counts.nodes[0] - make.first.nodes[0]) for counts in found} == {100 * made}


def test_made_again_for_each_who_wants_that_while_readers_keep_what_they_mapped(tmp_path: Path) -> None:
    make = Maker()
    before = saved_counts(tmp_path, "a", make, recount="one")
    same = saved_counts(tmp_path, "a", make, recount="one")
    other = saved_counts(tmp_path, "a", make, recount="two")
    assert make.made == 2
    assert (before.seconds, same.seconds, other.seconds) == (7.0, None, 7.0)
    offsets = [int(found.nodes[0] - make.first.nodes[0]) for found in (before, same, other)]
    assert offsets == [100, 100, 200]
    assert {path.name for path in tmp_path.iterdir()} == {"counts-a", ".counts-a.lock"}


def test_counting_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> Counts:
        raise RuntimeError("no counts")

    with pytest.raises(RuntimeError, match="no counts"):
        saved_counts(tmp_path, "a", fail)
    assert saved_counts(tmp_path, "a", Maker()).seconds == 7.0
