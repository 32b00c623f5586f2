"""How nodes find each other and talk: the coordinator keeps the run's store, and Slurm may say where it is."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import psutil

from harness.deferred import torch
from harness.errors import UserError
from harness.gpus import usable_gpus
from harness.launch.messages import packed, told, unpacked
from harness.launch.process import is_loopback
from harness.launch.store_server import start_store, stop_store
from harness.results.environment import collect
from harness.runtime.job import Backend, RanksRendezvous
from harness.runtime.run_store import VARIABLE, Refused, StoreConnection, run_secret
from harness.suite.schema import Suite, TrialConfig

DEFAULT_PORT = 29400  # torchrun takes the same
FIRST_SLURM_PORT, SLURM_PORTS = 20_000, 10_000  # below the ports that Linux hands out by itself (32768 up)
MOST_HOSTS = 1 << 16
_ENTRY = r"(?:[^,\[\]]|\[[0-9,-]+\])+"
POLL_S = 0.1  # between two looks, while nothing trains
CHUNK = 4 << 20  # the store takes no values above 8 MiB
FAR_AWAY = "192.0.2.1"  # RFC 5737: nobody's, so it is reached, if at all, as everybody far away is
Result = TypeVar("Result")


class CoordinatorLost(Exception):  # noqa: N818 - what happened to this node, not a mistake
    """The coordinator does not answer, so nothing can go on here."""


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


class StoreClient:
    """Connects this node to the run's store.

    Every operation raises CoordinatorLost when the connection has ended or an answer does not come in time. The
    coordinator, which is given its store's `process`, waits without a limit: that answers at once or not at all.
    """

    def __init__(
        self, cluster: Cluster, host: str, secret: bytes, process: subprocess.Popen[bytes] | None = None
    ) -> None:
        self.cluster, self.host, self.coordinator = cluster, host, process is not None
        self._process = process
        self._store = StoreConnection(host, cluster.port, secret, None if process else cluster.node_timeout_s)
        self.address = self._store.address

    def close(self) -> None:
        """End the connection, and the store if this node keeps it."""
        self._store.close()
        if self._process is not None:
            stop_store(self._process)

    def put(self, key: str, value: Any) -> None:
        """Store JSON under `key`, so that others can get it on return. Raises ValueError if it is too large."""
        data = packed(value)
        first, *rest = [data[i : i + CHUNK] for i in range(0, len(data), CHUNK)]
        with self._heard():
            for number, chunk in enumerate(rest, 1):
                self._store.set(f"{key}#{number}", chunk)
            self._store.set(key, b"%d:%b" % (len(rest), first))

    def get(self, key: str) -> Any:
        """Return what was put under `key`, or None if nothing was; UserError if it is damaged."""
        with self._heard():
            if (found := self._store.get(key)) is None:
                return None
            return unpacked(key, found, lambda number: self._store.get(f"{key}#{number}") or b"")

    def take(self, key: str) -> Any:
        """Return what was put under `key` and free its memory; return None if nothing was."""
        value = self.get(key)
        if value is not None:
            with self._heard():
                self._store.delete(key)
                number = 1
                while self._store.delete(f"{key}#{number}"):
                    number += 1
        return value

    def has(self, key: str) -> bool:
        """Return whether `key` exists."""
        with self._heard():
            return self._store.has([key])

    def text(self, key: str) -> str | None:
        """Return a value that was not `put`, as a heartbeat is not."""
        with self._heard():
            found = self._store.get(key)
        return None if found is None else found.decode(errors="replace")

    def count(self, key: str, more: int = 0) -> int:
        """Add `more` to a counter and return it."""
        with self._heard():
            return self._store.add(key, more)

    @contextlib.contextmanager
    def _heard(self) -> Iterator[None]:
        try:
            yield
        except (OSError, Refused) as error:
            at = self.cluster.endpoint
            raise CoordinatorLost(f"the coordinator at {at} does not answer any more") from error


def connect(cluster: Cluster) -> StoreClient:
    """Keep the run's store if this node is the coordinator, or wait for the coordinator's and connect to it.

    Of several nodes on the machine that HOST names the first is the coordinator. Raises UserError if the port is
    taken, no coordinator answers in time, or what answers does not know the secret of the run.
    """
    secret, here = run_secret(), is_here(cluster.host)
    if cluster.coordinator or (cluster.coordinator is None and here):
        address = own_address(cluster.host)
        try:
            listening = socket.create_server((address, cluster.port), family=_family(address), backlog=512)
        except OSError as error:
            if cluster.coordinator:
                what = f"cannot listen at port {cluster.port} of {address}: {error.strerror}"
                raise UserError(what, key="--rdzv", fix="choose another port") from error
        else:
            process = start_store(listening)
            try:
                return _joined(cluster, address, secret, process)
            except BaseException:
                stop_store(process)
                raise
        return _joined(cluster, address, secret)  # another was the first to come here
    # a machine's own name is often the loopback to itself alone, and the coordinator may be this machine's
    host = own_address(cluster.host) if here else cluster.host
    _wait_for(cluster, host)
    return _joined(cluster, host, secret)


def _joined(cluster: Cluster, host: str, secret: bytes, process: subprocess.Popen[bytes] | None = None) -> StoreClient:
    try:
        return StoreClient(cluster, host, secret, process)
    except Refused as error:
        what = f"at {cluster.endpoint} {error}"
        fix = f"the same {VARIABLE} on every node, or another port"
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


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


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
    with contextlib.suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
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


@dataclass(frozen=True)
class SlurmStep:
    """`srun` started the step with one task a node. `index` is this node's, `coordinator` is the name of node 0."""

    nodes: int
    index: int
    coordinator: str
    port: int


