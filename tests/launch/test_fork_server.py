"""Ranks that start warm: what they have of their own, and when ranks start cold instead."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path

import psutil
import pytest

from harness.launch import fork_server
from harness.launch.fork_server import NoWarmStart, end_fork_server, own_pages
from harness.launch.group import GroupResult, run_group
from harness.launch.machines import WORKLOAD
from harness.launch.network import namespaces
from harness.launch.process import WORKER, Placement, placements_of, rank_environment

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="ranks start warm on Linux only"),
]
REPORTER = """
import json, os, sys
from pathlib import Path
out, rank = Path(sys.argv[1]).parent, int(os.environ["RANK"])
{body}
(out / f"rank{{rank}}.json").write_text(json.dumps({{"rank": rank, "status": "ok", "found": found}}))
os._exit(0)
"""


@pytest.fixture(autouse=True)
def _no_server_before_and_after() -> Iterator[None]:
    end_fork_server()
    yield
    end_fork_server()


def report(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    body: str,
    *,
    warm: bool = True,
    placements: list[Placement] | None = None,
    threads: int = 1,
    on_progress=lambda event: None,
) -> GroupResult:
    """Run ranks that report what `body` puts into `found`."""
    (folder / "reporter.py").write_text(REPORTER.format(body=body))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    job = folder / "job.json"
    job.write_text("{}")
    return run_group(
        job,
        placements or placements_of(range(2), 2),
        threads=threads,
        timeout_s=60,
        on_progress=on_progress,
        worker="reporter",
        warm=warm,
    )


def found(group: GroupResult) -> list:
    assert group.status == "ok", f"{group.reason}\n{group.log}"
    return [rank["found"] for rank in group.ranks]


def test_a_warm_rank_sees_what_a_cold_one_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    body = (
        f"""
import signal, time
while os.getppid() != {os.getpid()}:  # the runner, once what forked the rank has handed it over
    time.sleep(0.01)
"""
        + """
status = Path("/proc/self/status").read_text().splitlines()
own = "PPid", "Threads", "SigBlk", "SigIgn", "SigCgt", "Umask", "Cpus_allowed"
found = {
    "argv": sys.argv[1:], "name": __name__, "cwd": os.getcwd(), "path": sys.path,
    "env": {name: value for name, value in os.environ.items() if name != "HARNESS_BRAND"},
    "safe": sys.flags.safe_path,
    "status": [line for line in status if line.startswith(own)],
    "leads": os.getpid() == os.getsid(0) == os.getpgid(0),
    "files": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    "limits": [line for line in Path("/proc/self/limits").read_text().splitlines() if "msgqueue" not in line],
    "interrupt": str(signal.getsignal(signal.SIGINT)), "unbuffered": sys.stdout.write_through,
    "buffer": sys.stderr.fileno(),
}
"""
    )
    cold = found(report(tmp_path, monkeypatch, body, warm=False))
    group = report(tmp_path, monkeypatch, body)
    assert group.warm
    for was, now in zip(cold, found(group), strict=True):
        assert now == was


def test_draws_of_ranks_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin that forgets to seed must not draw the same numbers on every rank because they were forked."""
    body = "import random; import numpy; found = [random.random(), numpy.random.random()]"
    drawn = [found(report(tmp_path, monkeypatch, "import numpy\n" + body)) for _ in range(2)]
    assert len({value for ranks in drawn for rank in ranks for value in rank}) == 8


def test_one_server_serves_many_groups_and_ends_with_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found(report(tmp_path, monkeypatch, "found = 0", placements=placements_of(range(1), 1)))
    first = fork_server._server
    found(report(tmp_path, monkeypatch, "found = 0", placements=placements_of(range(2), 3)))
    assert fork_server._server is first
    assert first is not None
    monkeypatch.setenv("OMP_PROC_BIND", "true")  # libraries may have read it when they were loaded
    assert found(report(tmp_path, monkeypatch, "found = os.environ['OMP_PROC_BIND']")) == ["true", "true"]
    assert fork_server._server is not first
    assert first._process.poll() is not None
    second = fork_server._server
    found(report(tmp_path, monkeypatch, "found = 0", threads=2))
    assert fork_server._server is not second


