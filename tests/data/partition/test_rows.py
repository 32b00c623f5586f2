"""Features by part in files, for batches that read them from a disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.small_graphs import prepared, random_edges

from harness.data.partition import cached as partition_store
from harness.data.partition.cached import PartitionPaths, ensure_partitioned, ensure_rows, row_type
from harness.data.prepared import open_graph, write_graph
from harness.errors import UserError
from harness.spec import PartitionSpec

NODES, PARTS = 60, 3


def partitioned(
    folder: Path, *, inductive: bool, largest: float = 1.0, order: str = "none"
) -> tuple[Path, PartitionPaths]:
    """Write a graph with random features, and partition it."""
    train = list(range(0, NODES, 2))
    first = open_graph(prepared(folder / "first", NODES, random_edges(NODES, 200, 0, directed=False), train))
    features = np.random.default_rng(0).uniform(-largest, largest, (NODES, 4)).astype(np.float32)
    write_graph(replace(first, features=features), folder / "graph")
    spec = PartitionSpec(parts=PARTS, order=order)
    return folder / "graph", ensure_partitioned(folder / "graph", spec, inductive=inductive, cache=folder / "cache")


@pytest.mark.parametrize("inductive", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_each_part_has_its_rows_in_the_order_of_its_inner_nodes(tmp_path: Path, inductive: bool, dtype: str) -> None:
    graph, views = partitioned(tmp_path, inductive=inductive, order="rcm")
    rows = ensure_rows(graph, views, dtype)
    features = torch.from_numpy(np.array(open_graph(graph).features)).to(getattr(torch, dtype))
    seen = dict.fromkeys(("train", "full") if inductive else ("full",), 0)
    assert {each.name for each in rows.iterdir() if each.is_dir()} == set(seen)
    for name in seen:
        view = views.full.parent / name
        nodes = np.load(view / "nodes.npy")
        for rank in range(PARTS):
            bits = np.load(rows / name / f"rank{rank}.npy").view(np.int32 if dtype == "float32" else np.int16)
            want = features[nodes[np.load(view / f"rank{rank}/inner.npy")]]
            assert torch.equal(torch.from_numpy(bits).view(features.dtype), want)
            seen[name] += len(want)
    assert seen == dict.fromkeys(seen, NODES) | ({"train": NODES // 2} if inductive else {})


def test_they_are_written_once_for_features_partition_and_dtype(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, views = partitioned(tmp_path / "a", inductive=False)
    first, half = ensure_rows(graph, views, "float32"), ensure_rows(graph, views, "float16")
    assert first.parent == views.full.parents[2] / "rows"
    assert first != half
    with monkeypatch.context() as patched:
        patched.setattr(partition_store, "npy_writer", lambda *_: pytest.fail("written twice"))
        assert ensure_rows(graph, views, "float32") == first
    # The same graph with other features has the same partition, and other rows.
    known = open_graph(graph)
    write_graph(replace(known, features=known.features + 1), tmp_path / "other")
    again = ensure_partitioned(
        tmp_path / "other", PartitionSpec(parts=PARTS), inductive=False, cache=tmp_path / "a/cache"
    )
    assert again == views
    assert ensure_rows(tmp_path / "other", views, "float32") not in (first, half)
    # Damage is noticed.
    said: list[str] = []
    (first / "full/rank1.npy").write_bytes(b"damaged")
    assert ensure_rows(graph, views, "float32", report=said.append) == first
    assert len(said) == 1
    assert json.loads((first / "meta.json").read_text())["dtype"] == "float32"
    assert np.load(first / "full/rank1.npy").shape[1] == 4


def test_a_feature_that_float16_cannot_hold_is_named(tmp_path: Path) -> None:
    graph, views = partitioned(tmp_path, inductive=False, largest=1e6)
    with pytest.raises(UserError, match=r"on_disk: a feature of 9\.\d+e\+05 is too large for float16 \(use bfloat16\)"):
        ensure_rows(graph, views, "float16")
    ensure_rows(graph, views, "bfloat16")


def test_options_say_what_is_in_files() -> None:
    assert row_type({}) is None
    assert row_type({"storage": "host", "on_disk": "float16"}) is None
    assert row_type({"storage": "disk"}) == "float32"
    assert row_type({"storage": "disk", "on_disk": "bfloat16"}) == "bfloat16"
