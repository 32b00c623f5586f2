"""A suite with fake ranks: what is recorded, what runs again, and that killing the runner harms nothing."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from launch.tiny import SUITE, Silent, start_runner, write_suite

from harness.errors import UserError
from harness.launch import inputs
from harness.launch.group import GroupResult, RankFailure
from harness.launch.machines import OneMachine, TrialJob
from harness.launch.runner import exit_code, request_of, run_suite
from harness.launch.slots import RunOptions
from harness.results.leases import RUNNERS, Lease
from harness.results.record import Record, read_record
from harness.results.record_store import SUITE_FILE, ResultStore, read_epochs, read_suite
from harness.suite.expand import expand
from harness.suite.schema import TrialConfig
from harness.suite.suite_file import load_suite

TESTS = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.timeout(120)


class Told(Silent):
    """Collects what a runner tells."""

    def __init__(self) -> None:
        self.sizes: list[tuple[int, int]] = []
        self.started: list[tuple[int, str]] = []
        self.records: list[Record] = []
        self.events: list[dict[str, Any]] = []

    def suite_started(self, total: int, done: int) -> None:
        self.sizes.append((total, done))

    def trial_started(self, number: int, trial: TrialConfig) -> None:
        self.started.append((number, trial.id))

    def trial_event(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    def trial_finished(self, number: int, record: Record) -> None:
        self.records.append(record)


class Bench:
    """One suite, its store, and running it."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
        self.directory, self.patch = directory, monkeypatch
        self.file, self.data = write_suite(directory, shared=True), directory / "data"
        monkeypatch.setenv("HARNESS_DATA", str(self.data))
        self.store = ResultStore(directory / "results", "tiny")

    @property
    def trials(self) -> list[TrialConfig]:
        return expand(load_suite(self.file), data_dir=self.data)

    def run(self, ranks: dict[int, str] | None = None, only: int | None = None, **options) -> tuple[int, Told]:
        self.patch.setenv("FAKE_RANKS", json.dumps(ranks or {}))
        told = Told()
        chosen = RunOptions(data_dir=self.data, worker="launch.fake_worker", **options)
        code = run_suite(load_suite(self.file), self.trials[:only], self.store, chosen, told)
        return code, told

    def records(self) -> dict[str, Record]:
        return {path.parent.name: read_record(path) for path in self.store.directory.glob("*/record.json")}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_a_run_records_every_trial_and_a_second_runs_none(bench: Bench) -> None:
    code, told = bench.run()
    assert code == 0
    assert told.sizes == [(6, 0)]
    assert told.started == [(i + 1, trial.id) for i, trial in enumerate(bench.trials)]
    assert {id_: record.status for id_, record in bench.records().items()} == {t.id: "ok" for t in bench.trials}
    code, told = bench.run()
    assert (code, told.sizes, told.started) == (0, [(6, 6)], [])


def test_what_a_record_says(bench: Bench) -> None:
    _, told = bench.run(only=4)
    suite = read_suite(bench.store.directory / SUITE_FILE)
    assert (suite.file, list(suite.trials)) == ("tiny.yaml", bench.trials)  # those that were not asked for, too
    trial = bench.trials[3]
    record = bench.records()[trial.id]
    assert (record.suite, record.label, record.reason) == ("tiny", trial.label, None)
    assert TrialConfig.model_validate(record.config) == trial
    assert record.dataset["name"] == "ring"
    assert (record.dataset["nodes"], record.dataset["edges"], record.dataset["classes"]) == (12, 24, 2)
    assert [row["inner"] for row in record.partition[:2]] == [6, 6]
    assert record.environment["threads"] == 1
    assert record.result["epoch_time_s"] == pytest.approx(0.1)
    assert record.result["inner_nodes"] == 10
    assert [rank["rank"] for rank in record.ranks] == [0, 1]
    assert "epochs" not in record.ranks[0]
    assert record.wall_s > 0
    home = bench.store.directory / trial.id
    assert sorted(path.name for path in home.iterdir()) == ["epochs.parquet", "log.txt", "record.json"]
    assert "==== rank 1 ====\nhello from rank 1\n" in (home / "log.txt").read_text()
    assert sum(event["event"] == "epoch" for event in told.events) == 4 * 3


