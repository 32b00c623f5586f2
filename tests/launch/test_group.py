"""Groups of real processes that run a fake worker: how each way of ending is told, and that none is left."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from harness.launch import group as module
from harness.launch.group import GroupResult, run_group
from harness.launch.process import RankProcess, placements_of, rank_environment, wait_for_end

TESTS = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True, params=["cold", "warm"])
def start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How ranks start; what they do and leave is the same."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    monkeypatch.setattr(module, "GRACE_S", 1.0)
    monkeypatch.setattr(module, "TERM_S", 0.5)
    monkeypatch.setitem(SETTINGS, "warm", request.param == "warm")
    return request.param


SETTINGS: dict = {"threads": 1, "timeout_s": 30, "on_progress": lambda event: None}


def write_job(out: Path) -> Path:
    job = out / "job.json"
    job.write_text(json.dumps({"out": str(out), "config": {}}))
    return job


def run(out: Path, monkeypatch: pytest.MonkeyPatch, ranks: dict[int, str], size: int = 2, **options) -> GroupResult:
    monkeypatch.setenv("FAKE_RANKS", json.dumps(ranks))
    placements = placements_of(range(size), size)
    group = run_group(write_job(out), placements, worker="launch.fake_worker", **SETTINGS | options)
    assert group.warm == SETTINGS["warm"]
    return group


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition, seconds: float = 15) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def pids(out: Path) -> list[int]:
    return [int(path.read_text()) for path in out.glob("pid-*") if path.read_text()]


def test_all_ok(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[dict] = []
    group = run(tmp_path, monkeypatch, {}, size=3, on_progress=events.append)
    assert (group.status, group.reason) == ("ok", None)
    assert [rank["rank"] for rank in group.ranks] == [0, 1, 2]
    assert [event["epoch"] for event in events] == [0, 1, 2]
    assert group.log == "".join(f"==== rank {r} ====\nhello from rank {r}\n" for r in range(3))
    assert 0 < group.wall_s < 30


def test_environment_of_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "show_env.py").write_text(
        "import json, os, sys\n"
        "out = os.path.dirname(sys.argv[1]); r = os.environ['RANK']\n"
        "json.dump(dict(os.environ), open(f'{out}/env-{r}.json', 'w'))\n"
        "json.dump({'rank': int(r), 'status': 'ok'}, open(f'{out}/rank{r}.json', 'w'))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    settings = SETTINGS | {"threads": 3}
    assert run_group(write_job(tmp_path), placements_of(range(2), 2), worker="show_env", **settings).status == "ok"
    env = json.loads((tmp_path / "env-1.json").read_text())
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PYTHONUNBUFFERED")
    assert [env[name] for name in names] == ["1", "2", "1", "2", "1"]
    libraries = ("OMP", "MKL", "OPENBLAS", "NUMBA")
    assert {env[f"{library}_NUM_THREADS"] for library in libraries} == {"3"}
    flags = Path(f"/sys/class/net/{env['GLOO_SOCKET_IFNAME']}/flags")
    assert int(flags.read_text(), 16) & 0x8  # IFF_LOOPBACK
    for said, expected in (("no.such.card", {"lo", "lo0"}), (other := sorted(psutil.net_if_addrs())[-1], {other})):
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", said)
        run_group(write_job(tmp_path), placements_of(range(1), 1), worker="show_env", **settings)
        assert json.loads((tmp_path / "env-0.json").read_text())["GLOO_SOCKET_IFNAME"] in expected


@pytest.mark.parametrize("namespace", [None, 7])
def test_the_users_interface_for_nccl_stays_but_in_a_namespace(
    namespace: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    [placement] = placements_of(range(1), 2, "eth7")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    assert rank_environment(placement, 1)["NCCL_SOCKET_IFNAME"] == "eth7"
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    env = rank_environment(replace(placement, namespace=namespace), 1)
    assert env["NCCL_SOCKET_IFNAME"] == ("ib0" if namespace is None else "eth7")


@pytest.mark.parametrize(
    ("threads", "local_world", "pins", "policy"),
    [
        (2, 1, None, None),  # torch's default: threads spin
        (4, 1, None, None),
        (2, 2, None, None),
        (2, 3, None, "passive"),
        (3, 2, None, "passive"),
        (2, 1, (5,), "passive"),  # two threads on one core
        (2, 1, (4, 5), None),
        (1, 1, None, "passive"),
    ],
)
def test_threads_spin_where_a_rank_has_its_cores_to_itself(
    threads: int, local_world: int, pins: tuple[int, ...] | None, policy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.launch.process.cores", lambda: 4)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    placement = replace(placements_of(range(local_world), local_world)[0], cores=pins)
    assert rank_environment(placement, threads).get("OMP_WAIT_POLICY") == policy
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")  # the user's own
    assert rank_environment(placement, threads)["OMP_WAIT_POLICY"] == "active"


def test_a_rank_exits_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = run(tmp_path, monkeypatch, {1: "exit1", 0: "hang"})
    assert (group.status, group.reason) == ("error", "rank 1 exited with code 1: ValueError: planted")
    assert group.ranks == []
    assert group.wall_s < 20
    assert "ValueError: planted" in group.log.split("==== rank 1 ====")[1]
    assert not any(map(alive, pids(tmp_path)))


def test_the_cause_wins_over_a_lost_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE_S", 10.0)
    group = run(tmp_path, monkeypatch, {0: "lost", 1: "kill"})
    assert (group.status, group.reason) == ("error", "rank 1 was killed by signal 9 (SIGKILL)")
    assert [rank["status"] for rank in group.ranks] == ["error"]
    assert group.wall_s < 8  # the grace ends when all have


def test_a_lost_connection_alone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = run(tmp_path, monkeypatch, {0: "lost"})
    assert group.status == "error"
    assert group.reason == "rank 0 said: RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:4242"


@pytest.mark.parametrize("status", ["oom", "invalid", "diverged"])
def test_a_status_of_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    group = run(tmp_path, monkeypatch, {0: "exit1", 1: status})
    assert (group.status, group.reason) == (status, f"rank 1 said: planted {status}")


def test_sigkill_is_oom_when_the_kernel_counted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([4, 5])
    monkeypatch.setattr(module, "oom_kills", lambda: next(counts))
    group = run(tmp_path, monkeypatch, {1: "kill", 0: "hang"})
    assert group.status == "oom"
    assert group.reason is not None
    assert group.reason.startswith("rank 1 was killed by signal 9 (SIGKILL): ")


@pytest.mark.quick(1)
@pytest.mark.parametrize("what", ["nothing", "damaged"])
def test_no_result_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    group = run(tmp_path, monkeypatch, {0: what, 1: "hang"})
    assert (group.status, group.reason) == ("error", "rank 0 ended without a result")
    assert group.ranks == []


@pytest.mark.quick(1)
@pytest.mark.parametrize("what", ["hang", "stubborn"])
def test_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    group = run(tmp_path, monkeypatch, {0: what}, timeout_s=1.5)
    assert (group.status, group.reason) == ("timeout", "time limit of 1.5 s reached after 3 of 10 epochs")
    assert [rank["rank"] for rank in group.ranks] == [1]
    assert "hello from rank 0\n" in group.log
    assert not any(map(alive, pids(tmp_path)))
    assert group.wall_s < 10


def test_what_a_rank_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(tmp_path, monkeypatch, {0: "child"}).status == "ok"
    child = int((tmp_path / "child-0").read_text())
    wait_for(lambda: not alive(child))


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux tells when a process ends")
def test_the_end_of_a_rank_ends_the_wait() -> None:
    """The test's time limit is shorter than the wait."""
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as first,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as second,
    ):
        ranks = [RankProcess(0, first.pid, first), RankProcess(1, second.pid, second)]
        wait_for_end(ranks, 0.01)
        assert not any(rank.ended() for rank in ranks)
        for process, rank in ((second, ranks[1]), (first, ranks[0])):
            assert process.stdin is not None
            process.stdin.close()
            wait_for_end(ranks, 600)
            assert rank.ended()


