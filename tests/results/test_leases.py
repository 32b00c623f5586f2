"""Who holds a trial, and who is dead: exact where a process can be asked, by heartbeats where it cannot."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.launch.process import scratch
from harness.results import leases as module
from harness.results.leases import LEASES, RUNNERS, Lease, Leases, Runner, Runners

TRIAL = "0123456789ab"


def leases_of(directory: Path, own: str, **runners: object) -> Leases:
    return Leases(directory, own, Runners(directory, **runners))


class Elsewhere:
    """A runner on another machine: its process cannot be asked, only its files are seen."""

    def __init__(self, directory: Path, id_: str = "elsewhere1") -> None:
        self.directory, self.runner = directory, Runner(directory, id_)
        self.runner.info = self.runner.info.model_copy(update={"machine": "another", "host": "node7", "pid": 4711})
        (directory / RUNNERS).mkdir(parents=True, exist_ok=True)
        self.runner._write()
        self.beat("1")

    def beat(self, text: str) -> None:
        (self.directory / RUNNERS / f"{self.runner.id}.beat").write_text(text)


def test_a_trial_is_leased_once_until_it_is_given_back(tmp_path: Path) -> None:
    with Runner(tmp_path, "a") as a, Runner(tmp_path, "b") as b:
        mine, theirs = leases_of(tmp_path, a.id), leases_of(tmp_path, b.id)
        lease = mine.take(TRIAL, None)
        assert lease == Lease(TRIAL, 1, "a")
        assert theirs.take(TRIAL, None) is None  # b did not see it, and comes too late
        seen = theirs.latest()
        assert (seen, theirs.holder(seen[TRIAL]).pid) == ({TRIAL: lease}, os.getpid())
        assert theirs.take(TRIAL, seen[TRIAL]) is None
        mine.end(lease, done=True)
        assert theirs.latest() == {TRIAL: Lease(TRIAL, 2, None, True)}
        assert theirs.take(TRIAL, theirs.latest()[TRIAL]) == Lease(TRIAL, 3, "b")


def test_of_many_who_try_one_gets_it(tmp_path: Path) -> None:
    """Real processes, all at the same trials; each says which it got."""
    code = (
        "import sys, pathlib\nfrom harness.results.leases import *\n"
        "d = pathlib.Path(sys.argv[1])\nown = Leases(d, sys.argv[2], Runners(d))\n"
        "with Runner(d, sys.argv[2]):\n"
        "    print('ready', flush=True)\n    sys.stdin.readline()\n"
        "    print([n for n in range(200) if own.take(f'trial{n}', None)])\n    sys.stdin.readline()"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), f"r{n}"], stdin=-1, stdout=-1, text=True)
        for n in range(4)
    ]
    for process in started:
        assert process.stdout.readline() == "ready\n"
    for process in started:
        process.stdin.write("\n")
        process.stdin.flush()
    got = [eval(process.stdout.readline()) for process in started]
    for process in started:
        process.communicate("\n", timeout=30)
    assert sorted(number for each in got for number in each) == list(range(200))


@pytest.mark.parametrize("code", sorted({errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP}))
def test_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def link(*paths: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", link)
    with Runner(tmp_path, "a"):
        own = leases_of(tmp_path, "a")
        lease = own.take(TRIAL, None)
        assert lease is not None
        assert not own._make(lease)
        assert own.latest() == {TRIAL: lease}


def test_a_link_that_the_server_made_although_it_says_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS repeats a request whose answer was lost, and is then told that the name exists: its own."""
    link = os.link

    def twice(*paths: object) -> None:
        link(*paths)
        link(*paths)

    monkeypatch.setattr(os, "link", twice)
    with Runner(tmp_path, "a"):
        assert leases_of(tmp_path, "a").take(TRIAL, None) is not None


def test_a_lease_that_is_being_written_is_held_for_a_while(tmp_path: Path) -> None:
    now = [0.0]
    own = leases_of(tmp_path, "a", lost_s=60, clock=lambda: now[0])
    (tmp_path / LEASES).mkdir()
    (tmp_path / LEASES / f"{TRIAL}.1").touch()
    assert own.holder(own.latest()[TRIAL]) is not None
    now[0] = 61
    assert own.take(TRIAL, own.latest()[TRIAL]) == Lease(TRIAL, 2, "a")


