"""How nodes find each other and talk: the head's TCPStore, and torch's elastic rendezvous in it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import psutil
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError, RendezvousError, RendezvousTimeoutError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

from harness.errors import UserError

DEFAULT_PORT = 29400  # torchrun's
CHUNK = 4 << 20  # the store ends the connection at values above 8 MiB
LARGEST = 256 << 20  # of one compressed message; the head holds it in memory
MORE_S = 10.0  # after its time limit the rendezvous takes some seconds to leave
Result = TypeVar("Result")


class HeadLost(Exception):  # noqa: N818 - what happened to this node, not a mistake
    """The head does not answer; nothing can go on here."""


class NotMet(Exception):  # noqa: N818 - a state of the cluster
    """The nodes of a trial did not come together."""


@dataclass(frozen=True)
class Cluster:
    """The nodes of a run: how many, where the head is, and how long they wait for each other.

    `head` says whether this node is the head; None: the one that HOST names is. `rdzv_timeout_s`: for the
    nodes of a trial to come together; `node_timeout_s`: without a sign of life, then a node is lost.
    """

    nodes: int
    host: str
    port: int = DEFAULT_PORT
    head: bool | None = None
    rdzv_timeout_s: float = 300
    node_timeout_s: float = 30

    @property
    def endpoint(self) -> str:
        """Return HOST:PORT."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Link:
    """This node's connection to the head's store.

    Every operation raises HeadLost when the connection has ended or an answer does not come in time: the
    store's own calls would wait for a machine that vanished for as long as TCP does.
    """

    def __init__(self, store: Store, cluster: Cluster, *, head: bool) -> None:
        self.cluster, self.head = cluster, head
        self.host = "127.0.0.1" if head else cluster.host  # as this node's processes reach the store
        try:
            self.address = address_towards(cluster.host, cluster.port)
        except UserError:
            if not head:
                raise
            self.address = self.host  # the head need not know itself by the name that others use
        self._store, self._lost = store, False

    def put(self, key: str, value: Any) -> None:
        """Store JSON under `key`, compressed; others can get it on return. ValueError if it is too large."""
        data = zlib.compress(json.dumps(value).encode())
        if len(data) > LARGEST:
            raise ValueError(f"a message of {len(data) >> 20} MiB, {LARGEST >> 20} are allowed")
        first, *rest = [data[i : i + CHUNK] for i in range(0, len(data), CHUNK)]
        for number, chunk in enumerate(rest, 1):
            self._call(lambda n=number, c=chunk: self._store.set(f"{key}#{n}", c))  # type: ignore[misc]
        self._call(lambda: self._store.set(key, b"%d:%b" % (len(rest), first)))  # type: ignore[arg-type]
        self.has(key)  # the store does not answer a `set`: what it answers next on this connection comes after

    def get(self, key: str) -> Any:
        """Return what was put under `key`, or None if nothing was."""
        if not self.has(key):
            return None
        count, _, data = self._call(lambda: self._store.get(key)).partition(b":")
        for number in range(1, int(count) + 1):
            data += self._call(lambda n=number: self._store.get(f"{key}#{n}"))  # type: ignore[misc]
        return json.loads(zlib.decompress(data))

    def take(self, key: str) -> Any:
        """Return what was put under `key` and free its memory; None if nothing was."""
        value = self.get(key)
        if value is not None:
            self._call(lambda: self._store.delete_key(key))
            number = 1
            while self._call(lambda n=number: self._store.delete_key(f"{key}#{n}")):  # type: ignore[misc]
                number += 1
        return value

    def has(self, key: str) -> bool:
        """Return whether `key` exists."""
        return bool(self._call(lambda: self._store.check([key])))

    def text(self, key: str) -> str | None:
        """Return a value that was not `put`: a pulse's."""
        return self._call(lambda: self._store.get(key)).decode() if self.has(key) else None

    def count(self, key: str, more: int = 0) -> int:
        """Add `more` to a counter and return it."""
        return int(self._call(lambda: self._store.add(key, more)))

    @contextlib.contextmanager
    def meet(self, run_id: str) -> Iterator[int]:
        """Wait for all nodes at the rendezvous `run_id`, yield this one's rank; NotMet if they do not come.

        The end of the context, on the head also a failure to meet, ends the rendezvous for all.
        """
        handler = self._handler(run_id)
        met = False
        try:
            rank = self._call(handler.next_rendezvous, self.cluster.rdzv_timeout_s + MORE_S).rank
            met = True
            yield rank
        except RendezvousTimeoutError as error:
            limit = f"{self.cluster.rdzv_timeout_s:g} s (--rdzv-timeout)"
            raise NotMet(f"not all of the {self.cluster.nodes} nodes came within {limit}") from error
        except RendezvousError as error:
            raise NotMet("the head ended the meeting of the nodes") from error
        finally:
            if met or self.head:
                with contextlib.suppress(HeadLost):
                    self.count(run_id)  # asks whether the head is there: the handler would log that it is not
                    self._call(handler.shutdown)

    def _handler(self, run_id: str) -> DynamicRendezvousHandler:
        backend = self._call(lambda: C10dRendezvousBackend(self._store, run_id))
        handler: DynamicRendezvousHandler = DynamicRendezvousHandler.from_backend(
            run_id,
            self._store,
            backend,
            self.cluster.nodes,
            self.cluster.nodes,
            local_addr=self.address,
            timeout=RendezvousTimeout(join=timedelta(seconds=self.cluster.rdzv_timeout_s)),
            keep_alive_interval=max(1, int(self.cluster.node_timeout_s / 3)),
        )
        return handler

    def _call(self, operation: Callable[[], Result], limit_s: float | None = None) -> Result:
        """Return what `operation` returns; it is left to itself if that takes longer than `limit_s`.

        The head's own store answers at once or not at all.
        """
        if self._lost:
            raise HeadLost(self._lost_text())
        outcome: list[Result | Exception] = []

        def work() -> None:
            try:
                outcome.append(operation())
            except Exception as error:
                outcome.append(error)

        if self.head:
            work()
        else:
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            thread.join(self.cluster.node_timeout_s if limit_s is None else limit_s)
        if not outcome or isinstance(outcome[0], RuntimeError | RendezvousConnectionError):
            self._lost = True
            raise HeadLost(self._lost_text()) from (outcome[0] if outcome else None)  # type: ignore[misc]
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    def _lost_text(self) -> str:
        return f"the head at {self.cluster.endpoint} does not answer any more"


