"""What this process may use of the machine: cores, memory and GPUs, within the limits of its cgroup."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.deferred import torch
from harness.errors import UserError
from harness.gpus import usable_gpus, why_unusable
from harness.suite.schema import TrialConfig

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
PCI = Path("/sys/bus/pci/devices")


@dataclass(frozen=True)
class Capacity:
    """Has the bytes of a machine's memory (or of what this process may use of it), and of each GPU it has."""

    machine: int
    gpus: tuple[int, ...] = ()
    where: str = "this machine"
    nodes: int = 1  # such machines share the ranks of a trial
    names: tuple[str, ...] = ()  # of the GPUs, if known


def capacity() -> Capacity:
    """Return this machine's capacity: its memory or the limit of this process's cgroup, and each GPU's."""
    import psutil

    memory, gpus = psutil.virtual_memory().total, usable_gpus()
    sizes, names = (tuple(gpu.memory for gpu in gpus), tuple(gpu.name for gpu in gpus))
    return Capacity(min(memory, memory_limit() or memory), sizes, names=names)


def cores() -> int:
    """Return the whole cores this process may use: those it may run on, or fewer by its cgroup's quota; 1 at least."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, int(cpu_limit() or allowed)))


def usable_cores() -> list[int]:
    """Return the numbers of the cores that this process may use, at most its quota; hyperthreads of a core meet."""

    def place(core: int) -> tuple[int, int]:
        siblings = re.match("[0-9]+", _read(Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")))
        return int(siblings[0]) if siblings else core, core

    if not hasattr(os, "sched_getaffinity"):
        return list(range(cores()))
    return sorted(os.sched_getaffinity(0), key=place)[: cores()]


def cores_of(trial: TrialConfig, nodes: int = 1, of: int | None = None) -> int:
    """Return the cores of each rank: as many as the suite says, or its share of a node's `of` cores (all).

    Never more than there are; where the suite says threads and not cores, at least one for each of them.
    """
    there = of or cores()
    share = max(there // math.ceil(trial.partition.parts / nodes), trial.train.threads or 1)
    return min(trial.train.cores or share, there)


def threads_of(trial: TrialConfig, nodes: int = 1, of: int | None = None) -> int:
    """Return the CPU threads of each rank: as many as the suite says, or one for each of its cores; see `cores_of`."""
    return trial.train.threads or cores_of(trial, nodes, of)


def blocks(parts: int, nodes: int) -> list[range]:
    """Return the ranks of each node: contiguous, as even as possible, the first nodes having more."""
    each, more = divmod(parts, nodes)
    starts = [node * each + min(node, more) for node in range(nodes + 1)]
    return [range(starts[node], starts[node + 1]) for node in range(nodes)]


def check_device(trials: Sequence[TrialConfig], nodes: int = 1) -> None:
    """Raise UserError if a trial wants a GPU and torch can use none, or a timed one has ranks on unlike GPUs.

    Of `nodes` machines only this one is checked.
    """
    wanting = [trial for trial in trials if trial.device == "cuda"]
    if wanting and (found := why_unusable()) is not None:
        raise UserError(f"torch can use no GPU here: {found[0]}", key="device cuda", fix=found[1])
    names = [gpu.name for gpu in usable_gpus()] if wanting else []
    for trial in wanting:
        if (unlike := unlike_gpus(trial, names[: math.ceil(trial.partition.parts / nodes)])) is not None:
            raise UserError(unlike, key="device cuda", fix="name alike ones in CUDA_VISIBLE_DEVICES, or `timing: off`")


def unlike_gpus(trial: TrialConfig, names: Sequence[str]) -> str | None:
    """Return what is wrong if a timed trial's ranks have GPUs with unlike names; those of the first ranks count.

    An epoch is as long as its slowest rank's: it would be one GPU's time, reported as the method's.
    """
    theirs = list(dict.fromkeys(names[: trial.partition.parts]))
    if trial.device != "cuda" or trial.timing == "off" or len(theirs) < 2:
        return None
    return f"ranks on unlike GPUs ({', '.join(theirs)}): times would be those of the slowest"


def visible_gpus() -> list[str]:
    """Return the names of the GPUs this process may use, as CUDA_VISIBLE_DEVICES would have them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    return [str(index) for index in range(torch.cuda.device_count())]


def near_cores(names: Sequence[str] | None = None, sysfs: Path = PCI) -> list[frozenset[int]]:
    """Return the cores near each GPU, by its number for ranks that see `names` of those visible here (None: all).

    Near are those of the memory node (NUMA) that the GPU's PCI bus hangs on; none where Linux does not know, or all
    cores are as near.
    """
    found: dict[int, frozenset[int]] = {}
    for number, gpu in enumerate(usable_gpus()):
        with suppress(ValueError):
            found[number] = frozenset(expanded(_read(sysfs / (gpu.bus or "-") / "local_cpulist")))
    numbers = {name: number for number, name in enumerate(visible_gpus())} if names is not None else {}
    own = range(len(usable_gpus())) if names is None else [numbers.get(name, -1) for name in names]
    return [found.get(number, frozenset()) for number in own]


def expanded(text: str) -> list[int]:
    """Return the numbers of a list as Linux writes it, such as `0-3,8`; ValueError if it is none."""
    found = list[int]()
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        found += range(int(first), int(last if dash else first) + 1)
    return found


def oom_kills(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Return how many processes the kernel's OOM killer has ended so far; only a difference of two calls is of use.

    The counter is that of this process's own memory cgroup (v2 `memory.events`, v1 `memory.oom_control`), of the
    nearest parent that has one, or else the machine's (`/proc/vmstat`). It is 0 where the system keeps none.
    """
    counters = _cgroup_files(proc, cgroups, "memory", v1="memory.oom_control", v2="memory.events")
    for path in [*counters, proc / "vmstat"]:
        if counter := re.search(r"^oom_kill (\d+)\s*$", _read(path), re.MULTILINE):
            return int(counter[1])
    return 0


def memory_limit(proc: Path = PROC, cgroups: Path = CGROUPS) -> int | None:
    """Return the lowest limit in bytes of this process's memory cgroup and its parents, or None without one."""
    files = _cgroup_files(proc, cgroups, "memory", v1="memory.limit_in_bytes", v2="memory.max")
    return min((int(text) for path in files if (text := _read(path).strip()).isdigit()), default=None)


def cpu_limit(proc: Path = PROC, cgroups: Path = CGROUPS) -> float | None:
    """Return the lowest quota in cores of this process's cpu cgroup and its parents, or None without one.

    v2 has "quota period" in `cpu.max` (quota "max": none), v1 each in a file (quota -1: none), in microseconds.
    """
    files = _cgroup_files(proc, cgroups, "cpu", v1="cpu.cfs_quota_us", v2="cpu.max")
    found = [f"{_read(path)} {_read(path.with_name('cpu.cfs_period_us'))}".split() for path in files]
    quotas = (int(words[0]) / int(words[1]) for words in found if len(words) == 2 and all(map(str.isdigit, words)))
    return min(quotas, default=None)


def _cgroup_files(proc: Path, cgroups: Path, controller: str, *, v1: str, v2: str) -> list[Path]:
    files: list[Path] = []
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount, name = (cgroups / controller, v1) if controllers else (cgroups, v2)
        # A container sees its cgroup's path on the host, but often only its own cgroup at the mount point.
        own = mount / path.strip("/")
        files += [level / name for level in (own, *own.parents) if level.is_relative_to(mount)]
    return files


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
