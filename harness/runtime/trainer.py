"""Trainer: turns a method's steps into epochs, the same way for every method."""

from __future__ import annotations

import gc
import hashlib
import math
import os
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.deferred import torch
from harness.graph.kernels import Versions, loaded
from harness.graph.partition import SPLITS
from harness.metrics import BOUNDED
from harness.models.layer import BlockSize
from harness.runtime.audit import CpuAccount, NetworkAccount, Used
from harness.runtime.checkpoint import Checkpoints
from harness.runtime.comm import Communicator
from harness.runtime.counters import outside_heap, trim_heap
from harness.runtime.evaluation import evaluate, evaluate_in_chunks
from harness.runtime.integrity import BETWEEN, EVALUATION, LABELS, RULES, SCORED, SETUP, EpochAccount, Inputs, Integrity
from harness.runtime.method import METHODS
from harness.runtime.optimizers import learning_rate, optimizer_of, schedule_of
from harness.runtime.report import RankReport, TrialError
from harness.runtime.run_config import IN_PHASES, TrainSpec, TuningRun
from harness.runtime.step import CapturedSteps, Loss, Step

if TYPE_CHECKING:
    from torch import Tensor

    from harness.runtime.worker import Worker


class FlatParameters:
    """Makes a model's weights and gradients views of two vectors, so that one all-reduce sums all gradients."""

    def __init__(self, model: torch.nn.Module) -> None:
        parameters = list(model.parameters())
        self.values = torch.nn.Parameter(torch.cat([p.detach().reshape(-1) for p in parameters]))
        # One more element behind the gradients carries the loss, so that every rank knows the loss of all.
        self.buffer = self.values.new_zeros(self.values.numel() + 1).detach()
        self.values.grad = self.buffer[:-1]
        torch.nn.utils.vector_to_parameters(self.values.data, parameters)
        gradients = self.values.grad.split([parameter.numel() for parameter in parameters])
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.view_as(parameter)

    def reduce(self, comm: Communicator, loss: Tensor) -> Tensor:
        """Sum gradients and loss over the ranks; returns the summed loss, a scalar on the device."""
        self.buffer[-1] = loss
        comm.all_reduce(self.buffer, purpose="model")
        return self.buffer[-1].to(torch.float64, copy=True)


Computed = tuple[tuple[tuple[int, int, int], ...], tuple[bool, bool, bool], bool]
"""Of a step: its blocks' sizes; `transform_first`, whether `aggregated` is given, whether its blocks communicate;
whether its inputs are fetched."""


def computed_by(step: Step) -> Computed:
    """Return what decides the work of a step."""
    sizes = tuple((block.num_dst, block.num_src, block.entries) for block in step.blocks)
    flags = step.transform_first, step.aggregated is not None, step.blocks[0].communicates
    return sizes, flags, step.nodes is not None