def open_link(cluster: Cluster) -> Link:
    """Serve the store if this node is the head, or wait for the head's and connect to it.

    Of several nodes on the head's machine the first is the head. Raises UserError if the port is taken, or no
    head answers in time.
    """
    if cluster.head or (cluster.head is None and is_here(cluster.host)):
        try:
            return Link(_store("127.0.0.1", cluster.port, serve=True), cluster, head=True)
        except RuntimeError as error:
            if cluster.head:
                raise UserError(
                    f"cannot listen at port {cluster.port}", key="--rdzv", fix="choose another port"
                ) from error
    _wait_for(cluster)
    try:
        return Link(_store(cluster.host, cluster.port, serve=False), cluster, head=False)
    except RuntimeError as error:
        what = f"what answers at {cluster.endpoint} is not `harness run`"
        raise UserError(what, key="--rdzv", fix="choose another port") from error


def _store(host: str, port: int, *, serve: bool) -> TCPStore:
    return TCPStore(host, port, is_master=serve, wait_for_workers=False, timeout=timedelta(seconds=30))


def _wait_for(cluster: Cluster) -> None:
    # Not left to the store: Ctrl-C would wait for it.
    deadline = time.monotonic() + cluster.rdzv_timeout_s
    while True:
        try:
            socket.create_connection((cluster.host, cluster.port), timeout=2).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise UserError(
                    f"no head at {cluster.endpoint} within {cluster.rdzv_timeout_s:g} s ({error})",
                    key="--rdzv",
                    fix="start the same command on the head, see --rdzv-timeout",
                ) from error
        time.sleep(0.2)


def is_here(host: str) -> bool:
    """Return whether `host` names this machine: one can bind only to addresses of one's own."""
    if host in (socket.gethostname(), socket.getfqdn()):
        return True
    with contextlib.suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind(address)
                return True
    return False


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
