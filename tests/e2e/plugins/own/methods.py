"""Methods of a user's own, named in a suite as `own.methods:Class`; they import only what is public."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from harness_methods.psc_gcn import PSCGCN

from harness import FullGraphOptions, Method, Step, SyncExchange


class Plain(Method[FullGraphOptions]):
    """Full-graph training, to build trouble on."""

    name = "plain"
    family = "full-graph"
    Options = FullGraphOptions

    def steps(self, epoch: int) -> Iterator[Step]:
        worker = self.worker
        yield Step(
            blocks=[worker.partition.full_block] * worker.model.depth,
            inputs=worker.features.inner,
            exchange=SyncExchange(worker.comm, worker.partition.full_halo),
            loss=worker.train_loss,
        )


class Raising(Plain):
    """Raises on the last rank in epoch 1, unless the variable MENDED is set."""

    def steps(self, epoch: int) -> Iterator[Step]:
        if epoch == 1 and self.worker.rank == self.worker.world - 1 and "MENDED" not in os.environ:
            raise RuntimeError("planted failure")
        yield from super().steps(epoch)


class Dying(Plain):
    """Is killed on the last rank in epoch 1, unless the variable MENDED is set."""

    def steps(self, epoch: int) -> Iterator[Step]:
        if epoch == 1 and self.worker.rank == self.worker.world - 1 and "MENDED" not in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        yield from super().steps(epoch)


class Slow(Plain):
    """Takes a while, and writes the start and the end of each trial to the file $LEDGER."""

    def steps(self, epoch: int) -> Iterator[Step]:
        config = self.worker.job.config
        if epoch == 0:
            self._write(f"start {config.seed}")
        time.sleep(0.25)
        yield from super().steps(epoch)
        if epoch + 1 == config.train.epochs:
            self._write(f"end {config.seed}")

    def _write(self, line: str) -> None:
        if self.worker.rank == 0:
            with Path(os.environ["LEDGER"]).open("a") as ledger:
                ledger.write(line + "\n")


class Holding(PSCGCN):
    """PSC-GCN that stands still in epoch $HOLD; not where it went on from a checkpoint just before."""

    _first: int | None = None

    def steps(self, epoch: int) -> Iterator[Step]:
        self._first = epoch if self._first is None else self._first
        if epoch == int(os.environ.get("HOLD", "-1")) and epoch - self._first > 5:
            time.sleep(90)
        yield from super().steps(epoch)


class Stuck(Plain):
    """Full-graph training in which rank 1 comes to no end in epoch 3."""

    def steps(self, epoch: int) -> Iterator[Step]:
        if epoch == 3 and self.worker.rank == 1:
            _comes_to_no_end()
        yield from super().steps(epoch)


def _comes_to_no_end() -> None:
    while True:
        time.sleep(0.1)
