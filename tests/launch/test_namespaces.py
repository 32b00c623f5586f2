"""Namespaces need no root, end with their context, and with the last process that holds them."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.launch.namespaces import inside
from harness.launch.network import Command, CommandError, namespaces

TESTS = Path(__file__).resolve().parents[1]
pytestmark = [pytest.mark.root, pytest.mark.timeout(60)]


def here() -> set[str]:
    """Return the network namespaces that a process is in, as the kernel names them."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.add(os.readlink(process / "ns/net"))
        except OSError:
            continue
    return found


def wait_for(condition, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_they_are_gone_afterwards(error: type[BaseException] | None) -> None:
    before = set(os.listdir("/proc/self/fd"))
    caught = None
    try:
        with namespaces(2) as found:
            own = {os.fstat(each).st_ino for each in found}
            assert len(own | {os.stat("/proc/self/ns/net").st_ino}) == 3
            if error is not None:
                raise error("planted")
    except BaseException as raised:
        caught = type(raised)
    assert caught is error
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_failing_line_is_named() -> None:
    before = set(os.listdir("/proc/self/fd"))
    lines = Command(1, "ip", ["link set lo up", "link set nothing up", "link set lo down"])
    with pytest.raises(CommandError) as caught, namespaces(2, [Command(0, "ip", ["link set lo up"]), lines]):
        pytest.fail("they were made")
    assert re.search(r"^`ip link set nothing up`: Cannot find device .nothing.$", str(caught.value))
    assert caught.value.number == 1
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_tool_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("harness.launch.network.SBIN", ())
    with pytest.raises(UserError, match="No such file"), namespaces(1, [Command(0, "ip", ["link"])]):
        pytest.fail("they were made")


def test_a_killed_runner(tmp_path: Path) -> None:
    """Its ranks end with it, and so do its namespaces."""
    script = (
        "import sys; from pathlib import Path; from harness.launch.group import run_group\n"
        "from harness.launch.network import network; from harness.suite.sections import NetworkSpec\n"
        "out = Path(sys.argv[1])\n"
        "options = dict(threads=1, timeout_s=50, on_progress=print, worker='launch.fake_worker')\n"
        "with network(NetworkSpec(rate='1gbit'), 2) as places:\n"
        "    run_group(out / 'job.json', places, **options)\n"
    )
    (tmp_path / "job.json").write_text(f'{{"out": "{tmp_path}", "config": {{}}}}')
    env = os.environ | {"FAKE_RANKS": '{"0": "hang", "1": "stubborn"}', "PYTHONPATH": str(TESTS)}
    runner = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], env=env)

    def ranks() -> list[int]:
        return [int(path.read_text() or 0) for path in tmp_path.glob("pid-*")]

    try:
        wait_for(lambda: len(ranks()) == 2 and all(ranks()))
        made = {os.readlink(f"/proc/{rank}/ns/net") for rank in ranks()}
        assert len(made - {os.readlink("/proc/self/ns/net")}) == 2
        for rank in ranks():  # no process between the runner and the rank: its signals arrive
            assert os.getsid(rank) == rank
        runner.send_signal(signal.SIGKILL)
        runner.wait()
        wait_for(lambda: not any(Path(f"/proc/{rank}").exists() for rank in ranks()))
        wait_for(lambda: not made & here())  # a process that ends holds them a moment longer
    finally:
        runner.kill()
        runner.wait()


def test_inside() -> None:
    script = "cat /proc/net/dev; ls /sys/class/net; pwd"
    with namespaces(1) as found:
        shown = subprocess.run([*inside(found[0]), "sh", "-c", script], pass_fds=found, capture_output=True, text=True)
        gone = subprocess.run([*inside(found[0]), "true"], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    *proc, sys_lo, directory = shown.stdout.splitlines()[2:]
    assert [line.partition(":")[0].strip() for line in proc] == ["lo"]
    assert (sys_lo, directory) == ("lo", os.getcwd())
    assert (gone.returncode, gone.stderr) == (1, "true: Bad file descriptor\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to start a command as another user")
def test_another_user_than_root(tmp_path: Path) -> None:
    """A user makes networks without root; what runs in them has no capability, there or elsewhere."""
    from harness.launch import namespaces as module

    nobody, python = pwd.getpwnam("nobody"), Path("/usr/bin/python3")
    if not python.exists():
        pytest.skip("no Python that another user can run")
    place = Path("/tmp", f"harness-test-{os.getpid()}.py")
    shutil.copy(module.__file__, place)
    place.chmod(0o644)
    script = f"""
import json, os, socket, subprocess, sys
ours, theirs = socket.socketpair()
helper = subprocess.Popen([{str(python)!r}, "-I", "-S", {str(place)!r}], stdin=theirs)
theirs.close()
lines = ["link set lo up", "link add cable type veth"]
shape = "qdisc add dev cable root tbf rate 1gbit burst 30000 limit 100000"
ours.sendall(json.dumps({{"count": 1, "commands": [[0, "ip", lines], [0, "tc", [shape]]]}}).encode())
ours.shutdown(socket.SHUT_WR)
said, found, _, _ = socket.recv_fds(ours, 1 << 16, 9)
print(said.decode())
tried = "ls /sys/class/net; grep -E 'Uid|CapPrm|CapEff|CapAmb' /proc/self/status; ip link set lo down"
command = [{str(python)!r}, "-I", "-S", {str(place)!r}, str(found[0]), "sh", "-c", tried]
subprocess.run(command, pass_fds=found, stderr=subprocess.STDOUT)
"""
    try:
        done = subprocess.run(
            [python, "-c", script],
            user=nobody.pw_uid,
            group=nobody.pw_gid,
            extra_groups=(),
            cwd="/",
            capture_output=True,
            text=True,
        )
    finally:
        place.unlink()
    answer, *names, uid, permitted, effective, ambient, refused = done.stdout.splitlines()
    if "not permitted" in answer:
        pytest.skip(f"this system gives a user no namespaces: {answer}")
    assert answer == "{}", done.stderr
    assert set(names) == {"cable", "lo", "veth0"}
    assert set(uid.split()[1:]) == {str(nobody.pw_uid)}
    assert {int(line.split()[1], 16) for line in (permitted, effective, ambient)} == {0}
    assert "Operation not permitted" in refused
