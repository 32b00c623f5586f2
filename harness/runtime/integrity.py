"""Integrity: checks that a trial trains the suite's model from its seed, on training nodes, in the trainer's steps.

A broken rule makes the trial `invalid`, with one line; what an honest method may do, too, is a flag. docs/integrity.md
is the table of both.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import itemgetter
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from weakref import WeakSet

from harness.deferred import numpy as np
from harness.deferred import torch
from harness.graph.block import Block
from harness.graph.csr import Places, on_host
from harness.graph.devices import upload
from harness.graph.partition import HIDDEN
from harness.metrics import PURPOSES
from harness.runtime.method import Method, bytes_apart, bytes_case_of
from harness.runtime.optimizers import light
from harness.runtime.run_config import FullGraphOptions
from harness.runtime.step import Loss, Step

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from harness.models.gnn import Rows
    from harness.runtime.report import RankReport
    from harness.runtime.worker import Worker

_ONLY = "only the trainer's optimizer may change them"
RULES = (
    "the model is not the suite's: it was replaced, or has other weights, parts or code",
    "a weight was replaced by another tensor, which the trainer's optimizer does not change",
    f"the method's set-up changed the weights: {_ONLY}",
    f"an evaluation changed the weights: {_ONLY}",
    f"the weights changed between two epochs: {_ONLY}",
    f"the weights changed between two steps: {_ONLY}",
    "the loss reads rows that are no training nodes: their labels are not handed out",
    "what the first layer reads is not the data set's features",
    "what the numbers come from was replaced",
    "the gradients changed between the backward pass and the optimizer's step: only their sum over ranks may",
    "the gradients that were summed over ranks are not those of the epoch's steps, by their bytes",
    "bytes were sent as set-up's after the set-up",
    "the rows that are scored are not the split's",
)
MODEL, REPLACED, SETUP, EVALUATION, BETWEEN, STEP, LABELS, INPUTS, PATCHED, GRADIENTS, SUMS, SCOPE, SCORED = RULES
_BITS = {2: "int16", 4: "int32", 8: "int64"}  # torch's dtypes

# Modules whose functions and classes a trial's numbers come from, by name; of torch.distributed what is called.
_MODULES = (
    *("time", "torch.nn.functional", "harness.models.gnn"),
    *(f"harness.runtime.{name}" for name in ("clock", "comm", "evaluation", "integrity", "optimizers", "trainer")),
)
_COLLECTIVES = ("all_reduce", "all_to_all_single", "barrier", "broadcast", "irecv", "isend")
# Attributes of a rank's worker, views and communicator that no method sets.
_OF_WORKER = (
    *("job", "clock", "traffic", "comm", "meters", "spans", "beacon", "view", "eval_view", "partition"),
    *("stored_features", "train_rows"),
)
_OF_VIEW, _OF_COMM = ("partition", "_graph", "nodes", "owner", "local_row", "_nodes"), ("clock", "traffic", "_group")
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Originals:
    """What a trial's numbers come from, as it was before a method's code ran: functions, classes, and `hold`'s objects.

    To be made before the method's module is imported.
    """

    def __init__(self) -> None:
        self._known: list[tuple[Any, Callable[[Any], tuple[Any, ...]], tuple[int, ...], tuple[Any, ...]]] = []
        self._hidden: list[tuple[Any, frozenset[str]]] = []  # objects, and methods that no attribute may hide
        self._keep(torch.distributed, {name: getattr(torch.distributed, name) for name in _COLLECTIVES})
        self._keep(torch.nn.Module, vars(torch.nn.Module))
        for optimizer in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
            made = light(optimizer)([torch.nn.Parameter(torch.zeros(1))], lr=0)  # the first one completes the class
            self._keep(type(made), vars(type(made)))
        for module in [sys.modules[name] for name in _MODULES if name in sys.modules]:
            self._keep(module, {name: value for name, value in vars(module).items() if callable(value)})
            for kind in [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__]:
                self._keep(kind, vars(kind))

    def hold(self, worker: Worker) -> None:
        """Hold a rank's objects, too, and the rows that are scored, before a method is made."""
        for each, names in (
            (worker, _OF_WORKER), (worker.view, _OF_VIEW), (worker.eval_view, _OF_VIEW), (worker.comm, _OF_COMM),
            (worker.clock, ()), (worker.traffic, ()),
        ):  # fmt: skip
            self._keep(each, {name: vars(each)[name] for name in names})
            functions = {name for kind in type(each).__mro__ for name, value in vars(kind).items() if callable(value)}
            self._hidden.append((each, frozenset(functions)))
        self._view, self._scored = worker.eval_view, _contents(worker.eval_view.rows)

    def replaced(self) -> str | None:
        """Return the name of something that is another one now; None if nothing is."""
        for owner, read, ids, _ in self._known:
            try:
                same = tuple(map(id, read(vars(owner)))) == ids
            except KeyError:
                same = False
            if not same:
                name = owner.__name__ if hasattr(owner, "__name__") else type(owner).__name__
                return f"an attribute of {name}"
        for owner, names in self._hidden:
            if hidden := vars(owner).keys() & names:
                return f"{type(owner).__name__}.{min(hidden)}"
        return None

    def scored(self) -> bool:
        """Return whether the rows that an evaluation scores are those of the splits."""
        return _contents(self._view.rows) == self._scored

    def _keep(self, owner: Any, attributes: Mapping[str, Any]) -> None:
        if len(attributes) > 1:  # of one name, itemgetter returns no tuple
            values = tuple(attributes.values())  # kept, so that nothing else gets their identities
            self._known.append((owner, itemgetter(*attributes), tuple(map(id, values)), values))


