"""What Slurm's variables say of a job step: the nodes, this node, the head and a port."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from harness.errors import UserError

FIRST_PORT, PORTS = 20_000, 10_000  # below what Linux hands out by itself (32768 up)
_ENTRY = r"(?:[^,\[\]]|\[[0-9,-]+\])+"


@dataclass(frozen=True)
class Step:
    """A job step started by `srun` with one task a node; `index` is this node's, `head` node 0's name."""

    nodes: int
    index: int
    head: str
    port: int


def this_step(variables: Mapping[str, str]) -> Step | None:
    """Return the step that `srun` started this process in; None outside a step (also in a batch script).

    Raises UserError for a step of several nodes with more than one task on a node.
    """
    if "SLURM_STEP_ID" not in variables or "SLURM_NODEID" not in variables:
        return None
    nodes = variables.get("SLURM_STEP_NUM_NODES") or variables.get("SLURM_NNODES", "1")
    names = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST", "")
    if int(nodes) > 1:  # on one node it may be a shell in a step of many tasks
        _check_tasks(variables)
    hosts = expand_hosts(names)
    if len(hosts) != int(nodes):
        raise UserError(f"'{names}' names {len(hosts)} nodes, Slurm says {nodes}", key="SLURM_STEP_NODELIST")
    port = port_of(int(variables.get("SLURM_JOB_ID", "0")), int(variables["SLURM_STEP_ID"]))
    return Step(int(nodes), int(variables["SLURM_NODEID"]), hosts[0], port)


def _check_tasks(variables: Mapping[str, str]) -> None:
    counts = variables.get("SLURM_STEP_TASKS_PER_NODE") or variables.get("SLURM_TASKS_PER_NODE", "1")
    most = max(int(count) for count in re.findall(r"(\d+)(?:\(x\d+\))?", counts))
    if most > 1 or variables.get("SLURM_LOCALID", "0") != "0":
        raise UserError(
            "more than one task on a node",
            key=f"SLURM_STEP_TASKS_PER_NODE={counts}",
            fix="srun --ntasks-per-node=1: harness starts the ranks of a node itself",
        )


def port_of(job: int, step: int) -> int:
    """Return a port that every node derives alike, and that jobs that share a node rarely share."""
    return FIRST_PORT + (job + 997 * step) % PORTS


def expand_hosts(text: str) -> list[str]:
    """Return the names that a list such as `node[01-03,7],x` stands for, in order."""
    if not re.fullmatch(rf"{_ENTRY}(?:,{_ENTRY})*", text):
        raise UserError(f"'{text}' is not a list of nodes", key="SLURM_STEP_NODELIST")
    names: list[str] = []
    for entry in re.findall(_ENTRY, text):
        pieces = [_choices(piece) for piece in re.split(r"(\[[^\]]*\])", entry)]
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
        numbers = range(int(first), int(last if dash else first) + 1)
        found += [str(number).zfill(len(first)) for number in numbers]
    return found
