"""Devices: uploads, streams, events, generators and memory, all that a rank needs next to operations on tensors.

All of torch.cuda that a rank calls is here, so that tests can put a device of their own in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
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