def this_step(variables: Mapping[str, str]) -> SlurmStep | None:
    """Return the step that `srun` started this process in, or None outside a step (also in a batch script).

    Raises UserError for a step of several nodes with more than one task on a node.
    """
    if "SLURM_STEP_ID" not in variables or "SLURM_NODEID" not in variables:
        return None
    nodes = variables.get("SLURM_STEP_NUM_NODES") or variables.get("SLURM_NNODES", "1")
    names = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST", "")
    if int(nodes) > 1:  # on one node it may be a shell in a step of many tasks
        counts = variables.get("SLURM_STEP_TASKS_PER_NODE") or variables.get("SLURM_TASKS_PER_NODE", "1")
        most = max(map(int, re.findall(r"(\d+)(?:\(x\d+\))?", counts)))
        if most > 1 or variables.get("SLURM_LOCALID", "0") != "0":
            raise UserError(
                "more than one task on a node",
                key=f"SLURM_STEP_TASKS_PER_NODE={counts}",
                fix="srun --ntasks-per-node=1: harness starts the ranks of a node itself",
            )
    hosts = expand_hosts(names)
    if len(hosts) != int(nodes):
        raise UserError(f"'{names}' names {len(hosts)} nodes, Slurm says {nodes}", key="SLURM_STEP_NODELIST")
    port = port_of(int(variables.get("SLURM_JOB_ID", "0")), int(variables["SLURM_STEP_ID"]))
    return SlurmStep(int(nodes), int(variables["SLURM_NODEID"]), hosts[0], port)


def port_of(job: int, step: int) -> int:
    """Return a port that every node derives alike, and that jobs that share a node rarely share."""
    return FIRST_SLURM_PORT + (job + 997 * step) % SLURM_PORTS


def expand_hosts(text: str) -> list[str]:
    """Return the names that a list such as `node[01-03,7],x` stands for, in order."""
    if not re.fullmatch(rf"{_ENTRY}(?:,{_ENTRY})*", text):
        raise UserError(f"'{text}' is not a list of nodes", key="SLURM_STEP_NODELIST")
    names: list[str] = []
    for entry in re.findall(_ENTRY, text):
        pieces = [_choices(piece) for piece in re.split(r"(\[[^\]]*\])", entry)]
        if len(names) + math.prod(map(len, pieces)) > MOST_HOSTS:
            raise UserError(f"'{text}' names more than {MOST_HOSTS} nodes", key="SLURM_STEP_NODELIST")
        names += ["".join(chosen) for chosen in itertools.product(*pieces)]
    return names


def _choices(piece: str) -> list[str]:
    """Expand `[01-03,7]`; anything else stands for itself."""
    if not piece.startswith("["):
        return [piece]
    found: list[str] = []
    for part in piece[1:-1].split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UserError(f"'{piece}' is not a range of nodes", key="SLURM_STEP_NODELIST")
        numbers = range(int(first[:9]), int((last if dash else first)[:9]) + 1)
        if len(first) > 9 or len(last) > 9 or len(found) + len(numbers) > MOST_HOSTS:
            raise UserError(f"'{piece}' names more than {MOST_HOSTS} nodes", key="SLURM_STEP_NODELIST")
        found += [str(number).zfill(len(first)) for number in numbers]
    return found


WATCH_S = 1.0  # between two looks while ranks train, because they need the cores
CALL = "call"  # the trial that the coordinator calls the nodes to, or the end of the run
PLAN = "plan"
REFUSED = "refused"  # why a node did not take part
JOINED = "joined"  # counter of the worker nodes that joined the run
_HARDWARE = ("platform", "python", "cpu", "cores", "usable_cores", "memory_bytes", "gpus", "driver", "cuda", "nccl")


def session_key(number: int) -> str:
    """Return the key of the session of the `number`th node that joined the run, counted from 1."""
    return f"joined/{number}"


