"""Kernels are compiled before the first trial: which trials share them, and what is noted of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import UserError
from harness.launch import fork_server
from harness.launch import machines as module
from harness.launch.group import GroupResult, RankFailure
from harness.launch.machines import OneMachine, TrialJob, everything, shape, tiny, warm_up, with_usual_numbers
from harness.runtime.method import METHODS
from harness.spec import PluginSource
from harness.suite.expand import expand
from harness.suite.schema import Suite, Timeouts, TrialConfig


@pytest.fixture(autouse=True)
def _own_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "stream", SimpleNamespace(stats=SimpleNamespace(cache_path=str(tmp_path))))
    monkeypatch.setattr(module, "InputCache", Inputs)
    Inputs.made = 0
    yield
    fork_server.preload(None)


class Inputs:
    """Stands in for prepared data."""

    made = 0

    def __init__(self) -> None:
        Inputs.made += 1

    def get(self, trial: TrialConfig, report: object) -> None:
        """There are none."""


def trials(methods: list[Any], **sections: Any) -> list[TrialConfig]:
    data = {"name": "s", "datasets": ["digits"], "partition": {"parts": 2}, "methods": methods, **sections}
    return expand(Suite.model_validate(data), device="cpu")


def one(method: Any = "full", **sections: Any) -> str:
    (trial,) = trials([method], **sections)
    return shape(trial)


class Ranks:
    """Stands in for ranks; keeps what they were given."""

    def __init__(self, *failing: str) -> None:
        self.failing = failing
        self.ran: list[TrialConfig] = []

    def __call__(self, job: TrialJob) -> GroupResult:
        trial, out = job.trial, job.out
        assert out.is_dir()
        self.ran.append(trial)
        for rank in range(2):
            versions = {"harness.shared": ["int64", f"rank {rank}"], f"harness.{trial.method.name}": ["float32"]}
            (out / f"kernels{rank}.json").write_text(json.dumps(versions))
        failed = trial.method.name in self.failing
        return GroupResult([RankFailure(0, "error", "planted")] if failed else [])


def test_numbers_seeds_and_sizes_share_kernels() -> None:
    base = one({"bns-gcn": {"rate": 0.5}})
    assert one({"bns-gcn": {"rate": 0.1}}) == base
    assert one({"bns-gcn": {"rate": 0.5}}, seeds=[3]) == base
    assert one({"bns-gcn": {"rate": 0.5}}, model={"hidden": 128}, train={"epochs": 7, "lr": 0.5, "patience": 2}) == base
    assert one({"bns-gcn": {"rate": 0.5}}, partition={"parts": 4, "method": "random"}) == base
    assert one({"bns-gcn": {"rate": 0.5}}, timing="breakdown", network={"rate": "1gbit"}) == base


@pytest.mark.parametrize(
    "sections",
    [
        {"model": {"name": "gat"}},
        {"train": {"precision": "float64"}},
        {"train": {"inductive": True}},
        {"train": {"spmm": "torch"}},
        {"partition": {"parts": 1}},
        {"datasets": [{"sbm": {"multilabel": True}}]},
    ],
    ids=str,
)
def test_what_kernels_depend_on(sections: dict[str, Any]) -> None:
    assert one(**sections) != one()


def test_words_among_options_matter_and_the_code_does(monkeypatch: pytest.MonkeyPatch) -> None:
    before = one({"bns-gcn": {"sampler": "fixed"}})
    assert before != one({"bns-gcn": {"sampler": "bernoulli"}})
    monkeypatch.setattr(module, "_code", lambda: ["other code"])
    assert one({"bns-gcn": {"sampler": "fixed"}}) != before


def test_each_shape_is_run_once_and_noted() -> None:
    wanted, ranks, told = trials(["full", {"bns-gcn": {"rate": [0.1, 0.5]}}]), Ranks(), []
    assert len(wanted) == 3
    assert warm_up(wanted, ranks, told.append) == (2, 0)
    assert [trial.method.name for trial in ranks.ran] == ["full", "bns-gcn"]
    assert [text[-7:] for text in told[:2]] == ["/2 full", "bns-gcn"]
    assert told[2:] == ["kernels are compiled for 2 of 2 shapes of trials"]
    assert told[1].startswith("compiling kernels, once on this machine ██████████░░░░░░░░░░ 1/2")
    assert Inputs.made == 1
    assert warm_up(wanted, ranks, told.append) == (0, 0)
    assert len(ranks.ran) == 2
    assert len(told) == 3


def test_a_shape_that_fails_is_told_and_tried_again() -> None:
    ranks, told = Ranks("full"), []
    assert warm_up(trials(["full", "pipegcn"]), ranks, told.append) == (2, 1)
    assert told[1] == "full is not compiled ahead: rank 0 planted"
    assert told[3] == "kernels are compiled for 1 of 2 shapes of trials"
    assert warm_up(trials(["full", "pipegcn"]), ranks, told.append) == (1, 1)
    assert [trial.method.name for trial in ranks.ran] == ["full", "pipegcn", "full"]


def test_numbers_that_are_too_large_for_a_tiny_graph_are_left_at_their_defaults() -> None:
    (trial,) = trials([{"clustergcn": {"clusters": 1500, "per_batch": 20, "degrees": "batch"}}])

    class TooMany(Ranks):
        def __call__(self, job: TrialJob) -> GroupResult:
            self.failing = ("clustergcn",) if job.trial.method.options["clusters"] > 300 else ()
            return super().__call__(job)

    ranks, told = TooMany(), []
    assert warm_up([trial], ranks, told.append) == (1, 0)
    assert told[1:] == ["kernels are compiled for 1 of 1 shapes of trials"]
    asked, usual = (ran.method.options for ran in ranks.ran)
    assert (asked["clusters"], usual["clusters"], usual["per_batch"], usual["degrees"]) == (1500, 50, 5, "batch")
    assert shape(with_usual_numbers(trial)) == shape(trial)
    assert warm_up([trial], ranks, told.append) == (0, 0)


def test_servers_load_what_the_trials_called(tmp_path: Path) -> None:
    both, shared = trials(["full", "pipegcn"]), {"harness.shared": ["int64", "rank 0", "rank 1"]}
    full, pipegcn = {"harness.full": ["float32"]}, {"harness.pipegcn": ["float32"]}
    for _ in range(2):  # run, and noted
        warm_up(both, Ranks(), lambda text: None)
        assert fork_server._kernels == full | pipegcn | shared
    warm_up(both[:1], Ranks(), lambda text: None)
    assert fork_server._kernels == full | shared
    (note,) = [path for path in (tmp_path / "harness-ahead").iterdir() if "pipegcn" in path.read_text()]
    note.write_text("")  # damaged
    ranks = Ranks()
    warm_up(both, ranks, lambda text: None)
    assert [trial.method.name for trial in ranks.ran] == ["pipegcn"]


def test_servers_load_everything_where_a_trial_is_not_known(tmp_path: Path) -> None:
    warm_up(trials(["full", "pipegcn"]), Ranks("pipegcn"), lambda text: None)
    assert fork_server._kernels is None
    (trial,) = trials(["full"])
    warm_up([trial], Ranks(), lambda text: None)
    assert fork_server._kernels is not None
    plugin = PluginSource(file=tmp_path / "mine.py", module=None, cls="Mine", sha256="0")
    warm_up([trial, trial.model_copy(update={"plugin": plugin})], Ranks(), lambda text: None)
    assert fork_server._kernels is None


def test_an_error_of_one_shape_does_not_end_the_others() -> None:
    ran, told = [], []

    def run(job: TrialJob) -> GroupResult:
        ran.append(job.trial.method.name)
        if job.trial.method.name == "full":
            raise UserError("no partitioner")
        return GroupResult()

    assert warm_up(trials(["full", "pipegcn"]), run, told.append) == (2, 1)
    assert ran == ["full", "pipegcn"]
    assert "full is not compiled ahead: no partitioner" in told


def test_errors_are_told_and_no_errors_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(trial: TrialConfig) -> str:
        raise OSError("a file of the code is gone")

    monkeypatch.setattr(module, "shape", damaged)
    told: list[str] = []
    assert OneMachine(Timeouts()).warm_up(trials(["full"]), told.append) == (0, 1)
    assert told == ["kernels are not compiled ahead: OSError in the runner: a file of the code is gone"]


def test_a_plugin_is_not_run_unasked(tmp_path: Path) -> None:
    (trial,) = trials(["full"])
    source = PluginSource(file=tmp_path / "mine.py", module=None, cls="Mine", sha256="0")
    ranks = Ranks()
    for own in ({"plugin": source}, {"plugins": {"model": source}}):
        assert warm_up([trial.model_copy(update=own)], ranks, lambda text: None) == (0, 0)
    assert ranks.ran == []


def test_the_tiny_trial_is_tiny_and_its_own() -> None:
    sections = {"network": {"rate": "1gbit"}, "timing": "breakdown", "traffic": "verify", "partition": {"parts": 8}}
    train = {"epochs": 500, "target": 0.9, "patience": 3, "warmup": 400, "precision": "float64"}
    (trial,) = trials([{"graphsage": {"batch_size": 64}}], train=train, **sections)
    small = tiny(trial)
    assert (small.partition.parts, small.train.epochs, small.train.precision) == (2, 3, "float64")
    assert (small.network, small.timing, small.traffic) == (None, "wall", "count")
    assert small.dataset.options["nodes"] == 300
    assert small.partition.method == "random"  # metis may be missing
    assert (small.method, small.model) == (trial.method, trial.model)
    assert small.id != trial.id


def test_everything_has_every_method() -> None:
    found = everything()
    assert {trial.method.name for trial in found} == set(METHODS.names())
    assert {trial.model.name for trial in found} >= {"sage", "gcn", "gat", "mixhop"}
    assert {trial.partition.parts for trial in found} == {1, 2}
