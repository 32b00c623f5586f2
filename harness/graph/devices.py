"""Devices: uploads, streams, events, generators and memory, all that a rank needs next to operations on tensors.

All of torch.cuda that a rank calls is here, so that tests can put a device of their own in its place.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from harness.deferred import numpy as np
from harness.deferred import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


class DeviceKind:
    """What a kind of device has; this one is the CPU: its memory is the host's, and it has no streams.

    Attributes:
        has_streams: whether work on it goes on at the same time as the host's.
        gloo_reads: whether gloo sends its tensors as they are, not copies in the host's memory.
        has_allocator: whether torch counts the memory that it hands out there.
    """

    has_streams = False
    gloo_reads = True
    has_allocator = False

    def device(self, local_rank: int) -> torch.device:
        """Return the device of a rank; ranks share devices in turn where there are fewer than ranks."""
        return torch.device("cpu")

    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Return memory of the host that is copied to and from the device without waiting for it."""
        return torch.empty(shape, dtype=dtype)

    def upload(self, host: Tensor, device: torch.device) -> Tensor:
        """Return a tensor of the host on the device; the host does not wait for that."""
        return host

    def synchronize(self) -> None:
        """Wait for all that was started."""

    def event(self) -> Any:
        """Return an event that can be timed: `record()`, and `elapsed_time(later)` in ms; None without streams."""
        return None

    def new_stream(self) -> Any:
        """Return a stream to work on next to the current one, None without streams."""
        return None

    def current_stream(self) -> Any:
        """Return the stream that this thread works on, None without streams."""
        return None

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Work on a stream of `new_stream` in this context."""
        return nullcontext()

    def hold(self, tensor: Tensor) -> None:
        """Keep the memory of what another stream made until the current one is done with it."""

    def graph(self) -> Any:
        """Return an empty graph of work, see `capture`; `replay()` does the work again, on the same memory."""
        raise NotImplementedError

    def capture(self, graph: Any) -> AbstractContextManager[Any]:
        """Have a graph take up the work that is started in this context, instead of doing it."""
        raise NotImplementedError

    def generator(self, device: torch.device, seed: int) -> torch.Generator:
        """Return a generator for draws on the device."""
        return torch.Generator(device).manual_seed(seed)

    def generators(self, device: torch.device) -> list[torch.device]:
        """Return the devices other than the CPU whose own generators work on this one uses."""
        return []

    def random_state(self, device: torch.device) -> Tensor | None:
        """Return the state of the device's own generator, on the host; None where it has none."""
        return None

    def set_random_state(self, device: torch.device, state: Tensor) -> None:
        """Put the device's own generator into a state of `random_state`."""
        raise NotImplementedError

    def reserved(self, device: torch.device) -> int:
        """Return the bytes that the allocator keeps."""
        raise NotImplementedError

    def peak(self, device: torch.device) -> int:
        """Return the most bytes that the allocator had handed out since `reset_peak`."""
        raise NotImplementedError

    def reset_peak(self, device: torch.device) -> None:
        """Begin to look for the peak anew."""
        raise NotImplementedError

    def give_back(self) -> None:
        """Give back what the allocator keeps and nobody uses."""
        raise NotImplementedError


class _CUDA(DeviceKind):
    """NVIDIA's GPUs."""

    has_streams = True
    gloo_reads = False
    has_allocator = True

    def device(self, local_rank: int) -> torch.device:
        return torch.device("cuda", local_rank % torch.cuda.device_count())

    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def upload(self, host: Tensor, device: torch.device) -> Tensor:
        return host.pin_memory().to(device, non_blocking=True)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def event(self) -> Any:
        return torch.cuda.Event(enable_timing=True)

    def new_stream(self) -> Any:
        return torch.cuda.Stream()

    def current_stream(self) -> Any:
        return torch.cuda.current_stream()

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)

    def hold(self, tensor: Tensor) -> None:
        tensor.record_stream(torch.cuda.current_stream())

    def graph(self) -> Any:
        return torch.cuda.CUDAGraph()

    def capture(self, graph: Any) -> AbstractContextManager[Any]:
        return torch.cuda.graph(graph)

    def generators(self, device: torch.device) -> list[torch.device]:
        return [device]

    def random_state(self, device: torch.device) -> Tensor | None:
        return torch.cuda.get_rng_state(device)

    def set_random_state(self, device: torch.device, state: Tensor) -> None:
        torch.cuda.set_rng_state(state, device)

    def reserved(self, device: torch.device) -> int:
        return int(torch.cuda.memory_reserved(device))

    def peak(self, device: torch.device) -> int:
        return int(torch.cuda.max_memory_allocated(device))

    def reset_peak(self, device: torch.device) -> None:
        torch.cuda.reset_peak_memory_stats(device)

    def give_back(self) -> None:
        torch.cuda.empty_cache()


KINDS: dict[str, DeviceKind] = {"cpu": DeviceKind(), "cuda": _CUDA()}


def kind_of(device: torch.device) -> DeviceKind:
    """Return what a device's kind has."""
    return KINDS[device.type]


def upload(host: NDArray[Any] | Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return what is in the host's memory on the device, as `dtype` if that is given; the host does not wait for it.

    On a CPU it is the same memory, unless the dtype is another. A tensor that is there already stays what it is.
    """
    tensor = torch.from_numpy(host) if isinstance(host, np.ndarray) else host
    if tensor.device == device:
        return tensor if dtype is None else tensor.to(dtype)
    return kind_of(device).upload(tensor if dtype is None else tensor.to(dtype), device)
