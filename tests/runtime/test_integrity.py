"""Methods that cheat end as `invalid` or are flagged, each with the line that names what it did; honest ones do not."""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.cheats import EACH_S
from support.ranks import run_ranks
from support.training import own_cores, run_all_to_the_end, run_to_the_end

from harness.check.graphs import OnDisk, on_disk, random_graph
from harness.check.training import Case, RankGroup, rank_group, train
from harness.graph.partition import HIDDEN
from harness.models.layer import ModelSpec
from harness.runtime import rank
from harness.runtime.audit import CpuAccount
from harness.runtime.method import METHODS
from harness.runtime.optimizers import light
from harness.runtime.run_config import TrainSpec

MODEL = ModelSpec(name="sage", layers=2, hidden=8)
CAUGHT = {
    "AllNodes": "the loss reads rows that are no training nodes",
    "AllNodesFromFiles": "the loss reads rows that are no training nodes",
    "OwnForward": "the model is not the suite's",
    "Narrower": "the model is not the suite's",
    "Ahead": "the method's set-up changed the weights",
    "WhileEvaluated": "an evaluation changed the weights",
    "WhenLookedAt": "an evaluation changed the weights",
    "Twice": "the weights changed between two steps",
    "BehindTheBack": "the weights changed between two steps",
    "OwnTensors": "a weight was replaced by another tensor",
    "LabelsAsFeatures": "what the first layer reads is not the data set's features",
    "Scaled": "what the first layer reads is not the data set's features",
    "OwnAggregation": "what the first layer reads is not the data set's features",
    "OwnClass": "the model is not the suite's",
    "OwnLayerClass": "the model is not the suite's",
    "BeforeTheClock": "the model is not the suite's",
    "OneClass": "the rows that are scored are not the split's",
    "OwnTime": "what the numbers come from was replaced: an attribute of time",
    "OwnLoss": "what the numbers come from was replaced: an attribute of torch.nn.functional",
    "OwnOptimizer": "what the numbers come from was replaced: an attribute of Adam",
    "OwnClock": "what the numbers come from was replaced: an attribute of Worker",
    "EvaluationFeatures": "what the numbers come from was replaced: View.features",
    "AddsGradients": "the gradients changed between the backward pass and the optimizer's step",
    "AroundTheStep": "the gradients changed between the backward pass and the optimizer's step",
}
OF_RANKS = {  # of two ranks, which exchange rows: a rule, or a flag and its text
    "EverySecondSum": "what the numbers come from was replaced: Communicator.all_reduce",
    "CountsLess": "what the numbers come from was replaced: Traffic.count",
    "TakesAway": "the gradients that were summed over ranks are not those of the epoch's steps, by their bytes",
    "AsSetUp": "bytes were sent as set-up's after the set-up",
    "AsEvaluation": ("scope", "bytes that were sent in epochs were counted as evaluations'"),
    "SendsNothing": ("declared", r"bytes of epoch 0 were to be feature \d+, seen 0; embedding \d+, seen 0; .*"),
}
DRAWN = {"fanouts": 3, "batch_size": 8}
SHIPPED = {
    "full": [{}, {"precompute": True}, {"transform_before_exchange": True}],
    "bns-gcn": [{"rate": 0.0}, {"rate": 0.3}, {"rate": 1.0}, {"rate": 0.5, "sampler": "fixed"}],
    "cagnet": [{}, {"replication": 2}, {"rate": 0.5}],
    "clustergcn": [
        *[{"clusters": 4, "per_batch": 1} | more for more in ({}, {"scope": "local"}, {"degrees": "batch"})],
        *[{"clusters": 1, "per_batch": 1}, {"clusters": 2, "scope": "local"}],
    ],
    "cooperative": [
        *[DRAWN | more for more in ({}, {"prefetch": 2}, {"pool": 2}, {"sampler": "labor"}, {"storage": "host"})],
        {"fanouts": -1, "batch_size": 0},
    ],
    "dgs": [DRAWN | {"period": 2}, {"fanouts": -1, "feature_rate": 1.0, "batch_size": 0}],
    "fastgcn": [{"sizes": 20, "batch_size": 8}],
    "gas": [{"clusters": 4, "per_batch": 1}, {"clusters": 1, "per_batch": 1}],
    "graphsage": [
        *[DRAWN | more for more in ({}, {"prefetch": 2}, {"pool": 2}, {"topology": "owner"}, {"storage": "host"})],
        *[DRAWN | {"cache": "degree"}, DRAWN | {"feature_rate": 0.5}, {"fanouts": -1, "batch_size": 0}],
        *[DRAWN | {"sampler": "labor"} | more for more in ({}, {"importance": 2}, {"topology": "owner"})],
    ],
    "graphsaint": [
        *[{"size": 20, "sampler": each} for each in ("rw", "mrw", "edge", "node", "frontier", "forest-fire")],
        *[{"size": 10, "scope": "local"}, {"size": 10, "scope": "local", "reshuffle": 1}],
        *[{"size": -1, "normalise": False}, {"size": 20, "steps": 3}],
    ],
    "ladies": [
        *[{"sizes": 20, "batch_size": 8} | more for more in ({}, {"estimator": "ladies"}, {"layers": "nested"})],
        {"sizes": -1, "batch_size": 0},
    ],
    "p3": [
        *[DRAWN | more for more in ({}, {"prefetch": 2}, {"pool": 2}, {"topology": "owner"}, {"sampler": "labor"})],
        {"fanouts": -1, "batch_size": 0},
    ],
    "pipegcn": [{}, {"warmup": "sync"}, {"smoothing": True}, {"staleness": 0}],
    "psc-gcn": [{"refresh": 1}, {"rate": 1.0}, {"sampler": "random"}, {"staleness": 0, "rate": 1.0, "cache": "none"}],
    "local": [{}],
    "adaqp": [{"period": 2}],
    "sign": [{}, {"batch_size": 4}, {"batch_size": 0, "powers": "last"}],
    "roc": [{}, {"budget_share": 0.5}, {"budget_share": 0.5, "policy": "lru"}],
    "skewed": [{"base": "ladies", "sizes": 20, "batch_size": 8}, {"base": "saint", "size": 20}],
    "vrgcn": [{"fanouts": 2, "batch_size": 8}],
}
RAISED = ("hooks", "steps", "rows", "declared", "scope")  # by what a method does, however busy the machine is
FLAGGED = {
    "QuarterOfBatches": ("rows", r"an epoch learns from [\d]+ rows, there are [\d]+ training nodes"),
    "QuarterOfRows": ("rows", r"an epoch learns from [\d]+ rows, there are [\d]+ training nodes"),
    "FewerSteps": ("rows", r"epochs have \d to \d steps"),
    "OneRow": ("rows", r"epochs learn from 1 to \d+ rows, of \d+ training nodes"),
    "OneRowOften": ("rows", r"a step's loss reads a row several times"),
    "SameSteps": ("steps", r"batches of earlier steps are trained on again, and were not drawn for it"),
    "DropsEdges": ("declared", r"at options that are said to be exact a layer aggregates over \d+ edges of \d+ .*"),
    "ModelHook": ("hooks", r"the model, a layer or a weight has hooks of the method's"),
    "WeightHook": ("hooks", r"the model, a layer or a weight has hooks of the method's"),
    "BetweenEpochs": ("between", r"\S+ s passed between epochs, evaluations aside, which last \S+ s"),
    "MoreThreads": ("cores", r"torch was given 2 threads in place of 1"),
    "OtherCores": ("affinity", r"a thread may run on cores \[.*\] too, the rank was given \[\d+\]"),
    "Child": ("children", r"child processes worked .* CPU seconds, the rank .*"),
    "LivingChild": ("children", r"child processes worked .* CPU seconds, the rank .*"),
    "BesideEvaluations": ("beside-eval", r"the method's threads worked .* in 3 evaluations, .* in each"),
    "OwnSocket": ("bytes", r"opened while it trained: a socket"),
    "OwnFile": ("bytes", r"3,1\d\d,\d\d\d bytes were written to files"),
    "OwnMemory": ("bytes", r"opened while it trained: /.*"),
    "LateKernel": (
        "compile",
        r"called for the first time after set-up: (harness\.\S+, )*harness\.graph\.kernels\.gather",
    ),
}


