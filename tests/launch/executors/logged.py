"""Full-graph training that says, in a file outside the results, when a trial begins and ends."""

from __future__ import annotations

import os
from collections.abc import Iterator

from harness_methods.full import Full

from harness import Step


class Logged(Full):
    """Appends a line to HARNESS_LOGGED at a trial's first and last epoch: what, its seed, the process."""

    name = "logged"

    def steps(self, epoch: int) -> Iterator[Step]:
        """See `Full`."""
        yield from super().steps(epoch)
        last = self.worker.job.config.train.epochs - 1
        for what, when in (("begin", 0), ("end", last)):
            if epoch == when and self.worker.comm.rank == 0:
                with open(os.environ["HARNESS_LOGGED"], "a") as log:  # short lines are appended whole
                    log.write(f"{what} {self.worker.job.config.seed} {os.getpid()}\n")