def test_job_is_what_the_contract_says(bench: Bench, tmp_path: Path) -> None:
    from harness.runtime.job import Job

    trial = bench.trials[3]
    found = inputs.InputCache(bench.data).get(trial, lambda text: None)
    job = json.loads(TrialJob(trial, found, tmp_path).write(12.5, threads=1, cores=1).read_text())
    paths = {"graph", "train_view", "full_view", "store", "out"}
    others = {"config", "inductive", "collective_timeout_s", "threads", "cores", "attempt", "audit", "kernels"}
    assert set(job) == paths | others
    assert Job.read(tmp_path / "job.json").config.method == trial.method
    assert TrialConfig.model_validate(job["config"]) == trial
    assert job["collective_timeout_s"] == 12.5
    assert not Path(job["store"]).exists()
    assert (Path(job["train_view"]) / "rank1" / "inner.npy").is_file()


def test_a_failed_trial_is_recorded_and_the_others_go_on(bench: Bench) -> None:
    code, _ = bench.run({1: "kill"})
    assert code == 1
    statuses = {trial.id: "ok" if trial.partition.parts == 1 else "error" for trial in bench.trials}
    assert bench.store.finished() == statuses
    failed = bench.records()[bench.trials[3].id]
    assert failed.reason == "rank 1 was killed by signal 9 (SIGKILL)"
    assert "hello from rank 1" in (bench.store.directory / failed.trial / "log.txt").read_text()
    assert failed.result == {}


ROW = {"epoch": 0, "rank": 0, "epoch_time_s": 0.1}
ODD = {
    "epochs.0.stats.kept: a number of 71 bits needs more than 64 bits": {"epochs": [ROW | {"stats": {"kept": 2**70}}]},
    "epochs.0.epoch_time_s.int: Input should be a valid integer": {"epochs": [ROW | {"epoch_time_s": "0.1"}]},
    "epochs.0.epoch: Field required": {"epochs": [{"rank": 0}]},
    "epochs: Input should be a valid list": {"epochs": {"0": ROW}},
    "flags.0: Input should be a valid tuple": {"flags": [7]},
    "rank: is 1": {"rank": 1},
    "rank: Input should be a valid integer": {"rank": None},
    "summary: Input should be a valid dictionary": {"summary": ["ok"]},
    "in the runner: ranks: 0.": {"traffic": 7, "peak_memory_bytes": "much", "inner": {}},
    "what its ranks reported cannot be kept: ": {"epochs": [ROW | {"loss": "\ud800"}]},  # no text
}


def test_an_odd_report_is_an_error_of_its_trial_alone(bench: Bench) -> None:
    seeds = f"seeds: {[*range(len(ODD) + 1)]}"
    bench.file.write_text(SUITE.replace("seeds: [0, 1, 2]", seeds).replace("parts: [1, 2]", "parts: 1"))
    told = {f"0 of seed {seed}": json.dumps(odd) for seed, odd in enumerate(ODD.values())}
    assert bench.run(told)[0] == 1
    records = sorted(bench.records().values(), key=lambda record: record.config["seed"])
    assert [record.status for record in records] == [*["error"] * len(ODD), "ok"]
    for reason, record in zip(ODD, records, strict=False):
        assert record.reason is not None
        assert reason in record.reason
        assert "\n" not in record.reason


def test_a_statistic_that_is_no_number_is_none(bench: Bench) -> None:
    told = {"epochs": [ROW | {"stats": {"kept": float("nan")}, "loss": float("inf")}]}
    assert bench.run({0: json.dumps(told)}, only=1)[0] == 0
    (record,) = bench.records().values()
    assert (record.status, record.result["final_loss"]) == ("ok", 1.0)
    assert math.isnan(read_epochs(next(bench.store.directory.glob("*/epochs.parquet")))["stat_kept"][0])


def test_retry_runs_only_those_statuses(bench: Bench) -> None:
    bench.run({1: "diverged"})
    before = bench.records()
    assert bench.run()[0] == 1  # kept, and still failed
    code, told = bench.run(retry=frozenset({"error"}))
    assert (code, told.started) == (1, [])
    code, told = bench.run(retry=frozenset({"error", "diverged"}))
    assert code == 0
    assert [number for number, _ in told.started] == [4, 5, 6]
    after = bench.records()
    kept = [trial.id for trial in bench.trials if trial.partition.parts == 1]
    assert all(after[id_] == before[id_] for id_ in kept)


