"""What the nodes of a trial tell each other, and which of its ranks each of them runs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from harness.errors import UserError
from harness.launch.inputs import TrialInputs
from harness.launch.local import GroupResult, RankFailure
from harness.launch.process import Placement
from harness.launch.rendezvous import Cluster, Link
from harness.results.environment import collect
from harness.runtime.job import Backend, Meeting
from harness.suite.schema import Suite, TrialConfig

POLL_S = 0.1  # while nothing trains
WATCH_S = 1.0  # while ranks train: they need the cores
CALL = "call"  # the trial that the head calls the nodes to, or the end of the run
PLAN = "plan"
REFUSED = "refused"  # why a node did not take part
MEMBERS = "members"  # counter of the other nodes that came
_HARDWARE = (
    *("platform", "python", "cpu", "cores", "usable_cores", "memory_bytes"),
    *("gpus", "driver", "cuda", "nccl"),
)


def member_key(number: int) -> str:
    """Return the key of the session of the `number`th node that came, counted from 1."""
    return f"member/{number}"


@dataclass(frozen=True)
class Seat:
    """A node's place among the nodes of one trial; `rank` is what the rendezvous gave it."""

    link: Link
    run: str
    rank: int

    def say(self, what: str, content: Any) -> None:
        """Tell the others."""
        self.link.put(self._key(what, self.rank), content)

    def heard(self, what: str, rank: int) -> Any:
        """As the head: return what the node of `rank` said, once; None if it has not yet."""
        return self.link.take(self._key(what, rank))

    def order(self, what: str, content: Any) -> None:
        """As the head: tell all nodes."""
        self.link.put(f"{self.run}/{what}", content)

    def ordered(self, what: str) -> Any:
        """Return what the head told all, or None if it has not yet."""
        return self.link.get(f"{self.run}/{what}")

    def meeting(self, backend: Backend) -> Meeting:
        """Return where the ranks of this node meet those of the others."""
        return Meeting(host=self.link.host, port=self.link.cluster.port, prefix=f"{self.run}/ranks", backend=backend)

    def _key(self, what: str, rank: int) -> str:
        return f"{self.run}/{what}/{rank}"


@dataclass(frozen=True)
class NodeInfo:
    """What a node is: its heart-beat's session ("" for the head), address, GPUs and hardware."""

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
    """Return what must be alike on all nodes, and the head's --node-timeout."""
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


def check_plan(own: Mapping[str, Any], head: Mapping[str, Any]) -> None:
    """Raise UserError that says in what this node's plan differs from the head's."""
    fixes = {
        "nodes": ("--nnodes", "give every node the same"),
        "versions": ("versions", "install the same on every node"),
        "plugins": ("plugins", "give every node the same files"),
        "suite": ("suite", "give every node the same file"),
        "timeouts": ("timeouts", "give every node the same file"),
    }
    for key, (name, fix) in fixes.items():
        if own[key] != head[key]:
            raise UserError(f"{own[key]} here, {head[key]} on the head", key=name, fix=fix)
    here, there = own["trials"], head["trials"]
    if here.keys() == there.keys():
        return
    only = [f"only here: {here[id_]}" for id_ in here if id_ not in there][:1]
    only += [f"only on the head: {there[id_]}" for id_ in there if id_ not in here][:1]
    raise UserError(
        f"{len(here)} trials here, {len(there)} on the head, {len(here.keys() & there.keys())} alike; "
        + "; ".join(only),
        key="trials",
        fix="same suite file, options, data directory and kind of device on every node",
    )


def blocks(parts: int, nodes: int) -> list[range]:
    """Return the ranks of each node: contiguous, as even as possible, the first nodes having more."""
    each, more = divmod(parts, nodes)
    starts = [node * each + min(node, more) for node in range(nodes + 1)]
    return [range(starts[node], starts[node + 1]) for node in range(nodes)]


def places_of(block: range, world: int, interface: str) -> list[Placement]:
    """Return the places of a node's ranks."""
    return [Placement(rank, local, world, len(block), interface) for local, rank in enumerate(block)]


def backend_of(trial: TrialConfig, infos: Sequence[NodeInfo], shares: Sequence[range]) -> Backend:
    """Return nccl if every rank has a GPU of its own, else gloo: all ranks must take the same.

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


def unpacked(content: Mapping[str, Any]) -> GroupResult:
    """Return the result that a node sent as `dataclasses.asdict`."""
    return replace(GroupResult(**content), failures=[RankFailure(**failure) for failure in content["failures"]])


def merged(groups: Sequence[GroupResult], nodes: Sequence[dict[str, Any]]) -> GroupResult:
    """Return one result from those of all nodes, the head's first; `nodes` says what each is."""
    head = groups[0]
    return GroupResult(
        failures=[replace(f, node=node) for node, group in enumerate(groups) for f in group.failures],
        ranks=sorted((rank for group in groups for rank in group.ranks), key=lambda rank: int(rank["rank"])),
        log="".join(group.log for group in groups),
        wall_s=head.wall_s,
        limit_s=next((group.limit_s for group in groups if group.limit_s is not None), None),
        reached=head.reached,
        nodes=nodes,
    )
