"""A driver that says what a test tells it to; the functions of pynvml that the meters call."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml

OWN, OTHER = os.getpid(), 1


class FakeNvml:
    """One GPU, known as number 3 of the machine and by its UUID; figures are set as attributes.

    `missing` names functions that the driver does not support.
    """

    NVMLError = pynvml.NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM = pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM

    def __init__(self, name: str = "GPU-aa-bb", missing: tuple[str, ...] = ()) -> None:
        self.name, self.missing = name, missing
        self.processes: list[tuple[int, int | None]] = [(OTHER, 999), (OWN, 5 * 2**20)]
        self.utilisation_percent, self.power_mw, self.energy_mj = 50, 250_000, 7_000_000
        self.used_bytes, self.clock_mhz, self.throttle = 9 * 2**20, 1500, pynvml.nvmlClocksThrottleReasonGpuIdle
        self.users = 0

    def nvmlInit(self) -> None:  # noqa: N802
        self._check("nvmlInit")
        self.users += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.users -= 1

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:  # noqa: N802
        if name != self.name:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return self.name

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        if index != 3:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return self.name

    def __getattr__(self, function: str) -> Callable[[str], Any]:
        if function.startswith("nvmlClocksThrottleReason"):
            return getattr(pynvml, function)  # type: ignore[no-any-return]
        answers: dict[str, Callable[..., Any]] = {
            "nvmlDeviceGetComputeRunningProcesses": lambda: [
                SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in self.processes
            ],
            "nvmlDeviceGetUtilizationRates": lambda: SimpleNamespace(gpu=self.utilisation_percent),
            "nvmlDeviceGetPowerUsage": lambda: self.power_mw,
            "nvmlDeviceGetTotalEnergyConsumption": lambda: self.energy_mj,
            "nvmlDeviceGetMemoryInfo": lambda: SimpleNamespace(used=self.used_bytes),
            "nvmlDeviceGetClockInfo": lambda clock: {pynvml.NVML_CLOCK_SM: self.clock_mhz}[clock],
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda: self.throttle,
            "nvmlDeviceGetEnforcedPowerLimit": lambda: 600_000,
            "nvmlDeviceGetPowerManagementDefaultLimit": lambda: 700_000,
            "nvmlDeviceGetMaxClockInfo": lambda clock: {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 2619}[clock],
        }
        if function not in answers:
            raise AttributeError(function)

        def ask(handle: str, *others: Any) -> Any:
            assert handle == self.name
            self._check(function)
            return answers[function](*others)

        return ask

    def _check(self, function: str) -> None:
        if function in self.missing:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
