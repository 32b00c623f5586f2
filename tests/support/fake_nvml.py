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

    def __init__(self, name: str = "GPU-aa-bb", missing: tuple[str, ...] = ()) -> None:
        self.name, self.missing = name, missing
        self.processes: list[tuple[int, int | None]] = [(OTHER, 999), (OWN, 5 * 2**20)]
        self.utilisation_percent, self.power_mw, self.energy_mj = 50, 250_000, 7_000_000
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
        answers: dict[str, Callable[[], Any]] = {
            "nvmlDeviceGetComputeRunningProcesses": lambda: [
                SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in self.processes
            ],
            "nvmlDeviceGetUtilizationRates": lambda: SimpleNamespace(gpu=self.utilisation_percent),
            "nvmlDeviceGetPowerUsage": lambda: self.power_mw,
            "nvmlDeviceGetTotalEnergyConsumption": lambda: self.energy_mj,
        }
        if function not in answers:
            raise AttributeError(function)

        def ask(handle: str) -> Any:
            assert handle == self.name
            self._check(function)
            return answers[function]()

        return ask

    def _check(self, function: str) -> None:
        if function in self.missing:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
