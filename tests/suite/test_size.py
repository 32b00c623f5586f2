"""What a suite stands for is counted before it is written out, and has its bounds."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UserError
from harness.suite.expand import expand
from harness.suite.schema import Suite, grid, grid_size
from harness.suite.suite_file import _least_factors as least_factors
from harness.suite.suite_file import load_suite

PLAIN = "name: s\ndatasets: [digits]\nmethods: [full]\n"


def refused(folder: Path, text: str) -> str:
    (folder / "s.yaml").write_text(text)
    tracemalloc.start()
    start = time.monotonic()
    with pytest.raises(UserError) as error:
        expand(load_suite(folder / "s.yaml"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert time.monotonic() - start < 20
    assert peak < 100 << 20
    return str(error.value).replace(str(folder), "")


def ten(*keys: str) -> str:
    return "{" + ", ".join(f"{key}: [{', '.join(map(str, range(1, 11)))}]" for key in keys) + "}"


TRAIN = ten("epochs", "eval_every", "patience", "threads", "checksum_every", "warmup")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"train: {TRAIN}", "/s.yaml:4: train: 1,000,000 trials (1,000,000 train), a suite has at most 100,000 "
         "(list fewer values, or write several suites)"),
        (f"train: {ten('epochs', 'threads')}\nmodel: {ten('hidden', 'layers')}\npartition: {ten('parts', 'seed')}",
         "/s.yaml:5: model: 1,000,000 trials (100 model x 100 train x 100 partition), a suite has at most 100,000 "
         "(list fewer values, or write several suites)"),
        ("repeat: 100001", "/s.yaml:4: repeat: 100,001 trials (100,001 repeat), a suite has at most 100,000 "
         "(list fewer values, or write several suites)"),
        ("repeat: 50001\nseeds: [0, 1]", "/s.yaml:4: repeat: 100,002 trials (2 seeds x 50,001 repeat), a suite has at "
         "most 100,000 (list fewer values, or write several suites)"),
    ],
)  # fmt: skip
def test_large_grids_are_refused_before_they_are_written_out(
    world: None, tmp_path: Path, text: str, message: str
) -> None:
    assert refused(tmp_path, PLAIN + text + "\n") == message


def test_grids_of_options_count(world: None, tmp_path: Path) -> None:
    """A list that an option takes as one value is one; of lists of lists each counts."""
    rates = ", ".join(f"0.{i:04}" for i in range(1, 2001))
    text = f"name: s\ndatasets: [digits]\nseeds: {list(range(51))}\nmethods: [{{bns-gcn: {{rate: [{rates}]}}}}]\n"
    assert "methods: 102,000 trials (51 seeds x 2,000 methods)" in refused(tmp_path, text)
    (tmp_path / "s.yaml").write_text(f"name: s\ndatasets: [digits]\nmethods: [{{graphsage: {{fanouts: [{rates}]}}}}]\n")
    assert least_factors(load_suite(tmp_path / "s.yaml").model_dump())["methods"] == 1
    scales = ", ".join(f"0.{i:04}" for i in range(1, 2001))
    text = f"name: s\ndatasets: [{{twin: {{scale: [{scales}]}}}}]\nmethods: [full]\nseeds: {list(range(51))}\n"
    assert "datasets: 102,000 trials (2,000 datasets x 51 seeds)" in refused(tmp_path, text)


def test_exactly_as_many_as_allowed_pass(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(PLAIN + "repeat: 100000\n")
    assert load_suite(tmp_path / "s.yaml").repeat == 100_000


def test_a_suite_made_in_python_is_bounded_too() -> None:
    many = {"lr": [0.1] * 1000, "epochs": [1] * 101}
    with pytest.raises(ValueError, match="101,000 variants, a suite has at most 100,000 trials: list fewer"):
        Suite.model_validate({"name": "s", "datasets": ["digits"], "methods": ["full"], "train": many})


@pytest.mark.parametrize(
    ("options", "listed", "count"),
    [
        ({}, (), 1),
        ({"a": 1}, (), 1),
        ({"a": [1, 2], "b": [1, 2, 3]}, (), 6),
        ({"a": [1, 2], "b": []}, (), 0),
        ({"a": [1, 2]}, ("a",), 1),
        ({"a": [[1, 2], 3]}, ("a",), 2),
    ],
)
def test_the_count_is_that_of_the_grid(options: dict[str, Any], listed: tuple[str, ...], count: int) -> None:
    assert grid_size(options, listed) == count == len(list(grid(options, listed)))


def test_more_parts_than_nodes_are_refused(world: None, tmp_path: Path) -> None:
    text = PLAIN + "partition: {parts: [1, 1000, 1001]}\n"
    assert refused(tmp_path, text) == (
        "/s.yaml:4: partition.parts: bad value 1001: digits has 1,000 nodes (at most 1000)"
    )
    (tmp_path / "s.yaml").write_text(text + "exclude: [{parts: 1001}]\n")
    assert [trial.partition.parts for trial in expand(load_suite(tmp_path / "s.yaml"))] == [1, 1000]


def test_more_clusters_than_nodes_are_refused(tmp_path: Path) -> None:
    """Not a default, which nobody asked for."""
    text = "name: s\ndatasets: [{sbm: {nodes: 30}}]\ndevice: cpu\nmethods:\n  - clustergcn: {clusters: [30, 31]}\n"
    assert refused(tmp_path, text) == (
        "/s.yaml:5: methods.0.clustergcn.clusters: bad value 31: sbm has 30 nodes (at most 30)"
    )
    (tmp_path / "s.yaml").write_text(text.replace("[30, 31]", "50"))
    assert len(expand(load_suite(tmp_path / "s.yaml"))) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seeds": [2**63]}, "seeds.0: bad value 9223372036854775808: a number has at most 63 bits"),
        ({"train": {"lr": float("inf")}}, "train.lr: bad value inf: must be a finite number"),
        ({"exclude": [{"rate": float("nan")}]}, "exclude.0.rate: bad value nan: must be a finite number"),
        ({"description": "\udc80"}, "description: bad value '\\udc80': is no text: it holds half a character"),
    ],
)
def test_what_json_cannot_hold_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        load_suite({"name": "s", "datasets": "digits", "methods": "full", **given})
    assert str(error.value) == message
