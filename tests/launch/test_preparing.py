"""Data are prepared in a process of its own: whatever becomes of it, the runner goes on and says why."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from launch.tiny import SUITE, TESTS, Silent, write_suite

from harness.launch import inputs as module
from harness.launch.inputs import OOM_SCORE, InputCache
from harness.launch.runner import run_suite
from harness.launch.slots import RunOptions
from harness.results.record import Record, read_record
from harness.results.record_store import ResultStore
from harness.suite.expand import expand
from harness.suite.schema import TrialConfig
from harness.suite.suite_file import read_suite

pytestmark = pytest.mark.timeout(120)
# As the kernel does it, as numpy does it under a limit, as code of somebody else's does it.
ENDS = {
    "kill": "os.kill(os.getpid(), signal.SIGKILL)",
    "memory": "resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31)); np.ones(2**33)",
    "crash": "os.abort()",
    "bug": "raise ZeroDivisionError('planted')",
    "exit": "os._exit(0)",
    "hang": "open(os.environ['MARK'], 'w').write(str(os.getpid())); time.sleep(100)",
}
PLUGIN = """\
import os, resource, signal, time
import numpy as np
from harness import Partitioner


class Planted(Partitioner):
    '''Ends the process that partitions.'''

    name = "planted"

    def parts(self, indptr, indices):
        with open("calls", "a") as calls:
            calls.write("x")
        END
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    monkeypatch.setenv("FAKE_RANKS", "{}")
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MARK", str(tmp_path / "mark"))
    return tmp_path


def trials(home: Path, end: str) -> tuple[list[TrialConfig], Path]:
    """Trials of two seeds, those in two parts by a partitioner that ends so, and after them those in one part."""
    text = SUITE.replace("[0, 1, 2]", "[0, 1]").replace("partition: {parts: [1, 2], method: chunk}", PARTITION)
    file = write_suite(home, text + "plugins: [planted.py]\n")
    (home / "planted.py").write_text(PLUGIN.replace("END", ENDS[end]))
    return expand(read_suite(file, trusted=True)), file


PARTITION = "partition: [{parts: 2, method: planted}, {parts: 1}]"


def run(home: Path, end: str) -> list[Record]:
    found, file = trials(home, end)
    store = ResultStore(home / "results", "tiny")
    options = RunOptions(data_dir=home / "data", worker="launch.fake_worker")
    assert run_suite(read_suite(file, trusted=True), found, store, options, Silent()) == 1
    return [read_record(store.directory / trial.id / "record.json") for trial in found]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "kills", "status", "reason"),
    [
        (
            "kill", 1, "oom", "while partitioning ring into 2 (planted), the process was killed by signal 9 (SIGKILL): "
            "the machine or its memory limit ran out of memory",
        ),
        ("kill", 0, "error", "while partitioning ring into 2 (planted), the process was killed by signal 9 (SIGKILL)"),
        (
            "memory", 0, "oom", "while partitioning ring into 2 (planted), the process said: "
            "out of memory: Unable to allocate 64.0 GiB",
        ),
        ("crash", 0, "error", "while partitioning ring into 2 (planted), the process was killed by signal 6 (SIGABRT)"),
        ("bug", 0, "error", "while partitioning ring into 2 (planted), the process said: ZeroDivisionError: planted"),
        ("exit", 0, "error", "while partitioning ring into 2 (planted), the process ended without a result"),
    ],
)  # fmt: skip
def test_the_suite_goes_on(
    home: Path, monkeypatch: pytest.MonkeyPatch, end: str, kills: int, status: str, reason: str
) -> None:
    """Trials that need what cannot be had say why, in the words of one try; the others run."""
    counts = iter([7, 7 + kills] + [7] * 20)
    monkeypatch.setattr("harness.launch.group.oom_kills", lambda: next(counts))
    records = run(home, end)
    assert Counter(record.status for record in records) == {"ok": 2, status: 2}
    failed = [record for record in records if record.status != "ok"]
    assert {record.config["partition"]["parts"] for record in failed} == {2}
    for record in failed:
        assert (record.reason or "").startswith(reason)
        assert "Traceback" not in (record.reason or "")
    assert (home / "calls").read_text() == "x"
    log = (home / "results" / "tiny" / failed[0].trial / "log.txt").read_text()
    assert ("ZeroDivisionError" in log) == (end == "bug")