def run(
    name: str, tmp_path: Path, *, multilabel: bool = False, rehearsed: bool = False, **train: Any
) -> dict[str, Any]:
    """Run a trial of one rank to its end; returns the rank's report."""
    graph = random_graph(3, multilabel=multilabel)
    data = on_disk(graph, np.zeros(graph.nodes, np.int32), 1, False, tmp_path)
    spec = TrainSpec(**{"epochs": 3, "threads": 1, "eval_every": 1, "sampled_eval": True} | train)
    batches = ("WhileEvaluated", "Scaled", "Drawing", "BeforeTheClock", "QuarterOfBatches", "SameSteps", "FewerSteps")
    options = {"fanouts": 3, "batch_size": 4} if name in batches else {}
    return run_to_the_end(0, 1, Case(data, f"support.cheats:{name}", options, MODEL, spec), rehearsed=rehearsed)


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give back what cheats replace in modules."""
    for owner, name in (
        (time, "perf_counter"),
        (torch.nn.functional, "cross_entropy"),
        (light(torch.optim.Adam), "step"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", CAUGHT)
def test_a_cheat_is_invalid_by_name(name: str, tmp_path: Path, restored: None) -> None:
    found = run(name, tmp_path)
    assert found["status"] == "invalid", found["reason"]
    assert found["reason"].startswith(CAUGHT[name])


def test_labels_of_others_are_caught_where_nodes_have_several(tmp_path: Path) -> None:
    found = run("AllNodes", tmp_path, multilabel=True)
    assert found["status"] == "invalid", found["reason"]
    assert found["reason"].startswith(CAUGHT["AllNodes"])


def test_an_honest_method_is_not_caught(tmp_path: Path, one_thread: None) -> None:
    found = run("Honest", tmp_path)
    assert (found["status"], found["reason"], found["flags"]) == ("ok", None, [])
    assert found["usage"]["main_cpu_s"] > 0
    assert found["usage"]["children_cpu_s"] == 0


def test_draws_of_an_evaluation_are_none_of_the_trainings(tmp_path: Path) -> None:
    (tmp_path / "never").mkdir()
    (tmp_path / "often").mkdir()
    often, never = (run("Drawing", tmp_path / each, eval_every=k) for each, k in (("often", 1), ("never", 0)))
    assert often["summary"]["checksum"] == never["summary"]["checksum"]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Give this process one thread of torch and one core, as a rank has them, and what it had behind the test."""
    threads, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    os.sched_setaffinity(0, cores)


