"""Tracing of a step, and its matrices' moves as a plan says."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakValueDictionary

from harness import torch
from harness.plugin import Clock, Direction, Traffic, TrialError, kind_of

from .plan import Away, Gap, Moment, Trace

if TYPE_CHECKING:
    from torch import Tensor
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode

CHANGED = "a step is not the one that was traced before the training: its swaps cannot be planned"


class Swapping(ABC):
    """Stands between autograd and the matrices that it saves: they may be in host memory until they are read.

    Only matrices of more than one column that a step made on the device, or loaded to it, leave: indices, columns of
    scales and what was there before (weights, the graph's structure) stay. On a GPU, moves are copies from and to
    pinned memory on the current stream. On a CPU the device is emulated: a second buffer of the same memory, really
    copied. No move changes a value.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._saved: WeakValueDictionary[int, _Saved] = WeakValueDictionary()  # by item

    @abstractmethod
    def load(self, home: Tensor) -> Tensor:
        """Return a copy on the device of a tensor that lives in host memory (`to_host`) and never changes."""

    @abstractmethod
    def _pack(self, tensor: Tensor) -> Tensor | _View:
        """Return what autograd keeps of a tensor that it saves."""

    @abstractmethod
    def _unpack(self, packed: Tensor | _View) -> Tensor:
        """Return what `_pack` was given."""

    def to_host(self, tensor: Tensor, host: Tensor | None = None) -> Tensor:
        """Return a copy of a tensor in host memory, in `host` if that is given; pinned if there is a GPU."""
        if host is None:
            host = kind_of(self.device).pinned(*tensor.shape, dtype=tensor.dtype)
        return host.copy_(tensor, non_blocking=True)

    def _to_device(self, host: Tensor) -> Tensor:
        rows = torch.empty(host.shape, dtype=host.dtype, device=self.device)
        return rows.copy_(host, non_blocking=True)

    def _view(self, tensor: Tensor, item: int, layer: int, home: Tensor | None) -> _View:
        """Return a view of the item's storage; it does not hold the tensor itself, whose graph would hold it."""
        saved = self._saved.get(item)
        if saved is None:
            storage = tensor.untyped_storage()
            size = storage.nbytes() // tensor.element_size()
            rows = tensor.new_empty(0).set_(storage, 0, (size,), (1,))
            saved = self._saved[item] = _Saved(item, layer, rows, None if home is None else home.view(-1))
        return _View(saved, tensor.shape, tensor.stride(), tensor.storage_offset())


class Tracer(Swapping):
    """Watches one step: what it saves and reads, and the bytes on its device. Slow: a look at every operation.

    Counted is every storage that the step makes on the device, as long as it lives, and what `load` brings. Whatever
    autograd alone holds leaves at once, so that a step is traced in the least memory that it can run in.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._moving = False

    @contextmanager
    def step(self) -> Iterator[None]:
        """Trace the enclosed forward and backward pass."""
        self._live: dict[int, _Live] = {}
        self._moments: list[Moment] = []
        self._needs: list[int] = []
        self._gaps: list[Gap] = []
        self._away: dict[int, Gap] = {}  # by item
        self._used: dict[int, int] = {}  # by item, when it was last used
        self._layer = 0
        self._direction: Direction = "forward"
        self._moment("start")
        with _watching(self._run), torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
            yield
        for item in list(self._away):
            self._returns(item, len(self._moments), read=False)

    @property
    def trace(self) -> Trace:
        """What the last step was."""
        gaps = sorted(self._gaps, key=lambda gap: gap.start)
        return Trace(tuple(self._moments), tuple(self._needs), tuple(gaps))

    def enter(self, layer: int) -> None:
        """Note which layer the forward pass is in."""
        self._layer = layer

    def load(self, home: Tensor) -> Tensor:
        """See `Swapping`."""
        at = self._moment("load", nbytes=home.nbytes)
        with self._move():
            rows = self._to_device(home)
        self._count(rows, home, at)
        return rows

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation, of the backward pass too, and count its results' new storages."""
        result = func(*args, **kwargs)
        if not self._moving:
            known = {_key(argument) for argument in self._on_device((args, kwargs))}
            for made in self._on_device(result):
                if _key(made) not in known:
                    self._count(made)
        return result

    def _on_device(self, tree: Any) -> list[Tensor]:
        tensors = (leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor))
        return [t for t in tensors if t.layout is torch.strided and t.device.type == self.device.type]

    def _count(self, tensor: Tensor, home: Tensor | None = None, loaded: int = -1, item: int = -1) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._live:  # a dead storage's key is not used again while it is there
            weak = torch.multiprocessing.reductions.StorageWeakRef(storage)
            self._live[storage._cdata] = _Live(weak, storage.nbytes(), home, loaded, item)
        self._needs[-1] = max(self._needs[-1], self._on_device_now())

    def _on_device_now(self) -> int:
        for key in [key for key, live in self._live.items() if live.storage.expired()]:
            del self._live[key]
        return sum(live.nbytes for live in self._live.values())

    def _moment(self, kind: Literal["start", "load", "save", "read"], item: int = -1, nbytes: int = 0) -> int:
        """Let go of what is idle; begin the next moment, and return its number."""
        at = len(self._moments)
        for saved in list(self._saved.values()):
            if saved.idle and saved.item != item:
                self._leaves(saved, at)
        for gone in self._away.keys() - self._saved.keys() - {item}:
            self._returns(gone, at, read=False)
        self._moments.append(Moment(kind, item, nbytes, self._layer, self._direction))
        self._needs.append(self._on_device_now())
        return at

    def _leaves(self, saved: _Saved, at: int) -> None:
        assert saved.rows is not None
        live, used = self._live[_key(saved.rows)], self._used[saved.item]
        home = live.home is not None
        self._away[saved.item] = Gap(saved.item, live.nbytes, at, at, used, read=False, home=home)
        if saved.host is None:
            with self._move():
                saved.host = self.to_host(saved.rows)
        saved.rows = None

    def _returns(self, item: int, at: int, *, read: bool) -> None:
        self._gaps.append(replace(self._away.pop(item), end=at, read=read))

    @contextmanager
    def _move(self) -> Iterator[None]:
        self._moving = True
        try:
            with torch.no_grad():
                yield
        finally:
            self._moving = False

    def _pack(self, tensor: Tensor) -> Tensor | _View:
        live = self._live.get(_key(tensor))
        if live is None or tensor.dim() != 2 or tensor.shape[1] == 1:
            self._moment("save")
            return tensor.detach()  # not the tensor itself: its graph would hold it, and it its graph
        if live.item not in self._saved:
            if live.item >= 0:
                live.home = None  # who had it before may have changed it
            live.item = len(self._used)
            if live.home is not None:
                self._moments[live.loaded] = replace(self._moments[live.loaded], item=live.item)
        self._used[live.item] = self._moment("save", live.item, live.nbytes)
        return self._view(tensor, live.item, self._layer, live.home)

    def _unpack(self, packed: Tensor | _View) -> Tensor:
        self._direction = "backward"
        if isinstance(packed, torch.Tensor):
            self._moment("read")
            return packed
        saved = packed.saved
        self._layer = saved.layer
        at = self._moment("read", saved.item)
        if saved.rows is None:
            assert saved.host is not None
            home = self._away[saved.item].home
            self._returns(saved.item, at, read=True)
            with self._move():
                saved.rows = self._to_device(saved.host)
            self._count(saved.rows, saved.host if home else None, item=saved.item)
        self._used[saved.item] = at
        return packed.tensor(saved.rows)


