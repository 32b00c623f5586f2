"""What one process measures on a device and prints as JSON: `python -m tools.gpu.measure WHAT cpu|cuda [--quick]`.

The machine itself (WHAT is `machine`), or products and samplers (`kernels`). A process of its own, so that nothing of
it holds memory of the device while trials run.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from harness.deferred import torch
from harness.errors import UserError
from harness.graph.csr import CSR, Topology
from harness.graph.spmm import ENGINES, choose_engine
from harness.results.environment import collect
from harness.sampling.neighbours import sample_on_device
from harness.sampling.sample import GraphOnDevice, Tables

ROUNDS = 15
LONGEST_S = 5.0  # so much is measured of work whose rounds take longer: a median of few long ones is as good
TARGETS, FANOUTS = 1024, (25, 10)  # of a batch
WIDTHS = (64, 256, 602)
EDGES = {"cpu": 2_000_000, "cuda": 20_000_000}  # torch's product of 602 columns takes seconds of a host for 2 M


def seconds_of(work: Callable[[], object], device: torch.device, rounds: int = ROUNDS) -> float:
    """Return the median seconds of `work`, twice done before; on a GPU between events of its stream.

    It is measured `rounds` times, or as often as begin in `LONGEST_S`.
    """
    work(), work()
    took, end_s = list[float](), time.perf_counter() + LONGEST_S
    while not took or (len(took) < rounds and time.perf_counter() < end_s):
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            end.synchronize()
            took.append(begin.elapsed_time(end) / 1e3)
        else:
            start = time.perf_counter()
            work()
            took.append(time.perf_counter() - start)
    return median(took)


def copy_bandwidth(device: torch.device, size: int) -> float:
    """Return bytes a second, read and written, of a copy within the device's memory."""
    source = torch.rand(size // 4, device=device)
    target = torch.empty_like(source)
    bytes_: int = 2 * source.nbytes
    return bytes_ / seconds_of(partial(target.copy_, source), device)


def machine(device: torch.device, quick: bool) -> dict[str, Any]:
    """Return versions, the device, its clocks and limits, and what copies reach, in bytes a second.

    `copy_bytes_s` counts bytes read and written, transfers between host and device the bytes that arrive.
    """
    size = 1 << 26 if quick or device.type == "cpu" else 1 << 30
    found = collect() | {"copy_bytes_s": copy_bandwidth(device, size), "copy_size_bytes": size}
    if device.type != "cuda":
        return found
    there = torch.empty(size // 4, device=device)
    for name, pinned in (("pinned", True), ("pageable", False)):
        here = torch.rand(size // 4, pin_memory=pinned)
        for way, target, source in (("to_device", there, here), ("to_host", here, there)):
            copy = partial(target.copy_, source, non_blocking=pinned)
            found[f"{way}_{name}_bytes_s"] = here.nbytes / seconds_of(copy, device)
    properties = torch.cuda.get_device_properties(device)
    found |= {"device_memory_bytes": properties.total_memory, "multiprocessors": properties.multi_processor_count}
    return found | nvml(str(properties.uuid))


def nvml(uuid: str) -> dict[str, Any]:
    """Return the clocks in MHz and the power limit in W that the driver tells of a GPU; None of what it does not."""
    import pynvml

    asked: dict[str, Callable[[Any], float]] = {
        "sm_clock_mhz": lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM),
        "most_sm_clock_mhz": lambda gpu: pynvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_SM),
        "most_memory_clock_mhz": lambda gpu: pynvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_MEM),
        "power_limit_w": lambda gpu: pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3,
    }
    found: dict[str, Any] = dict.fromkeys(asked)
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        for name, ask in asked.items():
            with contextlib.suppress(pynvml.NVMLError):
                found[name] = ask(gpu)
    return found