@pytest.mark.quick(1)
@pytest.mark.skipif(sys.platform != "linux", reason="tells no threads")
@pytest.mark.parametrize("name", FLAGGED)
def test_a_cheat_is_flagged_by_name(name: str, tmp_path: Path, one_thread: None) -> None:
    if name == "OtherCores":
        if len(os.sched_getaffinity(0)) < 2:
            pytest.skip("has one core")
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    found = run(name, tmp_path, rehearsed=name in ("OwnFile", "LateKernel"))
    assert found["status"] == "ok", found["reason"]
    key, text = FLAGGED[name]
    assert any(key == flag and re.fullmatch(text, said) for flag, said in found["flags"]), found["flags"]
    hooked = {"hooks"} if name == "BesideEvaluations" else set()
    # A machine that is busy may let time pass between epochs, or make one of few.
    assert {flag for flag, _ in found["flags"]} - {"between"} <= {key} | hooked


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[RankGroup]:
    with rank_group(2) as group:
        yield group


def in_halves(path: Path) -> OnDisk:
    graph = random_graph(3)
    return on_disk(graph, np.arange(graph.nodes, dtype=np.int32) % 2, 2, False, path)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", OF_RANKS)
def test_a_cheat_of_ranks_is_caught_by_name(name: str, tmp_path: Path, two_ranks: RankGroup) -> None:
    case = Case(in_halves(tmp_path), f"support.cheats:{name}", {}, MODEL, TrainSpec(epochs=3, threads=1))
    ((found,), (other,)) = two_ranks.call(run_all_to_the_end, [case])
    want = OF_RANKS[name]
    if isinstance(want, str):
        assert found["status"] == other["status"] == "invalid"
        assert found["reason"].startswith(want), found["reason"]
    else:
        assert found["status"] == "ok", found["reason"]
        assert any(key == want[0] and re.fullmatch(want[1], text) for key, text in found["flags"]), found["flags"]


