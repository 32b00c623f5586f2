"""Trials that stop after so many seconds, and trials of a tuning: without test scores, stopped at rungs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.ranks import run_ranks
from support.training import run_all_to_the_end

from harness.check.graphs import on_disk, random_graph
from harness.check.training import Case
from harness.models.layer import ModelSpec
from harness.runtime.run_config import TrainSpec, TuningRun
from harness.runtime.trainer import EarlyStopping, Trainer

EPOCHS = 6


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The reports of both ranks, by case."""
    graph = random_graph(3)
    parts = (np.arange(graph.nodes) % 2).astype(np.int32)
    data = on_disk(graph, parts, 2, False, tmp_path_factory.mktemp("graph"))
    model = ModelSpec(name="sage", layers=2, hidden=8)

    def case(tuning: TuningRun | None = None, method: str = "full", **train: Any) -> Case:
        spec = TrainSpec(epochs=EPOCHS, threads=1, **{"eval_every": 2} | train)
        options = {"batch_size": 16, "fanouts": 3} if method == "graphsage" else {}
        return Case(data, method, options, model, spec, tuning=tuning)

    cases = {
        "plain": case(),
        "seconds": case(seconds=1e-6),
        "ample": case(seconds=1e6),
        "tuning": case(TuningRun(study=0), "graphsage", sampled_eval=True),
        "pruned": case(TuningRun(study=0, rungs=((1e-6, 0.0), (2e-6, 1.1)))),
        "late rung": case(TuningRun(study=0, rungs=((1e6, 1.1),))),
    }
    of_ranks = run_ranks(run_all_to_the_end, 2, list(cases.values()))
    return {name: list(both) for name, *both in zip(cases, *of_ranks, strict=True)}


@pytest.mark.parametrize(
    ("name", "stopped", "epochs", "evaluated"),
    [
        ("plain", "epochs", EPOCHS, [1, 3, 5]),
        ("seconds", "seconds", 1, [0]),
        ("ample", "epochs", EPOCHS, [1, 3, 5]),
        ("pruned", "pruned", 2, [1]),
        ("late rung", "epochs", EPOCHS, [1, 3, 5]),
    ],
)
def test_all_ranks_stop_together(
    name: str, stopped: str, epochs: int, evaluated: list[int], reports: dict[str, list[dict[str, Any]]]
) -> None:
    for report in reports[name]:
        assert report["status"] == "ok"
        assert (report["summary"]["stopped"], report["summary"]["epochs"]) == (stopped, epochs)
        assert [row["epoch"] for row in report["epochs"] if row["val_score"] is not None] == evaluated


@pytest.mark.parametrize(("precompute", "expected"), [(0.0, [None, "seconds"]), (3.0, ["seconds"])])
def test_each_epoch_counts_as_its_slowest_ranks(precompute: float, expected: list[str | None]) -> None:
    """A rank of 3 and 1 s trains with one of 1 and 3 s for 6 s, though neither alone has trained for more than 4.

    What was computed before the first epoch counts, too.
    """
    spec = TrainSpec(epochs=9, seconds=6.0, final_eval=False)
    others = [[1.0, precompute], [3.0, 0.0]]
    of_all = lambda own: [own, [round(1e9 * seconds) for seconds in others.pop(0)]]  # noqa: E731
    rank = SimpleNamespace(trained_s=0.0, progress=EarlyStopping(spec), spec=spec, _numbers_of_all=of_all)
    for seconds, stopped in zip((3.0, 1.0), expected, strict=False):
        Trainer._follow_seconds(rank, {"epoch_time_s": seconds, "precompute_s": 0.0}, evaluated=False)  # type: ignore[arg-type]
        assert rank.progress.stopped == stopped


def test_following_the_seconds_changes_no_bit_and_no_byte_of_an_epoch(reports: dict[str, list[dict[str, Any]]]) -> None:
    for plain, ample in zip(reports["plain"], reports["ample"], strict=True):
        assert plain["summary"]["checksum"] == ample["summary"]["checksum"]
        for one, other in zip(plain["epochs"], ample["epochs"], strict=True):
            assert {k: v for k, v in one.items() if k.startswith("bytes_")} == {
                k: v for k, v in other.items() if k.startswith("bytes_")
            }


def test_a_trial_of_a_tuning_has_no_test_score(reports: dict[str, list[dict[str, Any]]]) -> None:
    for name in ("tuning", "pruned", "late rung"):
        for report in reports[name]:
            scored = [row for row in report["epochs"] if row["val_score"] is not None]
            assert scored
            assert all(row["test_score"] is None and row["sampled_test_score"] is None for row in report["epochs"])
            assert all(report["summary"][key] is None for key in ("test_at_best_val", "final_test"))
            assert report["summary"]["sampled_test_at_best_val"] is None
    assert all(row["test_score"] is not None for row in reports["plain"][0]["epochs"] if row["val_score"] is not None)
    assert reports["tuning"][0]["epochs"][-1]["sampled_val_score"] is not None


def test_a_rung_asks_for_the_best_score_so_far() -> None:
    """A score below the bound at a rung stops only who was never as good."""

    def follow(*scores: float) -> str | None:
        stopping = EarlyStopping(
            TrainSpec(epochs=9), TuningRun(study=0, rungs=((1.0, 0.3), (2.5, 0.5)))
        )  # fmt: skip
        for second, score in enumerate(scores, 1):
            stopping.evaluated({"val_score": score})
            stopping.trained(float(second), evaluated=True)
            if stopping.stopped:
                return f"{stopping.stopped} at {second}"
        return None

    assert follow(0.2) == "pruned at 1"
    assert follow(0.3, 0.1, 0.1) == "pruned at 3"
    assert follow(0.3, 0.5, 0.1, 0.1) is None
    assert follow(0.6, 0.1, 0.1, 0.1) is None
