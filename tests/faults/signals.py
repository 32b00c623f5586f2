"""Signals at random moments: to a rank, to the runner, to all processes of a run, to those that help it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from functools import partial
from signal import Signals

from tests.faults.case import FAILURE, Case, Kind, TooLate
from tests.faults.place import Command, Process

NUMBERS = (
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGHUP, signal.SIGABRT),
    *(signal.SIGSEGV, signal.SIGQUIT),
)
TARGETS = {
    "a rank": ("rank",),
    "the runner": ("runner",),
    "all": ("rank", "runner", "forker", "heart"),
    "a helper": ("forker", "heart"),
}


def kinds() -> Iterator[Kind]:
    """Yield a kind for each signal and target."""
    for number in NUMBERS:
        for target in ("a rank", "the runner", "all"):
            may = FAILURE if target == "a rank" else ()
            yield Kind(f"{number.name} to {target}", partial(strike, number=number, target=target), may, chained=True)
    helper = [(number, "a helper") for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGSEGV)]
    for number, target in ((signal.SIGINT, "the runner"), *helper):
        yield Kind(f"{number.name} to {target}", partial(strike, number=number, target=target), chained=True)
    yield Kind("SIGINT to the runner, twice", twice, chained=True)
    yield Kind("SIGSTOP, then SIGKILL to the runner", stop_and_kill, chained=True)


def strike(case: Case, number: Signals, target: str) -> None:
    """Send a signal at a random moment. What is stopped, and is no rank, goes on after a while."""
    command = case.place.start()
    case.wait_for_moment(command)
    found = victims(case, command, target)
    for each in found:
        each.signal(number)
    if number is signal.SIGSTOP and target != "a rank":
        time.sleep(case.rng.uniform(0.2, 3.0))
        for each in found:
            each.signal(signal.SIGCONT)
    case.end(command)


def victims(case: Case, command: Command, target: str) -> list[Process]:
    """Return the processes that are meant, in random order; one of several where one is. Raises TooLate."""
    roles = TARGETS[target]
    case.wait(command, lambda: bool(case.place.processes(*roles)))
    found = case.place.processes(*roles)
    case.rng.shuffle(found)
    if target in ("a rank", "a helper"):
        found = found[:1]
    if not found:
        raise TooLate
    case.say("to " + ", ".join(f"{each.role} {each.name}" for each in found))
    return found


def twice(case: Case) -> None:
    """Interrupt the runner, and again while it ends."""
    command = case.place.start()
    case.wait_for_moment(command)
    command.process.send_signal(signal.SIGINT)
    time.sleep(case.rng.uniform(0, 0.3))
    command.process.send_signal(signal.SIGINT)
    case.end(command)


def stop_and_kill(case: Case) -> None:
    """Have the runner stand still for a while, and end it so."""
    command = case.place.start()
    case.wait_for_moment(command)
    command.process.send_signal(signal.SIGSTOP)
    time.sleep(case.rng.uniform(0.2, 3.0))
    command.process.send_signal(signal.SIGKILL)
    case.end(command)
