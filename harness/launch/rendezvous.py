"""Rendezvous: how the nodes of a run find the coordinator, and how they talk to it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock, Thread
from typing import Any, TypeVar

import psutil

from harness.errors import UserError
from harness.launch.process import is_loopback
from harness.runtime.channel import CROWDED_S, VARIABLE, Channel, Crowded, Refused, answer, connect_channel, run_secret

DEFAULT_PORT = 29400  # torchrun takes the same
POLL_S = 0.1  # between two looks, while nothing trains
FAR_AWAY = "192.0.2.1"  # RFC 5737: nobody's, so it is reached, if at all, as everybody far away is
MOST_STRANGERS = 64  # connections without a proof of the secret: of more, the oldest ends
CALL = "call"  # the coordinator's order that names the trial to come to, or the end of the run
Result = TypeVar("Result")


@dataclass(frozen=True)
class Cluster:
    """Says how many nodes a run has, where the coordinator is, and how long they wait for each other.

    `coordinator` says whether this node is the coordinator; None: it is if HOST names this machine. The nodes of
    a trial come together within `rdzv_timeout_s`; a node is lost after `node_timeout_s` without a sign of life.
    """

    nodes: int
    host: str
    port: int = DEFAULT_PORT
    coordinator: bool | None = None
    rdzv_timeout_s: float = 300
    node_timeout_s: float = 30

    @property
    def endpoint(self) -> str:
        """Return HOST:PORT."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class CoordinatorLost(Exception):  # noqa: N818 - an event, not a mistake of this node
    """The coordinator does not answer, so nothing can go on here."""


class Peer:
    """The runner at the other end of a channel: `listen` keeps its messages by name, the last of each.

    `lost` says how the connection ended: "ended" with the other runner, "silent" where the kernel's heartbeat found
    the machine or the network gone; None while it lives.
    """

    def __init__(self, channel: Channel) -> None:
        self.lost: str | None = None
        self._channel, self._messages = channel, dict[str, Any]()

    def listen(self) -> None:
        """Keep what comes until the connection ends."""
        try:
            while self.lost is None:
                match self._channel.receive():
                    case [str(name), content]:
                        self._messages[name] = content
                    case _:
                        raise Refused("no message of a runner")
        except ConnectionError:
            self.lost = "ended"
        except OSError:
            self.lost = "silent"
        finally:
            self._channel.close()

    def send(self, name: str, content: Any) -> None:
        """Send a message, if the other runner is still there; ValueError if it is too large."""
        with suppress(OSError):
            self._channel.send([name, content])

    def get(self, name: str) -> Any:
        """Return the last message of this name; None if there is none."""
        return self._messages.get(name)

    def take(self, name: str) -> Any:
        """Return the last message of this name and free its memory; None if there is none."""
        return self._messages.pop(name, None)

    def close(self) -> None:
        """End the connection."""
        self._channel.close()


class Coordination(Peer):
    """A worker node's connection to the coordinator, whose orders are its messages."""

    def __init__(self, cluster: Cluster, host: str) -> None:
        prepare = partial(keep_alive, timeout_s=cluster.node_timeout_s)
        super().__init__(channel := connect_channel(host, cluster.port, prepare=prepare))
        self.cluster, self.host, self.address = cluster, host, channel.address
        self.send("runner", None)
        Thread(target=self.listen, daemon=True).start()

    def get(self, name: str) -> Any:
        """Return the last order of this name, or None; CoordinatorLost if the run ended without a word."""
        if self.lost and "over" not in (self._messages.get(CALL) or ()):
            raise CoordinatorLost(f"the coordinator at {self.cluster.endpoint} does not answer any more")
        return super().get(name)


class Hub:
    """The coordinator's end: `peers` are the worker nodes' runners, in the order in which they came.

    Ranks connect to it, too: it keeps the stores in which those of a trial find each other. OSError if the port is
    taken.
    """

    def __init__(self, cluster: Cluster, host: str) -> None:
        self.cluster, self.host, self.address = cluster, host, host
        self.peers: list[Peer] = []
        self._secret, self._lock, self._closed = run_secret(), Lock(), False
        self._orders: dict[str, Any] = {}
        self._stores: dict[str, dict[str, str]] = {}
        self._strangers: dict[socket.socket, None] = {}
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, cluster.port), family=family, backlog=512)
        keep_alive(self._listening, cluster.node_timeout_s)  # connections inherit it
        Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Listen no more, and end all connections."""
        self._closed = True
        self._listening.shutdown(socket.SHUT_RDWR)  # ends `accept`, which `close` would not
        self._listening.close()
        for peer in self.peers:
            peer.close()

    def order(self, name: str, content: Any) -> None:
        """Send a message to all worker nodes, also to those that are still to come."""
        with self._lock:
            if name == CALL:  # earlier trials are over: nobody needs their orders and stores any more
                self._orders = {each: order for each, order in self._orders.items() if "/" not in each}
                self._stores.clear()
            self._orders[name] = content
            for peer in self.peers:
                peer.send(name, content)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # it is closed, or a stranger was gone at once
                time.sleep(POLL_S)
                continue
            with self._lock:
                if len(self._strangers) >= MOST_STRANGERS:  # slow ones keep nobody out
                    oldest = next(iter(self._strangers))
                    del self._strangers[oldest]
                    with suppress(OSError):
                        oldest.shutdown(socket.SHUT_RDWR)
                self._strangers[connection] = None
            Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Answer one connection until it ends; that of a stranger ends with its first message."""
        with connection, suppress(OSError):
            try:
                channel = Channel(connection, self._secret, coordinator=True)
            finally:
                with self._lock:
                    self._strangers.pop(connection, None)
            match channel.receive():
                case ["runner", _]:
                    peer = Peer(channel)
                    with self._lock:
                        self.peers.append(peer)
                        for name, content in self._orders.items():
                            peer.send(name, content)
                    peer.listen()
                case ["ranks", str(prefix)]:
                    with self._lock:
                        values = self._stores.setdefault(prefix, {})
                    while True:
                        request = channel.receive()
                        with self._lock:
                            reply = answer(values, request)
                        channel.send(reply)