def test_the_server_ends_with_the_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "from harness.launch.fork_server import fork_server; import os, time\n"
        "print(fork_server('idle', dict(os.environ))._process.pid, flush=True); time.sleep(60)\n"
    )
    (tmp_path / "idle.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as runner:
        assert runner.stdout is not None
        server = psutil.Process(int(runner.stdout.readline()))
        runner.kill()
    psutil.wait_procs([server], timeout=10)
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE


def test_a_server_that_is_gone_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = placements_of(range(1), 1)
    found(report(tmp_path, monkeypatch, "found = 0", placements=one))
    assert fork_server._server is not None
    fork_server._server._process.send_signal(signal.SIGKILL)
    fork_server._server._process.wait()
    group = report(tmp_path, monkeypatch, "found = 0", placements=one)
    assert found(group) == [0]
    assert group.warm


def test_a_server_that_was_stopped_holds_no_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "ANSWER_S", 3.0)
    one = placements_of(range(1), 1)
    assert report(tmp_path, monkeypatch, "found = 0", placements=one).warm
    assert fork_server._server is not None
    os.kill(fork_server._server._process.pid, signal.SIGSTOP)
    stopped = report(tmp_path, monkeypatch, "found = 0", placements=one)
    assert (found(stopped), stopped.warm) == ([0], False)
    assert report(tmp_path, monkeypatch, "found = 0", placements=one).warm  # by another server


def test_an_answer_that_was_not_read_is_not_taken_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a rank is forked: the server has answered, nobody has heard it."""
    one = placements_of(range(1), 1)
    found(report(tmp_path, monkeypatch, "found = 0", placements=one))
    with monkeypatch.context() as patch:

        def interrupt(server: fork_server.ForkServer) -> None:
            raise KeyboardInterrupt

        patch.setattr(fork_server.ForkServer, "_answer", interrupt)
        with pytest.raises(KeyboardInterrupt):
            report(tmp_path, monkeypatch, "found = 0", placements=one)
    group = report(tmp_path, monkeypatch, "found = os.getpid()", placements=one)
    assert group.warm
    assert found(group) != [0]


def test_what_cannot_be_forked_starts_cold_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module that the server imports before it forks has started a thread."""
    told: list[dict] = []
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, threading, time\n"
        "if any('fork_server' in word for word in sys.orig_argv):\n"
        "    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    for _ in range(2):
        group = report(tmp_path, monkeypatch, "found = 0", on_progress=told.append)
        assert found(group) == [0, 0]
        assert not group.warm
    assert [event["text"] for event in told] == [
        "ranks start cold: importing started 1 threads, which a fork would lose"
    ] * 2


def test_a_server_that_could_not_fork_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if any('fork_server' in word for word in sys.orig_argv):\n"
        f"    open({str(tmp_path / 'started')!r}, 'a').write('.')\n"
        "    os._exit(9)\n"
    )
    told: list[dict] = []
    for _ in range(2):
        assert not report(tmp_path, monkeypatch, "found = 0", on_progress=told.append).warm
    assert (tmp_path / "started").read_text() == "."
    assert [event["text"] for event in told] == ["ranks start cold: the process that forks ranks ended with code 9"] * 2
    assert not report(tmp_path, monkeypatch, "found = 0", threads=2).warm  # another environment is tried
    assert (tmp_path / "started").read_text() == ".."


def test_a_rank_that_is_nobodys_child_is_ended_and_none_is_forked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "_adopting", nullcontext)
    told: list[dict] = []
    body = "import time; time.sleep(1); found = 0\nwith open(out / 'ran', 'a') as file: file.write('.')"
    for _ in range(2):
        group = report(tmp_path, monkeypatch, body, on_progress=told.append)
        assert found(group) == [0, 0]
        assert not group.warm
    assert (tmp_path / "ran").read_text() == "...."  # by the ranks that started cold alone
    assert [event["text"] for event in told] == [
        "ranks start cold: the kernel hands orphans to another process than the runner"
    ] * 2
    assert fork_server._server is not None
    assert fork_server._server._process.poll() is not None


def test_other_systems_start_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(NoWarmStart, match="not forked on darwin"):
        fork_server.fork_server("idle", {})


@pytest.mark.root
def test_a_warm_rank_is_in_its_network_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
found = [os.stat("/proc/self/ns/net").st_ino, sorted(os.listdir("/sys/class/net")), os.environ["NCCL_HOSTID"]]
"""
    with namespaces(2) as own:
        places = [Placement(rank, rank, 2, 2, "lo", namespace) for rank, namespace in enumerate(own)]
        cold = found(report(tmp_path, monkeypatch, body, placements=places, warm=False))
        group = report(tmp_path, monkeypatch, body, placements=places)
    assert group.warm
    assert found(group) == cold
    assert [name for _, _, name in cold] == [f"harness-{namespace}" for namespace in own]
    assert len({inode for inode, _, _ in cold} | {os.stat("/proc/self/ns/net").st_ino}) == 3


def test_the_pages_of_a_warm_rank_are_its_own(tmp_path: Path) -> None:
    """After a fork little of the parent is resident in a child; given its pages, as much as in the parent is."""
    script = """
import json, os, sys
import numpy
from harness.launch import fork_server
kept = numpy.ones(1 << 22)  # 32 MiB
pages = list(fork_server.own_pages())

def sizes():
    lines = open("/proc/self/smaps_rollup").read().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) for line in lines}

