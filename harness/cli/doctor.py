"""`harness doctor`: what is here, what is missing, and what that disables."""

from __future__ import annotations

import importlib
import os
import shutil
from contextlib import closing
from typing import Annotated, Any

import typer

from harness.cli.command_options import DataDir, use_data_dir
from harness.cli.terminal import bytes_text, table
from harness.gpus import why_unusable

IMPORTS = {
    "torch": "nothing runs without it",
    "numba": "nothing is partitioned without it",
    "dgl": "SpMM engine `dgl`, there to compare with, is off; it comes with `.[dgl]`",
    "pymetis": "partitioner `metis` is off; use `random` or `chunk`",
    "pyarrow": "no epochs can be recorded",
    "matplotlib": "no reports",
    "seaborn": "no figures of a report as files",
}
REQUIRED = ("torch", "numba", "pyarrow", "gloo", "cache directory")


Check = tuple[str, bool | None, str]
"""What is looked at; whether it is found (None: not to be expected here); its version, or what its absence disables."""
STATES = {True: "ok", False: "missing", None: "-"}


def doctor(
    data_dir: DataDir = None,
    bench: Annotated[
        bool, typer.Option("--bench", help="Measure the rates of memory, cores and exchanges, for `harness plan`.")
    ] = False,
) -> None:
    """Check this machine.

    Versions, hardware, directories; what is missing and what that disables. Exit code 1 if something is
    missing without which no trial runs.

    With --bench it measures instead, for about half a minute and best with nothing else running: copies, gathers of
    rows, dense products, and exchanges between ranks, with a rank of one thread on every core. Plans then say about
    how long an epoch computes (docs/design/networks.md).
    """
    if bench:
        _bench()
        return
    from harness.launch.hardware import cores
    from harness.results.environment import collect

    directory = use_data_dir(data_dir)
    checks = [*map(_import, IMPORTS)]
    if checks[0][1]:  # torch
        facts = collect(cores())
        dirty = " with changes" if facts["dirty"] else ""
        rows = [
            ("harness", f"{facts['harness']}, commit {facts['commit'] or 'unknown'}{dirty}"),
            *((name, facts[name]) for name in ("python", "platform", "cpu")),
            ("cores", f"{facts['usable_cores']} usable of {facts['logical_cores']}"),
            ("memory", bytes_text(facts["memory_bytes"])),
        ]
        table(["", "this machine"], rows)
        typer.echo("")
        checks += [*_communication(), *_gpu(facts), _warm_start(), *_networks()]
    data = "no graphs of your own; --data-dir or HARNESS_DATA names one"
    if directory is not None:
        data = f"{directory} ({len(list(directory.glob('*.npz')))} .npz)"
    checks += [_cache(), ("data directory", directory is not None, data)]
    table(["check", "state", "note"], [(what, STATES[found], note) for what, found, note in checks])
    if any(what in REQUIRED and not found for what, found, _ in checks):
        raise typer.Exit(1)


def _import(name: str) -> Check:
    try:
        module = importlib.import_module(name)
    except Exception as error:  # a library built for another torch fails to load in ways of its own
        return name, False, f"{IMPORTS[name]} ({' '.join(str(error).split())[:80]})"
    return name, True, str(getattr(module, "__version__", ""))


def _communication() -> list[Check]:
    from torch import distributed

    if not distributed.is_available():
        return [("gloo", False, "this torch has no torch.distributed; no trial runs")]
    gloo, nccl = distributed.is_gloo_available(), distributed.is_nccl_available()
    return [
        ("gloo", gloo, "ranks on CPU" if gloo else "no trial runs on CPU"),
        ("nccl", nccl, "a GPU a rank" if nccl else "ranks on GPUs exchange through the host"),
    ]


def _gpu(facts: dict[str, Any]) -> list[Check]:
    import pynvml

    if not facts["gpus"]:
        why, fix = why_unusable() or ("NVML lists none", "")
        off = f"device `cuda` is off, `auto` is `cpu`: {why}" + (f" ({fix})" if fix else "")
        return [("gpu", False, off), ("nvml", None, "no GPU")]
    found = "gpu", True, f"{', '.join(facts['gpus'])}; driver {facts['driver']}, CUDA {facts['cuda']}"
    try:
        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return [found, ("nvml", False, f"GPU memory comes from torch, not the driver ({error})")]
    return [found, ("nvml", True, "GPU memory as the driver counts it")]


def _warm_start() -> Check:
    from harness.launch.fork_server import ForkServer, NoWarmStart

    try:
        with closing(ForkServer("harness", os.environ)) as server:
            server.wait()
    except NoWarmStart as why:
        return "warm start", False, f"an interpreter is started for each rank, seconds a trial: {why}"
    return "warm start", True, "ranks are forked by a process that has imported what they need"


def _networks() -> list[Check]:
    from harness.launch.network import why_not
    from harness.suite.sections import NetworkSpec

    rate, latency = why_not(NetworkSpec(rate="1gbit")), why_not(NetworkSpec(latency="1ms"))
    return [
        ("shaped networks", rate is None, rate or "a suite's `network: {rate: ...}`"),
        ("netem", latency is None, latency or "a suite's `network: {latency: ...}`"),
    ]


def _cache() -> Check:
    from harness.caches import cache_root

    root = cache_root()
    existing = next(place for place in (root, *root.resolve().parents) if place.exists())
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return "cache directory", True, f"{root} ({bytes_text(shutil.disk_usage(existing).free)} free)"
    return "cache directory", False, f"{root} cannot be written; HARNESS_CACHE names another"


def _bench() -> None:
    from harness.launch.rates import measure_rates

    typer.echo("measuring for about half a minute", err=True)
    rates = measure_rates()
    rows = []
    for key, rate in rates.measured.items():
        what, _, of = key.partition(" ")
        if key == "latency_s":
            rows.append(("smallest exchange", f"{1e6 * rate:.0f} us"))
        elif what == "product":
            rows.append((f"dense product, {of}", f"{rate / 1e9:.3g} GFLOP/s"))
        else:
            names = {"gather": f"rows of {of} float32, from memory", "cached": f"rows of {of} float32, from cache"}
            rows.append((names.get(what, what), f"{rate / 1e9:.3g} GB/s"))
    title = f"a rank of one thread reaches, while {rates.ranks} run"
    table(["", "rate"], rows, title=title)
