"""Figures of a GPU from the driver (NVML)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from harness.runtime.meters.absent import Absent

T = TypeVar("T")


class Gpu:
    """One GPU, or MIG instance, as NVML sees it. Nothing here waits for the GPU's work.

    Args:
        api: the module `pynvml`, initialised.
        handle: NVML's handle of the device.
        pid: process whose memory `memory` returns.
        what: what errors are said of.

    Raises (all methods):
        Absent: the driver does not give the figure for this device.
    """

    def __init__(self, api: Any, handle: Any, pid: int, what: str = "GPU") -> None:
        self._api, self._handle, self._pid, self._what = api, handle, pid, what

    def memory(self) -> int | None:
        """Return the bytes that the process holds on the device; None if it is not listed (yet)."""
        processes = self._ask(self._api.nvmlDeviceGetComputeRunningProcesses)
        own = [process.usedGpuMemory for process in processes if process.pid == self._pid]
        if not own:
            return None
        if own[0] is None:
            raise Absent(f"NVML ({self._what}): memory is not told by process")
        return int(own[0])

    def utilisation(self) -> float:
        """Return the share of time (0..1) with a kernel running, over the driver's last 1/6 to 1 s."""
        return float(self._ask(self._api.nvmlDeviceGetUtilizationRates).gpu) / 100

    def power(self) -> float:
        """Return the device's power in watts, whoever uses it."""
        return float(self._ask(self._api.nvmlDeviceGetPowerUsage)) / 1e3

    def energy(self) -> float:
        """Return the device's energy in joules since the driver was loaded, whoever used it."""
        return float(self._ask(self._api.nvmlDeviceGetTotalEnergyConsumption)) / 1e3

    def close(self) -> None:
        """Release NVML."""
        self._api.nvmlShutdown()

    def _ask(self, function: Callable[[Any], T]) -> T:
        try:
            return function(self._handle)
        except self._api.NVMLError as error:
            raise Absent(f"NVML ({self._what}): {error}") from None


def open_gpu(device: torch.device) -> Gpu:
    """Return the GPU that torch calls `device`.

    Raises:
        Absent: NVML is not there or does not know the device.
    """
    import pynvml

    index = torch.cuda.current_device() if device.index is None else device.index
    uuid = str(torch.cuda.get_device_properties(index).uuid)
    return find_gpu(pynvml, uuid, index, os.environ.get("CUDA_VISIBLE_DEVICES"), os.getpid())


def find_gpu(api: Any, uuid: str, index: int, visible: str | None, pid: int) -> Gpu:
    """Return the GPU with CUDA's `uuid`, or if NVML knows none, the one at `index` of the visible devices.

    NVML and CUDA may number GPUs differently; the index is right for GPUs of one kind or with
    CUDA_DEVICE_ORDER=PCI_BUS_ID.

    Args:
        api: the module `pynvml`.
        uuid: of the device, without GPU- or MIG-.
        index: of the device among those that CUDA sees.
        visible: CUDA_VISIBLE_DEVICES, indices or UUIDs.
        pid: process whose memory is asked for.

    Raises:
        Absent: NVML is not there or knows neither.
    """
    try:
        api.nvmlInit()
    except api.NVMLError as error:
        raise Absent(f"NVML: {error}") from None
    names = [f"GPU-{uuid}", f"MIG-{uuid}", _visible_name(visible, index)]
    failure = None
    for name in names:
        try:
            by_index = name.isdigit()
            handle = (
                api.nvmlDeviceGetHandleByIndex(int(name)) if by_index else api.nvmlDeviceGetHandleByUUID(name)
            )
        except api.NVMLError as error:
            failure = error
        else:
            return Gpu(api, handle, pid, "MIG instance" if name.startswith("MIG-") else "GPU")
    api.nvmlShutdown()
    raise Absent(f"NVML knows none of {', '.join(names)}: {failure}")


def _visible_name(visible: str | None, index: int) -> str:
    """Return the entry of CUDA_VISIBLE_DEVICES for torch's device `index`; the index itself without it."""
    names = [] if visible is None else [name.strip() for name in visible.split(",")]
    return names[index] if index < len(names) else str(index)