def test_odd_files_are_nobodys_leases(tmp_path: Path) -> None:
    """A FIFO, a directory, digits that are no ASCII, numbers and names without end: they hold nothing, and nobody."""
    home = tmp_path / LEASES
    home.mkdir()
    os.mkfifo(home / f"{TRIAL}.3")
    (home / "other.2").mkdir()
    for name in (f"{TRIAL}.\u0664", f"{TRIAL}.{'9' * 200}", f"{'a' * 200}.1", f".{TRIAL}.7", f"{TRIAL}.0", "alone"):
        (home / name).write_text("{}")
    leases = leases_of(tmp_path, "a")
    assert leases.latest() == {TRIAL: Lease(TRIAL, 3), "other": Lease("other", 2)}
    assert leases.take(TRIAL, leases.latest()[TRIAL]) == Lease(TRIAL, 4, "a")
    assert leases.take("other", leases.latest()["other"]) == Lease("other", 3, "a")


def test_a_file_in_the_place_of_a_directory_is_named(tmp_path: Path) -> None:
    said = r": is no directory \(remove it: the next run makes it\)"
    for name in (LEASES, RUNNERS):
        (tmp_path / name).write_text("")
    with pytest.raises(UserError, match=re.escape(LEASES) + said):
        leases_of(tmp_path, "a").latest()
    with pytest.raises(UserError, match=re.escape(RUNNERS) + said), Runner(tmp_path, "a"):
        pytest.fail("it is registered in a file")


def test_a_killed_runner_is_dead_at_once(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, time\nfrom harness.results.leases import *\nd = pathlib.Path(sys.argv[1])\n"
        "with Runner(d, 'killed'):\n    Leases(d, 'killed', Runners(d)).take(sys.argv[2], None)\n"
        "    print(flush=True)\n    time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path), TRIAL], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        own = leases_of(tmp_path, "a")
        assert own.take(TRIAL, own.latest()[TRIAL]) is None
        process.kill()
    assert own.take(TRIAL, own.latest()[TRIAL]) == Lease(TRIAL, 2, "a")
    end = time.monotonic() + 20
    beat = tmp_path / RUNNERS / "killed.beat"
    while beat.read_text() != "gone\n":  # for those on other machines
        assert time.monotonic() < end
        time.sleep(0.02)
    own.runners.bury()
    assert list((tmp_path / RUNNERS).iterdir()) == []


def test_an_id_that_was_given_to_another_process_is_no_life(tmp_path: Path) -> None:
    with Runner(tmp_path, "a") as runner:
        runner.info = runner.info.model_copy(update={"born": runner.info.born - 1})
        runner._write()
        assert Runners(tmp_path).dead("a") == "was killed"


@pytest.mark.parametrize("hours", [-2, 2])
def test_a_clock_that_differs_kills_nobody(tmp_path: Path, hours: int) -> None:
    """What counts is whether the heartbeat moves, by the observer's own clock."""
    now, there = [1000.0], Elsewhere(tmp_path)
    beat = tmp_path / RUNNERS / f"{there.runner.id}.beat"
    seen = Runners(tmp_path, lost_s=60, clock=lambda: now[0])
    for second in range(0, 300, 30):
        now[0] = 1000.0 + second
        there.beat(str(second))
        other = time.time() + 3600 * hours
        os.utime(beat, (other, other))
        assert seen.dead(there.runner.id) is None
    now[0] += 61
    assert seen.dead(there.runner.id) == "has been silent for 60 s"


def test_a_runner_elsewhere_that_was_killed_is_dead_at_once(tmp_path: Path) -> None:
    there = Elsewhere(tmp_path)
    seen = Runners(tmp_path)
    assert seen.dead(there.runner.id) is None
    there.beat("gone\n")
    assert seen.dead(there.runner.id) == "was killed"


MOVED = ("unshare", "--time", "--monotonic=90000", "--boottime=90000", "--fork", "--kill-child", "--")


@pytest.mark.skipif(
    subprocess.run([*MOVED, "true"], capture_output=True, check=False).returncode != 0,
    reason="makes a namespace of clocks, which needs root",
)
def test_a_runner_whose_clock_since_boot_differs_is_not_dead_and_its_files_stay(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\nfrom harness.launch.process import clean_scratch\nfrom harness.results.leases import *\n"
        "clean_scratch()\nprint(Runners(pathlib.Path(sys.argv[1])).dead('a'))"
    )
    with Runner(tmp_path, "a"), scratch() as own:
        command = [*MOVED, sys.executable, "-c", code, str(tmp_path)]
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        assert own.is_dir()
    assert said == "None\n"


def test_a_stopped_runner_on_this_machine_is_not_dead(tmp_path: Path) -> None:
    """Its heartbeat may stand still: the process is there, and may go on."""
    now = [0.0]
    with Runner(tmp_path, "a", heartbeat_s=1000):
        seen = Runners(tmp_path, lost_s=60, clock=lambda: now[0])
        assert seen.dead("a") is None
        now[0] = 1000.0
        assert seen.dead("a") is None


def test_the_heart_beats_while_the_interpreter_is_held(tmp_path: Path) -> None:
    with Runner(tmp_path, "a", heartbeat_s=0.05):
        path, beats = tmp_path / RUNNERS / "a.beat", set()
        end = time.monotonic() + 20
        while len(beats) < 3:
            assert time.monotonic() < end
            beats.add(path.read_text())
    assert not path.exists()


def test_a_heart_that_was_killed_is_replaced(tmp_path: Path) -> None:
    with Runner(tmp_path, "a", heartbeat_s=0.05) as runner:
        first = runner._heartbeat
        first.kill()
        first.wait()
        runner.say("epoch 1/2", trial=TRIAL, label="label")
        assert runner._heartbeat is not first
        assert runner._heartbeat.poll() is None


def test_a_second_interrupt_leaves_no_runner_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = subprocess.Popen.wait

    def interrupted(process: subprocess.Popen[bytes], patience_s: float) -> None:
        wait(process, patience_s)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt), Runner(tmp_path, "a", heartbeat_s=0.05) as runner:
        runner.say("epoch 1/2", trial=TRIAL, label="label")
    assert not list((tmp_path / RUNNERS).iterdir())


