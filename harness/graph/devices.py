"""Devices: uploads, streams, events, generators and memory, all that a rank needs next to operations on tensors.

All of torch.cuda that a rank calls is here, so that tests can put a device of their own in its place.
"""

from __future__ import annotations

import math
import mmap
import os
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any, NoReturn

from harness.deferred import numpy as np
from harness.deferred import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


def _absent(*_: Any) -> NoReturn:
    raise NotImplementedError("a CPU has no such thing")


@dataclass(frozen=True)
class DeviceKind:
    """What a kind of device has and does; the defaults are a CPU's: its memory is the host's, it has no streams."""

    has_streams: bool = False  # whether work on it goes on at the same time as the host's
    gloo_reads: bool = True  # whether gloo sends its tensors as they are, not copies in the host's memory
    has_allocator: bool = False  # whether torch counts the memory that it hands out there
    # the device of a local rank; ranks share devices in turn where there are fewer than ranks
    device: Callable[[int], torch.device] = lambda local_rank: torch.device("cpu")
    # pinned(*shape, dtype=): memory of the host that is copied to and from the device without waiting for it
    pinned: Callable[..., Tensor] = lambda *shape, dtype: torch.empty(shape, dtype=dtype)
    # a tensor of the host on the device; the host does not wait for that
    upload: Callable[[Tensor, torch.device], Tensor] = lambda host, device: host
    synchronize: Callable[[], None] = lambda: None  # waits for all that was started
    # an event that can be timed: `record()`, and `elapsed_time(later)` in ms; None without streams
    event: Callable[[], Any] = lambda: None
    # a stream to work on next to the current one, and the stream that this thread works on; None without streams
    new_stream: Callable[[], Any] = lambda: None
    current_stream: Callable[[], Any] = lambda: None
    on: Callable[[Any], AbstractContextManager[Any]] = nullcontext  # a context that works on a stream of `new_stream`
    # keeps the memory of what another stream made until the current one is done with it
    hold: Callable[[Tensor], None] = lambda tensor: None
    graph: Callable[[], Any] = _absent  # an empty graph of work; its `replay()` does the work again, on the same memory
    # a context in which a graph takes up the work that is started, instead of doing it
    capture: Callable[[Any], AbstractContextManager[Any]] = _absent
    # a generator, with a seed, for draws on the device
    generator: Callable[[torch.device, int], torch.Generator] = lambda device, seed: torch.Generator(
        device
    ).manual_seed(seed)
    # the devices other than the CPU whose own generators work on this one uses
    generators: Callable[[torch.device], list[torch.device]] = lambda device: []
    # the state of the device's own generator, on the host; None where it has none
    random_state: Callable[[torch.device], Tensor | None] = lambda device: None
    set_random_state: Callable[[torch.device, Tensor], None] = _absent
    # bytes that the allocator keeps, and the most that it had handed out since `reset_peak`
    reserved: Callable[[torch.device], int] = _absent
    peak: Callable[[torch.device], int] = _absent
    reset_peak: Callable[[torch.device], None] = _absent
    give_back: Callable[[], None] = _absent  # gives back what the allocator keeps and nobody uses


CUDA = DeviceKind(
    has_streams=True,
    gloo_reads=False,
    has_allocator=True,
    device=lambda local_rank: torch.device("cuda", local_rank % torch.cuda.device_count()),
    pinned=lambda *shape, dtype: torch.empty(shape, dtype=dtype, pin_memory=True),
    upload=lambda host, device: host.pin_memory().to(device, non_blocking=True),
    synchronize=lambda: torch.cuda.synchronize(),
    event=lambda: torch.cuda.Event(enable_timing=True),
    new_stream=lambda: torch.cuda.Stream(),
    current_stream=lambda: torch.cuda.current_stream(),
    on=lambda stream: torch.cuda.stream(stream),
    hold=lambda tensor: tensor.record_stream(torch.cuda.current_stream()),
    graph=lambda: torch.cuda.CUDAGraph(),
    capture=lambda graph: torch.cuda.graph(graph),
    generators=lambda device: [device],
    random_state=lambda device: torch.cuda.get_rng_state(device),
    set_random_state=lambda device, state: torch.cuda.set_rng_state(state, device),
    reserved=lambda device: torch.cuda.memory_reserved(device),
    peak=lambda device: torch.cuda.max_memory_allocated(device),
    reset_peak=lambda device: torch.cuda.reset_peak_memory_stats(device),
    give_back=lambda: torch.cuda.empty_cache(),
)
KINDS = {"cpu": DeviceKind(), "cuda": CUDA}