@pytest.mark.quick(1)
@pytest.mark.parametrize("method", SHIPPED)
def test_a_shipped_method_is_not_caught(method: str, tmp_path: Path, two_ranks: RankGroup) -> None:
    data, spec = in_halves(tmp_path), TrainSpec(epochs=3, threads=1, eval_every=1, sampled_eval=True)
    cases = [Case(data, method, options, MODEL, spec) for options in SHIPPED[method]]
    for ranks in zip(SHIPPED[method], *two_ranks.call(run_all_to_the_end, cases), strict=True):
        options, *found = ranks
        for each in found:
            assert each["status"] == "ok", (options, each["reason"])
            assert [flag for flag in each["flags"] if flag[0] in RAISED] == [], options


def test_every_shipped_method_is_among_them() -> None:
    assert set(SHIPPED) == set(METHODS.names())


def test_rows_and_the_time_between_epochs_are_numbers(tmp_path: Path) -> None:
    found = run("Honest", tmp_path)
    train_nodes = int(random_graph(3).train_mask.sum())
    assert [row["trained_rows"] for row in found["epochs"]] == [train_nodes] * 3
    assert all(row["between_s"] >= 0 for row in found["epochs"])


@pytest.mark.skipif(sys.platform != "linux", reason="tells no threads")
def test_what_a_module_takes_when_it_is_imported_is_flagged(
    tmp_path: Path, one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("has one core")
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    lines = ["import os, torch", "from support.cheats import Honest", "torch.set_num_threads(64)"]
    (tmp_path / "grasping.py").write_text("\n".join([*lines, "os.sched_setaffinity(0, range(os.cpu_count()))"]))
    monkeypatch.syspath_prepend(tmp_path)
    graph = random_graph(3)
    data = on_disk(graph, np.zeros(graph.nodes, np.int32), 1, False, tmp_path)
    job = Case(data, "support.cheats:Honest", {}, MODEL).job(tmp_path).model_dump_json()
    (tmp_path / "job.json").write_text(job.replace("support.cheats:", "grasping:"))
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, str(int(name == "WORLD_SIZE")))
    try:
        assert rank.main([str(tmp_path / "job.json")]) == 0
    finally:
        gc.unfreeze()
    found = json.loads((tmp_path / "rank0.json").read_text())
    texts = dict(found["flags"])
    assert "torch was given 64 threads in place of 1" in texts["cores"]
    assert sorted(texts) == ["affinity", "cores"]
    assert found["usage"]["method_cpu_s"] < 0.01  # the meters' thread is not the method's


