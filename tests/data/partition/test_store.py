"""The cache of partitions: keys, concurrent builds, killed builds, moved graphs."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.small_graphs import prepared, random_edges

from harness.data.partition import cached as partition_store
from harness.data.partition import view as partition_view
from harness.data.partition.cached import ensure_partitioned, find_partitioned, partition_table
from harness.errors import DataError, UserError
from harness.spec import PartitionSpec


def test_inductive_without_training_nodes(tmp_path):
    graph = prepared(tmp_path / "graph", 4, {(0, 1), (1, 0)}, train=[])
    with pytest.raises(UserError, match="no training nodes"):
        ensure_partitioned(graph, PartitionSpec(parts=2), inductive=True, cache=tmp_path / "cache")


def test_a_failed_build_leaves_nothing(tmp_path):
    graph = prepared(tmp_path / "graph", 4, {(0, 1), (1, 0)})
    with pytest.raises(UserError, match="5 parts of a graph with 4 nodes"):
        ensure_partitioned(graph, PartitionSpec(parts=5), inductive=False, cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.npy"))


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    return prepared(tmp_path / "graph", 60, random_edges(60, 200, 0, directed=False), list(range(0, 60, 2)))


def test_second_call_reads_the_cache(graph, tmp_path, monkeypatch):
    spec = PartitionSpec(parts=2)
    first = ensure_partitioned(graph, spec, inductive=True, cache=tmp_path / "cache")
    monkeypatch.setattr(partition_store, "write_view", lambda *_: pytest.fail("built twice"))
    assert ensure_partitioned(graph, spec, inductive=True, cache=tmp_path / "cache") == first


def test_key_follows_what_matters_and_nothing_else(graph, tmp_path):
    def key(**options: Any) -> Path:
        inductive = options.pop("inductive", False)
        spec = PartitionSpec(**{"parts": 2} | options)
        return ensure_partitioned(graph, spec, inductive=inductive, cache=tmp_path / "cache").full

    assert len({key(), key(seed=1), key(objective="volume"), key(balance="edges"), key(parts=3)}) == 5
    assert len({key(), key(inductive=True), key(method="random"), key(method="chunk")}) == 4
    assert key(method="chunk", seed=1, objective="volume") == key(method="chunk")
    assert key(method="random", objective="volume") == key(method="random")
    assert key(parts=1, method="random") == key(parts=1, seed=9)
    assert len({key(), key(order="rcm"), key(order="metis")}) == 3
    assert key(method="chunk", order="rcm", seed=1) == key(method="chunk", order="rcm") != key(method="chunk")
    vector = tmp_path / "v.npy"
    np.save(vector, np.arange(60) % 2)
    one = key(method="file", file=vector)
    np.save(vector, np.arange(60) // 30)
    assert key(method="file", file=vector) != one


def test_key_follows_the_graph_not_its_place(graph, tmp_path):
    spec, cache = PartitionSpec(parts=2), tmp_path / "cache"
    one = ensure_partitioned(graph, spec, inductive=False, cache=cache)
    moved = tmp_path / "moved"
    shutil.copytree(graph, moved)
    shutil.rmtree(graph)
    assert ensure_partitioned(moved, spec, inductive=False, cache=cache) == one
    assert json.loads((one.full / "meta.json").read_text())["topology"] == str(moved)
    other = prepared(tmp_path / "other", 60, random_edges(60, 200, 1, directed=False))
    assert ensure_partitioned(other, spec, inductive=False, cache=cache) != one


def test_damaged_hash_file_is_only_a_lost_shortcut(graph, tmp_path):
    spec, cache = PartitionSpec(parts=2), tmp_path / "cache"
    one = ensure_partitioned(graph, spec, inductive=False, cache=cache)
    (graph / partition_store.HASH_FILE).write_text("[1,")
    assert ensure_partitioned(graph, spec, inductive=False, cache=cache) == one


def test_table_of_something_else(tmp_path):
    with pytest.raises(UserError, match="not a partition view"):
        partition_table(tmp_path)
    (tmp_path / "meta.json").write_text("{}")
    with pytest.raises(DataError, match="damaged partition"):
        partition_table(tmp_path)


@pytest.mark.parametrize("inductive", [False, True])
def test_found_only_if_there(graph, tmp_path, inductive):
    spec, cache = PartitionSpec(parts=2), tmp_path / "cache"

    def files() -> list[Path]:
        return sorted(tmp_path.rglob("*"))

    before = files()
    assert find_partitioned(graph, spec, inductive=inductive, cache=cache) is None
    assert files() == before
    built = ensure_partitioned(graph, spec, inductive=inductive, cache=cache)
    before = files()
    assert find_partitioned(graph, spec, inductive=inductive, cache=cache) == built
    assert find_partitioned(graph, PartitionSpec(parts=3), inductive=inductive, cache=cache) is None
    assert files() == before
    (graph / partition_store.HASH_FILE).unlink()
    assert find_partitioned(graph, spec, inductive=inductive, cache=cache) is None


def _race(graph: Path, cache: Path, start: Any, out: Any) -> None:
    build, built = partition_store.partition_nodes, []

    def counted(*args: Any, **options: Any) -> Any:
        built.append(1)
        return build(*args, **options)

    partition_store.partition_nodes = counted
    start.wait()
    paths = ensure_partitioned(graph, PartitionSpec(parts=3), inductive=True, cache=cache)
    out.put((str(paths.full), len(built)))


def test_two_processes_build_once(graph, tmp_path):
    context = multiprocessing.get_context("fork")
    start, out = context.Barrier(2), context.Queue()
    args = (graph, tmp_path / "cache", start, out)
    workers = [context.Process(target=_race, args=args) for _ in range(2)]
    for worker in workers:
        worker.start()
    results = [out.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(60)
    assert results[0][0] == results[1][0]
    assert sorted(built for _, built in results) == [0, 1]


def _killed(graph: Path, cache: Path) -> None:
    write_rank = partition_view._write_rank

    def last_words(view: Any, rank: int, *args: Any) -> dict[str, Any]:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return write_rank(view, rank, *args)

    partition_view._write_rank = last_words
    ensure_partitioned(graph, PartitionSpec(parts=3), inductive=False, cache=cache)


def test_killed_half_way_leaves_nothing_a_reader_takes(graph, tmp_path):
    cache, spec = tmp_path / "cache", PartitionSpec(parts=3)
    victim = multiprocessing.get_context("fork").Process(target=_killed, args=(graph, cache))
    victim.start()
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL
    assert list(cache.rglob("rank0/indices.npy"))  # it did get half way
    whole = ensure_partitioned(graph, spec, inductive=False, cache=tmp_path / "whole")
    assert not (cache / "partitions" / whole.full.parent.name).exists()
    again = ensure_partitioned(graph, spec, inductive=False, cache=cache)
    assert partition_table(again.full) == partition_table(whole.full)