parent = sizes()
if os.fork() == 0:
    before = sizes()
    for page in pages:
        fork_server._advise(*page)
    print(json.dumps([parent, before, sizes()]), flush=True)
    os._exit(0)
os.wait()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    parent, before, after = json.loads(done.stdout)
    assert before["Private_Dirty"] < 0.2 * parent["Private_Dirty"]
    assert after["Rss"] == pytest.approx(parent["Rss"], rel=0.02)
    assert after["Private_Dirty"] == pytest.approx(parent["Private_Dirty"], rel=0.05)


def test_what_a_rank_leaves_is_killed_and_nobody_elses_orphans_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = found(report(tmp_path, monkeypatch, "import subprocess; found = subprocess.Popen(['sleep', '600']).pid"))
    end = time.monotonic() + 10
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in left):
        assert time.monotonic() < end, "a process that a rank left is still there"
        time.sleep(0.02)
    script = "import subprocess; print(subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL).pid)"
    orphan = psutil.Process(int(subprocess.check_output([sys.executable, "-c", script])))
    try:
        assert orphan.ppid() != os.getpid()
    finally:
        orphan.kill()


DETACHED = {
    "its own session": "subprocess.Popen(['sleep', '600'], start_new_session=True)",
    "an orphan": "subprocess.run('setsid sleep 600 & exit 0', shell=True)",
    "no environment": "subprocess.run('env -i setsid sleep 600 & exit 0', shell=True)",
    "two forks": "os.fork() or (os.setsid(), os.fork() or [os.close(n) for n in (0, 1, 2)] and time.sleep(600))",
}


@pytest.mark.parametrize("warm", [True, False])
def test_whatever_a_rank_detached_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: bool) -> None:
    mark = f"harness-left-{os.getpid()}-{warm}"  # their working directory
    (tmp_path / mark).mkdir()

    def there() -> list[int]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if mark in process.cwd() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
        return found

    body = f"import subprocess, time; os.chdir({str(tmp_path / mark)!r}); found = 0\n"
    body += "\n".join(f"if os.getpid() == {{me}}: {each}".replace("{me}", "me") for each in DETACHED.values())
    body = "me = os.getpid()\n" + body + "\nif os.getpid() != me: os._exit(0)\ntime.sleep(0.5)"
    group = report(tmp_path, monkeypatch, body, warm=warm, placements=placements_of(range(1), 1))
    assert (found(group), group.warm) == ([0], warm)
    assert group.left >= len(DETACHED) - 1  # one is in the rank's process group or was ended with it
    assert there() == []


def test_pages_are_told_by_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "maps").write_text("")
    with pytest.raises(NoWarmStart, match="pagemap"):
        list(own_pages(tmp_path))


@pytest.mark.slow
def test_what_is_preloaded_starts_no_thread_and_no_device() -> None:
    """Also with threads for OpenBLAS, which the server must not start: they are given to ranks."""
    server = fork_server.fork_server(WORKER, rank_environment(placements_of(range(1), 1)[0], threads=2))
    server._answer()
    process = psutil.Process(server._process.pid)
    assert process.num_threads() == 1
    assert not [
        path
        for path in os.listdir(f"/proc/{process.pid}/fd")
        if "nvidia" in os.readlink(f"/proc/{process.pid}/fd/{path}")
    ]


def test_threads_that_fork_leave_the_process_as_it_was() -> None:
    """Each puts back what it found: one that found what another had set would leave it set."""
    found = ctypes.c_int()

    def adopt(_: int) -> None:
        with fork_server._adopting():
            time.sleep(0.01)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(adopt, range(12)))
    fork_server._prctl(fork_server._IS_SUBREAPER, ctypes.byref(found))
    assert found.value == 0


def test_a_server_that_compiled_goes_on_with_what_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has loaded kernels which ranks to come do not call is ended."""
    env = rank_environment(placements_of(range(1), 1)[0], threads=1)
    monkeypatch.setattr(fork_server, "_kernels", None)
    fork_server.preload({})
    first = fork_server.fork_server("nothing", env)
    fork_server.preload({"harness.kernel": ["int64"]})
    assert fork_server.fork_server("nothing", env) is first
    assert first.kernels == {"harness.kernel": ["int64"]}
    fork_server.preload({"harness.kernel": ["float32"]})
    second = fork_server.fork_server("nothing", env)
    assert second is not first
    assert second.kernels == {"harness.kernel": ["float32"]}


def test_all_modules_of_harness_share_a_server() -> None:
    env = rank_environment(placements_of(range(1), 1)[0], threads=1)
    first = fork_server.fork_server(WORKLOAD, env)
    assert fork_server.fork_server(WORKER, env) is first
    assert first.worker == WORKER
    assert fork_server.fork_server("reporter", env) is not first