def kind_of(device: torch.device) -> DeviceKind:
    """Return what a device's kind has."""
    return KINDS[device.type]


def upload(host: NDArray[Any] | Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return what is in the host's memory on the device, as `dtype` if that is given; the host does not wait for it.

    On a CPU it is the same memory, unless the dtype is another. A tensor that is there already stays what it is.
    """
    tensor = torch.from_numpy(host) if isinstance(host, np.ndarray) else host
    if dtype is not None:
        tensor = tensor.to(dtype)
    return tensor if tensor.device == device else kind_of(device).upload(tensor, device)


HELD_FROM = 1 << 20  # bytes of a matrix that is made in the `Arena`
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python 3.11 has no name for it


class Arena:
    """Memory that a process's large matrices share: what one leaves is the next one's, and stays resident.

    A matrix is in the smallest gap that holds it. In the C library's heap small blocks take their memory from such
    gaps, and the next matrix of the same size no longer fits (docs/design/cores-and-memory.md).
    """

    def __init__(self, size: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (_NO_RESERVE if hasattr(mmap, "MADV_HUGEPAGE") else 0)
        self._mapping = mmap.mmap(-1, size, flags=flags)  # memory is the kernel's until it is written to
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._mapping.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = np.frombuffer(self._mapping, np.uint8)
        self._held: list[tuple[int, int, weakref.ref[NDArray[np.uint8]]]] = []  # from, to, what refers to it
        self._lock = Lock()

    def take(self, nbytes: int) -> NDArray[np.uint8] | None:
        """Return so many bytes, which no other call gets while they are referred to; None if there is no room."""
        with self._lock:
            gaps, size = self._gaps(), -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
            _, start, place = min((stop - start, start, place) for start, stop, place in gaps if stop - start >= size)
            if start + size > self._bytes.size:
                return None
            found = self._bytes[start : start + nbytes]
            self._held.insert(place, (start, start + size, weakref.ref(found)))
        return found

    def give_back(self) -> None:
        """Give the kernel back what is not referred to."""
        with self._lock:
            for start, stop, _ in self._gaps():
                if stop > start:
                    self._mapping.madvise(mmap.MADV_DONTNEED, start, min(stop, self._bytes.size) - start)

    def _gaps(self) -> list[tuple[int, int, int]]:
        """Return from where to where nothing is held, and before which of the others; the last has no end."""
        self._held = [each for each in self._held if each[2]() is not None]
        starts, stops = [start for start, _, _ in self._held], [stop for _, stop, _ in self._held]
        return list(zip([0, *stops], [*starts, 1 << 62], range(len(starts) + 1), strict=True))


@cache
def _arena(process: int) -> Arena | None:
    try:
        return Arena(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except OSError:  # a limit on addresses
        return None


def fresh(like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return memory on the device of `like`, and of its dtype if no other is given, as it comes.

    A large matrix of a CPU is in the process's `Arena`.
    """
    dtype = dtype or like.dtype
    nbytes = math.prod(shape) * dtype.itemsize
    arena = _arena(os.getpid()) if like.device.type == "cpu" and nbytes >= HELD_FROM else None
    if arena is None or (found := arena.take(nbytes)) is None:
        return like.new_empty(shape, dtype=dtype)
    # Not a view, which autograd does not let be changed: a tensor that has the storage.
    storage = torch.frombuffer(found, dtype=dtype).untyped_storage()
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return torch.empty(0, dtype=dtype).set_(storage, 0, shape, strides)


def give_back() -> None:
    """Give the kernel back what large matrices left."""
    if (arena := _arena(os.getpid())) is not None:
        arena.give_back()