@pytest.mark.slow
def test_the_runner_ends_and_so_does_what_prepares(home: Path) -> None:
    """Killed with SIGKILL while a partitioner works: nothing of it stays."""
    (trial, *_), _ = trials(home, "hang")
    (home / "trial.json").write_text(trial.model_dump_json())
    script = (
        "import sys; from pathlib import Path; from harness.launch.inputs import InputCache\n"
        "from harness.suite.schema import TrialConfig\n"
        "trial = TrialConfig.model_validate_json(Path('trial.json').read_text())\n"
        "InputCache(Path('data'), apart=True).get(trial, print)\n"
    )
    runner = subprocess.Popen([sys.executable, "-c", script])
    try:
        until(lambda: (home / "mark").exists() and (home / "mark").read_text() != "")
        child = psutil.Process(int((home / "mark").read_text()))
        assert child.ppid() == runner.pid
        assert Path(f"/proc/{child.pid}/oom_score_adj").read_text().strip() == str(OOM_SCORE)
    finally:
        runner.kill()
        runner.wait()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


@pytest.mark.slow
def test_what_is_there_starts_no_process(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_suite(home)
    trial = expand(read_suite(file))[3]
    told: list[str] = []
    made = InputCache(home / "data", apart=True).get(trial, told.append)
    assert told == ["preparing ring", "partitioning ring into 2 (chunk)"]
    monkeypatch.setattr(module, "run_group", lambda *_, **__: pytest.fail("started"))
    assert InputCache(home / "data", apart=True).get(trial, print) == made
    assert InputCache(home / "data").get(trial, print) == made


def test_mistakes_are_told_as_they_are_here(home: Path) -> None:
    from harness.errors import DataError, DataUnavailable, UserError

    file = write_suite(home)
    trial = expand(read_suite(file))[0]
    (home / "data" / "ring.npz").write_bytes(b"PK damaged")
    with pytest.raises(UserError) as apart:
        InputCache(home / "data", apart=True).get(trial, print)
    with pytest.raises(DataError) as here:
        InputCache(home / "data").get(trial, print)
    assert str(apart.value) == str(here.value)
    absent = trial.model_copy(update={"dataset": trial.dataset.model_copy(update={"name": "cora"})})
    with pytest.raises(DataUnavailable) as missing:
        InputCache(home / "data", apart=True).get(absent, print)
    assert str(missing.value).endswith("get it with: harness data get cora")


def test_a_run_refuses_to_cluster_what_does_not_fit(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """12 nodes and 24 entries take METIS 14,640 bytes; parts of the same graph in one chunk take none."""
    from harness.errors import UserError
    from harness.launch.hardware import Capacity

    trial = expand(read_suite(write_suite(home)))[0]
    monkeypatch.setattr(module, "capacity", lambda: Capacity(10_000))
    inputs = InputCache(home / "data")
    assert inputs.get(trial, print)
    for options, fits in (({}, False), ({"clustered_by": "stream"}, True), ({"scope": "local"}, True)):
        method = trial.method.model_copy(update={"name": "clustergcn", "options": {"clusters": 4} | options})
        clustered = trial.model_copy(update={"method": method})
        if fits:
            assert inputs.get(clustered, print)
            continue
        with pytest.raises(
            UserError, match=r"methods\.clustergcn: metis takes about .*clustered_by: kaminpar or coarsened or stream"
        ):
            inputs.get(clustered, print)


def test_a_request_that_is_none(home: Path) -> None:
    (home / "job.json").write_text("{}")
    process = subprocess.run([sys.executable, "-P", "-m", module.__name__, "job.json"], capture_output=True)
    assert process.returncode == 1
    assert not (home / "rank0.json").exists()
