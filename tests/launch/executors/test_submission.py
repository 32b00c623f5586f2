"""What all executors share, without an engine."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from launch.tiny import Silent, write_suite

from harness.errors import UserError
from harness.launch.executors import Arrivals, Need, Submission, executor_of, require_named_device
from harness.launch.executors.slurm import RUNNERS, RunnerJob, by_need
from harness.launch.runner import run_suite
from harness.launch.runner_process import start_runner, stop_runner
from harness.launch.slots import RunOptions
from harness.results.record_store import ResultStore
from harness.runtime.channel import write_secret
from harness.suite.expand import expand
from harness.suite.schema import TrialConfig
from harness.suite.suite_file import load_suite

TESTS = Path(__file__).resolve().parents[2]


@pytest.fixture
def submission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submission:
    """Six trials of one and two parts, with fake ranks."""
    file = write_suite(tmp_path)
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    monkeypatch.setenv("FAKE_RANKS", "{}")
    suite = load_suite(file)
    options = RunOptions(data_dir=tmp_path / "data", worker="launch.fake_worker", wait=False)
    return Submission(suite, expand(suite), ResultStore(tmp_path / "results", "tiny"), options, [str(file)])


def changed(trial: TrialConfig, *, parts: int, threads: int | None, device: str, timing: str) -> TrialConfig:
    partition = trial.partition.model_copy(update={"parts": parts})
    train = trial.train.model_copy(update={"threads": threads})
    return trial.model_copy(update={"partition": partition, "train": train, "device": device, "timing": timing})


@pytest.mark.parametrize(
    ("parts", "threads", "device", "timing", "nodes", "need"),
    [
        (4, 2, "cpu", "off", 1, Need(1, 8, 0, alone=False)),
        (4, None, "cpu", "off", 1, Need(1, 4, 0, alone=False)),
        (4, None, "cpu", "plain", 1, Need(1, None, 0, alone=True)),  # a timed trial has all cores of its node
        (5, 2, "cuda", "plain", 2, Need(2, 6, 3, alone=True)),  # the first node has a rank more
    ],
)
def test_needs(
    submission: Submission, parts: int, threads: int | None, device: str, timing: str, nodes: int, need: Need
) -> None:
    trial = changed(submission.trials[0], parts=parts, threads=threads, device=device, timing=timing)
    assert Need.of(trial, nodes) == need


def test_trials_of_one_need_share_an_array(submission: Submission) -> None:
    groups = by_need(submission.trials, 1)
    assert {need.cpus: len(trials) for need, trials in groups.items()} == {1: 3, 2: 3}


def test_the_submitter_says_nothing_of_the_nodes_devices(submission: Submission) -> None:
    require_named_device(submission.suite, None)
    with pytest.raises(UserError, match="not what the nodes have"):
        require_named_device(submission.suite, "auto")
    auto = submission.suite.model_copy(update={"device": "auto"})
    require_named_device(auto, "cpu")
    with pytest.raises(UserError, match="device: auto"):
        require_named_device(auto, None)


@pytest.mark.slow
def test_a_runner_does_not_wait_for_what_others_run(submission: Submission) -> None:
    """Two of six trials are another's; their records arrive later."""
    other = ResultStore(submission.store.root, "tiny")
    trials, arrivals = submission.trials, Arrivals(submission, Silent())
    with other.runner():
        leases = other.leases()
        held = [leases.take(trial.id, None) for trial in trials[:2]]
        assert run_suite(submission.suite, trials, submission.store, submission.options, Silent()) == 0
        arrivals.look()
        assert arrivals.missing == trials[:2]
        for lease in held:
            assert lease is not None
            leases.end(lease, done=False)
    assert run_suite(submission.suite, trials, submission.store, submission.options, Silent()) == 0
    arrivals.look()
    assert arrivals.missing == []
    assert arrivals.statuses == {trial.id: "ok" for trial in trials}


def test_a_trial_that_runs_again_arrives_with_its_new_record(submission: Submission) -> None:
    trials = submission.trials[:1]
    run_suite(submission.suite, trials, submission.store, submission.options, Silent())
    again = Submission(
        submission.suite, trials, submission.store, RunOptions(fresh=True, worker="launch.fake_worker"), []
    )
    arrivals = Arrivals(again, Silent())
    arrivals.look()
    assert arrivals.missing == trials
    run_suite(again.suite, trials, again.store, again.options, Silent())
    arrivals.look()
    assert arrivals.missing == []


def test_a_runner_that_is_killed_is_followed_by_another(tmp_path: Path) -> None:
    log = tmp_path / "log"
    job = RunnerJob(("sh", "-c", f"echo started >> {log}; kill -9 $$"))
    with pytest.raises(RuntimeError, match="ended with -9"):
        job()
    assert log.read_text().count("started") == RUNNERS
    log.unlink()
    with pytest.raises(RuntimeError, match="ended with 2"):  # the user's mistake
        RunnerJob(("sh", "-c", f"echo started >> {log}; exit 2"))()
    assert log.read_text().count("started") == 1