def test_a_runner_ends_on_a_disk_that_takes_no_more_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with Runner(tmp_path, "a", heartbeat_s=0.05):
        monkeypatch.setattr(Path, "unlink", refused)
    monkeypatch.undo()
    assert Runners(tmp_path).dead("a") == "was killed"
    Runners(tmp_path).bury()
    assert not list((tmp_path / RUNNERS).iterdir())


def test_what_a_runner_cannot_say_leaves_no_half_file(tmp_path: Path) -> None:
    """A file may grow to 20 bytes in a process of its own: a beat fits, what the runner says does not."""
    code = (
        "import pathlib, resource, sys\nfrom harness.results.leases import Runner, RUNNERS\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))\n"
        "with Runner(pathlib.Path(sys.argv[1]), 'a'):\n"
        "    print(*sorted(path.name for path in pathlib.Path(sys.argv[1], RUNNERS).iterdir()))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "a.beat\n"


def test_what_a_runner_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "12")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    monkeypatch.setattr(module, "SAY_S", 0.0)
    with Runner(tmp_path, "a") as runner:
        runner.say("", trial=TRIAL, label="digits full")
        runner.say("epoch 3/10  loss 0.5")
        [info] = Runners(tmp_path).all()
        assert (info.trial, info.label, info.doing) == (TRIAL, "digits full", "epoch 3/10  loss 0.5")
        assert info.elapsed_s >= 0
        assert info.where.endswith(f"pid {os.getpid()}, slurm job 12_3")
        runner.rest()
        assert Runners(tmp_path).info("a").trial is None
    assert Runners(tmp_path).all() == []


def test_a_reader_never_sees_half_of_what_a_runner_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAY_S", 0.0)
    with Runner(tmp_path, "a") as runner:
        stop = threading.Event()

        def talk() -> None:
            while not stop.is_set():
                runner.say("x" * 5000)

        runner.say("", trial=TRIAL, label="label")
        talker = threading.Thread(target=talk)
        talker.start()
        try:
            assert all(Runners(tmp_path).info("a") is not None for _ in range(500))
        finally:
            stop.set()
            talker.join()
