"""Ranks on a network of their own: who can reach whom, what the machine sees of it, how fast it is."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import NoReturn

import pytest
from launch.tiny import SUITE, TESTS, Silent, write_suite
from support.exchanges import exchanges, rates

from harness.errors import UserError
from harness.launch import network as module
from harness.launch.network import network, shaped_if_possible, why_not
from harness.launch.planner import plan
from harness.launch.process import placements_of
from harness.launch.runner import run_suite
from harness.launch.slots import RunOptions
from harness.results.record_store import ResultStore, read_at
from harness.suite.expand import expand
from harness.suite.schema import Suite
from harness.suite.sections import NetworkSpec
from harness.suite.suite_file import load_suite

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def _workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)


def test_without_a_network_ranks_are_on_the_loopback() -> None:
    with network(None, 3) as places:
        assert places == placements_of(range(3), 3)


@pytest.mark.slow
@pytest.mark.root
def test_ranks_reach_each_other_in_namespaces(tmp_path: Path) -> None:
    world = 3
    devices = set(os.listdir("/sys/class/net"))
    size = 1_000_000
    reports = exchanges(NetworkSpec(), world, [size], tmp_path)
    assert [report["wrong"] for report in reports] == [0] * world
    spaces = {report["namespace"] for report in reports}
    assert len(spaces) == world
    assert os.stat("/proc/self/ns/net").st_ino not in spaces
    for report in reports:
        # All of it passed the host's own interface, headers and some control on top, and nothing else did.
        for counted in report["interface"]:
            assert size * (world - 1) < counted < 1.1 * size * (world - 1)
        assert report["loopback"] == [0, 0]
        assert report["session"]
        assert report["stdin"]
    assert set(os.listdir("/sys/class/net")) == devices


@pytest.mark.slow
@pytest.mark.root
def test_ranks_of_one_host_do_not_use_its_link(tmp_path: Path) -> None:
    size = 1_000_000
    with network(NetworkSpec(ranks_per_host=2), 3) as places:
        assert [(place.rank, place.local_rank, place.world, place.local_world) for place in places] == [
            (rank, rank, 3, 3) for rank in range(3)
        ]
    reports = exchanges(NetworkSpec(ranks_per_host=2), 3, [size], tmp_path)
    assert [report["wrong"] for report in reports] == [0, 0, 0]
    spaces = [report["namespace"] for report in reports]
    assert spaces[0] == spaces[1] != spaces[2]
    sent = [report["interface"][1] for report in reports]
    assert all(2 * size < counted < 2.2 * size for counted in sent)  # 0 and 1 to 2; 2 to 0 and 1
    assert reports[0]["loopback"][1] > 2 * size  # 0 and 1 to each other


@pytest.mark.alone
@pytest.mark.root
def test_a_rate_is_kept(tmp_path: Path) -> None:
    """The shaper acts, and nothing but it: `benchmarks/test_network.py` has the narrow limits."""
    messages = [2_000_000, 200_000, 16_000_000]
    measured = rates(exchanges(NetworkSpec(rate="100mbit"), 2, messages, tmp_path), messages)
    assert max(measured) < 110e6
    assert measured[-1] > 50e6


def held() -> list[str]:
    """Return the network namespaces that this process has a descriptor of."""
    links = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            links.append(os.readlink(path))
    return [link for link in links if link.startswith("net:")]


REFUSED = (
    "network 1gbit needs user namespaces, or root: unshare: Operation not permitted (sysctl user.max_user_namespaces, "
    "kernel.apparmor_restrict_unprivileged_userns; a container: --privileged)"
)


def refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a system does that lets its users make no user namespaces."""

    def refused(*arguments: object) -> NoReturn:
        raise UserError("unshare: Operation not permitted")

    monkeypatch.setattr(module.shutil, "which", lambda tool, path=None: f"/sbin/{tool}")
    monkeypatch.setattr(module, "namespaces", refused)


def test_why_not_without_user_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch)
    assert why_not(NetworkSpec(rate="1gbit")) == REFUSED


