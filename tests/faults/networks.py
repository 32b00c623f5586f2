"""A network between ranks that is cut, lost for a while, or taken away: a shaped one, in namespaces."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.faults.case import FAILURE, SUITE, Case, Kind, TooLate
from tests.faults.place import is_private

NAMESPACES = Path("/run/netns")
SHAPED = SUITE + "network: {rate: 1gbit}\n"


def kinds() -> Iterator[Kind]:
    """Yield a kind for each way to lose a network."""
    for name, act in (("cut", cut), ("lost for a while", lose), ("taken away", take_away)):
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
    _train_shaped(case, lambda: _ip("-n", _namespace(case, "-h"), "link", "set", "eth0", "down"))


def lose(case: Case) -> None:
    """Unplug a host at the switch, and plug it in again."""

    def unplug() -> None:
        switch, port = _namespace(case, "-switch"), f"port{case.rng.randrange(2)}"
        _ip("-n", switch, "link", "set", port, "down")
        time.sleep(lost_s)
        _ip("-n", switch, "link", "set", port, "up")

    lost_s = case.rng.uniform(0.1, 3.0)
    case.say(f"for {lost_s:.2f} s")
    _train_shaped(case, unplug)


def take_away(case: Case) -> None:
    """Delete a namespace under those who are in it."""
    _train_shaped(case, lambda: _ip("netns", "delete", _namespace(case, "-")))


def leave(case: Case, number: signal.Signals) -> None:
    """End the runner, which is to remove its namespaces, or the next one."""
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
    except (subprocess.CalledProcessError, IndexError) as error:
        raise TooLate from error
    case.end(command)


def _namespace(case: Case, role: str) -> str:
    name = case.rng.choice(sorted(path.name for path in NAMESPACES.iterdir() if role in path.name[8:]))
    case.say(name.rpartition("-")[2])
    return name


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
