"""What the nodes of a trial tell each other, and which of its ranks each of them runs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from harness.errors import UserError
from harness.launch.inputs import TrialInputs
from harness.launch.rendezvous import Cluster, StoreClient
from harness.results.environment import collect
from harness.runtime.job import Backend, RanksRendezvous
from harness.suite.schema import Suite, TrialConfig

WATCH_S = 1.0  # between two looks while ranks train, because they need the cores
CALL = "call"  # the trial that the coordinator calls the nodes to, or the end of the run
PLAN = "plan"
REFUSED = "refused"  # why a node did not take part
JOINED = "joined"  # counter of the worker nodes that joined the run
_HARDWARE = (
    *("platform", "python", "cpu", "cores", "usable_cores", "memory_bytes"),
    *("gpus", "driver", "cuda", "nccl"),
)


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
    """Says what a node is; `session` names its heartbeat (the coordinator has none: "")."""

    session: str
    address: str
    gpus: int
    hardware: dict[str, Any]

    @classmethod
    def here(cls, session: str, address: str) -> NodeInfo:
        """Describe this machine."""
        found = collect()
        hardware = {key: found.get(key) for key in _HARDWARE}
        return cls(session, address, torch.cuda.device_count(), hardware)


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
        "trials": {trial.id: trial.label for trial in trials},
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
    for key, (name, fix) in fixes.items():
        if own[key] != coordinators[key]:
            raise UserError(f"{own[key]} here, {coordinators[key]} on the coordinator", key=name, fix=fix)
    here, there = own["trials"], coordinators["trials"]
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


def blocks(parts: int, nodes: int) -> list[range]:
    """Return the ranks of each node: contiguous, as even as possible, the first nodes having more."""
    each, more = divmod(parts, nodes)
    starts = [node * each + min(node, more) for node in range(nodes + 1)]
    return [range(starts[node], starts[node + 1]) for node in range(nodes)]


def backend_of(trial: TrialConfig, infos: Sequence[NodeInfo], shares: Sequence[range]) -> Backend:
    """Return nccl if every rank has a GPU of its own, else gloo, because all ranks must take the same.

    Nodes with one address are one machine, whose GPUs each of them would take for its own.
    """
    alone = all(info.gpus >= len(share) for info, share in zip(infos, shares, strict=True))
    alone &= len({info.address for info in infos}) == len(infos)
    return "nccl" if trial.device == "cuda" and alone else "gloo"


def fingerprint(inputs: TrialInputs, graphs: dict[Path, str]) -> str:
    """Return a hash of the trial's graph and of the part of each of its nodes.

    `graphs` remembers the hashes of graphs, all of whose files are read.
    """
    if inputs.graph not in graphs:
        graphs[inputs.graph] = _hash(sorted(inputs.graph.glob("*.npy")))
    views = dict.fromkeys([inputs.train_view, inputs.full_view])
    return f"{graphs[inputs.graph]} {_hash([view / 'parts.npy' for view in views])}"


def _hash(files: Sequence[Path]) -> str:
    whole = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            whole.update(path.name.encode() + hashlib.file_digest(stream, "sha256").digest())
    return whole.hexdigest()[:32]