def test_fresh_runs_all_selected_and_no_others(bench: Bench) -> None:
    bench.run({0: "diverged"})
    code, told = bench.run(only=2, fresh=True)
    assert (code, told.sizes, len(told.started)) == (0, [(2, 0)], 2)
    assert bench.store.finished()[bench.trials[0].id] == "ok"
    assert bench.store.finished()[bench.trials[2].id] == "diverged"


def test_missing_data_is_skipped_until_it_is_there(bench: Bench) -> None:
    text = bench.file.read_text()
    bench.file.write_text(text.replace("[ring]", "[ring, reddit]").replace("seeds: [0, 1, 2]", "seeds: [0]"))
    code, told = bench.run()
    assert code == 0
    assert [record.status for record in told.records] == ["ok", "ok", "skipped", "skipped"]
    skipped = told.records[2]
    assert skipped.dataset["name"] == "reddit"
    assert skipped.reason.endswith("get it with: harness data get reddit")
    _, again = bench.run()
    assert [trial for _, trial in again.started] == [record.trial for record in told.records[2:]]


def test_damaged_data_is_an_error_of_each_trial(bench: Bench) -> None:
    bench.file.write_text(bench.file.read_text().replace("[ring]", "[cora]"))
    (bench.data / "cora.npz").write_bytes((bench.data / "ring.npz").read_bytes()[:200])
    code, told = bench.run(only=2)
    assert code == 1
    assert [record.status for record in told.records] == ["error", "error"]
    assert "cora.npz" in told.records[0].reason


def test_an_exception_of_ours_is_recorded_with_its_traceback(bench: Bench) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("planted\nbug")

    bench.patch.setattr(inputs.InputCache, "get", fail)
    code, told = bench.run(only=2)
    assert code == 1
    assert [record.reason for record in told.records] == ["RuntimeError in the runner: planted bug"] * 2
    assert "Traceback" in (bench.store.directory / told.records[0].trial / "log.txt").read_text()


def test_out_of_memory_while_preparing(bench: Bench) -> None:
    def fail(*arguments: object) -> None:
        raise MemoryError("cannot allocate 3 GiB")

    bench.patch.setattr(inputs.InputCache, "get", fail)
    _, told = bench.run(only=1)
    assert (told.records[0].status, told.records[0].result) == ("oom", {})


