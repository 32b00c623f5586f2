"""What a rank uses and sends, told apart by who did it; how much too much is flagged."""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from support.cheats import work

from harness.runtime.audit import SLACK_BYTES, CpuAccount, _unlike

linux = pytest.mark.skipif(sys.platform != "linux", reason="tells no threads")


def flagless(key: str, text: str) -> None:
    pytest.fail(f"{key}: {text}")


@linux
def test_seconds_of_threads_are_whose_they_are_when_those_have_ended_too() -> None:
    harness = ThreadPoolExecutor(1)
    harness.submit(work, 0.0).result()  # starts it
    usage = CpuAccount(1, flagless)
    method, products = ThreadPoolExecutor(1), ThreadPoolExecutor(1, "parts-of-1")
    usage.begins()
    method.submit(work, 0.04).result()
    harness.submit(work, 0.06).result()
    with usage.evaluation():
        products.submit(work, 0.06).result()
        work(0.03)
    for pool in (method, products, harness):
        pool.shutdown()
    usage.ends()
    told = usage.report()
    assert 0.04 <= told["method_cpu_s"] < 0.06
    assert 0.06 <= told["library_cpu_s"] < 0.1
    assert told["eval_method_cpu_s"] < 0.01
    assert told["children_cpu_s"] == 0


@linux
def test_pools_of_threads_are_held_to_the_cores() -> None:
    """Threads of OpenMP that a method asks for are not gloo's, though neither is Python's."""
    flags: list[tuple[str, str]] = []
    usage, threads = CpuAccount(1, lambda *flag: flags.append(flag)), torch.get_num_threads()
    usage.begins()
    before, start = time.process_time(), time.thread_time()
    torch.set_num_threads(4)
    rows = torch.ones(2**18)
    while (others := time.process_time() - before - (own := time.thread_time() - start)) < 0.15:
        rows.exp_().log_()
    torch.set_num_threads(threads)
    usage.epoch(own, own + others)  # as with a core for each thread, however busy the machine is
    usage.ends()
    told = usage.report()
    assert [key for key, _ in flags] == ["cores"]
    assert told["library_cpu_s"] >= 0.1


@linux
def test_without_threads_clocks_no_thread_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(clock: int) -> float:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(time, "clock_gettime", refused)
    with ThreadPoolExecutor(1) as pool:
        usage = CpuAccount(1, flagless)
        usage.begins()
        pool.submit(work, 0.1).result()
        with usage.evaluation():
            pool.submit(work, 0.1).result()
        usage.epoch(0.01, 0.12)
        usage.ends()
    assert usage.report()["library_cpu_s"] is None


def test_without_an_audit_only_the_trainers_seconds_are_read() -> None:
    """Threads, cores and living children are not looked at, whatever they do."""
    account, threads = CpuAccount(1, flagless, audited=False), torch.get_num_threads()
    account.begins()
    torch.set_num_threads(threads + 1)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work, 0.1).result()
    work(0.03)
    account.epoch(0.01, 0.14)
    torch.set_num_threads(threads)
    account.ends()
    told = account.report()
    assert told["main_cpu_s"] >= 0.03
    assert told["children_cpu_s"] == 0
    assert {told[f"{name}_cpu_s"] for name in ("library", "method", "eval_method")} == {None}


def test_children_are_found_where_nobody_can_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "waitid", raising=False)
    usage = CpuAccount(1, flagless)
    usage.begins()
    usage.ends()
    assert usage.report()["children_cpu_s"] >= 0


@pytest.mark.parametrize(
    ("name", "sent", "calls", "flagged"),
    [
        ("sockets", 10_000_000, 0, False),
        ("sockets", 10_560_000, 0, False),
        ("sockets", 10_600_000, 0, True),
        ("sockets", 10_600_000, 100, False),  # their headers
        ("sockets", 9_400_000, 100, True),  # they are never too many to miss bytes
        ("interfaces", 11_400_000, 0, False),  # 6907 frames, and as many words that they came
        ("interfaces", 11_500_000, 0, True),
    ],
)
def test_bytes_may_differ_by_headers_and_a_twentieth(name: str, sent: int, calls: int, flagged: bool) -> None:
    assert SLACK_BYTES == 65536
    assert bool(_unlike(name, sent, 10_000_000, calls)) is flagged


def test_variables_that_a_methods_module_changes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    flags: list[tuple[str, str]] = []
    monkeypatch.setenv("OMP_SCHEDULE", "static")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    usage = CpuAccount(1, lambda *flag: flags.append(flag), audited=False)
    usage.imported()
    assert flags == []
    monkeypatch.setenv("OMP_SCHEDULE", "dynamic")
    monkeypatch.delenv("MKL_CBWR")
    monkeypatch.setenv("ODD", "1")
    usage.imported()
    assert flags == [("environment", "changed when the method was imported: MKL_CBWR, ODD, OMP_SCHEDULE")]