def test_a_job_tells_its_runner_where_the_secret_is_and_not_what_it_is(tmp_path: Path) -> None:
    secret, log = tmp_path / "secret", tmp_path / "log"
    write_secret(secret)
    job = RunnerJob(("sh", "-c", f"echo $HARNESS_SECRET_FILE > {log}"), secret)
    assert job() == 0
    assert log.read_text() == f"{secret}\n"
    assert secret.read_text().strip().encode() not in pickle.dumps(job)


def test_a_job_that_must_end_ends_its_runner_first(tmp_path: Path) -> None:
    """As submitit does it: by a handler of the signal, while the job waits for its runner."""
    pytest.importorskip("submitit", reason="submitit is not installed")
    told = tmp_path / "told"
    script = (
        f"import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: (open({str(told)!r}, 'w'), sys.exit(0)))"
    )
    job = RunnerJob((sys.executable, "-c", f"{script}; open({str(tmp_path / 'up')!r}, 'w'); time.sleep(60)"))
    after: list[object] = []
    before = signal.signal(signal.SIGUSR2, lambda *_: after.append(job.checkpoint().function.command))
    try:
        threading.Thread(target=signal_when, args=(tmp_path / "up",), daemon=True).start()
        assert job() == 0
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert told.exists()
    assert after == [job.command]


def signal_when(up: Path) -> None:
    while not up.exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGUSR2)


def test_a_runner_survives_the_signal_before_a_time_limit() -> None:
    child = start_runner((sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"), stdout=-1)
    assert child.stdout is not None
    child.stdout.readline()
    child.send_signal(signal.SIGUSR2)
    time.sleep(0.2)
    assert child.poll() is None
    stop_runner(child.pid)
    stop_runner(child.pid)  # has ended: nothing to do
    assert child.wait() == -signal.SIGTERM
    child.stdout.close()


def test_a_runner_that_ends_is_not_interrupted_again() -> None:
    """The kernel tells a child of its parent's death for each thread of that parent which takes the child over."""
    code = (
        "import time\nfrom harness.launch.runner_process import end_when_asked\nend_when_asked()\n"
        "try:\n    print('ready', flush=True)\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    print('ending', flush=True)\n    input()\n    print('ended')"
    )
    child = start_runner((sys.executable, "-c", code), stdin=-1, stdout=-1)
    assert child.stdout is not None
    for said in (b"ready\n", b"ending\n"):
        assert child.stdout.readline() == said
        child.send_signal(signal.SIGTERM)
    assert child.communicate(b"\n", timeout=30)[0] == b"ended\n"
    assert child.returncode == 0


def test_an_interrupt_in_a_finalizer_is_not_lost() -> None:
    """Python prints and drops what a finalizer raises: the run would go on, and never end when asked."""
    code = """
import os, signal, sys, time
from harness.launch.runner_process import end_when_asked
class Kept:
    def __del__(self):
        os.kill(os.getpid(), signal.{name})
        while True:
            time.sleep(0.01)
end_when_asked()
try:
    Kept()
    time.sleep(60)
except KeyboardInterrupt:
    print('ended')
"""
    for name in ("SIGTERM", "SIGINT"):
        command = [sys.executable, "-c", code.replace("{name}", name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
        assert (done.stdout, done.stderr) == ("ended\n", "")


def test_a_command_names_its_trials(submission: Submission) -> None:
    command = submission.command(submission.trials[:2], "--no-wait")
    one, two = (trial.id for trial in submission.trials[:2])
    assert json.dumps(command[-3:]) == json.dumps(["--only", f"id={one}|{two}", "--no-wait"])


PLUGIN = """
import subprocess

from harness.plugin import Arrivals, Capacity, Executor

class Plain(Executor):
    '''One job after another.'''

    name = "plain"
    takes = frozenset(("--executor-option",))

    def __init__(self, options=()):
        self.options = dict(pair.split("=") for pair in options)

    def capacity(self, nodes):
        return Capacity(8 << 30, where="a plain node")

    def run(self, submission, progress, report):
        arrivals = Arrivals(submission, progress)
        report(f"plain jobs {self.options}")
        for trial in arrivals.missing:
            subprocess.run(submission.command([trial], "--request", arrivals.request, "--jobs", "1"), check=False)
            arrivals.look()
        return arrivals.conclude(report, lambda trial: "its job left none")
"""


@pytest.mark.slow
def test_a_plugin_brings_an_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_suite(tmp_path)
    (tmp_path / "plain.py").write_text(PLUGIN)
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path / "data"))
    command = [sys.executable, "-m", "harness", "run", str(file), "--results", str(tmp_path / "results")]
    command += ["--executor", "plain", "--plugin", str(tmp_path / "plain.py"), "--executor-option", "queue=long"]
    command += ["--only", "parts=1,seed=0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "plain jobs {'queue': 'long'}" in done.stdout
    assert len(ResultStore(tmp_path / "results", "tiny").finished()) == 1


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("lokal", {}, r"--executor: unknown executor 'lokal' \(did you mean 'local'\?\)"),
        ("local", {"executor_option": ["a=b"]}, "--slurm, --executor-option: applies only to --executor slurm"),
        ("ray", {"detach": True}, "--detach: applies only to --executor slurm"),
        ("slurm", {"rdzv": "node1"}, "--rdzv: applies only to --executor local"),
    ],
)
def test_an_option_of_another_executor_is_refused(name: str, given: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        executor_of(name, **given)
