from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest
from support.ranks import run_ranks
from support.wire import communicator, verified

from harness.deferred import dist
from harness.runtime.audit import TrafficCheck

TABLE = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: {}    11    0    0    0     0          0         0     {}    22    0    0    0     0       0          0
  eth0: {}     3    0    0    0     0          0         0     {}     4    0    0    0     0       0          0
 eth01: {}     3    0    0    0     0          0         0     {}     4    0    0    0     0       0          0
"""  # noqa: E501 - as the kernel writes it


def check_on(interface: str, proc: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[object, object]:
    """Return the bytes (received, sent) that a check reads while those of the interfaces grow."""
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(proc))
    check = TrafficCheck(communicator(0, 1), interface)
    for grown in (1, 10):
        (proc / "net/dev").write_text(TABLE.format(*(100 + grown * number for number in (111, 222, 33, 44, 5, 6))))
        with check.epoch():
            (proc / "net/dev").write_text(TABLE.format(*(100 + 2 * grown * x for x in (111, 222, 33, 44, 5, 6))))
    report = check.report()
    return report["received_bytes"], report["sent_bytes"]


def test_counters_are_those_of_the_interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net").mkdir()
    assert check_on("eth0", tmp_path, monkeypatch) == (11 * 33, 11 * 44)
    assert check_on("lo", tmp_path, monkeypatch) == (11 * 111, 11 * 222)
    assert check_on("eth", tmp_path, monkeypatch) == (None, None)


def test_without_counters_no_bytes_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "absent"))
    check = TrafficCheck(communicator(0, 1), "eth0")
    with check.epoch():
        pass
    assert (check.report()["sent_bytes"], check.report()["counted_sent_bytes"]) == (None, 0)


@pytest.mark.parametrize("shaped", [False, True])
def test_what_nccl_moves_is_not_verified_but_on_a_shaped_network(
    shaped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/dev").write_text(TABLE.format(*range(6)))
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    comm, barriers = communicator(0, 2), list[int]()
    monkeypatch.setattr(comm, "barrier", lambda: barriers.append(1))
    check = TrafficCheck(comm, "eth0", shaped=shaped)
    with check.epoch():
        comm.traffic.count("feature", 0, "forward", 1, 5, 5)
    report = check.report()
    assert (report["sent_bytes"] is None) == (report["why_not"] is not None) == (not shaped)
    assert bool(barriers) == shaped


@pytest.mark.alone
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the kernel's /proc/net/dev")
def test_only_training_epochs_are_held_against_the_interface() -> None:
    rows = 20_000
    payload = 2 * rows * 64 * 4  # two epochs, sent to one peer
    for _ in range(5):  # other programs use the loopback too: one undisturbed run is proof
        results = run_ranks(verified, 2, rows)
        if all(2 * payload <= r["sent_bytes"] <= 2 * payload * 1.03 + 64 * 1024 for r in results):
            break
    for result in results:
        assert result["counted_sent_bytes"] == result["counted_received_bytes"] == payload
        assert 2 * payload <= result["sent_bytes"] <= 2 * payload * 1.03 + 64 * 1024
        assert (result["interface"], result["loopback"]) == ("lo", True)
