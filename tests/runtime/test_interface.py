from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.wire import verified

from harness.check.training import run_ranks
from harness.runtime.comm import Counters, read_counters

TABLE = """\
Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier
    lo: 1111      11    0    0    0     0          0         0     2222      22    0    0    0     0       0
  eth0:  333       3    0    0    0     0          0         0      444       4    0    0    0     0       0
 eth01:  555       3    0    0    0     0          0         0      666       4    0    0    0     0       0
"""


def test_counters_are_those_of_the_interface(tmp_path: Path) -> None:
    (tmp_path / "self/net").mkdir(parents=True)
    (tmp_path / "self/net/dev").write_text(TABLE)
    assert read_counters("eth0", tmp_path) == Counters(received=333, sent=444)
    assert read_counters("lo", tmp_path) == Counters(received=1111, sent=2222)
    assert read_counters("eth", tmp_path) is None
    assert read_counters("eth0", tmp_path / "absent") is None


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