def test_why_not_without_iproute2(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(module, "SBIN", ())
    assert why_not(NetworkSpec(rate="1gbit", latency="50us")) == (
        "network 1gbit+50us needs ip and tc (apt install iproute2)"
    )


def test_a_tool_outside_of_the_users_path_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Debian's users have no /usr/sbin in their PATH, where `tc` is."""
    tool = tmp_path / "sbin" / "tc"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(module, "SBIN", (str(tool.parent),))
    assert module.found_tool("tc") == str(tool)
    assert module.found_tool("ip") is None


@pytest.mark.root
@pytest.mark.parametrize(("lacking", "module_name"), [("netem", "sch_netem"), ("tbf", "sch_tbf")])
def test_why_not_with_this_kernel(monkeypatch: pytest.MonkeyPatch, lacking: str, module_name: str) -> None:
    """A kernel without a queueing discipline keeps only the networks that need it from running."""
    real = module.namespaces

    def without(count: int, commands: list[module.Command]) -> AbstractContextManager[list[int]]:
        # One that is unknown to every kernel stands for the one that this kernel is to lack.
        others = [
            each._replace(lines=[line.replace(f" {lacking} ", " harnessnone ") for line in each.lines])
            for each in commands
        ]
        # whatever this kernel has of the other
        present = [each._replace(lines=[line for line in each.lines if " netem " not in line]) for each in others]
        return real(count, present)

    monkeypatch.setattr(module, "namespaces", without)
    needs = {"netem": NetworkSpec(latency="50us"), "tbf": NetworkSpec(rate="1gbit")}
    assert why_not(NetworkSpec()) is None
    reason = why_not(needs.pop(lacking))
    assert reason is not None
    assert f"needs the kernel module {module_name} (modprobe {module_name}): " in reason
    assert why_not(needs.popitem()[1]) is None


@pytest.mark.root
def test_a_command_that_fails_is_named_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_tbf", lambda spec: "harnessnone")
    before = held()
    with pytest.raises(UserError, match=r"^`tc qdisc add dev port0 root harnessnone`: "):
        network(NetworkSpec(rate="1gbit"), 2).__enter__()
    assert held() == before


def prepare(directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Suite, ResultStore, RunOptions]:
    """A trial on the loopback and the same on a network, with fake ranks."""
    text = SUITE.replace("parts: [1, 2]", "parts: 2").replace("seeds: [0, 1, 2]", "seeds: [0]")
    suite = load_suite(write_suite(directory, text + "network: [none, {rate: 1gbit}]\n"))
    monkeypatch.setenv("HARNESS_DATA", str(directory / "data"))
    return suite, ResultStore(directory / "results", suite.name), RunOptions(worker="launch.fake_worker")


@pytest.mark.slow
def test_a_trial_whose_network_cannot_be_had_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the others of the suite run; the plan says so before."""
    refuse(monkeypatch)
    suite, store, options = prepare(tmp_path, monkeypatch)
    trials = expand(suite)
    planned = {p.trial.network is None: (p.state, p.reason) for p in plan(trials, store, options)}
    assert planned == {True: ("run", None), False: ("skip", REFUSED)}
    assert run_suite(suite, trials, store, options, Silent()) == 0
    records = [read_at(store.directory / trial.id) for trial in trials]
    assert [(record.status, record.reason) for record in records] == [("ok", None), ("skipped", REFUSED)]


def test_a_suite_whose_shaping_is_optional_runs_over_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = Suite.model_validate(
        {"name": "s", "datasets": ["digits"], "methods": ["full"], "network": ["none", "1gbit", "10gbit"], "seeds": [0]}
    )
    said: list[str] = []
    lacking = {"1gbit": "no user namespaces"}
    monkeypatch.setattr("harness.launch.network.why_not", lambda spec: lacking.get(spec.label))
    assert [spec and spec.label for spec in shaped_if_possible(suite, said.append).network] == [None, "10gbit"]
    assert said == ["no user namespaces; trials run over the loopback instead, from which the report projects"]
    lacking.clear()
    assert shaped_if_possible(suite, said.append).network == suite.network
    assert len(said) == 1


@pytest.mark.root
def test_a_trial_on_a_network_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = held()
    suite, store, options = prepare(tmp_path, monkeypatch)
    assert [p.state for p in plan(expand(suite), store, options)] == ["run", "run"]
    assert run_suite(suite, expand(suite), store, options, Silent()) == 0
    assert sorted(store.finished().values()) == ["ok", "ok"]
    assert held() == before
