"""Worker: one rank's partition, features, communicator, clock, model and random numbers."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.data.partition.cached import PartitionPaths
from harness.data.shards import PartRows, open_here
from harness.deferred import numpy as np
from harness.deferred import torch
from harness.graph.devices import kind_of, upload
from harness.graph.partition import View
from harness.runtime.audit import TrafficCheck
from harness.runtime.clock import Clock, Spans
from harness.runtime.comm import Communicator, Traffic
from harness.runtime.evaluation import WholeBlock, columns_at_once
from harness.runtime.features import FeatureStore
from harness.runtime.integrity import Originals
from harness.runtime.job import Job, ProgressBeacon, rank_device
from harness.runtime.meters import Meters
from harness.runtime.run_config import IN_PHASES
from harness.runtime.step import Loss

if TYPE_CHECKING:
    from torch import Tensor

REMEMBERED = 64  # aggregated rows


class Worker:
    """One rank: its partition, features, communicator, clock, model and random numbers.

    Attributes:
        spans: seconds before the first epoch and between epochs, by name.
        found: seconds that parts of the set-up took which it found ready-made, by name; None where that is not known.
        comm, clock: the only ways to other ranks and to the time.
        beacon: shows the launcher how far it is.
        meters: memory, utilisation and energy of this rank.
        interface: the network interface that the ranks talk over; None where it is not known.
        check: holds counted bytes against the interface's (`traffic: verify`), or None.
        view: this rank's part of the graph that is trained on, with its partition; `eval_view`: of the whole graph
            (the same object when transductive).
        stored_features: the features [N, F] of the data set, memory-mapped; of a shard `shard`, else None.
        multilabel: whether a node has several labels. Labels are those of `view`.
        train_rows: inner rows (int64) of this rank's training nodes; train_counts, train_total: their number on each
            rank, and on all.
        model: the replica.
        rng: this rank's numpy generator, for sampling.
        aggregated_rows: some of the inner rows' aggregated features [F], or several powers' [k F], once there are any.
        notify: called with a line on work that takes long before the first epoch.
        originals: made before the method's module was imported.
    """

    def __init__(
        self, job: Job, rank: int, world: int, notify: Callable[[str], None] = lambda text: None,
        originals: Originals | None = None,
    ) -> None:  # fmt: skip
        config = job.config
        self.job, self.rank, self.world, self.notify = job, rank, world, notify
        self.spans = Spans()
        with self.spans("open"):
            self.device = rank_device(config.device)
            self.spans.of(self.device)
            if self.device.type == "cuda":
                torch.backends.cuda.matmul.allow_tf32 = False  # float32 is float32, whatever a plugin has set
            self.dtype = getattr(torch, config.train.stored)
            self.clock, self.traffic = Clock(self.device, detailed=config.timing in IN_PHASES), Traffic()
            self.beacon = ProgressBeacon(job.out, rank)
            self.comm = Communicator(
                rank, world, self.device, self.clock, self.traffic, timeout_s=job.collective_timeout_s,
                beacon=self.beacon,
            )  # fmt: skip
            self.interface = os.environ.get("GLOO_SOCKET_IFNAME") if world > 1 else None
            self.check: TrafficCheck | None = None
            if config.traffic == "verify" and self.interface is not None:
                self.check = TrafficCheck(self.comm, self.interface, shaped=config.network is not None)
            local_rank = int(os.environ.get("LOCAL_RANK", "0"))
            clock = self.clock  # the meters' thread must not hold the worker
            self.meters = Meters(
                self.device, local_rank=local_rank, timing=config.timing, phase=lambda: clock.current, cores=job.cores
            )
            self.aggregated_rows: dict[int, Tensor] = {}
            self._graph = open_here(job.graph, PartitionPaths(job.train_view, job.full_view), rank)
            features: Any = self._graph.features
            self.stored_features, self.multilabel = features, self._graph.multilabel
            self.shard = features if isinstance(features, PartRows) else None
            self.view = self.open_view(job.train_view, rank)
            self.partition, self.train_rows = self.view.partition, self.view.rows["train"]
            self.found: dict[str, float | None] = {"partition": self.view.partition.meta.get("seconds")}
            self.eval_view = self.open_view(job.full_view, rank) if job.inductive else self.view
            counts = self.comm.all_gather(torch.tensor([self.train_rows.numel()], device=self.device))
            self.train_counts = [int(c) for c in counts]
            self.train_total = sum(self.train_counts)
            self._random = _global_generators()  # a plugin's may be these
            self.start_over()
            self.originals = originals or Originals()
            self.originals.hold(self)

    def start_over(self) -> None:
        """Make the model and the random numbers that the training starts from; features are as they were read.

        What a method has done to them is undone, for another that takes its place: see `Trainer.rehearse`.
        """
        from harness.models.gnn import GNN

        config = self.job.config
        if vars(self).pop("features", None) is not None:
            _ = self.features  # read again here, not in an epoch
        _set_global_generators(self._random)
        self.model = GNN(
            config.model,
            self.stored_features.shape[1],
            self._graph.num_classes,
            seed=config.seed,
            dtype=self.dtype,
            rounded=config.train.precision == "bf16",
            products=config.train.products,
            source=config.plugins.get("model"),
        ).to(self.device)
        self.rng = np.random.default_rng((config.seed, self.rank))
        torch.manual_seed(int(np.random.SeedSequence((config.seed, self.rank)).generate_state(1)[0]))

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Leave all generators as they were: what is no training draws none of its numbers."""
        ours, others = self.rng.bit_generator.state, _global_generators()
        with torch.random.fork_rng(kind_of(self.device).generators(self.device)):
            try:
                yield
            finally:
                _set_global_generators(others)
                self.rng.bit_generator.state = ours

    def state(self) -> dict[str, Any]:
        """Return generators, the model's buffers, counts and measurements, for a checkpoint."""
        return {
            "rng": self.rng.bit_generator.state,
            "torch": torch.get_rng_state(),
            "device": kind_of(self.device).random_state(self.device),
            "others": _global_generators(),
            "buffers": dict(self.model.named_buffers()),
            "traffic": self.traffic.rows(),
            "between": self.spans.seconds,
            "beside": self.clock.background,
            "meters": self.meters.state(),
            "check": self.check and self.check.sums,
            "codec": self.comm.codec and self.comm.codec.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from the `state` of another process; nothing may be drawn or sent behind that."""
        with torch.no_grad():
            for name, buffer in self.model.named_buffers():
                buffer.copy_(state["buffers"][name])
        self.traffic.restore(state["traffic"])
        self.spans.seconds, self.clock.background = state["between"], state["beside"]
        self.meters.restore(state["meters"])
        if self.check is not None and state["check"] is not None:
            self.check.sums = state["check"]
        if self.comm.codec is not None:
            self.comm.codec.restore(state["codec"], self.device)
        self.rng.bit_generator.state = state["rng"]
        _set_global_generators(state["others"])
        torch.set_rng_state(state["torch"])
        if state["device"] is not None:
            kind_of(self.device).set_random_state(self.device, state["device"])

    def open_view(self, path: Path, rank: int) -> View:
        """Return the part of `rank` of a partitioned graph."""
        spmm = self.job.config.train.spmm
        return View(
            self._graph, path, rank, engine=spmm, device=self.device, dtype=self.dtype, rows=self.job.rows
        )  # fmt: skip

    @cached_property
    def features(self) -> FeatureStore:
        """The feature store of the training view, read when it is first asked for."""
        return FeatureStore(self.comm, self.view.features(), self.view.owner, self.view.local_row)

    @cached_property
    def train_loss(self) -> Loss:
        """The loss over all training nodes, for output rows that are the inner nodes."""
        return Loss(self.train_rows, self.view.labels[self.train_rows], self.train_total)

    def aggregate_features(self) -> Tensor:
        """Return the exact first-layer aggregation [n_in, F] of the input features; every rank must call.

        UserError if the model's aggregation depends on its weights.
        """
        (found,) = self.propagated(self.features.inner, [1], slice(None))
        return found

    def propagated(self, features: Tensor, powers: Sequence[int], rows: Tensor | slice) -> list[Tensor]:
        """Return some `rows` of A^k X, for each k of `powers`, ascending; every rank must call, in set-up.

        `features` are X [n_in, F], which are not held here behind the first hop. With `train.eval_memory` some columns
        at a time are propagated, as many as it has room for. UserError as of `aggregate_features`.
        Traffic: F values for each boundary node and hop, as the model's layers would send them.
        """
        self.model.require_fixed_aggregation()
        rows_of = max(row["inner"] + row["boundary"] for row in self.partition.meta["table"][: self.world])
        most, width = self.job.config.train.eval_memory, features.shape[1]
        columns = columns_at_once(width, rows_of, features.itemsize, most)
        slices, kept = [*features.split(columns, 1)], [[] for _ in powers]  # type: ignore[var-annotated]
        del features
        with torch.no_grad(), self.traffic.during("setup"), self.spans("precompute"):
            block = WholeBlock(self.comm, self.partition, columns, self.job.config.train.evaluation_mib)
            while slices:
                x = slices.pop(0).contiguous()
                for power in range(max(powers) + 1):
                    if power:
                        x = block.at(power - 1).aggregate(x, self.model.propagation)
                    if power in powers:
                        kept[powers.index(power)].append(x[rows])
        found = [own[0] if len(own) == 1 else torch.cat(own, 1) for own in kept]
        at = np.random.default_rng().permutation(len(found[-1]))[:REMEMBERED]
        own = at if isinstance(rows, slice) else rows.cpu().numpy()[at]
        chosen, known = upload(at, self.device), zip(powers, found, strict=True)
        aggregated = torch.cat([each[chosen] for power, each in known if power], 1)
        self.aggregated_rows = dict(zip(own.tolist(), aggregated, strict=True))
        return found


def _global_generators() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _set_global_generators(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