def _contents(rows: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    """Return the number of each split's rows, and a sum that depends on each and its place."""
    return {
        split: (each.numel(), int((each * torch.arange(1, each.numel() + 1, device=each.device)).sum()))
        for split, each in rows.items()
    }


class Integrity:
    """Watches a model whose weights are views of the vector `values`, from before its method is made.

    Nothing is raised: all ranks must learn what one finds before they end. See `Trainer.check_replicas`.
    """

    def __init__(self, worker: Worker, values: torch.nn.Parameter, gradients: Tensor, report: RankReport) -> None:
        model = worker.model
        self.broken: str | None = None  # the first of RULES that was broken
        self.what = ""  # more of it, on this rank
        self._model, self._values, self._parameters = model, values, list(model.parameters())
        self._gradients, self._originals, self._report = gradients, worker.originals, report
        self._own_grad = values.grad
        self._spec, self._parts, self._hooks = getattr(model, "spec", None), _parts(model), self._seen_hooks()
        self._classes = {kind: dict(vars(kind)) for module in model.modules() for kind in type(module).__mro__[:-1]}
        self._places, self._versions = [p.data_ptr() for p in self._parameters], self._seen_versions()
        self._sum, self._first = self._seen_sum(), True
        self._labels: Tensor | None = None
        self._outsiders = self._written = torch.zeros((), dtype=torch.bool, device=values.device)

    def unchanged(self, model: torch.nn.Module, rule: str) -> None:
        """Check that the model is the suite's with the weights of the last look, bit for bit; others break `rule`."""
        if (what := self._originals.replaced()) is not None:
            self.violated(PATCHED, what)
        if self._seen_hooks() != self._hooks:
            self._report.flag("hooks", "the model, a layer or a weight has hooks of the method's")
        if (
            model is not self._model
            or [id(p) for p in model.parameters()] != [id(p) for p in self._parameters]
            or _parts(model) != self._parts
            or any(vars(kind) != known for kind, known in self._classes.items())
            or getattr(model, "spec", None) != self._spec
        ):
            self.violated(MODEL)
        elif [p.data_ptr() for p in self._parameters] != self._places:
            self.violated(REPLACED)
        elif bool(self._seen_sum() != self._sum):
            self.violated(rule)

    def begins_step(self) -> None:
        """Check that no weight was written to since the last step."""
        if self._seen_versions() != self._versions:
            self.violated(STEP)
        # torch counts writes to a tensor, but for those through `.data`. A GPU is not waited for.
        if self._first:
            self._written = self._seen_sum() != self._sum
            self._first = False

    def added(self, before: int) -> None:
        """Check that the gradients were not written to since their `version` was `before`."""
        if self.version != before or self._values.grad is not self._own_grad:
            self.violated(GRADIENTS)

    @property
    def version(self) -> int:
        """How often the gradients were written to, by torch's count."""
        return self._gradients._version

    def ends_step(self) -> None:
        """Note the writes of the trainer's optimizer."""
        self._versions = self._seen_versions()

    def ends_epoch(self) -> None:
        """Note the weights, and the rules that were broken in the epoch."""
        self._sum, self._first = self._seen_sum(), True
        if self._written:
            self.violated(STEP)
        if self._outsiders:
            self.violated(LABELS)

    def resumed(self, broken: str | None) -> None:
        """Take the weights of a checkpoint for the trainer's; `broken`: as of when it was written."""
        self.ends_step()
        self._sum, self.broken = self._seen_sum(), self.broken or broken

    def reads(self, loss: Loss) -> None:
        """Look for labels that were not handed out; the result is for `ends_epoch`."""
        labels = loss.labels
        if labels is not self._labels:  # of a full-graph method they are always the same
            self._labels = labels
            hidden = labels == HIDDEN if labels.dim() == 1 else labels.isnan()
            self._outsiders = self._outsiders | hidden.any()

    def violated(self, rule: str, what: str = "") -> None:
        """Keep the first rule that was broken, and more of it."""
        if self.broken is None:
            self.broken, self.what = rule, what

    def _seen_hooks(self) -> int:
        """Return how many hooks there are of the model, its parts and its weights, and of all modules."""
        torch_own = vars(torch.nn.modules.module)
        found = sum(len(torch_own[name]) for name in _GLOBAL_HOOKS)
        found += sum(len(vars(part)[name]) for part in self._model.modules() for name in _HOOKS)
        of_weights = ((p._backward_hooks, p._post_accumulate_grad_hooks) for p in self._parameters)
        return found + sum(len(hooks or ()) for pair in of_weights for hooks in pair)

    def _seen_versions(self) -> list[int]:
        return [self._values._version, *(parameter._version for parameter in self._parameters)]

    def _seen_sum(self) -> Tensor:
        """Return the sum of the weights' bit patterns, a scalar on the device."""
        values = self._values.detach()
        return values.view(getattr(torch, _BITS[values.element_size()])).sum(dtype=torch.int64)


_STATE = {"training", *_HOOKS}


def _parts(model: torch.nn.Module) -> list[tuple[Any, ...]]:
    """Return the modules of a model, their types, and the attributes of each, by identity."""
    return [
        (id(part), type(part), *((name, id(value)) for name, value in vars(part).items() if name not in _STATE))
        for part in model.modules()
    ]


LOOKED_AT = 4  # rows an epoch
MOST_ROWS = 2048  # of a step's loss, looked through for rows that are read twice
Nodes: TypeAlias = "Places | None"


class Inputs:
    """Holds rows that the first layer reads against the data set's features, a few of one step of each epoch.

    It also looks up a few rows of the step's loss among the training nodes. `Step.nodes` and `Step.outputs` say whose
    rows they are; without them they are the inner nodes', and where numbers do not match nothing is looked at. A value
    may be 0: it was left out. Rows of `Step.aggregated` are held against those that the worker remembers. Which step
    and which rows depends on the run, not on the seed: nothing is drawn from training's generators.
    """

    def __init__(self, worker: Worker, report: RankReport) -> None:
        self._worker, self._report = worker, report
        self._random = random.Random(f"{worker.job.attempt} {worker.rank}")
        self._blocks = WeakSet[Block]()  # of earlier epochs and steps
        self._fresh = self._exact = False
        self._rows: Tensor | None = None
        self._twice: list[Tensor] = []
        self._edges: list[tuple[Block, Tensor]] = []
        self._step, self._steps, self._chosen = 0, 0, 0
        self._taken: list[tuple[Tensor, Callable[[], Tensor]]] = []
        self._learnt: list[tuple[Tensor, Nodes]] = []

    def hold(self, method: Method[Any]) -> None:
        """Hold the steps to what their method says of itself: whether they are drawn anew, and exact."""
        options, exact = method.options, method.exact
        self._fresh = method.family == "mini-batch" and not method.recurring
        if exact is not None:
            want = type(options)(**exact).model_dump()
            said = options.model_dump() | FullGraphOptions().model_dump()  # ways to compute the same
            self._exact = {name: said.get(name, value) for name, value in want.items()} == want

    def of(self, step: Step) -> tuple[Rows, Rows | None]:
        """Return the step's inputs and aggregated inputs, which are looked at when they are read, in a chosen step."""
        number, self._step = self._step, self._step + 1
        if self._fresh:
            if step.blocks[0] in self._blocks:
                self._report.flag("steps", "batches of earlier steps are trained on again, and were not drawn for it")
            self._blocks.add(step.blocks[0])
        if number != self._chosen:
            return step.inputs, step.aggregated
        if step.loss.rows is not self._rows:  # of a full-graph method they are always the same
            self._rows = step.loss.rows
            self._twice.append((step.loss.rows[:MOST_ROWS].sort().values.diff() == 0).any())
        if self._exact and not step.blocks[0].communicates:
            every = {id(block): block for block in step.blocks if block.own is None and block.adjacency.values is None}
            self._edges += [(block, block.degree[: block.num_dst].double().sum()) for block in every.values()]
        learnt = step.loss.rows
        known = step.outputs is not None or step.blocks[-1].num_dst == self._worker.partition.num_inner
        if known and learnt.numel() and learnt.dtype == torch.int64:
            self._learnt.append((_rows(learnt, self._some(learnt.numel())), step.outputs))

        def seen(rows: Rows, take: Callable[[Tensor, Nodes], None]) -> Rows:
            def read() -> Tensor:
                take(found := rows if isinstance(rows, torch.Tensor) else rows(), step.nodes)
                return found

            return read() if isinstance(rows, torch.Tensor) else read

        aggregated = None if step.aggregated is None else seen(step.aggregated, self._take_aggregated)
        columns = slice(None) if step.first is None else step.first.columns
        return seen(step.inputs, partial(self._take_features, columns)), aggregated

    def ends_epoch(self) -> str | None:
        """Return the rule that a row of this epoch broke; None if all were right."""
        (taken, self._taken), (learnt, self._learnt) = (self._taken, []), (self._learnt, [])
        self._steps, self._step = self._step, 0
        self._chosen = self._random.randrange(max(1, self._steps))
        (twice, self._twice), (edges, self._edges) = (self._twice, []), (self._edges, [])
        if any(twice):
            self._report.flag("rows", "a step's loss reads a row several times")
        for block, want in edges:
            if (seen := block.entries) != int(want):
                whole = f"aggregates over {seen} edges of {int(want)} into its nodes"
                self._report.flag("declared", f"at options that are said to be exact a layer {whole}")
        for rows, stored in taken:
            found, want = rows.cpu(), stored()
            if found.shape != want.shape or not ((found == want) | (found == 0) | (found.isnan() & want.isnan())).all():
                return INPUTS
        trained = (self._worker.view.trains(self._own(rows.cpu().numpy(), nodes)).all() for rows, nodes in learnt)
        return None if all(trained) else LABELS

    def _own(self, at: Any, nodes: Nodes) -> NDArray[np.int64]:
        """Return the nodes at rows of the inner nodes, or of `nodes`."""
        found: NDArray[np.int64] = np.asarray(self._worker.partition.inner)[at] if nodes is None else on_host(nodes)[at]
        return found

    def _some(self, count: int) -> list[int]:
        return [self._random.randrange(count) for _ in range(LOOKED_AT)]

    def _take_features(self, columns: slice, rows: Tensor, nodes: Nodes) -> None:
        worker = self._worker
        count = worker.partition.num_inner if nodes is None else len(nodes)
        if rows.shape[0] != count or not rows.numel():
            return
        at = self._some(count)
        if worker.shard is not None:  # of other machines' nodes it has none
            at = [row for row in at if worker.shard.here(worker.view.nodes[self._own([row], nodes)]).all()]

        def stored() -> Tensor:
            found = worker.stored_features[worker.view.nodes[self._own(at, nodes)]][:, columns]
            disk = worker.view.disk
            return torch.from_numpy(np.array(found)).to(disk.stored if disk else torch.float32).to(worker.dtype)

        if at:
            self._taken.append((_rows(rows, at), stored))

    def _take_aggregated(self, rows: Tensor, nodes: Nodes) -> None:
        worker, known = self._worker, self._worker.aggregated_rows
        count = worker.partition.num_inner if nodes is None else len(nodes)
        if rows.shape[0] != count or not known:
            return
        if nodes is None:
            at = own = list(known)[:LOOKED_AT]
        else:
            inner = {int(worker.partition.inner[row]): row for row in known}
            nodes = on_host(nodes)
            at = np.flatnonzero(np.isin(nodes, [*inner]))[:LOOKED_AT].tolist()
            own = [inner[int(node)] for node in nodes[at]]
        if at:
            self._taken.append((_rows(rows, at), lambda: torch.stack([known[row] for row in own]).cpu()))


def _rows(rows: Tensor, at: list[int]) -> Tensor:
    return rows.detach()[upload(np.array(at), rows.device)]  # a step does not wait for a GPU


# The share of the epochs' time, the seconds for each, and in all, that may pass between epochs.
LATE, LATE_S, LEAST_S = 0.2, 0.02, 0.3
FEW = 100  # training nodes of an epoch that draws them, from which on a quarter of the usual number is no chance


class EpochAccount:
    """Holds each epoch's training rows, steps, bytes and the time before it against what there should be.

    `reduced`: values of a sum of gradients over the ranks.
    """

    def __init__(self, worker: Worker, report: RankReport, reduced: int) -> None:
        self._worker, self._report, self._parameters = worker, report, reduced - 1
        self._train_total = worker.train_total
        total = 2 * (worker.world - 1) * reduced * worker.dtype.itemsize
        self._share = total // worker.world + (worker.rank < total % worker.world)  # see `Communicator.all_reduce`
        self.apart_s = 0.0  # seconds since the last epoch that are an evaluation's or a checkpoint's
        self.begins()

    def begins(self) -> None:
        """Begin: set-up is over."""
        self._of_set_up, self._checks_s, self._ended = self._sent("setup"), self._checks(), perf_counter()

    def epoch_begins(self) -> float:
        """Return the seconds since the last epoch that were no evaluation, check or checkpoint."""
        worker = self._worker
        between_s = perf_counter() - self._ended - self.apart_s - (self._checks() - self._checks_s)
        self._model, self._eval = worker.traffic.sent()["model"], self._sent("eval")
        return max(0.0, between_s)

    def epoch_ends(self, steps: int) -> str | None:
        """Return the rule that the epoch, of so many steps, broke."""
        if self._sent("eval") != self._eval:
            self._report.flag("scope", "bytes that were sent in epochs were counted as evaluations'")
        self._ended, self.apart_s, self._checks_s = perf_counter(), 0.0, self._checks()
        if self._sent("setup") != self._of_set_up:
            return SCOPE
        return SUMS if self._worker.traffic.sent()["model"] - self._model < steps * self._share else None

    def ends(self, method: Method[Any], epochs: list[dict[str, Any]]) -> None:
        """Flag what the epochs of all ranks together are not; every rank must call, at the end."""
        worker, flag = self._worker, self._report.flag
        between, timed = (sum(row.get(name) or 0.0 for row in epochs) for name in ("between_s", "epoch_time_s"))
        if timed and between > LATE * timed + LATE_S * len(epochs) + LEAST_S:
            flag("between", f"{between:.3g} s passed between epochs, evaluations aside, which last {timed:.3g} s")
        names = sorted({name for row in epochs for name in row["stats"]})
        digest = int.from_bytes(hashlib.blake2b(repr(names).encode(), digest_size=7).digest())
        with worker.traffic.during("eval"), worker.spans("checks"):
            others = worker.comm.all_gather(torch.tensor([digest], device=worker.device))
            names = names if all(int(other) == digest for other in others) else []
            table = [
                [row.get("trained_rows", 0), *(row[f"bytes_{purpose}"] for purpose in PURPOSES)]
                + [float(row["stats"].get(name) or 0) for name in names]
                for row in epochs
            ]
            sums = torch.tensor(table, dtype=torch.float64, device=worker.device)
            found = worker.comm.all_reduce(sums, purpose="control").tolist()
        if worker.rank == 0:
            steps = [row["steps"] for row in epochs]
            for text in dict.fromkeys(_of_rows(method, [int(row[0]) for row in found], steps, self._train_total)):
                flag("rows", text)
            for epoch, (_, *row) in enumerate(found):
                seen = {purpose: int(value) for purpose, value in zip(PURPOSES, row, strict=False)}
                stats = dict(zip(names, row[len(PURPOSES) :], strict=True))
                case = bytes_case_of(worker, epoch=epochs[epoch]["epoch"], steps=steps[epoch], stats=stats)
                if apart := bytes_apart(type(method), method.options, case, seen, self._parameters):
                    flag("declared", f"bytes of epoch {case.epoch} were to be {apart}")
                    break

    def _sent(self, scope: Literal["setup", "eval"]) -> int:
        return self._worker.traffic.total(scope).sent_bytes

    def _checks(self) -> float:
        return self._worker.spans.seconds.get("checks", 0.0)


def _of_rows(method: Method[Any], rows: list[int], steps: list[int], train_nodes: int) -> Iterator[str]:
    """Yield what is wrong with the training rows and the steps of epochs."""
    if len(set(steps)) > 1:
        yield f"epochs have {min(steps)} to {max(steps)} steps"
    if method.draws_rows:
        usual = median(rows)
        if usual >= FEW and min(rows) < usual / 4:
            yield f"an epoch learns from {min(rows):,} rows, the others from {int(usual):,}"
    elif len(set(rows)) > 1:
        yield f"epochs learn from {min(rows):,} to {max(rows):,} rows, of {train_nodes:,} training nodes"
    elif rows and rows[0] < train_nodes:
        yield f"an epoch learns from {rows[0]:,} rows, there are {train_nodes:,} training nodes"