def kernels(device: torch.device, quick: bool) -> dict[str, Any]:
    """Return seconds of sparse products by engine and torch's own, and batches of neighbours a second.

    The graph is random, of 20 entries a row. `gathered_bytes` are those of the source rows that the entries name, of
    which `of_copy` is the rate over the copy's.
    """
    random_rows = _benchmark("conftest").random_rows
    edges = 200_000 if quick else EDGES[device.type]
    indptr, indices, nodes = random_rows(edges)
    size = 1 << 26 if quick or device.type == "cpu" else 1 << 30
    copy = copy_bandwidth(device, size)
    rows = [row for width in WIDTHS for row in _products(indptr, indices, width, device, copy)]
    return {"edges": edges, "copy_bytes_s": copy, "products": rows} | _batches(
        Topology(indptr, indices), nodes, device, quick
    )


def _products(
    indptr: np.ndarray[Any, Any], indices: np.ndarray[Any, Any], width: int, device: torch.device, copy: float
) -> list[dict[str, Any]]:
    """Return a row an engine, and one of torch's product, checked against each other."""
    pointers, columns = torch.from_numpy(indptr).to(device), torch.from_numpy(indices).to(device)
    matrix = CSR(pointers, columns, indptr.size - 1)
    x = torch.rand(matrix.num_cols, width, device=device)
    ones = torch.ones(matrix.nnz, device=device)
    own = torch.sparse_csr_tensor(pointers, columns.long(), ones, (matrix.num_rows, matrix.num_cols))
    works: dict[str, Callable[[], torch.Tensor]] = {"torch.sparse.mm": lambda: torch.sparse.mm(own, x)}
    for name in ENGINES:
        with contextlib.suppress(UserError):  # one that does not run on this device
            works[name] = partial(choose_engine(name, device=device).multiply, matrix, x)
    wanted, bytes_ = works["torch.sparse.mm"](), 4 * width * matrix.nnz
    found = []
    for name, work in works.items():
        off = float((work() - wanted).norm() / wanted.norm())
        took = seconds_of(work, device)
        rate = bytes_ / took
        told = {"engine": name, "width": width, "seconds": took, "gathered_bytes": bytes_, "of_copy": rate / copy}
        found.append(told | {"error": off})
    return found


def _batches(topology: Topology, nodes: int, device: torch.device, quick: bool) -> dict[str, Any]:
    """Return batches a second, blocks included: of one thread of the host, and of torch on the device."""
    draw, tables, rng = _benchmark("test_samplers").draw, Tables(nodes), np.random.default_rng(0)
    batches = [rng.choice(nodes, TARGETS, replace=False) for _ in range(10 if quick else 100)]
    graph = GraphOnDevice.of(topology, device)

    def draw_there(targets: np.ndarray[Any, Any], seed: int) -> None:
        for layer in sample_on_device(graph, targets, FANOUTS, seed).layers:
            layer.block(topology, device=device, dtype=torch.float32)

    def rate(work: Callable[[np.ndarray[Any, Any], int], object], where: torch.device) -> float:
        turns = itertools.cycle(enumerate(batches))

        def one() -> None:
            seed, targets = next(turns)
            work(targets, seed)

        return 1 / seconds_of(one, where, len(batches))

    return {
        "fanouts": list(FANOUTS),
        "host_batches_s": rate(lambda at, seed: draw(topology, at, FANOUTS, seed, tables), torch.device("cpu")),
        "device_batches_s": rate(draw_there, device),
    }


def _benchmark(name: str) -> Any:
    """Return a module of tests/benchmarks, whose graphs and draws these are."""
    tests = str(Path(__file__).parents[2] / "tests")
    if tests not in sys.path:
        sys.path.append(tests)
    return importlib.import_module(f"benchmarks.{name}")


def main(what: str, device: str, *more: str) -> None:
    """Measure and print."""
    works = {"machine": machine, "kernels": kernels}
    print(json.dumps(works[what](torch.device(device), "--quick" in more)))


if __name__ == "__main__":
    main(*sys.argv[1:])