def test_data_is_prepared_once_and_a_failure_is_remembered(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> None:
    calls: list[str] = []

    def prepare(job: Path, *arguments: Any, on_progress: Callable[[dict], None], **options: Any) -> GroupResult:
        calls.append(json.loads(job.read_text())[0]["dataset"]["name"])
        on_progress({"event": "stage", "text": "preparing ring"})
        return GroupResult([RankFailure(0, "error", "ended")], [{"mistake": "x.npz: damaged"}])

    bench.patch.setattr("harness.launch.inputs.run_group", prepare)
    bench.patch.setenv("HARNESS_CACHE", str(bench.directory / "cache"))
    _, told = bench.run()
    assert calls == ["ring"]
    assert {record.reason for record in told.records} == {"x.npz: damaged"}


def test_results_that_cannot_be_written_stop_the_run(bench: Bench) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device", "record.json")

    bench.patch.setattr(ResultStore, "commit", full)
    with pytest.raises(UserError, match=r"record\.json: cannot write the record: No space left on device"):
        bench.run()


def test_interrupt_keeps_what_is_finished(bench: Bench) -> None:
    class Impatient(Told):
        def trial_event(self, event: dict[str, Any]) -> None:
            if len(self.records) == 2:
                raise KeyboardInterrupt

    bench.patch.setenv("FAKE_RANKS", "{}")
    options = RunOptions(data_dir=bench.data, worker="launch.fake_worker")
    code = run_suite(load_suite(bench.file), bench.trials, bench.store, options, Impatient())
    assert code == 130
    assert set(bench.store.finished()) == {trial.id for trial in bench.trials[:2]}
    assert not list(bench.store.staging.iterdir())
    code, told = bench.run()
    assert (code, told.sizes) == (0, [(6, 2)])


def test_kernels_of_all_trials_are_compiled_once_before_the_first(bench: Bench) -> None:
    asked: list[str] = []
    bench.patch.setattr(OneMachine, "warm_up", lambda self, trials, report: asked.append(f"compile {len(trials)}"))
    bench.patch.setattr(OneMachine, "expect", lambda self, trial: asked.append(trial.id))
    code, _ = bench.run(only=3)
    assert code == 0
    assert asked == ["compile 3", *(trial.id for trial in bench.trials[:3])]


def test_exit_code() -> None:
    assert exit_code({}) == 0
    assert exit_code({"a": "ok", "b": "skipped"}) == 0
    assert exit_code({"a": "ok", "b": "invalid"}) == 1


def test_runners_share_the_trials(bench: Bench, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    bench.file.write_text(SUITE.replace("parts: [1, 2]", "parts: 1") + "timing: off\n")
    runners = [start_runner(bench.directory, FAKE_SECONDS="1", FAKE_LEDGER=str(ledger), JOBS="2") for _ in range(2)]
    for runner in runners:
        runner.join(60)
        assert runner.exitcode == 0
    assert len(ledger.read_text().splitlines()) == len(bench.trials)
    records = bench.records()
    assert {record.status for record in records.values()} == {"ok"}
    assert len(records) == len(bench.trials)
    assert not list(bench.store.staging.iterdir())
    assert not list((bench.store.directory / RUNNERS).iterdir())
    environments = {id_: record.environment for id_, record in records.items()}
    if len(os.sched_getaffinity(0)) > 1:
        assert any(environment["beside"] for environment in environments.values())
        for id_, environment in environments.items():
            for other in environment["beside"]:  # whom one has seen has seen it, and they shared no core
                theirs = environments[other["trial"]]
                assert id_ in {each["trial"] for each in theirs["beside"]}
                assert not set(environment["pinned_cores"]) & set(theirs["pinned_cores"])


@pytest.mark.slow
def test_timed_trials_of_two_runners_are_never_at_the_same_time(bench: Bench) -> None:
    runners = [start_runner(bench.directory, FAKE_SECONDS="0.3", JOBS="2") for _ in range(2)]
    for runner in runners:
        runner.join(60)
        assert runner.exitcode == 0
    environments = [record.environment for record in bench.records().values()]
    assert len(environments) == 6
    assert all((each["beside"], each["pinned_cores"]) == ([], None) for each in environments)


@pytest.mark.slow
def test_trials_of_killed_runners_are_run_by_others(bench: Bench, tmp_path: Path) -> None:
    ledger, rng, kills = tmp_path / "ledger", random.Random(11), 0
    bench.file.write_text(SUITE + "timing: off\n")
    variables = {"FAKE_SECONDS": "0.2", "FAKE_LEDGER": str(ledger), "JOBS": "2"}
    runners = [start_runner(bench.directory, **variables) for _ in range(3)]
    for _ in range(4):
        time.sleep(rng.uniform(0.2, 0.8))
        killed = runners.pop(0)
        killed.kill()
        killed.join(20)
        kills += killed.exitcode == -signal.SIGKILL
        runners.append(start_runner(bench.directory, **variables))
    for runner in runners:
        runner.join(60)
        assert runner.exitcode == 0
    assert {record.status for record in bench.records().values()} == {"ok"}
    assert len(bench.records()) == len(bench.trials)
    assert len(bench.trials) <= len(ledger.read_text().splitlines()) <= len(bench.trials) + kills


def test_a_runner_that_was_taken_for_dead_drops_its_result(bench: Bench) -> None:
    """It was silent for long, so another has taken its trial: there must not be two records."""

    class Slow(Told):
        def trial_event(self, event: dict[str, Any]) -> None:
            for lease in leases.latest().values():
                if lease.runner is not None and not taken:
                    taken.append(Lease(lease.trial, lease.number + 1, "another"))
                    assert leases._make(taken[0])
                    (bench.store.directory / RUNNERS / "another.beat").write_text("1")

        def suite_waits(self, text: str) -> None:
            leases.end(taken[0], done=False)
            (bench.store.directory / RUNNERS / "another.beat").unlink()

    bench.patch.setenv("FAKE_RANKS", "{}")
    leases, taken, told = bench.store.leases(), [], Slow()
    options = RunOptions(data_dir=bench.data, worker="launch.fake_worker")
    assert run_suite(load_suite(bench.file), bench.trials[:1], bench.store, options, told) == 0
    assert [id_ for _, id_ in told.started] == [bench.trials[0].id] * 2
    assert [record.trial for record in told.records] == [bench.trials[0].id]


@pytest.mark.slow
def test_a_request_is_run_once_by_all_who_are_given_it(bench: Bench) -> None:
    """With --fresh a record from before the request does not count, one from after it does."""
    assert bench.run()[0] == 0
    before = {id_: record.started for id_, record in bench.records().items()}
    time.sleep(1.1)
    trials, leases = bench.trials, bench.store.leases()
    name = request_of(trials, bench.store, leases, RunOptions(fresh=True)).write(bench.store.directory)
    _, first = bench.run(only=4, request=name)
    _, second = bench.run(request=name)
    assert (len(first.records), len(second.records)) == (4, 2)
    assert all(record.started > before[id_] for id_, record in bench.records().items())


@pytest.mark.slow
def test_killed_at_random_moments(bench: Bench, tmp_path: Path) -> None:
    """SIGKILL the runner again and again: a finished trial is never touched, none is half-written."""
    ledger = tmp_path / "ledger"
    rng = random.Random(7)
    done: dict[str, str] = {}
    kills = 0
    for _ in range(5):
        runner = start_runner(bench.directory, FAKE_SECONDS="0.1", FAKE_LEDGER=str(ledger))
        wait_for_another_record(bench.store, runner)
        time.sleep(rng.uniform(0, 0.4))
        runner.kill()
        runner.join(20)
        assert runner.exitcode in (0, -signal.SIGKILL)
        kills += runner.exitcode == -signal.SIGKILL
        now = {path.parent.name: path.read_text() for path in bench.store.directory.glob("*/record.json")}
        assert done.items() <= now.items()
        assert set(bench.store.finished().values()) == {"ok"}
        done = now
    assert kills >= 2
    last = start_runner(bench.directory, FAKE_LEDGER=str(ledger))
    last.join(60)
    assert last.exitcode == 0
    assert {path.name for path in bench.store.directory.glob("[!.]*/")} == {trial.id for trial in bench.trials}
    assert all(len(list(home.iterdir())) == 3 for home in bench.store.directory.glob("[!.]*/"))
    assert not list(bench.store.staging.iterdir())
    # A trial may start again only if its record was not there yet: at most one more end than kills.
    ends = ledger.read_text().splitlines()
    assert len(bench.trials) <= len(ends) <= len(bench.trials) + kills


def wait_for_another_record(store: ResultStore, runner: BaseProcess) -> None:
    seen = len(store.finished())
    end = time.monotonic() + 40
    while len(store.finished()) == seen and runner.is_alive():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_rounds_are_run_in_turns_and_gone_on_with(bench: Bench) -> None:
    bench.file.write_text(SUITE.replace("seeds: [0, 1, 2]\ninterleave: false", "repeat: 2"))
    code, told = bench.run(only=3)
    assert code == 0
    by_id = {trial.id: trial for trial in bench.trials}
    assert [(by_id[id_].partition.parts, by_id[id_].repeat) for _, id_ in told.started] == [(1, 0), (2, 0), (2, 1)]
    assert [record.config["repeat"] for record in told.records] == [0, 0, 1]
    assert not any(record.flags for record in told.records)  # the fake ranks' scores are the same
    _, more = bench.run()
    assert [(by_id[id_].partition.parts, by_id[id_].repeat) for _, id_ in more.started] == [(1, 1)]


def test_checkpoints_of_a_trial_whose_runner_died_after_its_record_go(tmp_path: Path) -> None:
    """Those that a failed trial goes on from stay, and those of one that somebody runs again."""
    store = ResultStore(tmp_path, "tiny")
    ended = {"a": "ok", "b": "diverged", "c": "error", "d": "timeout", "e": "ok", "f": None}
    for id_, status in ended.items():
        store.checkpoints(id_).mkdir(parents=True)
        if status is not None:
            store.commit(id_, Record(trial=id_, suite="tiny", status=status, started="", config={}), [], "")
    with store.runner():
        assert store.leases().take("e", None) is not None
        request_of([], store, store.leases(), RunOptions())
        assert {path.name for path in store.checkpoints("a").parent.iterdir()} == {"c", "d", "e", "f"}