@pytest.mark.skipif(sys.platform != "linux", reason="tells no threads")
@pytest.mark.parametrize(("name", "keys"), [("OwnThreads", ["cores"]), ("Honest", [])])
def test_threads_that_work_at_once_are_flagged(
    name: str, keys: list[str], tmp_path: Path, one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epochs last as long as with a core for each thread, however busy the machine is."""
    before, epoch = [time.thread_time()], CpuAccount.epoch

    def undisturbed(usage: CpuAccount, wall_s: float, cpu_s: float) -> None:
        alone, before[0] = time.thread_time() - before[0], time.thread_time()
        epoch(usage, alone + EACH_S, cpu_s)

    monkeypatch.setattr(CpuAccount, "epoch", undisturbed)
    found = run(name, tmp_path)
    assert [key for key, _ in found["flags"]] == keys
    assert (found["usage"]["method_cpu_s"] > 0.8 * 3 * 8 * EACH_S) == bool(keys)  # the kernel counts ticks of 10 ms
    for _, text in found["flags"]:
        assert re.fullmatch(r"\d\.\d\d cores were busy in epochs, the rank has 1", text)


@pytest.mark.slow
def test_bytes_around_the_communicator_are_flagged(tmp_path: Path) -> None:
    graph = random_graph(3)
    data = on_disk(graph, np.arange(graph.nodes, dtype=np.int32) % 2, 2, False, tmp_path)
    spec = TrainSpec(epochs=3, threads=1)
    cases = [Case(data, f"support.cheats:{name}", {}, MODEL, spec) for name in ("Honest", "AroundTheCommunicator")]
    (honest, cheat), (_, other) = run_ranks(run_all_to_the_end, 2, cases)
    assert [key for key, _ in honest["flags"]] == ["scope"]  # it evaluates in its epochs
    assert other["flags"] == []
    assert 1 <= honest["wire"]["socket_bytes"] / honest["wire"]["counted_bytes"] < 4  # messages are short
    (text,) = [text for key, text in cheat["flags"] if key == "bytes"]
    assert re.fullmatch(r"sockets sent [\d,]+ bytes, [\d,]+ were counted", text)
    sent, counted = (int(number.replace(",", "")) for number in re.findall(r"[\d,]{2,}", text.replace(", ", " ")))
    assert sent - counted > 2 * 3 * 40_000


@pytest.mark.skipif(sys.platform != "linux", reason="tells no threads")
def test_a_checks_rank_has_a_core_and_is_evaluated_before_its_threads_end(tmp_path: Path) -> None:
    graph = random_graph(3)
    data = on_disk(graph, np.zeros(graph.nodes, np.int32), 1, False, tmp_path)
    case = Case(data, "support.cheats:BesideEvaluations", {}, MODEL, TrainSpec(epochs=1, threads=1))
    with rank_group(1) as group:
        ((found,),) = group.call(train, [case])
        (cores,) = group.call(own_cores)
    assert [key for key, _ in found.flags] == ["hooks", "beside-eval"], found
    assert len(cores) == 1


@pytest.mark.parametrize("multilabel", [False, True])
def test_labels_that_are_handed_out_are_the_training_nodes(multilabel: bool, tmp_path: Path) -> None:
    graph = random_graph(3, multilabel=multilabel)
    data = on_disk(graph, np.zeros(graph.nodes, np.int32), 1, False, tmp_path)
    view = Case(data, "full", {}, MODEL).trainer(0, 1).worker.view
    labels = view.labels.numpy()
    known = ~np.isnan(labels[:, 0]) if multilabel else labels != HIDDEN
    np.testing.assert_array_equal(known, graph.train_mask)
    np.testing.assert_array_equal(labels[known], graph.labels[graph.train_mask])
    for split in ("train", "val", "test"):
        mask = getattr(graph, f"{split}_mask")
        np.testing.assert_array_equal(view.scored_labels()[split].numpy(), graph.labels[mask])
        assert view.rows[split].tolist() == torch.from_numpy(mask).nonzero().squeeze(1).tolist()