class EarlyStopping:
    """Follows the validation score over evaluations, and the seconds of training: ends all ranks alike."""

    def __init__(self, spec: TrainSpec, tuning: TuningRun | None = None) -> None:
        self._spec = spec
        self._rungs = sorted(tuning.rungs) if tuning else []
        self._best: dict[str, Any] | None = None
        self._since_best = 0
        self._target_epoch: int | None = None
        self.last_val: float | None = None
        self.stopped: str | None = None

    def evaluated(self, row: dict[str, Any]) -> None:
        """Follow the scores of an epoch's `row`."""
        val = self.last_val = row["val_score"]
        if val is None:
            return
        if self._best is None or val > self._best["val_score"]:
            self._best, self._since_best = row, 0
        else:
            self._since_best += 1
        target, patience = self._spec.target, self._spec.patience
        if target is not None and val >= target and self._target_epoch is None:
            self._target_epoch = row["epoch"]
            if self._spec.stop_at_target:
                self.stopped = "target"
        if patience is not None and self._since_best >= patience:
            self.stopped = "patience"

    @property
    def follows_seconds(self) -> bool:
        """Whether `trained` has to be called."""
        return self._spec.seconds is not None or bool(self._rungs)

    def trained(self, seconds: float, *, evaluated: bool) -> None:
        """Follow the seconds trained so far, of each epoch its slowest rank's; `evaluated`: behind the last epoch."""
        if evaluated:
            due = [val for at, val in self._rungs if at <= seconds]
            best = self._best["val_score"] if self._best else None
            if due and (best is None or best < due[-1]):
                self.stopped = "pruned"
            self._rungs = self._rungs[len(due) :]
        if self._spec.seconds is not None and seconds >= self._spec.seconds:
            self.stopped = self.stopped or "seconds"

    def summary(self, epochs: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the metrics of the whole trial."""
        best, last = self._best or {}, epochs[-1]
        return {
            "epochs": len(epochs),
            "best_val": best.get("val_score"),
            "test_at_best_val": best.get("test_score"),
            "sampled_test_at_best_val": best.get("sampled_test_score"),
            "best_epoch": best.get("epoch"),
            "final_val": last["val_score"],
            "final_test": last["test_score"],
            "final_loss": last["loss"],
            "target_epoch": self._target_epoch,
            "stopped": self.stopped or "epochs",
            "warmup_epochs": self._spec.warmup,
        }


def loss_sum(logits: Tensor, loss: Loss, pos_weight: float = 1.0) -> Tensor:
    """Return the sum over the loss's rows, divided by the rows of all ranks.

    Cross-entropy for single labels; for multi-label binary cross-entropy summed over classes, the term of the
    labels that a row has times `pos_weight`: -(w y log s(x) + (1 - y) log(1 - s(x))).
    """
    chosen = logits[loss.rows]
    if loss.labels.dim() == 1:
        each = torch.nn.functional.cross_entropy(chosen, loss.labels, reduction="none")
    else:
        factor = None if pos_weight == 1 else chosen.new_full((), pos_weight)
        each = torch.nn.functional.binary_cross_entropy_with_logits(
            chosen, loss.labels, reduction="none", pos_weight=factor
        ).sum(1)
    if loss.weights is not None:
        each = each * loss.weights
    return each.sum() / max(loss.total, 1)


TUNED_ON = ("train", "val")  # splits that a trial of a tuning is scored on
REHEARSED_S = 2.0  # so many seconds after its first step a rehearsal takes no further one
# Columns of an epoch's row that an evaluation fills in.
SCORES = ("train_score", "val_score", "test_score", "sampled_val_score", "sampled_test_score")


class Trainer:
    """Makes the method of a trial, and runs its epochs on one rank.

    `account`: the rank's CPU seconds, followed from before a plugin's module was imported.
    """

    def __init__(self, worker: Worker, report: RankReport, account: CpuAccount | None = None) -> None:
        job, config = worker.job, worker.job.config
        self.worker, self.report, self.spec = worker, report, config.train
        self.flat = FlatParameters(worker.model)
        self.integrity = Integrity(worker, self.flat.values, self.flat.buffer, report)
        self.account = account or CpuAccount(job.cores, report.flag, audited=job.audit)
        self.inputs = Inputs(worker, report)
        self.epochs = EpochAccount(worker, report, self.flat.buffer.numel())
        self.network: NetworkAccount | None = None
        if job.audit:
            self.network = NetworkAccount(worker.comm, worker.interface if config.network is not None else None)
        method = METHODS.load(config.method.name, config.plugin)
        self.method = method(worker, method.Options(**config.method.options))
        self.inputs.hold(self.method)
        self.integrity.unchanged(worker.model, SETUP)
        self.rates = job.rates if config.timing in IN_PHASES else None
        self.schedule = schedule_of(self.spec, config.plugins.get("schedule"))
        self.optimizer = optimizer_of(self.spec, config.plugins.get("optimizer")).make(
            [self.flat.values], lr=self.spec.lr, weight_decay=self.spec.weight_decay
        )
        self.captured = CapturedSteps(worker.device) if self.spec.cuda_graphs else None
        self.progress = EarlyStopping(self.spec, config.tuning)
        self.splits = SPLITS if config.tuning is None else TUNED_ON
        self.kernels: Versions | None = None  # called in a rehearsal; none after it is new
        self.trained_s = 0.0  # each epoch counts as its slowest rank's
        self.eval_s = 0.0  # of this rank
        self.checkpoints: Checkpoints | None = None
        if job.checkpoints is not None:
            self.checkpoints = Checkpoints(job.checkpoints, self.spec, worker.rank, self._numbers_of_all)

    def run(self) -> None:
        """Train to the end, evaluate as the suite says, and report.

        Raises:
            TrialError: the loss is not finite (diverged), or replicas differ (invalid).
        """
        spec, epochs = self.spec, self.report.epochs
        self.begin()
        for epoch in range(len(epochs), spec.epochs):
            row = self.train_epoch(epoch)
            epochs.append(row)
            if (epoch + 1) % spec.checksum_every == 0:
                self.check_replicas(epoch)
                if self.network is not None:
                    self.network.look()
            evaluated = spec.evaluates(epoch)
            if evaluated:
                self._evaluate(row)
            if self.progress.follows_seconds:
                self._follow_seconds(row, evaluated=evaluated)
            self.report.keep_epochs()
            self.report.progress(
                any_rank=True,
                event="epoch",
                epoch=epoch,
                epochs=spec.epochs,
                loss=row["loss"],
                val=self.progress.last_val,
                s_per_epoch=row["epoch_time_s"],
            )
            if self.progress.stopped:
                break
            if self.checkpoints is not None and epoch + 1 < spec.epochs and self.checkpoints.due(epoch + 1):
                self.keep(self.checkpoints, epoch + 1)
        self.method.close()
        self.epochs.ends(self.method, epochs)
        known = self.kernels
        if known is not None and (late := sorted(n for n, version in loaded().items() if version != known.get(n))):
            self.report.flag("compile", f"called for the first time after set-up: {', '.join(late)}")
        sent = self.end()
        summary = self.progress.summary(epochs) | {
            "checksum": self.check_replicas(len(epochs) - 1),
            "spmm": self.worker.partition.engine,
            "tf32": torch.backends.cuda.matmul.allow_tf32 if self.worker.device.type == "cuda" else None,
            "parameters": self.flat.values.numel(),
            "rates": self.rates and self.rates.measured,
        }
        self.report.finish(summary, self.eval_s, usage=self.account.report(), **sent)
        self.report.progress(event="done")

    def _follow_seconds(self, row: dict[str, Any], *, evaluated: bool) -> None:
        """Stop all ranks alike by how long they have trained; evaluate if that was the end."""
        times = self._numbers_of_all([round(1e9 * row[name]) for name in ("epoch_time_s", "precompute_s")])
        self.trained_s += sum(max(of_ranks) for of_ranks in zip(*times, strict=True)) / 1e9
        self.progress.trained(self.trained_s, evaluated=evaluated)
        if self.progress.stopped == "seconds" and self.spec.final_eval and not evaluated:
            self._evaluate(row)

    def begin(self) -> None:
        """Begin to follow what the rank uses and sends: set-up is over."""
        self.epochs.begins()
        self.account.begins()
        if self.network is not None:
            self.network.begins()

    def end(self) -> dict[str, dict[str, Any]]:
        """Flag what an audited rank has used and sent since `begin`; every rank must call. Returns what it sent."""
        self.account.ends()
        if self.network is None:
            return {}
        epochs, rehearsed = self.account.used.epochs, self.kernels is not None
        return {"wire": self.network.ends(self.report.flag, epochs=epochs, rehearsed=rehearsed)}

    def train_epoch(self, epoch: int) -> dict[str, Any]:
        """Run one epoch; returns its row of the record."""
        worker, clock, lr = self.worker, self.worker.clock, learning_rate(self.spec, self.schedule, epoch)
        worker.beacon.epoch(epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.integrity.unchanged(worker.model, BETWEEN)
        worker.model.train()
        timing = worker.job.config.timing
        if timing == "breakdown" and (self.spec.epochs - epoch) % 2:
            timing = "plain"  # every second epoch has barriers, the last has none
        # The mean of the steps' losses, weighted by their rows, is read from the device once, at the end.
        weighted: Tensor | float = 0.0
        rows, own, taken, stats, before = 0, 0, 0, dict[str, float](), worker.traffic.sent()
        computed: list[Computed] = []
        between_s = self.epochs.epoch_begins()
        with (
            worker.check.epoch() if worker.check else nullcontext(),
            worker.meters.epoch() as metered,
            worker.traffic.during("epoch"),
            clock.epoch(aligned=timing == "breakdown") as timed,
        ):
            with clock.phase("sample"):
                steps = iter(self.method.steps(epoch))
            while True:
                with clock.phase("sample"):
                    step = None  # the next one is drawn and fetched where this one's rows were
                    step = next(steps, None)
                if step is None:
                    break
                total = self._take(step)
                with clock.phase("check"):
                    weighted = weighted + total * step.loss.total
                    rows, own, taken = rows + step.loss.total, own + step.loss.rows.numel(), taken + 1
                    for name, value in step.stats.items():
                        stats[name] = stats.get(name, 0) + value
                    computed += [computed_by(step)] if self.rates is not None else []
            if worker.check is not None:
                with clock.phase("comm"), clock.waiting():
                    self.method.synchronize()  # or the interface's counters would miss what is under way
        self.integrity.ends_epoch()
        self.integrity.unchanged(worker.model, BETWEEN)  # before an evaluation asks it
        if (what := self.epochs.epoch_ends(taken)) is not None:
            self.integrity.violated(what)
        if (rule := self.inputs.ends_epoch()) is not None:
            self.integrity.violated(rule)
        self.account.epoch(timed.wall_s, timed.cpu_s)
        loss, after = float(weighted) / rows if rows else math.nan, worker.traffic.sent()
        if not math.isfinite(loss):
            self.check_rules(only=LABELS)
            raise TrialError("diverged", f"loss is {loss} in epoch {epoch}")
        sent = {purpose: after[purpose] - before[purpose] for purpose in after}
        return {
            "epoch": epoch,
            "rank": worker.rank,
            "timing": timing,
            "epoch_time_s": None if timing == "off" else timed.wall_s,
            "precompute_s": self.report.precompute_s if epoch == 0 else 0.0,
            "steps": taken,
            "trained_rows": own,
            "between_s": between_s,
            **timed.columns(detailed=timing in IN_PHASES),
            **metered,
            **{f"bytes_{purpose}": size for purpose, size in sent.items()},
            **self._least(computed, sent),
            "loss": loss,
            "lr": lr,
            **dict.fromkeys(SCORES),
            "eval_s": 0.0,
            "stats": stats,
        }

    def _least(self, computed: list[Computed], sent: dict[str, int]) -> dict[str, float | None]:
        """Return how long phases of an epoch take at least at the machine's rates; None where they are not known."""
        least: dict[str, float | None] = dict.fromkeys(f"least_{phase}_s" for phase in BOUNDED)
        if self.rates is None:
            return least
        threads, measured = self.worker.job.threads, self.rates.measured
        row, fetched, passes = 4 * self.worker.stored_features.shape[1], 0, [0.0, 0.0]
        for (sizes, flags, inputs), times in Counter(computed).items():
            keys = ("transform_first", "aggregated", "communicates")
            works = self.worker.model.work([BlockSize(*each) for each in sizes], **dict(zip(keys, flags, strict=True)))
            seconds = [times * self.rates.seconds(work, rounded=self.spec.precision == "bf16") for work in works]
            passes = [total + more for total, more in zip(passes, seconds, strict=True)]
            fetched += times * sizes[0][1] if inputs else 0
        least["least_fetch_s"] = 2 * fetched * row / measured["copy"] / threads  # read and written
        least["least_forward_s"], least["least_backward_s"] = (each / threads for each in passes)
        if self.worker.world > 1 and (exchange := measured.get("exchange")):
            others = sum(sent[purpose] for purpose in ("feature", "embedding", "gradient", "control"))
            least |= {"least_comm_s": others / exchange, "least_reduce_s": sent["model"] / exchange}
        return least

    def _take(self, step: Step) -> Tensor:
        """Do one step, all of it in phases; returns the loss of all ranks, not read: that would wait for the device."""
        worker, clock = self.worker, self.worker.clock
        with clock.phase("check"):
            worker.beacon.step()
            self.integrity.begins_step()
            self.integrity.reads(step.loss)
            inputs, aggregated = self.inputs.of(step)
        with clock.phase("optimize"):
            self.flat.buffer.zero_()  # all gradients, in place

        def passes() -> Tensor:
            logits = worker.model(
                step.blocks, inputs, step.exchange, transform_first=step.transform_first, aggregated=aggregated,
                first=step.first,
            )  # fmt: skip
            loss = loss_sum(logits, step.loss, self.spec.pos_weight)
            with clock.phase("backward"):
                loss.backward()
            return loss.detach()  # here the graph of the passes goes, not behind the step

        integrity = self.integrity
        with clock.phase("forward"), step.around():
            loss = passes() if self.captured is None else self.captured.run(step, passes)
            version = integrity.version
        with clock.phase("check"):
            integrity.added(version)
        with clock.phase("reduce"):
            total = self.flat.reduce(worker.comm, loss)
            version = integrity.version
        self.method.on_step_end(total)
        with clock.phase("check"):
            integrity.added(version)
        with clock.phase("optimize"):
            if self.spec.clip is not None:
                torch.nn.utils.clip_grad_norm_(self.flat.values, self.spec.clip)
            self.optimizer.step()
            self.integrity.ends_step()
        return total

    def _evaluate(self, row: dict[str, Any]) -> None:
        start, spans = time.perf_counter(), self.worker.spans
        if not self.worker.originals.scored():
            self.integrity.violated(SCORED)
        with self.account.evaluation(), self.worker.meters.paused(), self.worker.apart():
            with spans("eval"):
                scores = self.scores()
            with spans("sampled eval"):
                sampled = self.method.sampled_scores() if self.spec.sampled_eval else {}
        row["eval_s"] = time.perf_counter() - start
        self.epochs.apart_s += row["eval_s"]
        self.integrity.unchanged(self.worker.model, EVALUATION)
        self.eval_s += row["eval_s"]
        row |= {f"{split}_score": score for split, score in scores.items()}
        row |= {f"sampled_{split}_score": score for split, score in sampled.items() if split in self.splits}
        self._follow_scores(row)

    def _follow_scores(self, row: dict[str, Any]) -> None:
        """Have early stopping and the schedule follow the scores of an epoch's `row`."""
        self.progress.evaluated(row)
        if row["val_score"] is not None:
            self.schedule.evaluated(row["val_score"])

    def scores(self) -> dict[str, float | None]:
        """Return the exact score of each split; every rank must call."""
        worker = self.worker
        given, bounded = (worker.model, worker.eval_view, worker.comm), self.spec.eval_memory is not None
        at = self.method.features_at
        if bounded or at == "disk" or (at == "host" and worker.device.type != "cpu"):
            with outside_heap():
                files = self._files() if bounded else None
                return evaluate_in_chunks(*given, self.spec.chunk_mib, self.splits, files)
        return evaluate(*given, self.spec.evaluation_mib, self.splits)

    def _files(self) -> Path:
        """Return where rows of layers may wait in files."""
        # A directory for temporary files that nobody named is often memory.
        place = self.worker.eval_view.partition.view
        return Path(os.environ.get("TMPDIR") or (place if os.access(place, os.W_OK) else tempfile.gettempdir()))

    def check_replicas(self, epoch: int) -> str:
        """Compare a checksum of the weights across ranks; returns it.

        Raises:
            TrialError: `invalid`, if a replica differs in a single bit, or see `check_rules`.
        """
        digest = hashlib.blake2b(self.flat.values.detach().cpu().numpy().tobytes(), digest_size=8).digest()
        sums = self._all_ranks(int.from_bytes(digest, "big", signed=True))
        different = [rank for rank, checksum in enumerate(sums) if checksum != sums[0]]
        if different:
            raise TrialError("invalid", f"replicas differ from rank 0's after epoch {epoch}: ranks {different}")
        self.check_rules()
        return digest.hex()

    def check_rules(self, only: str | None = None) -> None:
        """Check that no rank has broken one of the rules (or `only` that one); every rank must call.

        Raises:
            TrialError: `invalid`, with the rule that the first such rank has broken.
        """
        own = self.integrity.broken
        broken = self._all_ranks(-1 if own is None or only not in (None, own) else RULES.index(own))
        if ranks := [rank for rank, rule in enumerate(broken) if rule >= 0]:
            what = f": {self.integrity.what}" if self.integrity.what else ""
            raise TrialError("invalid", f"{RULES[broken[ranks[0]]]}{what} (ranks {ranks})")

    def _all_ranks(self, own: int) -> list[int]:
        return [number for (number,) in self._numbers_of_all([own])]

    def _numbers_of_all(self, own: list[int]) -> list[list[int]]:
        with self.worker.traffic.during("eval"), self.worker.spans("checks"):
            gathered = self.worker.comm.all_gather(torch.tensor(own, device=self.worker.device))
        return [each.tolist() for each in gathered]

    def rehearse(self) -> bool:
        """Do once what a training does: nothing is compiled, connected or (on GPUs) allocated first in an epoch then.

        Neither this trainer nor its method is of use then, see `set_up`. Every rank must call. Returns whether it
        came to its end: steps that last are not repeated.
        """
        worker = self.worker
        if self.spec.scored:
            with worker.meters.paused():
                self.scores()
                if self.spec.sampled_eval:
                    self.method.sampled_scores()
        worker.model.train()
        end, whole = math.inf, True  # the first step compiles: its time is not the others'
        with worker.clock.epoch(aligned=worker.job.config.timing == "breakdown"):
            for step in self.method.rehearsal():
                self._take(step)
                late = torch.tensor([time.perf_counter() > end], device=worker.device)
                if any(worker.comm.all_gather(late)):
                    whole = False  # what is called first in a later step is short compared with such steps
                    break
                end = min(end, time.perf_counter() + REHEARSED_S)
        self.method.close()
        return whole

    def keep(self, checkpoints: Checkpoints, done: int) -> None:
        """Write a checkpoint after `done` epochs; where it cannot be written, training goes on without."""
        worker, network = self.worker, self.network
        paused = self.account.paused(), network.paused() if network else nullcontext()
        start = time.perf_counter()
        with worker.spans("checkpoint"), worker.meters.paused(), paused[0], paused[1]:
            self.method.synchronize()
            # All that the epochs to come, and the report, follow from.
            state = {
                "weights": self.flat.values,
                "optimizer": self.optimizer.state_dict(),
                "broken": self.integrity.broken,
                "trained_s": self.trained_s,
                "eval_s": self.eval_s,
                "method": self.method.state(),
                "report": self.report.state(),
                "usage": asdict(self.account.used),
                "wire": network.state() if network else None,
                "worker": worker.state(),
            }
            try:
                checkpoints.write(done, state)
            except OSError as error:
                self.report.flag("checkpoint", f"could not be written: {error.strerror or error}")
        self.epochs.apart_s += time.perf_counter() - start

    def resume(self) -> None:
        """Go on from the last checkpoint, if any, as if there had been no other process; every rank must call.

        What was drawn, sent and measured since set-up began is forgotten.
        """
        if self.checkpoints is None or (found := self.checkpoints.last(self.report.stage)) is None:
            return
        done, state = found
        self.method.restore(state["method"], done)
        with torch.no_grad():
            self.flat.values.copy_(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.integrity.resumed(state["broken"])
        self.report.restore(state["report"], done)
        for row in self.report.epochs:
            if self.spec.evaluates(row["epoch"]):
                self._follow_scores(row)
        self.trained_s, self.eval_s = state["trained_s"], state["eval_s"]
        self.account.used = Used(**state["usage"])
        if self.network is not None and state["wire"] is not None:
            self.network.restore(state["wire"])
        self.worker.comm.barrier()
        self.worker.restore(state["worker"])


@outside_heap()
def set_up(worker: Worker, report: RankReport, account: CpuAccount | None = None, imported_s: float = 0.0) -> Trainer:
    """Return the trainer of a trial, after all that comes before its first epoch; every rank must call.

    A method is made, and rehearsed (`Trainer.rehearse`) on a model of its own; then both are made anew. What the first
    making took is the method's set-up, what came after it is `compile_s`: it draws nothing of the training's random
    numbers, and its bytes are counted under the scope `compile`. `imported_s`, of the method's module, is part of it.
    Where epochs are not timed there is no rehearsal.
    """
    with worker.spans("prepare"):
        trainer = Trainer(worker, report, account)
    account = trainer.account  # it has seen the threads from before any method
    seconds, found, metrics = worker.spans.seconds.copy(), worker.found.copy(), trainer.method.setup_metrics()
    report.setup(worker, trainer.method, seconds, metrics)
    start = time.perf_counter()
    if worker.job.config.timing != "off":
        with worker.traffic.during("compile"):
            whole = trainer.rehearse()
            report.method = None
            del trainer
            gc.collect()  # or there would be the memory of two methods
            trim_heap()
            worker.start_over()
            trainer = Trainer(worker, report, account)
        trainer.kernels = loaded() if whole else None
    worker.found, worker.spans.seconds, worker.clock.background = found, {}, {}  # without what the rehearsal added
    report.rehearsed(trainer.method, imported_s + time.perf_counter() - start)
    worker.comm.barrier()  # or the first epoch would begin with a wait for the slowest
    return trainer
