"""Several runners over one results directory, some of which end before their time."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from functools import partial

from tests.faults.case import SUITE, Case, Kind
from tests.faults.place import Command, Process

ENDS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)

ALONE = SUITE.replace("parts: 2", "parts: 1")


def kinds() -> Iterator[Kind]:
    """Yield a kind for two runners, ten, and those that `--jobs` starts."""
    yield Kind("two runners", partial(together, runners=2, ended=0))
    yield Kind("two runners, one ended", partial(together, runners=2, ended=1))
    yield Kind("ten runners", partial(together, runners=10, ended=0))
    yield Kind("ten runners, five ended", partial(together, runners=10, ended=5))
    yield Kind("--jobs 2, all ended by their starter's end", partial(side_by_side, target="starter"), suite=ALONE)
    yield Kind("--jobs 2, one runner ended", partial(side_by_side, target="runner"), suite=ALONE)


def together(case: Case, runners: int, ended: int) -> None:
    """Start runners, almost at once, and end some of them at random moments."""
    commands: list[Command] = []
    for _ in range(runners):
        commands.append(case.place.start())
        time.sleep(case.rng.uniform(0, 0.3))
    for chosen in case.rng.sample(commands, ended):
        time.sleep(case.rng.uniform(0, 2.0))
        number = case.rng.choice(ENDS)
        case.say(f"{number.name} to runner {commands.index(chosen)}")
        chosen.process.send_signal(number)
    for command in commands:
        case.end(command, 150 + 10 * runners)


def side_by_side(case: Case, target: str) -> None:
    """End a runner that `--jobs` started, or what started it."""
    case.place.arguments = ("--jobs", "2")
    command = case.place.start()
    case.wait_for_moment(command)
    case.wait(command, lambda: bool(_shares(case)))
    runners = _shares(case)
    number = case.rng.choice(ENDS)
    case.say(f"{number.name} to the {target}")
    if target == "starter":
        command.process.send_signal(number)
    else:
        case.rng.choice(runners).signal(number)
    case.end(command)


def _shares(case: Case) -> list[Process]:
    return [each for each in case.place.processes("runner") if "--share" in each.arguments]