def keep_alive(connection: socket.socket, timeout_s: float) -> None:
    """Have the kernel end a connection when nothing has come from the other machine for so many seconds.

    The kernel's heartbeats need no process: it sends them even while a library holds the interpreter for minutes.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    often = max(1, int(timeout_s / 6))
    for name, value in (("KEEPIDLE", often), ("KEEPINTVL", often), ("USER_TIMEOUT", int(1000 * timeout_s))):
        if hasattr(socket, f"TCP_{name}"):  # on Linux
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}"), value)


def connect(cluster: Cluster) -> Hub | Coordination:
    """Be the coordinator of the run, or wait for the coordinator and connect to it.

    Of several nodes on the machine that HOST names the first is the coordinator. Raises UserError if the port is
    taken, no coordinator answers in time, or what answers does not know the secret of the run.
    """
    here = is_here(cluster.host)
    # A machine's own name is often the loopback to itself alone, and the coordinator may be this machine's.
    host = own_address(cluster.host) if here or cluster.coordinator else cluster.host
    if cluster.coordinator or (cluster.coordinator is None and here):
        try:
            return Hub(cluster, host)
        except OSError as error:
            if cluster.coordinator:
                what = f"cannot listen at port {cluster.port} of {host}: {error.strerror}"
                raise UserError(what, key="--rdzv", fix="choose another port") from error
    else:
        _wait_for(cluster, host)
    try:
        return Coordination(cluster, host)
    except Refused as error:
        fix = f"the same {VARIABLE} on every node, or another port"
        raise UserError(f"at {cluster.endpoint} {error}", key="--rdzv", fix=fix) from error
    except Crowded as error:
        what = f"at {cluster.endpoint} the coordinator has ended each connection for {CROWDED_S:g} s"
        fix = "find out what else connects there, or choose another port"
        raise UserError(what, key="--rdzv", fix=fix) from error
    except OSError as error:
        what = f"what answers at {cluster.endpoint} is not `harness run`"
        raise UserError(what, key="--rdzv", fix="choose another port") from error


def own_address(host: str) -> str:
    """Return the one address of this machine at which it listens when others know it as `host`.

    It is what `host` resolves to, if that is an address of this machine which others can reach, or the loopback if
    that is what the user named. A machine often resolves its own name to the loopback: it then listens at the
    interface that GLOO_SOCKET_IFNAME names, or else the one through which it reaches the world. UserError if there is
    none.
    """
    if found := [address for address in addresses_of(host) if not is_loopback(address)]:
        return found[0]
    if host == "localhost" or is_loopback(host):
        return next(iter(addresses_of(host)), host)
    named = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    entries = psutil.net_if_addrs().get(named, [])
    if usable := [entry.address for entry in entries if entry.family in (socket.AF_INET, socket.AF_INET6)]:
        return usable[0]
    try:
        return address_towards(FAR_AWAY, 1)
    except UserError:
        what = f"'{host}' is no address of this machine that others can reach"
        raise UserError(what, key="--rdzv", fix="give the address, or set GLOO_SOCKET_IFNAME") from None


def _wait_for(cluster: Cluster, host: str) -> None:
    deadline = time.monotonic() + cluster.rdzv_timeout_s
    while True:
        try:
            socket.create_connection((host, cluster.port), timeout=2).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise UserError(
                    f"no coordinator at {cluster.endpoint} within {cluster.rdzv_timeout_s:g} s ({error})",
                    key="--rdzv",
                    fix="start the same command on the coordinator, see --rdzv-timeout",
                ) from error
        time.sleep(0.2)


def wait_for(look: Callable[[], Result | None], limit_s: float) -> Result | None:
    """Return what `look` finds, or None if it has found nothing within `limit_s`."""
    deadline = time.monotonic() + limit_s
    while (found := look()) is None and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return found


def is_here(host: str) -> bool:
    """Return whether `host` names this machine, because one can bind only to addresses of one's own."""
    return host in (socket.gethostname(), socket.getfqdn()) or any(True for _ in addresses_of(host))


def addresses_of(host: str) -> Iterator[str]:
    """Yield the addresses of this machine that `host` resolves to."""
    with suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind(address)
                yield str(address[0])


def address_towards(host: str, port: int) -> str:
    """Return the address from which this machine reaches `host`; nothing is sent."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UserError(f"'{host}' cannot be reached from here: {error}", key="--rdzv") from error


def interface_of(address: str) -> str:
    """Return the name of the interface that has `address`; GLOO_SOCKET_IFNAME wins where the user set it."""
    if own := os.environ.get("GLOO_SOCKET_IFNAME"):
        return own
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in entries):
            return name
    raise UserError(f"no interface has the address {address}", fix="set GLOO_SOCKET_IFNAME")
