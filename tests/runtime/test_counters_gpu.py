from __future__ import annotations

import pytest
from support.fake_nvml import OWN, FakeNvml

from harness.runtime.counters import GPU_COUNTERS, Absent, find_gpu


@pytest.fixture(autouse=True)
def _all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("uuid", "index", "visible"),
    [
        ("aa-bb", 0, None),  # by UUID, whatever the number
        ("unknown", 3, None),
        ("unknown", 1, "0, 3"),
        ("unknown", 0, "GPU-aa-bb"),
    ],
)
def test_the_device_is_found_by_uuid_else_among_the_visible(
    uuid: str, index: int, visible: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpu = find_gpu(FakeNvml(), uuid, index)
    names = ("nvml_peak_bytes", "gpu_utilisation", "gpu_power_w", "energy_gpu_j")
    assert [GPU_COUNTERS[name](gpu) for name in names] == [5 * 2**20, 0.5, 250.0, 7000.0]


def test_a_device_that_is_not_found_is_absent_and_nvml_is_let_go() -> None:
    api = FakeNvml()
    with pytest.raises(Absent, match="NVML knows none of GPU-x, MIG-x, 0: Invalid"):
        find_gpu(api, "x", 0)
    assert api.users == 0


def test_a_mig_instance_says_that_it_is_one() -> None:
    api = FakeNvml("MIG-aa-bb", missing=("nvmlDeviceGetUtilizationRates",))
    gpu = find_gpu(api, "aa-bb", 0)
    assert gpu.memory() == 5 * 2**20
    with pytest.raises(Absent, match=r"NVML \(MIG instance\): Not Supported"):
        GPU_COUNTERS["gpu_utilisation"](gpu)


def test_no_driver_is_absent() -> None:
    with pytest.raises(Absent, match="NVML: Not Supported"):
        find_gpu(FakeNvml(missing=("nvmlInit",)), "aa-bb", 0)


def test_memory_of_another_process_is_never_ours() -> None:
    api = FakeNvml()
    gpu = find_gpu(api, "aa-bb", 0)
    api.processes = [(1, 999)]
    assert gpu.memory() is None
    api.processes = [(OWN, None)]
    with pytest.raises(Absent, match="not given by process"):
        gpu.memory()
