"""A run that root starts for somebody else is theirs: processes, files, networks."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from pwd import struct_passwd

import psutil
import pytest
from e2e.cli import PLUGINS, CommandLine, records, trains, wait_until
from support.somebody import somebody

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(400)]

SUITE = """\
name: theirs
datasets: digits
methods: nosy
partition: {parts: 2}
network: NETWORK
train: {epochs: EPOCHS, eval_every: 0, threads: 1}
timing: 'off'
plugins: [nosy.py]
"""


@pytest.fixture(scope="module")
def theirs() -> Iterator[tuple[CommandLine, struct_passwd]]:
    """One place for all tests here: kernels are compiled once in it."""
    with somebody() as (command, user):
        (command.directory / "nosy.py").write_bytes((PLUGINS / "nosy.py").read_bytes())
        nosy = command.directory / "nosy"
        nosy.mkdir()
        os.chown(nosy, user.pw_uid, user.pw_gid)
        command.variables["NOSY"] = str(nosy)
        yield command, user


def write(command: CommandLine, network: str, epochs: int) -> Path:
    suite = command.directory / "theirs.yaml"
    suite.write_text(SUITE.replace("NETWORK", network).replace("EPOCHS", str(epochs)))
    return suite


def status(process: psutil.Process) -> dict[str, str]:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def is_theirs(process: psutil.Process, user: struct_passwd) -> None:
    found = status(process)
    assert found["Uid"].split() == [str(user.pw_uid)] * 4, found
    assert found["Gid"].split() == [str(user.pw_gid)] * 4, found
    assert {int(found[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}, found
    assert found["NoNewPrivs"] == "1"


@pytest.mark.parametrize("start", ["--warm", "--cold"])
@pytest.mark.parametrize("network", ["none", "1gbit"])
def test_every_process_is_theirs_while_it_trains(
    theirs: tuple[CommandLine, struct_passwd], network: str, start: str
) -> None:
    """Seen from outside; asked to end, the runner ends its ranks, and nothing of its networks is left."""
    command, user = theirs
    suite, results = write(command, network, 100_000), f"results-{network}{start}"
    runner = command.start("run", suite.name, "--results", results, start)
    try:
        wait_until(lambda: trains(command.directory / results / "theirs"), runner, 200)
        processes = psutil.Process(runner.pid).children(recursive=True)
        ranks = [each for each in processes if each.environ().get("RANK") or each.name().startswith("harness-rank")]
        assert len(ranks) == 2
        assert {each.name()[:12] for each in ranks} == (
            {"harness-rank"} if start == "--warm" else {ranks[0].name()[:12]}
        )
        for process in (psutil.Process(runner.pid), *processes):
            is_theirs(process, user)
        networks = {os.readlink(f"/proc/{each.pid}/ns/net") for each in ranks} - {os.readlink("/proc/self/ns/net")}
        assert len(networks) == (0 if network == "none" else 2)
        runner.send_signal(signal.SIGTERM)
        said = runner.communicate(timeout=60)
        assert runner.returncode == 130, said
        assert not [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    finally:
        runner.kill()
        runner.wait()


def test_records_are_theirs_and_a_plugin_reaches_nothing_of_roots(theirs: tuple[CommandLine, struct_passwd]) -> None:
    command, user = theirs
    suite = write(command, "[none, 1gbit]", 3)
    done = command.run("run", suite.name, timeout_s=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "start cold" not in done.stdout
    found = sorted(
        records(command.directory / "results" / "theirs").values(),
        key=lambda record: record["config"]["network"] is None,
    )
    assert [record["status"] for record in found] == ["ok", "ok"]
    assert len({record["result"]["checksum"] for record in found}) == 1
    assert found[0]["ranks"][0]["link"]["network"] != found[0]["ranks"][1]["link"]["network"]
    assert found[0]["ranks"][0]["link"]["mtu"] == 1500  # of its own /sys
    written = [path for place in ("results", "cache") for path in (command.directory / place).rglob("*")]
    assert len(written) > 20
    assert {path.lstat().st_uid for path in written} == {user.pw_uid}
    tried = {
        path.name.split("-")[0]: json.loads(path.read_text()) for path in Path(command.variables["NOSY"]).iterdir()
    }
    assert {"runner", "rank0", "rank1"} <= {*tried}
    assert {name: reached for name, reached in tried.items() if reached} == {}
