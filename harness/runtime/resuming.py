"""What of a trainer a checkpoint keeps, and how another one goes on from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.deferred import torch
from harness.runtime.checkpoint import Checkpoints

if TYPE_CHECKING:
    from harness.runtime.trainer import Trainer


def resume(trainer: Trainer) -> None:
    """Go on from the last checkpoint, if there is one, as if there had been no other process; every rank must call.

    What was drawn, sent and measured since set-up began is forgotten.
    """
    if trainer.checkpoints is None or (found := trainer.checkpoints.last(trainer.report.stage)) is None:
        return
    done, state = found
    trainer.method.restore(state["method"], done)
    with torch.no_grad():
        trainer.flat.values.copy_(state["weights"])
    trainer.optimizer.load_state_dict(state["optimizer"])
    trainer.integrity.resumed(state["broken"])
    trainer.report.restore(state["report"], done)
    for number, row in enumerate(trainer.report.epochs, start=1):
        if trainer.spec.evaluates(row["epoch"]):
            trainer.take_scores(row, trainer.report.epochs[:number])
    trainer.trained_s, trainer.eval_s = state["trained_s"], state["eval_s"]
    trainer.usage.restore(state["usage"])
    trainer.wire.restore(state["wire"])
    trainer.worker.comm.barrier()
    trainer.worker.restore(state["worker"])


def keep(trainer: Trainer, checkpoints: Checkpoints, done: int) -> None:
    """Write a checkpoint after `done` epochs; where it cannot be written, training goes on without."""
    worker = trainer.worker
    with worker.spans("checkpoint"), worker.meters.paused(), trainer.usage.besides(), trainer.wire.besides():
        trainer.method.synchronize()
        try:
            checkpoints.write(done, state_of(trainer))
        except OSError as error:
            trainer.report.flag("checkpoint", f"could not be written: {error.strerror or error}")


def state_of(trainer: Trainer) -> dict[str, Any]:
    """Return all that the epochs to come, and the report, follow from; see `resume`."""
    return {
        "weights": trainer.flat.values,
        "optimizer": trainer.optimizer.state_dict(),
        "broken": trainer.integrity.broken,
        "trained_s": trainer.trained_s,
        "eval_s": trainer.eval_s,
        "method": trainer.method.state(),
        "report": trainer.report.state(),
        "usage": trainer.usage.state(),
        "wire": trainer.wire.state(),
        "worker": trainer.worker.state(),
    }