class Offloader(Swapping):
    """Moves the matrices of a step to host memory and back, by the plan to `follow`; no operation is looked at.

    Where nothing leaves, nothing stands between autograd and what it saves either. The clock charges moves to the phase
    `swap`, the traffic counts them as `swap`, sent to the host, received by the device.
    """

    def __init__(self, device: torch.device, clock: Clock, traffic: Traffic) -> None:
        super().__init__(device)
        self.clock, self.traffic = clock, traffic
        self._moments: Sequence[Moment] = ()
        self._leaving: dict[int, list[int]] = {}  # items, by moment
        self._items: frozenset[int] = frozenset()  # that ever leave
        self._homes: dict[int, Tensor] = {}  # by item, what was loaded
        self._hosts: dict[int, Tensor] = {}  # by item, where to; kept, for fresh memory costs as much as the copy
        self._at, self._in, self._out = 0, 0, 0
        self._moving_s, self._hooks_s = 0.0, 0.0

    def follow(self, trace: Trace, away: Away) -> None:
        """Do in every step that is like the traced one what a plan says."""
        leaving = defaultdict[int, list[int]](list)
        for gap, moment in away.items():
            leaving[moment].append(gap.item)
        self._moments, self._leaving, self._hosts = trace.moments, dict(leaving), {}
        self._items = frozenset(gap.item for gap in away)

    @contextmanager
    def step(self, stats: dict[str, Any]) -> Iterator[None]:
        """Move what leaves in the enclosed forward and backward pass.

        `stats` gets `swap_in_bytes` and `swap_out_bytes`, moved to the device and away from it, and
        `bookkeeping_s`, the host's time between autograd and its matrices, moves left out. TrialError `error`
        if the step is not the one that was traced.
        """
        self._at, self._in, self._out = 0, 0, 0
        self._moving_s, self._hooks_s = 0.0, 0.0
        hooks = torch.autograd.graph.saved_tensors_hooks(self._timed(self._pack), self._timed(self._unpack))
        try:
            with hooks if self._items else nullcontext():
                yield
            if self._items and self._at + 1 != len(self._moments):
                raise TrialError("error", CHANGED)
        finally:
            self._homes.clear()
            stats |= {"swap_in_bytes": self._in, "swap_out_bytes": self._out, "bookkeeping_s": self._hooks_s}

    def load(self, home: Tensor) -> Tensor:
        """See `Swapping`."""
        if not self._items:
            return self._brought(home, 0, "forward")
        moment = self._moment("load")
        if moment.item in self._items:
            self._homes[moment.item] = home
        return self._brought(home, moment.layer, moment.direction)

    def _timed(self, hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def timed(given: Any) -> Any:
            start, moving = perf_counter(), self._moving_s
            found = hook(given)
            self._hooks_s += perf_counter() - start - (self._moving_s - moving)
            return found

        return timed

    def _moment(self, kind: str) -> Moment:
        """Begin the next moment: what is to leave then leaves."""
        self._at += 1
        if self._at >= len(self._moments) or self._moments[self._at].kind != kind:
            raise TrialError("error", CHANGED)
        moment = self._moments[self._at]
        for item in self._leaving.get(self._at, ()):
            self._leave(item, moment.direction)
        return moment

    def _leave(self, item: int, direction: Direction) -> None:
        saved = self._saved.get(item)
        if saved is None or saved.rows is None or not saved.idle:
            raise TrialError("error", CHANGED)
        if saved.host is None:
            with self._move():
                saved.host = self._hosts[item] = self.to_host(saved.rows, self._hosts.get(item))
            self._out += saved.rows.nbytes
            self.traffic.count("swap", saved.layer, direction, -1, saved.rows.nbytes, 0)
        saved.rows = None

    def _brought(self, host: Tensor, layer: int, direction: Direction) -> Tensor:
        with self._move():
            rows = self._to_device(host)
        self._in += host.nbytes
        self.traffic.count("swap", layer, direction, -1, 0, host.nbytes)
        return rows

    @contextmanager
    def _move(self) -> Iterator[None]:
        start = perf_counter()
        with torch.no_grad(), self.clock.phase("swap"):
            yield
        self._moving_s += perf_counter() - start

    def _pack(self, tensor: Tensor) -> Tensor | _View:
        moment = self._moment("save")
        if moment.item not in self._items:
            return tensor.detach()  # not the tensor itself: its graph would hold it, and it its graph
        if tensor.untyped_storage().nbytes() != moment.nbytes:
            raise TrialError("error", CHANGED)
        return self._view(tensor, moment.item, moment.layer, self._homes.get(moment.item))

    def _unpack(self, packed: Tensor | _View) -> Tensor:
        moment = self._moment("read")
        if isinstance(packed, torch.Tensor):
            return packed
        saved = packed.saved
        if saved.item != moment.item:
            raise TrialError("error", CHANGED)
        if saved.rows is None:
            assert saved.host is not None
            saved.rows = self._brought(saved.host, moment.layer, moment.direction)
        return packed.tensor(saved.rows)


@dataclass
class _Live:
    """A storage on the device; `home` is what it was loaded from, at the moment `loaded`; `item`: -1 of none yet."""

    storage: StorageWeakRef
    nbytes: int
    home: Tensor | None
    loaded: int
    item: int


@dataclass(eq=False)
class _Saved:
    """A matrix that autograd holds for the backward pass, wherever it is."""

    item: int
    layer: int  # that it was saved in
    rows: Tensor | None  # [elements], all of its storage on the device, or None
    host: Tensor | None  # [elements], all of it in host memory, or None

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

    def tensor(self, rows: Tensor) -> Tensor:
        """Return the tensor, given its storage's elements."""
        return rows.as_strided(self.size, self.stride, self.offset)


def _watching(run: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> TorchDispatchMode:
    """Return a context in which `run` is given every operation, its arguments and its keyword arguments."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            return run(func, args, kwargs or {})

    # Torch wraps it, as its optimizers' methods: see `light` in harness/runtime/optimizers.py.
    Watching.__torch_dispatch__ = inspect.unwrap(Watching.__torch_dispatch__)  # type: ignore[method-assign]
    return Watching()  # type: ignore[no-untyped-call]


def _key(tensor: Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key
