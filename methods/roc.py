"""ROC: partitions in host memory, swapped to the device under a budget."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import torch
from pydantic import Field
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from harness import Bytes, BytesCase, FullGraphMethod, FullGraphOptions, MemoryCase, Metric, Step, SyncExchange, Worker
from harness.runtime import Clock, Direction, Traffic, TrialError

MIB = 1 << 20


class Offloader(TorchDispatchMode):
    """Keeps what a step's forward and backward pass make within a budget of device memory.

    Counted is every storage that a step makes on the device, as long as it lives, and what `load` brings; what was
    there before (weights and optimizer, the graph's structure, labels) stays, beside the budget. Where the storages
    exceed it, those leave for host memory that only autograd holds, least recently used first; they come back when
    the backward pass reads them. Of a storage that came back, or was loaded, the host has a copy already: it leaves
    without a move. Only matrices of more than one column leave: indices and columns of scales stay. An operation's
    result is made before there is room for it, so the peak may exceed the budget by one result.

    On a GPU, moves are copies from and to pinned memory on the current stream. On a CPU the device is
    emulated: a second buffer of the same memory, really copied. No move changes a value.

    `budget`: bytes; None has no limit. The clock charges moves to the phase `swap`, and the traffic counts them as
    `swap`, sent to the host, received by the device.
    """

    def __init__(self, budget: int | None, device: torch.device, clock: Clock, traffic: Traffic) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.budget, self.device, self.clock, self.traffic = budget, device, clock, traffic
        self._live: dict[int, _Live] = {}
        self._saved: WeakValueDictionary[int, _Saved] = WeakValueDictionary()  # those on the device
        self._layer, self._ticks, self._moving = 0, count(1), False
        self._direction: Direction = "forward"
        self._in, self._out, self._peak = 0, 0, 0

    @contextmanager
    def step(self, stats: dict[str, Any]) -> Iterator[None]:
        """Hold the enclosed forward and backward pass within the budget.

        `stats` gets `swap_in_bytes` and `swap_out_bytes`, moved to the device and away from it, and
        `arena_peak_bytes`, the most that was on the device at once. TrialError `oom` if what is in use at once
        exceeds the budget.
        """
        self._layer, self._direction = 0, "forward"
        self._in, self._out, self._peak = 0, 0, 0
        try:
            with self, saved_tensors_hooks(self._pack, self._unpack):
                yield
        finally:
            self._live.clear()
            stats |= {"swap_in_bytes": self._in, "swap_out_bytes": self._out, "arena_peak_bytes": self._peak}

    def enter(self, layer: int) -> None:
        """Note which layer the forward pass is in; moves are counted by layer."""
        self._layer = layer

    def load(self, home: Tensor) -> Tensor:
        """Return a copy on the device of a tensor that lives in host memory (`to_host`) and never changes."""
        self._make_room(home.nbytes)
        with self._move():
            rows = torch.empty(home.shape, dtype=home.dtype, device=self.device)
            rows.copy_(home, non_blocking=True)
        self._in += home.nbytes
        self.traffic.count("swap", self._layer, self._direction, -1, 0, home.nbytes)
        self._count(rows, home)
        return rows

    def to_host(self, tensor: Tensor) -> Tensor:
        """Return a copy of a tensor in host memory, pinned if there is a GPU."""
        pinned = self.device.type == "cuda"
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
        return host.copy_(tensor, non_blocking=pinned)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, of the backward pass too; count its results' new storages, and make room for them."""
        result = func(*args, **(kwargs or {}))
        if not self._moving:
            known = {_key(argument) for argument in self._on_device((args, kwargs))}
            for made in self._on_device(result):
                if _key(made) not in known:
                    self._count(made, None)
            self._make_room(0)
        return result

    def _on_device(self, tree: Any) -> list[Tensor]:
        tensors = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
        return [t for t in tensors if t.layout is torch.strided and t.device.type == self.device.type]

    def _count(self, tensor: Tensor, home: Tensor | None) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._live:  # a dead storage's key is not used again while it is there
            self._live[storage._cdata] = _Live(StorageWeakRef(storage), storage.nbytes(), home)

    def _make_room(self, wanted: int) -> None:
        """Move storages to host memory until the rest and `wanted` bytes more fit the budget."""
        for key in [key for key, live in self._live.items() if live.storage.expired()]:
            del self._live[key]
        needed = sum(live.nbytes for live in self._live.values()) + wanted
        self._peak = max(self._peak, needed)
        while self.budget is not None and needed > self.budget:
            idle = [saved for saved in self._saved.values() if saved.idle]
            if not idle:
                raise TrialError(
                    "oom",
                    f"layer {self._layer}, {self._direction} pass: what is in use at once needs at least "
                    f"{needed / MIB:.4g} MiB ({needed} bytes) on the device, the budget is "
                    f"{self.budget / MIB:.4g} MiB",
                )
            oldest = min(idle, key=lambda saved: saved.used)
            needed -= oldest.nbytes
            self._leave(oldest)

    def _leave(self, saved: _Saved) -> None:
        assert saved.rows is not None
        if saved.host is None:
            with self._move():
                saved.host = self.to_host(saved.rows)
            self._out += saved.nbytes
            self.traffic.count("swap", saved.layer, self._direction, -1, saved.nbytes, 0)
        key = _key(saved.rows)
        del self._saved[key], self._live[key]
        saved.rows = None

    @contextmanager
    def _move(self) -> Iterator[None]:
        self._moving = True
        try:
            with torch.no_grad(), self.clock.phase("swap"):
                yield
        finally:
            self._moving = False

    def _pack(self, tensor: Tensor) -> Tensor | _View:
        live = self._live.get(_key(tensor))
        if live is None or tensor.dim() != 2 or tensor.shape[1] == 1:
            return tensor.detach()  # not the tensor itself: its graph would hold it, and it its graph
        saved = self._saved.get(_key(tensor))
        if saved is None:
            size = live.nbytes // tensor.element_size()
            home = None if live.home is None else live.home.view(-1)
            # A view would hold the tensor that it is a view of.
            rows = tensor.new_empty(0).set_(tensor.untyped_storage(), 0, (size,), (1,))
            saved = _Saved(self._layer, live.nbytes, rows, home)
            self._saved[_key(tensor)] = saved
        saved.used = next(self._ticks)
        return _View(saved, tensor.shape, tensor.stride(), tensor.storage_offset())

    def _unpack(self, packed: Tensor | _View) -> Tensor:
        self._direction = "backward"
        if isinstance(packed, Tensor):
            return packed
        saved = packed.saved
        self._layer = saved.layer
        if saved.rows is None:
            assert saved.host is not None
            saved.rows = self.load(saved.host)
            self._saved[_key(saved.rows)] = saved
        saved.used = next(self._ticks)
        return saved.rows.as_strided(packed.size, packed.stride, packed.offset)


@dataclass(frozen=True)
class _Live:
    """A storage on the device; `home` is what it was loaded from."""

    storage: StorageWeakRef
    nbytes: int
    home: Tensor | None


@dataclass(eq=False)
class _Saved:
    """A storage that autograd holds for the backward pass, wherever it is."""

    layer: int  # that it was saved in
    nbytes: int
    rows: Tensor | None  # [elements], all of it on the device, or None
    host: Tensor | None  # [elements], all of it in host memory, or None
    used: int = 0  # when it was last used

    @property
    def idle(self) -> bool:
        """Whether nobody else holds it: `rows` does, and the object that asks."""
        if self.rows is None:
            return False
        users: int = torch._C._storage_Use_Count(_key(self.rows))
        return users <= 2


@dataclass(frozen=True)
class _View:
    """A tensor that autograd saved, as a view of its storage."""

    saved: _Saved
    size: torch.Size
    stride: tuple[int, ...]
    offset: int | torch.SymInt


def _key(tensor: Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


EMULATED = (
    "on a CPU the device's memory is emulated: a second buffer of the same memory, copied to and from as a "
    "device's would be. Bytes and swaps are those of a device, the phase swap is the time of such copies."
)


class ROCOptions(FullGraphOptions):
    """Options of ROC."""

    budget_mib: float | None = Field(
        None, gt=0, description="device memory (MiB a rank) for matrices of rows; none: unlimited"
    )


class ROC(FullGraphMethod[ROCOptions]):
    """Full-graph training with partitions in host memory, swapped to the device (Jia et al., MLSys 2020).

    Exact: `full`, bit for bit, whatever the budget. Of ROC its memory management, for which it is a baseline
    in section 4 of BNS-GCN; partitions and exchanges are those of `full`. The input features (with
    `precompute` their aggregation too) live in host memory and come to the device in every epoch. What the
    layers make there (source rows with the received boundary, activations, gradients) is held within
    `budget_mib`: of what autograd has saved and nothing else holds, the least recently used leaves for host
    memory, and comes back for the backward pass. Weights, optimizer, labels and the graph's structure
    stay on the device, beside the budget; evaluations are not under it. If one layer needs more at once than
    the budget, the trial ends as `oom`.

    Bytes: those of `full`, and `swap`, both ways: the input features once an epoch with no limit; else what
    leaves, once each, and what comes back.
    """

    name = "roc"
    colour = "#ee6677"
    Options = ROCOptions
    exact: ClassVar[dict[str, Any]] = {}
    metrics = (
        Metric.of_method("swap_in_bytes", "moved to the device", "B", better="less", heading="Swapped in"),
        Metric.of_method("swap_out_bytes", "moved from the device", "B", better="less", heading="Swapped out"),
        Metric.of_method("arena_peak_bytes", "most that was on the device", "B", heading="Most on the device"),
    )

    def __init__(self, worker: Worker, options: ROCOptions) -> None:
        super().__init__(worker, options)
        budget = None if options.budget_mib is None else int(options.budget_mib * MIB)
        self.offloader = Offloader(budget, worker.device, worker.clock, worker.traffic)
        self._emulated = worker.device.type == "cpu"
        # On a CPU what is there already is the host's.
        self._features = self._home(worker.features.inner)
        worker.features.inner = self._features
        if self.aggregated is not None:
            self.aggregated = self._home(self.aggregated)
        # What is derived from the graph is built once, here, so that no step's budget pays for it.
        block = worker.partition.full_block
        rows = torch.zeros((block.num_src, 1), dtype=worker.dtype, device=worker.device, requires_grad=True)
        block.aggregate(rows, worker.model.propagation).sum().backward()
        model = worker.model
        layers = dict(enumerate(model.linear_layers, start=model.depth))
        layers |= {i * model.hops: layer for i, layer in enumerate(model.graph_layers)}
        for index, layer in layers.items():
            layer.register_forward_pre_hook(lambda *_, index=index: self.offloader.enter(index))
        self._sync = SyncExchange(worker.comm, worker.partition.full_halo)

    def steps(self, epoch: int) -> Iterator[Step]:
        """Yield the step of `full`, its matrices in the offloader."""
        stats = dict[str, Any]()
        yield self.step_on(
            self.worker.partition.full_block,
            self._exchange,
            inputs=partial(self.offloader.load, self._features),
            aggregated=None if self.aggregated is None else partial(self.offloader.load, self.aggregated),
            stats=stats,
            around=partial(self.offloader.step, stats),
        )

    def _exchange(self, h: Tensor, layer: int) -> Tensor:
        self.offloader.enter(layer)  # in mixhop each hop is one
        return self._sync(h, layer)

    @property
    def remarks(self) -> list[str]:
        """See `Method.remarks`."""
        return [EMULATED] if self._emulated else []

    @classmethod
    def memory(cls, options: ROCOptions, case: MemoryCase) -> dict[str, int]:
        """Return the components: rows up to the budget on the device, on a CPU the host's copies too."""
        full = case.full_graph(**options.for_costs)
        layers = full.pop("layers (Eq. 3)") + full.pop("layers, beside Eq. 3")
        homes = full.pop("input features") + full.pop("aggregated features", 0)
        limit = None if options.budget_mib is None else int(options.budget_mib * MIB)
        device = homes + layers if limit is None else min(limit, homes + layers)
        if not case.cuda:
            # A rank has both memories: what is not on the device is in the other.
            return {
                "rows on the device": device,
                "input features in host memory": homes,
                "activations in host memory": min(layers, homes + layers - device),
                **full,
            }
        if case.evaluated is not None:
            # An evaluation interrupts no more than what the budget let training have.
            needed = case.evaluation_values * case.itemsize
            full["evaluation"] += max(0, needed - device) - max(0, needed - layers)
        return {"rows on the device": device, **full}

    @classmethod
    def bytes_per_epoch(cls, options: ROCOptions, case: BytesCase) -> Bytes | None:
        """Return the bytes of `full` and of the inputs' swap; under a budget there is no closed form."""
        if options.budget_mib is not None:
            return None
        inputs = case.nodes * case.model.widths[0][0] * case.itemsize * (1 + options.precompute)
        return case.boundary_rows(case.boundary, **options.for_costs) | {"swap": inputs}

    def _home(self, tensor: Tensor) -> Tensor:
        return tensor if self._emulated else self.offloader.to_host(tensor)