def test_ranks_are_waited_for_where_the_kernel_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", refused, raising=False)
    assert run(tmp_path, monkeypatch, {}).status == "ok"
    monkeypatch.delattr(os, "pidfd_open")
    (tmp_path / "again").mkdir()
    assert run(tmp_path / "again", monkeypatch, {}).status == "ok"


def test_an_exception_in_the_runner_ends_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(event: dict) -> None:
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        run(tmp_path, monkeypatch, {0: "hang", 1: "stubborn"}, on_progress=fail)
    assert not any(map(alive, pids(tmp_path)))


def start_runner(out: Path, warm: bool) -> subprocess.Popen[bytes]:
    """A process of its own that runs a group which hangs."""
    script = (
        "import sys; from pathlib import Path; from harness.launch.group import run_group\n"
        "from harness.launch.process import placements_of\n"
        "out = Path(sys.argv[1])\n"
        f"options = dict(threads=1, timeout_s=50, on_progress=print, worker='launch.fake_worker', warm={warm})\n"
        "run_group(out / 'job.json', placements_of(range(2), 2), **options)\n"
    )
    write_job(out)
    env = os.environ | {"FAKE_RANKS": '{"0": "orphan", "1": "stubborn"}'}
    return subprocess.Popen([sys.executable, "-c", script, str(out)], env=env, stderr=subprocess.PIPE)


@pytest.mark.quick(1)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_rank_outlives_the_runner(tmp_path: Path, number: signal.Signals, start: str) -> None:
    """Nor does what a rank detached, whatever its session, parent and environment."""
    runner = start_runner(tmp_path, warm=start == "warm")
    try:
        wait_for(lambda: len(pids(tmp_path)) == 3)
        assert all(map(alive, pids(tmp_path)))
        runner.send_signal(number)
        _, stderr = runner.communicate(timeout=20)
        wait_for(lambda: not any(map(alive, pids(tmp_path))))
    finally:
        runner.kill()
    assert (b"KeyboardInterrupt" in stderr) == (number == signal.SIGINT)  # handed on to the caller
