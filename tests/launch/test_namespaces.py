"""Namespaces end with their context, and those of a killed runner at the next start."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.launch.enter import command
from harness.launch.network import NAMESPACES, batch, clean_namespaces, namespace, namespaces, remove_namespaces

TESTS = Path(__file__).resolve().parents[1]
pytestmark = [pytest.mark.root, pytest.mark.timeout(60)]


def here() -> set[str]:
    """Names as `ip` tells them, not as the module under test finds them."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines()}


def wait_for(condition, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_they_are_gone_afterwards(error: type[BaseException] | None) -> None:
    names = [namespace("one"), namespace("two")]
    caught = None
    try:
        with namespaces(names):
            assert set(names) <= here()
            if error is not None:
                raise error("planted")
    except BaseException as raised:
        caught = type(raised)
    assert caught is error
    assert not set(names) & here()


def test_a_second_that_cannot_be_made_takes_the_first_with_it() -> None:
    first, second = namespace("first"), "no/name"
    with pytest.raises(UserError, match=r"^`ip netns add no/name`: .*no/name"), namespaces([first, second]):
        pytest.fail("it was made")
    assert first not in here()


def test_a_failing_line_is_named() -> None:
    name = namespace("line")
    expected = rf"^`ip -n {name} link set nothing up`: Cannot find device .nothing.$"
    with namespaces([name]), pytest.raises(UserError) as caught:
        batch("ip", ["link set lo up", "link set nothing up", "link set lo down"], "-n", name)
    assert re.search(expected, str(caught.value))


def test_a_killed_runner(tmp_path: Path) -> None:
    """Its ranks end with it; its namespaces stay until the next start, which leaves those of the living."""
    script = (
        "import sys; from pathlib import Path; from harness.launch.local import run_group\n"
        "from harness.launch.network import network; from harness.suite.sections import NetworkSpec\n"
        "out = Path(sys.argv[1])\n"
        "options = dict(threads=1, timeout_s=50, on_progress=print, worker='launch.fake_worker')\n"
        "with network(NetworkSpec(rate='1gbit'), 2) as places:\n"
        "    run_group(out / 'job.json', places, out, **options)\n"
    )
    (tmp_path / "job.json").write_text(f'{{"out": "{tmp_path}", "config": {{}}}}')
    env = os.environ | {"FAKE_RANKS": '{"0": "hang", "1": "stubborn"}', "PYTHONPATH": str(TESTS)}
    runner = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], env=env)

    def theirs() -> set[str]:
        return {name for name in here() if name.startswith(f"harness-{runner.pid}-")}

    def ranks() -> list[int]:
        return [int(path.read_text() or 0) for path in tmp_path.glob("pid-*")]

    try:
        wait_for(lambda: len(ranks()) == 2 and all(ranks()))
        made = theirs()
        assert len(made) == 3  # two hosts and the switch
        clean_namespaces()
        assert theirs() == made
        for rank in ranks():  # no process between the runner and the rank: its signals arrive
            assert os.getsid(rank) == rank
        runner.send_signal(signal.SIGKILL)
        runner.wait()
        wait_for(lambda: not any(Path(f"/proc/{rank}").exists() for rank in ranks()))
        clean_namespaces()
        assert not theirs()
    finally:
        runner.kill()
        runner.wait()
        clean_namespaces()


def test_only_a_runners_own_are_cleaned() -> None:
    pid, start = namespace("x").split("-")[1:3]
    reused = f"harness-{pid}-{int(start) - 1}-h0"  # this process's id, when it was someone else's
    others = [f"harness-{pid}", f"harnessed-{pid}-{int(start) - 1}-h0"]
    mine = namespace("h0")
    try:
        with namespaces([reused, *others, mine]):
            clean_namespaces()
            assert reused not in here()
            assert {*others, mine} <= here()
    finally:
        remove_namespaces([reused, *others, mine])


def test_inside() -> None:
    name = namespace("inside")
    with namespaces([name]):
        assert (NAMESPACES / name).exists()
        shown = subprocess.run([*command(name), "cat", "/proc/net/dev"], capture_output=True, text=True)
    devices = [line.partition(":")[0].strip() for line in shown.stdout.splitlines()[2:]]
    assert devices == ["lo"]
