"""Jobs that a Slurm puts back in its queue, cancels, or loses the node of; the Slurm is this machine's alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache, partial

from tests.faults.case import SUITE, Case, Kind, TooLate
from tests.support.slurm import OwnSlurm, missing

ALONE = SUITE.replace("parts: 2", "parts: 1")


def kinds() -> Iterator[Kind]:
    """Yield a kind for each thing that may become of a job."""
    for name, command in (
        ("requeued", ("scontrol", "requeue")),
        ("cancelled", ("scancel",)),
        ("told of its time limit", ("scancel", "--signal=USR2")),
    ):
        yield Kind(f"a Slurm job is {name}", partial(strike, command=command), suite=ALONE, why_not=missing)


def strike(case: Case, command: tuple[str, ...]) -> None:
    """Have Slurm do something to the job that runs the suite, at a random moment."""
    slurm = _slurm()
    case.place.arguments = ("--executor", "slurm", "--slurm", "time=5")
    case.place.variables |= {key: slurm.env[key] for key in ("PATH", "SLURM_CONF")}
    run = case.place.start()
    case.wait(run, case.place.staged)
    time.sleep(case.rng.uniform(0, 2.0))
    jobs = slurm.run("squeue", "--noheader", "--array", "--states=RUNNING", "--format=%i").split()
    if not jobs:
        raise TooLate
    job = case.rng.choice(jobs)
    case.say(f"{' '.join(command)} {job}")
    try:
        slurm.run(*command, job)
    except AssertionError as error:  # it has just ended
        raise TooLate from error
    case.end(run)


@cache
def _slurm() -> OwnSlurm:
    import atexit

    own = OwnSlurm()
    atexit.register(own.stop)
    return own
