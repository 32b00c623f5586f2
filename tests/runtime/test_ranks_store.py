"""The store in which ranks of several machines find each other, as torch uses it."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta

import pytest

from harness.launch.process import loopback
from harness.launch.rendezvous import Cluster, Hub
from harness.runtime.channel import connect_channel, group_store

pytestmark = pytest.mark.timeout(120)
RANK = """\
import sys
from datetime import timedelta
import torch
from torch import distributed as dist
from harness.runtime.channel import connect_channel, group_store

rank, port, limit = int(sys.argv[1]), int(sys.argv[2]), timedelta(seconds=60)
store = group_store(connect_channel("127.0.0.1", port, 60), "run", limit)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=limit)
told = torch.tensor([float(rank + 1)])
dist.all_reduce(told)
print(told.item())
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    hub = Hub(Cluster(2, "127.0.0.1", port), "127.0.0.1")
    yield hub
    hub.close()


def test_it_does_what_torchs_own_do(hub: Hub) -> None:
    channel = connect_channel("127.0.0.1", hub.cluster.port, 20)
    store = group_store(channel, "run", timedelta(seconds=0.2))
    store.set("a", "text")
    assert store.get("a") == b"text"
    store.set("bytes", bytes(range(256)))
    assert store.get("bytes") == bytes(range(256))
    assert store.check(["a"])
    assert not store.check(["a", "b"])
    assert [store.add("n", 2), store.add("n", 3)] == [2, 5]
    assert hub._stores["run"]["n"] == "5"  # where no other trial's are
    clone = store.clone()
    assert clone.get("a") == b"text"
    assert (store.delete_key("a"), store.delete_key("a")) == (True, False)
    with pytest.raises(RuntimeError, match="connection timed out"):
        store.get("a")


@pytest.mark.slow
def test_ranks_find_each_other(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", loopback())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(hub.cluster.port)], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    assert [rank.communicate(timeout=100)[0].strip() for rank in ranks] == ["3.0", "3.0"]
