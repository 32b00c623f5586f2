"""Shards: the features of a machine's own ranks, found by node; all else is as in the whole graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.data.partition.cached import PartitionPaths, ensure_partitioned, ensure_rows
from harness.data.prepared import damage, open_graph
from harness.data.registry import prepare
from harness.data.shards import PartRows, open_here, write_shard
from harness.errors import UserError
from harness.spec import DatasetSpec, PartitionSpec

SPEC = PartitionSpec(parts=3, method="random")


def shard(
    cache: Path, ranks: tuple[int, ...], *, inductive: bool = False, order: str = "none"
) -> tuple[Path, PartitionPaths, Path, PartitionPaths]:
    """Write a shard of a graph of 3 parts; the graph's directory and views, and the shard's."""
    graph = prepare(DatasetSpec(name="sbm", options={"nodes": 300, "features": 5}))
    spec = SPEC.model_copy(update={"order": order})
    views = ensure_partitioned(graph, spec, inductive=inductive)
    write_shard(
        graph, views, [ensure_rows(graph, views, "float32"), ensure_rows(graph, views, "float16")], ranks, cache
    )
    copy = cache / "datasets" / graph.name
    return graph, views, copy, ensure_partitioned(copy, spec, inductive=inductive, cache=cache)


@pytest.mark.parametrize("inductive", [False, True])
def test_features_of_own_ranks_are_the_graphs(tmp_path: Path, inductive: bool) -> None:
    graph, views, copy, own = shard(tmp_path, (0, 2), inductive=inductive)
    whole, found = open_graph(graph), open_here(copy, own, 2)
    assert own.full.parent.name == views.full.parent.name  # found, not made again
    assert not (copy / "features.npy").exists()
    for name in ("indptr", "indices", "labels", "train_mask", "val_mask", "test_mask"):
        assert np.array_equal(getattr(whole, name), getattr(found, name))
    owner = np.load(own.full / "parts.npy")
    nodes = np.random.default_rng(0).permutation(np.flatnonzero(owner != 1))
    assert isinstance(found.features, PartRows)
    assert found.features.shape == whole.features.shape
    assert np.array_equal(found.features[nodes], whole.features[nodes])
    assert np.array_equal(found.features.here(np.arange(300)), owner != 1)
    with pytest.raises(UserError, match=r"features of rank 1's nodes are asked for, this shard has those of \[0, 2\]"):
        found.features[np.flatnonzero(owner == 1)[:1]]
    with pytest.raises(UserError, match="features of rank 1's nodes"):
        open_here(copy, own, 1)
    for place in (copy, own.full.parent, *(tmp_path / "rows").iterdir()):
        if not place.name.startswith("."):
            assert damage(place) is None


def test_what_a_shard_lacks_is_not_made_of_nothing(tmp_path: Path) -> None:
    *_, copy, _ = shard(tmp_path, (0,))
    other = ensure_partitioned(copy, PartitionSpec(parts=2, method="random"), inductive=False, cache=tmp_path)
    with pytest.raises(UserError, match="without the features of this partition"):
        open_here(copy, other, 0)
    with pytest.raises(UserError, match="features of some parts alone"):
        ensure_rows(copy, other, "float32")
    with pytest.raises(UserError, match="features of some parts alone"):
        open_graph(copy).features[np.arange(3)]


def test_an_order_of_its_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"partition\.order"):
        shard(tmp_path, (0,), order="rcm")
