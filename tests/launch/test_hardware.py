"""GPUs that cannot be had, or are not alike, are told in one line; ranks are pinned to the cores near theirs."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness import gpus as usable
from harness.errors import UserError
from harness.gpus import Gpu, driver_cuda, why_unusable
from harness.launch import hardware as module
from harness.launch.coordinator import Coordinator, NodeInfo
from harness.launch.hardware import Capacity, check_device, expanded, near_cores, unlike_gpus
from harness.launch.machines import TrialJob
from harness.launch.planner import PlannedTrial, warnings
from harness.launch.process import placements_of
from harness.launch.slots import Slot
from harness.suite.expand import expand
from harness.suite.schema import Suite, TrialConfig

ALIKE, UNLIKE = ["A100", "A100", "H100"], ["A100", "H100"]


def trial(parts: int = 2, **settings: Any) -> TrialConfig:
    suite = Suite(name="s", datasets="digits", methods="full", device="cpu", partition={"parts": parts}, **settings)
    return expand(suite)[0].model_copy(update={"device": "cuda"})


class Driver:
    """A library by which torch would find GPUs; CUDA 12.4's driver."""

    def cuDriverGetVersion(self, found: Any) -> int:  # noqa: N802
        found._obj.value = 12040
        return 0


@pytest.mark.parametrize(
    ("build", "driver", "shown", "message"),
    [
        (None, None, None, "it is built without CUDA (install its CUDA build, or --device cpu)"),
        ("13.0", None, None, "there is no GPU driver (--device cpu)"),
        ("13.0", Driver(), None,
         "its driver is for CUDA 12.4, torch is built for 13.0 (a newer driver, or torch for CUDA 12.4)"),
        ("12.8", Driver(), "7", "CUDA_VISIBLE_DEVICES='7' shows it none (unset it, or --device cpu)"),
        ("12.8", Driver(), None, "the driver shows it none (--device cpu; see `harness doctor`)"),
    ],
)  # fmt: skip
def test_a_gpu_that_cannot_be_had(
    build: str | None, driver: Driver | None, shown: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def library(name: str) -> Driver:
        if driver is None:
            raise OSError(name)
        return driver

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.version.cuda", build)
    monkeypatch.setattr(ctypes, "CDLL", library)
    monkeypatch.setattr(usable, "Path", lambda _: Path("/absent"))
    usable._has_driver.cache_clear()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    try:
        assert driver_cuda() == (None if driver is None else (12, 4))
        with pytest.raises(UserError) as error:
            check_device([trial()])
    finally:
        usable._has_driver.cache_clear()
    assert str(error.value) == f"device cuda: torch can use no GPU here: {message}"


def test_an_old_driver_s_warning_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    import warnings

    def ask() -> bool:
        warnings.warn("The NVIDIA driver on your system is too old\nand so on", UserWarning, stacklevel=2)
        return False

    monkeypatch.setattr("torch.cuda.is_available", ask)
    assert why_unusable() is not None
    assert not recwarn.list


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[Gpu]:
    """GPUs of this machine, to be filled by a test."""
    found: list[Gpu] = []
    monkeypatch.setattr(module, "why_unusable", lambda: None)
    monkeypatch.setattr(module, "usable_gpus", lambda: found)
    return found


def test_ranks_of_a_timed_trial_have_like_gpus(here: list[Gpu]) -> None:
    here += [Gpu(name, 1) for name in UNLIKE]
    with pytest.raises(UserError) as error:
        check_device([trial()])
    assert str(error.value) == (
        "device cuda: ranks on unlike GPUs (A100, H100): times would be those of the slowest "
        "(name alike ones in CUDA_VISIBLE_DEVICES, or `timing: off`)"
    )
    for fine in (trial(1), trial(timing="off"), trial().model_copy(update={"device": "cpu"})):
        check_device([fine])
    check_device([trial()], nodes=2)
    assert unlike_gpus(trial(2), ALIKE) is None
    assert unlike_gpus(trial(3), ALIKE) is not None


def test_a_plan_says_so_before_anything_runs() -> None:
    planned = PlannedTrial(trial(), "run", None, None, None, (), SimpleNamespace(nodes=9, validates=True))  # type: ignore[arg-type]
    [note] = warnings([planned], Capacity(0, (1, 1), names=tuple(UNLIKE)))
    assert note == (
        "1 trial: ranks on unlike GPUs (A100, H100): times would be those of the slowest; a run refuses them"
    )
    assert warnings([planned], Capacity(0, (1, 1), names=("A100", "A100"))) == []


def test_nodes_with_unlike_gpus_train_nothing(tmp_path: Path) -> None:
    infos = [NodeInfo("", f"10.0.0.{node}", 1, {}, [name]) for node, name in enumerate(UNLIKE)]
    coordinator = object.__new__(Coordinator)
    coordinator.nodes, coordinator._info = 2, infos[0]
    coordinator.timeouts = SimpleNamespace(trial_s=1)  # type: ignore[assignment]
    workers: Any = SimpleNamespace(infos=infos[1:], reports=lambda *_: [{"hash": "x"}])
    job = TrialJob(trial(), SimpleNamespace(fingerprint="x"), tmp_path)  # type: ignore[arg-type]
    group = coordinator._together(workers, job)  # type: ignore[arg-type]
    assert group.reason == "node 0 found ranks on unlike GPUs (A100, H100): times would be those of the slowest"


@pytest.mark.parametrize(("text", "numbers"), [("0-2,5\n", [0, 1, 2, 5]), ("7", [7]), ("", [])])
def test_lists_of_cores(text: str, numbers: list[int]) -> None:
    assert expanded(text) == numbers


def test_cores_near_a_gpu_are_those_of_its_bus(
    here: list[Gpu], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buses = {"0000:3b:00.0": "0-3", "0000:d8:00.0": "4-7"}
    for bus, cores in buses.items():
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "local_cpulist").write_text(f"{cores}\n")
    here += [Gpu("A", 1, bus) for bus in buses] + [Gpu("A", 1, "0000:ff:00.0"), Gpu("A", 1)]
    first, second, nowhere = frozenset(range(4)), frozenset(range(4, 8)), frozenset[int]()
    assert near_cores(sysfs=tmp_path) == [first, second, nowhere, nowhere]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c,GPU-d")
    assert near_cores(["GPU-b", "GPU-a", "GPU-x"], tmp_path) == [second, first, nowhere]


def test_a_bus_is_written_as_linux_does(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(name="A", total_memory=5, pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    monkeypatch.setattr(usable, "gpu_is_usable", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda i: found if i else SimpleNamespace(
        name="old", total_memory=4))  # fmt: skip
    assert usable.usable_gpus() == [Gpu("old", 4), Gpu("A", 5, "0000:3b:00.0")]


@pytest.mark.parametrize(
    ("each", "near", "expected"),
    [
        (2, [{4, 5, 6, 7}, {0, 1, 2, 3}], [(4, 5), (0, 1), (6, 7), (2, 3)]),
        (2, [{6, 7}], [(6, 7), (0, 1), (2, 3), (4, 5)]),
        (3, [{0}, {7}], [(0, 1, 2), (3, 4, 7), (0, 5, 6), (1, 2, 7)]),
        (2, [set(), {0, 1}], [(0, 1), (2, 3), (4, 5), (6, 7)]),
        (9, [{0}], [tuple(range(8))] * 4),
    ],
)
def test_ranks_have_cores_near_their_gpu_first(
    each: int, near: list[set[int]], expected: list[tuple[int, ...]]
) -> None:
    slot = Slot(tuple(range(8)))
    ranks = placements_of(range(4), 4)
    assert [slot.placed(rank, each, [*map(frozenset, near)]).cores for rank in ranks] == expected