@dataclass(frozen=True)
class TrialChannel:
    """Carries what is said in one run of a trial; `number` counts the nodes as they came, 0 is the coordinator."""

    client: StoreClient
    run: str
    number: int = 0

    @classmethod
    def join(cls, client: StoreClient, run: str) -> TrialChannel:
        """As a worker node: come to the trial."""
        return cls(client, run, client.count(f"{run}/came", 1))

    def came(self) -> int:
        """Return how many worker nodes have come."""
        return self.client.count(f"{self.run}/came")

    def say(self, what: str, content: Any) -> None:
        """As a worker node: tell the coordinator."""
        self.client.put(f"{self.run}/{what}/{self.number}", content)

    def heard(self, what: str, number: int) -> Any:
        """As the coordinator: return, once, what the node that came as `number` said; None if it has not yet."""
        return self.client.take(f"{self.run}/{what}/{number}")

    def order(self, what: str, content: Any) -> None:
        """As the coordinator: tell all nodes."""
        self.client.put(f"{self.run}/{what}", content)

    def ordered(self, what: str) -> Any:
        """Return what the coordinator told all, or None if it has not yet."""
        return self.client.get(f"{self.run}/{what}")

    def ranks_rendezvous(self, backend: Backend) -> RanksRendezvous:
        """Return where the ranks of this node find those of the others."""
        host, port = self.client.host, self.client.cluster.port
        return RanksRendezvous(host=host, port=port, prefix=f"{self.run}/ranks", backend=backend)


@dataclass(frozen=True)
class NodeInfo:
    """Says what a node is; `session` names its heartbeat (the coordinator has none: "").

    `names` are those of its `gpus`.
    """

    session: str
    address: str
    gpus: int
    hardware: dict[str, Any]
    names: Sequence[str] = ()

    @classmethod
    def of(cls, said: Any) -> NodeInfo:
        """Return what a node says it is; UserError if that is something else."""
        return told(cls, said, {"session": str, "address": str, "gpus": int, "hardware": dict})

    @classmethod
    def here(cls, session: str, address: str) -> NodeInfo:
        """Describe this machine."""
        found = collect()
        hardware = {key: found.get(key) for key in _HARDWARE}
        names = [gpu.name for gpu in usable_gpus()]
        return cls(session, address, len(names), hardware, names)


def plan_of(suite: Suite, trials: Sequence[TrialConfig], cluster: Cluster) -> dict[str, Any]:
    """Return what must be alike on all nodes, and the coordinator's --node-timeout."""
    found = collect()
    return {
        "nodes": cluster.nodes,
        "versions": {key: found[key] for key in ("harness", "commit")} | {"torch": torch.__version__},
        "plugins": {
            f"{kind} {source.cls}": source.sha256[:12] for trial in trials for kind, source in trial.sources.items()
        },
        "suite": suite.name,
        "timeouts": suite.timeouts.model_dump(mode="json"),
        "trials": {trial.of_any_data.id: trial.of_any_data.label for trial in trials},
        "node_timeout_s": cluster.node_timeout_s,
    }


def check_plan(own: Mapping[str, Any], coordinators: Mapping[str, Any]) -> None:
    """Raise UserError that says in what this node's plan differs from the coordinator's."""
    fixes = {
        "nodes": ("--nnodes", "give every node the same"),
        "versions": ("versions", "install the same on every node"),
        "plugins": ("plugins", "give every node the same files"),
        "suite": ("suite", "give every node the same file"),
        "timeouts": ("timeouts", "give every node the same file"),
    }
    if not isinstance(coordinators, Mapping) or not own.keys() <= coordinators.keys():
        raise UserError("the coordinator's plan lacks something", key="versions", fix=fixes["versions"][1])
    for key, (name, fix) in fixes.items():
        if own[key] != coordinators[key]:
            raise UserError(f"{own[key]} here, {coordinators[key]} on the coordinator", key=name, fix=fix)
    here, there = own["trials"], coordinators["trials"]
    if not isinstance(there, Mapping):
        raise UserError("the coordinator's plan names no trials", key="versions", fix=fixes["versions"][1])
    if here.keys() == there.keys():
        return
    only = [f"only here: {here[id_]}" for id_ in here if id_ not in there][:1]
    only += [f"only on the coordinator: {there[id_]}" for id_ in there if id_ not in here][:1]
    raise UserError(
        f"{len(here)} trials here, {len(there)} on the coordinator, {len(here.keys() & there.keys())} alike; "
        + "; ".join(only),
        key="trials",
        fix="same suite file, options, data directory and kind of device on every node",
    )


def backend_of(trial: TrialConfig, infos: Sequence[NodeInfo], shares: Sequence[range]) -> Backend:
    """Return nccl if every rank has a GPU of its own, else gloo, because all ranks must take the same.

    Nodes with one address are one machine, whose GPUs each of them would take for its own.
    """
    alone = all(info.gpus >= len(share) for info, share in zip(infos, shares, strict=True))
    alone &= len({info.address for info in infos}) == len(infos)
    return "nccl" if trial.device == "cuda" and alone else "gloo"
