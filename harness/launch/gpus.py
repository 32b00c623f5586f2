"""GPUs of a trial's ranks: whether they can be had, whether they are alike, and which cores are near them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from harness.errors import UserError
from harness.gpus import usable_gpus, why_unusable
from harness.suite.schema import TrialConfig

PCI = Path("/sys/bus/pci/devices")


def check_device(trials: Sequence[TrialConfig], nodes: int = 1) -> None:
    """Raise UserError if a trial wants a GPU and torch can use none, or a timed one has ranks on unlike GPUs.

    Of `nodes` machines it is this one that is looked at.
    """
    wanting = [trial for trial in trials if trial.device == "cuda"]
    if not wanting:
        return
    if (found := why_unusable()) is not None:
        why, fix = found
        raise UserError(f"torch can use no GPU here: {why}", key="device cuda", fix=fix)
    names = [gpu.name for gpu in usable_gpus()]
    for trial in wanting:
        here = names[: math.ceil(trial.partition.parts / nodes)]
        if (unlike := unlike_gpus(trial, here)) is not None:
            raise UserError(unlike, key="device cuda", fix="name alike ones in CUDA_VISIBLE_DEVICES, or `timing: off`")


def unlike_gpus(trial: TrialConfig, names: Sequence[str]) -> str | None:
    """Return what is wrong if a timed trial's ranks have GPUs with unlike names; those of the first ranks count.

    An epoch is as long as its slowest rank's: it would be one GPU's time, told as the method's.
    """
    theirs = list(dict.fromkeys(names[: trial.partition.parts]))
    if trial.device != "cuda" or trial.timing == "off" or len(theirs) < 2:
        return None
    return f"ranks on unlike GPUs ({', '.join(theirs)}): times would be those of the slowest"


def near_cores(names: Sequence[str] | None = None, sysfs: Path = PCI) -> list[frozenset[int]]:
    """Return the cores near each GPU, by its number for ranks that see `names` of those visible here (None: all).

    Near are those of the memory node (NUMA) that the GPU's PCI bus hangs on, as Linux tells; nothing where it does
    not, or all cores are as near.
    """
    from harness.launch.seats import visible_gpus

    found = [_of_bus(sysfs, gpu.bus) for gpu in usable_gpus()]
    if names is None:
        return found
    numbers = {name: number for number, name in enumerate(visible_gpus())}
    own = [numbers.get(name, len(found)) for name in names]
    return [found[number] if number < len(found) else frozenset() for number in own]


def _of_bus(sysfs: Path, bus: str | None) -> frozenset[int]:
    if bus is None:
        return frozenset()
    try:
        return frozenset(expanded((sysfs / bus / "local_cpulist").read_text()))
    except (OSError, ValueError):
        return frozenset()


def expanded(text: str) -> list[int]:
    """Return the numbers of a list as Linux writes it, such as `0-3,8`; ValueError if it is none."""
    found = list[int]()
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        found += range(int(first), int(last if dash else first) + 1)
    return found
