"""The link between nodes over a real store on the loopback, and a node's pulse."""

from __future__ import annotations

import os
import random
import socket
import threading
import time

import psutil
import pytest

from harness.errors import UserError
from harness.launch import rendezvous
from harness.launch.process import loopback
from harness.launch.pulse import beat_key, gone_key, pulse
from harness.launch.rendezvous import Cluster, HeadLost, Link, NotMet, address_towards, interface_of, is_here, open_link

pytestmark = pytest.mark.timeout(60)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(2, "127.0.0.1", free_port(), rdzv_timeout_s=2, node_timeout_s=5)


@pytest.fixture
def links(cluster: Cluster) -> tuple[Link, Link]:
    return open_link(cluster), open_link(cluster)


def test_the_first_to_listen_is_the_head(links: tuple[Link, Link]) -> None:
    assert [link.head for link in links] == [True, False]


def test_messages(links: tuple[Link, Link], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those above the store's limit of 8 MiB, which it answers by ending the connection."""
    head, member = links
    assert head.get("nothing") is None
    large = random.Random(0).randbytes(6 << 20).hex()  # compresses to half: 6 MiB
    monkeypatch.setattr(rendezvous, "CHUNK", 1 << 20)
    for value in ({"a": [1, None, float("inf")], "b": "é"}, large, ""):
        member.put("said", value)
        assert head.get("said") == value
        assert head.take("said") == value
        assert head.get("said") is None
    assert not any(head.has(f"said#{number}") for number in range(8))


def test_a_message_that_is_too_large(links: tuple[Link, Link], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "LARGEST", 100)
    with pytest.raises(ValueError, match="MiB"):
        links[1].put("said", random.Random(0).randbytes(200).hex())
    assert links[0].get("said") is None


def test_nodes_meet(links: tuple[Link, Link]) -> None:
    ranks: list[int] = []

    def join(link: Link) -> None:
        with link.meet("trial") as rank:
            ranks.append(rank)
            while len(ranks) < 2:
                time.sleep(0.05)

    other = threading.Thread(target=join, args=[links[1]])
    other.start()
    join(links[0])
    other.join()
    assert sorted(ranks) == [0, 1]


def test_a_node_that_never_comes(links: tuple[Link, Link]) -> None:
    start = time.monotonic()
    what = r"not all of the 2 nodes came within 2 s \(--rdzv-timeout\)"
    with pytest.raises(NotMet, match=what), links[0].meet("trial"):
        pytest.fail("alone")
    assert time.monotonic() - start < 15
    with pytest.raises(NotMet), links[1].meet("trial"):  # it was ended: who comes late does not wait
        pytest.fail("late")


def test_no_answer_is_a_lost_head(cluster: Cluster) -> None:
    """Not an operation that waits for ever, as the store's do when packets vanish."""

    class Mute:
        def check(self, keys: list[str]) -> bool:
            time.sleep(60)
            return True

    link = Link(Mute(), Cluster(2, "10.0.0.1", 1, node_timeout_s=0.3), head=False)
    start = time.monotonic()
    for _ in range(2):
        with pytest.raises(HeadLost, match=r"the head at 10\.0\.0\.1:1 does not answer"):
            link.has("x")
    assert time.monotonic() - start < 5


def test_no_head() -> None:
    cluster = Cluster(2, "127.0.0.1", free_port(), head=False, rdzv_timeout_s=0.5)
    with pytest.raises(UserError, match=r"no head at 127\.0\.0\.1:\d+ within 0\.5 s"):
        open_link(cluster)


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        cluster = Cluster(2, "127.0.0.1", taken.getsockname()[1], head=True)
        with pytest.raises(UserError, match="cannot listen at port"):
            open_link(cluster)


def test_who_is_here() -> None:
    assert is_here("127.0.0.1")
    assert is_here("localhost")
    assert is_here(socket.gethostname())
    assert not is_here("192.0.2.1")  # RFC 5737: nobody's
    assert not is_here("no-such-host.invalid")


def test_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert interface_of(address_towards("127.0.0.1", 1)) == loopback()
    with pytest.raises(UserError, match="no interface has the address"):
        interface_of("192.0.2.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert interface_of("127.0.0.1") == "ib0"


def test_pulse(links: tuple[Link, Link]) -> None:
    head = links[0]
    before = set(psutil.Process(os.getpid()).children())
    with pulse("127.0.0.1", head.cluster.port, "me", 0.1):
        [process] = set(psutil.Process(os.getpid()).children()) - before
        deadline = time.monotonic() + 30
        while int(head.text(beat_key("me")) or 0) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert not head.has(gone_key("me"))
    assert head.has(gone_key("me"))
    assert not process.is_running()
