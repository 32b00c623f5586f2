"""Runs of methods whose features stay on a disk: files by part are made once, and training is the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launch.tiny import Silent, write_suite

from harness.launch.runner import run_suite
from harness.launch.slots import RunOptions
from harness.metrics import WITHIN
from harness.results.record_store import ResultStore, read_records
from harness.results.reduce import between_ranks
from harness.suite.expand import expand
from harness.suite.suite_file import load_suite

METHODS = """
  - graphsage: {fanouts: 3, batch_size: 64}
  - graphsage: {fanouts: 3, batch_size: 64, storage: disk}
  - graphsage: {fanouts: 3, batch_size: 64, storage: disk, cache: degree, capacity: 0.2}
  - graphsage: {fanouts: 3, batch_size: 64, storage: disk, on_disk: bfloat16}
  - full
  - full: {storage: disk}
  - bns-gcn: {rate: 0.3}
  - bns-gcn: {rate: 0.3, storage: disk}
  - sign: {batch_size: 64}
  - sign: {batch_size: 64, storage: disk}
  - dgs: {fanouts: 3, batch_size: 64, period: 2, explain: inline}
  - dgs: {fanouts: 3, batch_size: 64, period: 2, explain: inline, storage: disk}"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("inductive", [False, True])
def test_training_from_a_disk_is_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inductive: bool) -> None:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    file = write_suite(tmp_path)
    text = file.read_text().replace("[ring]", "[{sbm: {nodes: 600}}]").replace("[full]", METHODS)
    text = text.replace("[0, 1, 2]", "[0]").replace("[1, 2], method: chunk", "2").replace("trial_s: 20", "trial_s: 60")
    file.write_text(text.replace("epochs: 10", f"epochs: 3, eval_every: 1, inductive: {str(inductive).lower()}"))
    suite = load_suite(file)
    run_suite(suite, expand(suite), ResultStore(tmp_path / "results", suite.name), RunOptions(), Silent())
    rows = {}
    for record in read_records(tmp_path / "results" / suite.name).values():
        assert record.status == "ok"
        name, own = record.config["method"]["name"], record.config["method"]["options"]
        key = name, own.get("storage", "sharded"), own.get("cache", "none"), own.get("on_disk", "float32")
        rows[key] = record.result
    plain, disk, cached, rounded = (
        rows["graphsage", *key] for key in (("sharded", "none", "float32"), ("disk", "none", "float32"),
                                            ("disk", "degree", "float32"), ("disk", "none", "bfloat16"))
    )  # fmt: skip
    for name in ("full", "bns-gcn", "sign", "dgs"):
        stored = [rows[name, storage, "none", "float32"] for storage in ("sharded", "disk")]
        assert stored[0]["checksum"] == stored[1]["checksum"]
        assert stored[0]["best_val"] == pytest.approx(stored[1]["best_val"], abs=1e-12)
        assert (stored[1]["bytes_disk"] > 0) == (name == "dgs")  # a map's reads are the kernel's
    for same in (disk, cached):
        assert same["checksum"] == plain["checksum"]
        assert same["best_val"] == pytest.approx(plain["best_val"], abs=1e-12)
    assert rounded["checksum"] != plain["checksum"]
    assert plain["bytes_disk"] == 0 < cached["bytes_disk"] < disk["bytes_disk"] == 2 * rounded["bytes_disk"]
    assert disk["bytes_feature"] == plain["bytes_feature"] > cached["bytes_feature"]
    assert between_ranks(disk) == between_ranks(plain)
    assert "disk" in WITHIN
    # Of each dtype the parts' files, of both views where training sees a part of the graph.
    views = ("full", "train") if inductive else ("full",)
    made = [meta for meta in (tmp_path / "cache" / "rows").glob("*/meta.json") if not meta.parent.name.startswith(".")]
    assert {json.loads(meta.read_text())["dtype"] for meta in made} == {"float32", "bfloat16"}
    for meta in made:
        kept = {path.relative_to(meta.parent).as_posix() for path in meta.parent.glob("*/*.npy")}
        assert kept == {f"{view}/rank{rank}.npy" for view in views for rank in range(2)}
