"""The process that is one rank of a trial.

Run as `python -m harness.runtime.rank JOB.json` with torchrun's RANK, WORLD_SIZE and LOCAL_RANK.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

from harness.runtime import exit_with_launcher

if __name__ == "__main__":
    exit_with_launcher()  # before torch is imported, which takes seconds

import numba  # noqa: F401 - first, so that no kernel is deferred
import torch

from harness.graph.kernels import loaded
from harness.runtime.audit import CpuAccount
from harness.runtime.external import CommandOptions, run_command
from harness.runtime.integrity import Originals
from harness.runtime.job import STACKS, Job, join_group
from harness.runtime.method import METHODS
from harness.runtime.report import RankReport
from harness.runtime.trainer import set_up
from harness.runtime.worker import Worker


def main(arguments: list[str]) -> int:
    """Run one rank; returns the exit code: 0 if the trial is ok, 3 for any other status."""
    faulthandler.register(STACKS)
    gc.freeze()  # what was imported stays: to look through it for garbage takes 0.2 s, in whatever epoch that falls
    job = Job.read(Path(arguments[0]))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    report = RankReport(job.out, rank)
    report.plugins += [each.file for each in (job.config.plugin, *job.config.plugins.values()) if each]
    with report.concluding():
        torch.set_num_threads(job.threads)
        store = join_group(job, rank, world)
        account = CpuAccount(job.cores, report.flag, audited=job.audit)  # before a plugin's module runs
        originals = Originals()
        start = time.perf_counter()
        # A rank that was forked has harness's own already.
        method = METHODS.load(job.config.method.name, job.config.plugin)
        imported_s = time.perf_counter() - start
        account.imported()
        if method.family == "external":
            run_command(CommandOptions(**job.config.method.options), job, rank, store, report)
        else:
            trainer = set_up(Worker(job, rank, world, report.stage, originals), report, account, imported_s)
            trainer.resume()
            trainer.run()
        del store  # the group, which used it, is done
    if job.kernels:
        (job.out / f"kernels{rank}.json").write_text(json.dumps(loaded()))
    return report.exit_code


def leave(code: int) -> NoReturn:
    """End this process with an exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    # gloo's threads may still hold sockets to peers that ended first; their destructors can hang or abort.
    os._exit(code)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
