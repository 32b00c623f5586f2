"""A device made of host memory: its tensors behave as CUDA's do towards the host, and what the host waits for is noted.

Its tensors are plain ones of torch's third-party device, `fake:0`: own storages that views share, autograd in a
thread of the device, `.data`, versions, saved tensors. Each operation ends here, is done on the same memory by the
CPU's kernel, and raises what CUDA would raise. See docs/design/gpus.md.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from support.device_operations import KIND, check_devices, is_fake, places, signature, tensors_of, waits, with_tensors
from support.stream_order import Clock, StreamOrder
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from harness.graph.devices import KINDS, DeviceKind

ROOT = Path(__file__).resolve().parents[2]
OURS = ("harness", "methods")  # folders whose lines are named
_aten: Any = torch.ops.aten
_CPU = torch.DispatchKeySet(torch.DispatchKey.CPU)
_SPARSE = torch.DispatchKeySet(torch.DispatchKey.SparseCsrCPU)


@dataclass(frozen=True)
class Wait:
    """The host waited for the device: `what` it asked for, the line of ours `where`, and the thread."""

    what: str
    where: str
    thread: str


@dataclass
class Record:
    """What was seen since it was begun.

    `waits`: of the host; `unheld`: where the default stream read what another one made and did not hold its memory,
    which that stream may write to as soon as it is freed; `races`: what streams do with memory in no order, see
    `StreamOrder`; `uploads`: bytes copied to the device on the default stream, and on others; `operations`: by
    name, how often.
    """

    waits: list[Wait] = field(default_factory=list)
    unheld: list[str] = field(default_factory=list)
    races: list[str] = field(default_factory=list)
    uploads: list[int] = field(default_factory=lambda: [0, 0])
    operations: dict[str, int] = field(default_factory=dict)

    def wait(self, what: str) -> None:
        """Note a wait of the host."""
        self.waits.append(Wait(what, _line_of_ours(), threading.current_thread().name))


_records: list[Record] = []


@contextmanager
def recorded() -> Iterator[Record]:
    """Record what is done in this context, by any thread."""
    record = Record()
    _records.append(record)
    try:
        yield record
    finally:
        _records.remove(record)


def note_wait(what: str) -> None:
    """Note that the host waits, which it must not while work is captured."""
    if _capturing:
        raise RuntimeError(f"operation not permitted when stream is capturing ({what})")
    for record in _records:
        record.wait(what)


def note_race(what: str) -> None:
    """Note that streams are out of order."""
    for record in _records:
        record.races.append(what)


def _line_of_ours() -> str:
    """Return the innermost line of the project that is being run, as `folder/module.py:function`."""
    frame = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if any(path.is_relative_to(ROOT / folder) for folder in OURS):
            return f"{path.relative_to(ROOT).as_posix()}:{frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"


class _Memory:
    """The host's storages behind those of the device, by address; `foreign` are those that another stream made."""

    def __init__(self) -> None:
        self.foreign: set[int] = set()
        self._made: dict[int, tuple[StorageWeakRef, torch.UntypedStorage]] = {}
        self._pinned: dict[int, StorageWeakRef] = {}
        self._lock, self._due = threading.RLock(), 256

    def adopt(self, host: torch.UntypedStorage) -> torch.UntypedStorage:
        """Return a new storage of the device that is the host's memory."""
        with self._lock:
            if len(self._made) > self._due:
                self._sweep()
            place = host.data_ptr()
            storage = torch._C._construct_storage_from_data_pointer(place, torch.device(KIND, 0), host.nbytes())
            self._made[place] = weak, host = StorageWeakRef(storage), host
            (self.foreign.discard if on_default_stream() else self.foreign.add)(place)
            order.work(current_stream().number, (), (), {place: weak.expired})
            return storage  # type: ignore[no-any-return]

    def _sweep(self) -> None:
        for made in self._made, self._pinned:
            for place, entry in list(made.items()):
                weak = entry[0] if isinstance(entry, tuple) else entry
                if weak.expired():
                    del made[place]  # type: ignore[attr-defined]
        self._due = 2 * len(self._made) + 256

    def host_of(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        return self._made[storage.data_ptr()][1]

    def device_of(self, host: torch.UntypedStorage) -> torch.UntypedStorage | None:
        """Return the storage of the device that this one of the host's is behind, if there is one."""
        found = self._made.get(host.data_ptr())
        if found is None or found[0].expired():
            return None
        return torch.UntypedStorage._new_with_weak_ptr(found[0].cdata)  # type: ignore[no-any-return]

    def look(self, tensor: Tensor) -> None:
        """Note it if the default stream has not held this memory of another's."""
        if self.foreign and on_default_stream() and tensor.untyped_storage().data_ptr() in self.foreign:
            for record in _records:
                record.unheld.append(_line_of_ours())

    def hold(self, tensor: Tensor) -> None:
        """Take note that a stream holds what another one made."""
        self.foreign.discard(tensor.untyped_storage().data_ptr())
        order.hold(current_stream().number, tensor.untyped_storage().data_ptr())

    def pin(self, tensor: Tensor) -> Tensor:
        """Take a tensor of the host for pinned."""
        storage = tensor.untyped_storage()
        with self._lock:
            self._pinned[storage.data_ptr()] = StorageWeakRef(storage)
        return tensor

    def bytes(self) -> int:
        """Return the bytes of the device's memory that is in use."""
        with self._lock:
            return sum(host.nbytes() for weak, host in self._made.values() if not weak.expired())

    def is_pinned(self, tensor: Tensor) -> bool:
        found = self._pinned.get(tensor.untyped_storage().data_ptr())
        return found is not None and not found.expired()


memory = _Memory()
order = StreamOrder(note_race, lambda: _line_of_ours())


def unwrapped(tensor: Tensor) -> Tensor:
    """Return the host's tensor of the same memory."""
    if not is_fake(tensor):
        return tensor
    if tensor.layout is torch.sparse_csr:
        accessors = _aten.crow_indices.default, _aten.col_indices.default, _aten.values.default
        parts = [unwrapped(accessor.redispatch(_SPARSE, tensor)) for accessor in accessors]
        return torch.sparse_csr_tensor(*parts, tensor.shape, check_invariants=False)
    memory.look(tensor)
    host = memory.host_of(tensor.untyped_storage())
    return torch.empty(0, dtype=tensor.dtype).set_(host, tensor.storage_offset(), tensor.shape, tensor.stride())


def wrapped(tensor: Tensor) -> Tensor:
    """Return the device's tensor of the same memory; a view where a tensor of the device has it."""
    host = tensor.untyped_storage()
    if not host.nbytes():  # an address of its own tells storages apart
        host = torch.empty(1, dtype=torch.uint8).untyped_storage()
    storage = memory.device_of(host) or memory.adopt(host)
    return _label(tensor, storage, torch._C._acc.create_empty_tensor((0,), tensor.dtype))


def _label(like: Tensor, storage: torch.UntypedStorage, tensor: Tensor) -> Tensor:
    """Give a tensor of the device a storage and the shape of `like`."""
    setter = _aten.set_.source_Storage_storage_offset
    found: Tensor = setter.redispatch(_CPU, tensor, storage, like.storage_offset(), like.shape, like.stride())
    return found


MOVES = ("aten::_copy_from", "aten::_copy_from_and_resize")


def _run(op: Any, *arguments: Any, **named: Any) -> Any:
    """Do an operation of the device."""
    name = op.name()
    for record in _records:
        record.operations[name] = record.operations.get(name, 0) + 1
    if name in MOVES:
        return _move(arguments[0], arguments[1], *arguments[2:], **named)
    if name.startswith("aten::set_."):  # concerns no memory
        return op.redispatch(_CPU, *arguments, **named)
    check_devices(name, [*tensors_of(arguments), *tensors_of(named)])
    _order(op, arguments, named)
    _wait(waits(name, arguments, named))
    given: dict[int, Tensor] = {}
    hosts: list[Tensor] = []

    def host(tensor: Tensor) -> Tensor:
        found = unwrapped(tensor)
        given[id(found)] = tensor
        hosts.append(found)  # their ids are not used again
        return found

    with torch._C._DisableFuncTorch():
        positional = with_tensors(signature(op).with_scalars(arguments), host)
        keywords = with_tensors(named, host)
        if "device" in keywords:
            keywords["device"] = torch.device("cpu")
        keywords.pop("pin_memory", None)
        result = _captured(partial(op, *positional, **keywords), hosts)

    def device(tensor: Tensor) -> Tensor:
        target = given.get(id(tensor))
        if target is None:
            return wrapped(tensor)
        if is_fake(target) and target.layout is torch.strided and target.shape != tensor.shape:  # it was resized
            host = tensor.untyped_storage()
            _label(tensor, memory.device_of(host) or memory.adopt(host), target)
        return target

    return with_tensors(result, device)


def _wait(why: str | None) -> None:
    """Have the host wait for the current stream, if there is a reason."""
    if why is not None:
        note_wait(why)
        if "host's indices" not in why:  # those are copied to the device
            order.waited(order.moment(current_stream().number))


def _order(op: Any, arguments: Sequence[Any], named: dict[str, Any]) -> None:
    """Take in what an operation reads and writes."""
    reads, writes = list[int](), list[int]()
    for value, written in signature(op).values(arguments, named):
        (writes if written else reads).extend(places(value))
    order.work(current_stream().number, reads, writes, {})


def _move(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    if is_fake(source) != is_fake(target):
        host = target if is_fake(source) else source
        pinned = non_blocking and memory.is_pinned(host)
        if not pinned and host.numel():
            note_wait("copy to the host" if is_fake(source) else "pageable copy to the device")
        for record in _records if is_fake(target) else ():
            record.uploads[not on_default_stream()] += host.nbytes
    stream = current_stream().number
    order.work(stream, places(source), places(target), {})
    if is_fake(source) and not is_fake(target) and not (non_blocking and memory.is_pinned(target)):
        order.waited(order.moment(stream))
    to = unwrapped(target)
    _captured(partial(to.copy_, unwrapped(source)), [to])
    return target


class FakeStream:
    """A stream: work on it is done at once, and its order with others' is kept."""

    _numbers = count()

    def __init__(self) -> None:
        self.number = next(self._numbers)

    def wait_event(self, event: FakeEvent) -> None:
        """Wait on the device."""
        order.after(self.number, event.moment)

    def wait_stream(self, stream: FakeStream) -> None:
        """Wait on the device."""
        order.after(self.number, order.moment(stream.number))

    def synchronize(self) -> None:
        """Wait on the host."""
        note_wait("synchronize a stream")
        order.waited(order.moment(self.number))

    def record_event(self) -> FakeEvent:
        """Return an event of this moment."""
        event = FakeEvent()
        event.at, event.moment = time.perf_counter(), order.moment(self.number)
        return event


class FakeEvent:
    """An event of a stream: the host's time when it is recorded, since work is done at once."""

    def __init__(self) -> None:
        self.at, self.moment = 0.0, Clock()

    def record(self) -> None:
        """See `torch.cuda.Event`."""
        self.at, self.moment = time.perf_counter(), order.moment(current_stream().number)

    def elapsed_time(self, later: FakeEvent) -> float:
        """See `torch.cuda.Event`."""
        return (later.at - self.at) * 1e3


class FakeGraph:
    """Work that is done again, on the same memory, when it is replayed.

    While it is captured it is done, to have results of the right shapes, and undone at the end: a real one is not.
    """

    def __init__(self) -> None:
        self.work: list[tuple[Callable[[], Any], Any]] = []
        self.replays = 0
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def keep(self, hosts: Sequence[Tensor]) -> None:
        """Keep what memory has in it before it is worked on."""
        for host in hosts:
            if host.layout is torch.strided:
                storage = host.untyped_storage()
                self._before.setdefault(storage.data_ptr(), (storage, storage.clone()))

    def undo(self) -> None:
        """Have memory as it was."""
        for storage, before in self._before.values():
            if storage.nbytes() == before.nbytes():  # else the work made it, as large as it needs
                storage.copy_(before)

    def replay(self) -> None:
        """Do the work again."""
        self.replays += 1
        for work, result in self.work:
            for old, new in zip(tensors_of(result), tensors_of(work()), strict=True):
                if old.layout is torch.strided and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


_capturing: list[FakeGraph] = []


def _captured(work: Callable[[], Any], hosts: Sequence[Tensor]) -> Any:
    """Do work on this memory; what is being captured takes it up."""
    for graph in _capturing:
        graph.keep(hosts)
    result = work()
    for graph in _capturing:
        graph.work.append((work, result))
    return result


def fake_kind(*, gloo_reads: bool) -> DeviceKind:
    """Return what the project asks of the device, beside operations on tensors.

    `gloo_reads`: gloo sends the device's tensors, as NCCL would; else they are staged, as by several ranks on one GPU.
    """
    return DeviceKind(
        has_streams=True,
        gloo_reads=gloo_reads,
        has_allocator=True,
        device=lambda local_rank: register(),
        pinned=lambda *shape, dtype: memory.pin(torch.empty(shape, dtype=dtype)),
        upload=_upload,
        synchronize=_synchronize,
        event=FakeEvent,
        new_stream=FakeStream,
        current_stream=lambda: current_stream(),
        on=_on,
        hold=_hold,
        graph=FakeGraph,
        capture=_capture,
        generator=lambda device, seed: torch.Generator().manual_seed(seed),  # draws are made by the host's
        reserved=lambda device: memory.bytes(),
        peak=lambda device: memory.bytes(),
        reset_peak=lambda device: None,
        give_back=lambda: None,
    )


def _upload(host: Tensor, device: torch.device) -> Tensor:
    pinned = host if memory.is_pinned(host) else memory.pin(host.clone())
    return pinned.to(device, non_blocking=True)


def _synchronize() -> None:
    note_wait("synchronize")
    order.waited_for_all()


@contextmanager
def _on(stream: FakeStream) -> Iterator[None]:
    before, _streams.now = current_stream(), stream
    try:
        yield
    finally:
        _streams.now = before


def _hold(tensor: Tensor) -> None:
    assert is_fake(tensor)
    memory.hold(tensor)


@contextmanager
def _capture(graph: FakeGraph) -> Iterator[None]:
    _capturing.append(graph)
    try:
        yield
    finally:
        _capturing.remove(graph)
        graph.undo()


_default_stream, _streams = FakeStream(), threading.local()


def current_stream() -> FakeStream:
    """Return the stream that this thread works on."""
    return getattr(_streams, "now", _default_stream)


def on_default_stream() -> bool:
    """Whether this thread works on the default stream."""
    return current_stream() is _default_stream


@contextmanager
def in_place_of_cuda(*, gloo_reads: bool = True) -> Iterator[torch.device]:
    """Have `device: cuda` be this one in the context."""
    before = dict(KINDS)
    device, kind = register(), fake_kind(gloo_reads=gloo_reads)
    KINDS.update(cuda=kind, fake=kind)
    try:
        yield device
    finally:
        KINDS.clear()
        KINDS.update(before)


@cache
def register() -> torch.device:
    """Have torch know the device, in this process; returns it."""
    _setup_privateuseone_for_python_backend(KIND)
    library = torch.library.Library("_", "IMPL")
    for key in ("PrivateUse1", "SparseCsrPrivateUse1"):
        library.fallback(_run, key)
    # Of these torch has operations of several others for a device without its own; CUDA has its own.
    products = torch.library.Library("aten", "IMPL")
    products.impl("native_layer_norm", partial(_run, _aten.native_layer_norm.default), "PrivateUse1")
    products.impl("mm", partial(_run, _aten.mm.default), "SparseCsrPrivateUse1")
    exchanges = torch.library.Library("c10d", "IMPL")
    for name in ("send", "recv_", "allreduce_", "broadcast_"):
        exchanges.impl(name, partial(_run, getattr(torch.ops.c10d, name).default), "PrivateUse1", allow_override=True)
    _kept.extend([library, products, exchanges])
    return torch.device(KIND, 0)


_kept: list[torch.library.Library] = []  # their registrations end with them
