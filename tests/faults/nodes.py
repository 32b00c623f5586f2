"""A trial on two nodes, both on this machine, one of which is ended or stands still."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from functools import partial

from tests.faults.case import FAILURE, Case, Kind
from tests.faults.place import Command

ENDS = (signal.SIGKILL, signal.SIGTERM, signal.SIGABRT)
WAITS = ("--rdzv-timeout", "20", "--node-timeout", "6")


def kinds() -> Iterator[Kind]:
    """Yield a kind for each of the two nodes, and for one that stands still."""
    yield Kind("the coordinator's node is ended", partial(strike, node=0, ends=ENDS), FAILURE)
    yield Kind("a worker's node is ended", partial(strike, node=1, ends=ENDS), FAILURE)
    yield Kind("a worker's node stands still", partial(strike, node=1, ends=(signal.SIGSTOP,)), FAILURE)


def strike(case: Case, node: int, ends: tuple[signal.Signals, ...]) -> None:
    """Run the suite on two nodes, and send one of `ends` to one of them."""
    commands = start_nodes(case)
    case.wait_for_moment(commands[0])
    number = case.rng.choice(ends)
    case.say(f"{number.name} to node {node}")
    chosen = commands[node]
    chosen.process.send_signal(number)
    for command in commands:
        if command is not chosen or number is not signal.SIGSTOP:
            case.end(command)
    chosen.process.send_signal(signal.SIGKILL)
    case.end(chosen)


def start_nodes(case: Case) -> list[Command]:
    """Start the coordinator and, when it listens, the worker."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    meet = ("--nnodes", "2", "--rdzv", f"127.0.0.1:{port}", *WAITS)
    first = case.place.start(*meet)
    case.wait(first, lambda: _listens(port))
    return [first, case.place.start(*meet)]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
