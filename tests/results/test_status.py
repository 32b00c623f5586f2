"""How a run stands, read from its directory: by whom, what has ended, what was lost; and a report that follows it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch.tiny import SUITE, start_runner, write_suite
from typer.testing import CliRunner

from harness.cli import app, results
from harness.results import status as module
from harness.results.leases import RUNNERS, Runner
from harness.results.record_store import ResultStore, kept
from harness.results.record_store import write_suite as keep
from harness.results.status import SuiteWatch
from harness.suite.expand import expand
from harness.suite.suite_file import load_suite

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ResultStore:
    """A suite of six trials of which none has run."""
    file = write_suite(tmp_path)
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path / "data"))
    suite = load_suite(file)
    store = ResultStore(tmp_path / "results", suite.name)
    store.directory.mkdir(parents=True)
    keep(store.directory, kept(suite, expand(suite)))
    return store


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.output


def test_what_runs_has_ended_and_is_left(started: ResultStore, make_record) -> None:
    one, two, three, *_ = expand(load_suite(started.root.parent / "tiny.yaml"))
    started.commit(one.id, make_record(one.id, suite="tiny", label=one.label), [], "")
    bad = make_record(two.id, suite="tiny", label=two.label, status="oom", reason="rank 1 ran out")
    bad = bad.model_copy(update={"flags": ["cores: 2 of 1"]})
    started.commit(two.id, bad, [], "")
    with started.runner() as runner:
        runner.say("epoch 3/10  loss 0.5", trial=three.id, label=three.label)
        runner.say("epoch 3/10  loss 0.5")
        time.sleep(1.1)
        runner.say("epoch 4/10  loss 0.4")
        text = run("status", started.root)
    assert "tiny: 6 trials: 2 ended (1 ok, 1 oom), 1 running, 3 to run" in text
    assert re.search(rf"{re.escape(three.label)} .*pid {os.getpid()} .* 1\.\d s .*epoch 4/10 loss 0\.4", text)
    assert re.search(rf"{re.escape(two.label)} +oom +rank 1 ran out", text)
    assert re.search(rf"{re.escape(two.label)} +cores: 2 of 1", text)


def test_a_copy_of_a_trial_hides_none_that_is_left(started: ResultStore, make_record) -> None:
    one, *_ = expand(load_suite(started.root.parent / "tiny.yaml"))
    started.commit(one.id, make_record(one.id, suite="tiny", label=one.label), [], "")
    shutil.copytree(started.directory / one.id, started.directory / "copy")
    assert "tiny: 6 trials: 1 ended (1 ok), 0 running, 5 to run" in run("status", started.root)


def test_a_runner_that_was_killed_is_lost(started: ResultStore) -> None:
    code = (
        "import sys, pathlib, os\nfrom harness.results.leases import Runner\n"
        "with Runner(pathlib.Path(sys.argv[1])) as r:\n"
        "    r.say('', trial='t', label='the trial')\n    os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(started.directory)], check=False)
    text = run("status", started.directory)
    assert "6 trials: 0 ended, 0 running, 6 to run" in text
    assert re.search(r"lost: the trial: its runner \(.*\) was killed; the next runner runs it again", text)


def test_a_runner_elsewhere_that_does_not_beat_is_told(started: ResultStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.5)
    runner = Runner(started.directory, "elsewhere1")
    runner.info = runner.info.model_copy(update={"machine": "another", "host": "node7"})
    (started.directory / RUNNERS).mkdir()
    (started.directory / RUNNERS / "elsewhere1.beat").write_text("7")
    runner.say("", trial="t", label="the trial")
    assert re.search(r"the trial .*node7.*silent: lost\?", run("status", started.directory))
    watch = SuiteWatch(started.directory)
    reads = iter(range(1000))
    monkeypatch.setattr(watch._runners, "heartbeats_elsewhere", lambda: {"elsewhere1": str(next(reads))})
    assert watch.silent() == frozenset()


def test_a_directory_without_results(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing"):
        with pytest.raises(Exception, match=r"holds no results of a suite|no such directory"):
            CliRunner().invoke(app, ["status", str(place)], catch_exceptions=False)


@pytest.mark.slow
def test_the_report_follows_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real run beside it: the page is written while trials are left, and at last without renewing itself."""
    monkeypatch.setattr(results, "WATCH_S", 0.05)
    pages: list[tuple[int, bool]] = []

    def write(places, out, asked, given, views, renewed_s=None, workers=0, baselines=(), say=None) -> Path:
        pages.append((len(ResultStore(tmp_path / "results", "tiny").finished()), renewed_s is not None))
        return Path("page")

    monkeypatch.setattr(results, "write_report", write)
    file = write_suite(tmp_path, SUITE)
    runner = start_runner(tmp_path, FAKE_SECONDS="0.5")
    try:
        while not (tmp_path / "results" / "tiny" / "suite.json").exists():
            time.sleep(0.05)
        text = run("report", tmp_path / "results", "--watch")
    finally:
        runner.join(60)
    assert file.exists()
    assert pages[-1] == (6, False)
    assert len(pages) > 2
    assert all(renewed and 0 < ended < 7 for ended, renewed in pages[:-1])
    assert "page: 2 of 6 trials" in text
