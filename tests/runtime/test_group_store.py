"""The run's store as torch uses one: two ranks that find each other through it, as those of two machines do."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta

import pytest

from harness.launch.process import loopback
from harness.launch.store_server import start_store, stop_store
from harness.runtime.group_store import GroupStore
from harness.runtime.run_store import StoreConnection, run_secret

pytestmark = pytest.mark.timeout(120)
RANK = """\
import sys
from datetime import timedelta
import torch
from torch import distributed as dist
from harness.runtime.group_store import GroupStore
from harness.runtime.run_store import StoreConnection, run_secret

rank, port, limit = int(sys.argv[1]), int(sys.argv[2]), timedelta(seconds=60)
store = GroupStore(StoreConnection("127.0.0.1", port, run_secret(), 60), "run/ranks", limit)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=limit)
told = torch.tensor([float(rank + 1)])
dist.all_reduce(told)
print(told.item())
"""


@pytest.fixture
def port() -> Iterator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    port = int(listening.getsockname()[1])
    process = start_store(listening)
    yield port
    stop_store(process)


def test_it_does_what_torchs_own_do(port: int) -> None:
    connection = StoreConnection("127.0.0.1", port, run_secret(), 20)
    store = GroupStore(connection, "run", timedelta(seconds=0.2))
    store.set("a", "text")
    assert store.get("a") == b"text"
    assert store.check(["a"])
    assert not store.check(["a", "b"])
    assert [store.add("n", 2), store.add("n", 3)] == [2, 5]
    assert connection.get("run/n") == b"5"  # where no other trial's are
    clone = store.clone()
    assert clone.get("a") == b"text"
    assert clone.num_keys() == 2
    assert (store.delete_key("a"), store.delete_key("a")) == (True, False)
    with pytest.raises(RuntimeError, match="connection timed out"):
        store.get("a")


def test_ranks_find_each_other(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", loopback())
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(rank), str(port)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    assert [rank.communicate(timeout=100)[0].strip() for rank in ranks] == ["3.0", "3.0"]
