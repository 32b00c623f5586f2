"""A network between ranks that is cut, or lost for a while: a shaped one, in namespaces."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.faults.case import FAILURE, SUITE, Case, Kind, TooLate
from tests.faults.place import is_private

SHAPED = SUITE + "network: {rate: 1gbit}\n"


def kinds() -> Iterator[Kind]:
    """Yield a kind for each way to lose a network."""
    for name, act in (("cut", cut), ("lost for a while", lose)):
        yield Kind(f"the network is {name}", act, FAILURE, SHAPED, why_not=why_not)
    for number in (signal.SIGKILL, signal.SIGTERM):
        act = partial(leave, number=number)
        yield Kind(f"{number.name} to the runner of a shaped network", act, suite=SHAPED, why_not=why_not)


def why_not() -> str | None:
    """Return why there can be no shaped networks of the case's own."""
    if not is_private():
        return "needs root, and a mount namespace (unshare)"
    return None if shutil.which("ip") and shutil.which("tc") else "needs iproute2"


def cut(case: Case) -> None:
    """Take a host's interface down for good."""
    _train_shaped(case, lambda: _ip(case.rng.choice(_namespaces(case)[1:]), "link", "set", "eth0", "down"))


def lose(case: Case) -> None:
    """Unplug a host at the switch, and plug it in again."""

    def unplug() -> None:
        switch, port = _namespaces(case)[0], f"port{case.rng.randrange(2)}"
        _ip(switch, "link", "set", port, "down")
        time.sleep(lost_s)
        _ip(switch, "link", "set", port, "up")

    lost_s = case.rng.uniform(0.1, 3.0)
    case.say(f"for {lost_s:.2f} s")
    _train_shaped(case, unplug)


def leave(case: Case, number: signal.Signals) -> None:
    """End the runner, with which its namespaces end."""
    command = case.place.start()
    case.wait_for_moment(command)
    command.process.send_signal(number)
    case.end(command)


def _train_shaped(case: Case, then: Callable[[], None]) -> None:
    command = case.place.start()
    trials = case.rng.randrange(2)
    case.wait(command, lambda: case.place.records() >= trials and case.place.training())
    time.sleep(case.rng.uniform(0, 0.4))

    try:
        then()
    except (subprocess.CalledProcessError, IndexError, OSError) as error:
        raise TooLate from error
    case.end(command)


def _namespaces(case: Case) -> list[Path]:
    """Return the namespaces of the runner's network, as its descriptors: the switch's, and those of hosts."""
    found = []
    for process in case.place.processes("runner"):
        for path in Path(f"/proc/{process.pid}/fd").iterdir():
            with suppress(OSError):
                if os.readlink(path).startswith("net:"):
                    found.append(path)
    return sorted(found, key=lambda path: int(path.name))


def _ip(namespace: Path, *arguments: str) -> None:
    subprocess.run(["nsenter", f"--net={namespace}", "ip", *arguments], check=True, capture_output=True)
