"""What a checkpoint of a large state takes to be written and found again, beside a write of as many bytes."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.test_checkpoint import Ranks, kept

from harness.runtime.checkpoint import Checkpoints
from harness.runtime.run_config import TrainSpec

MIB = 1 << 20
ROUNDS = 3


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@pytest.mark.parametrize("mib", [64, 1024])
def test_checkpoint(mib: int, tmp_path: Path) -> None:
    state = {"model": torch.randn(1000, 256), "history": torch.randn(mib * MIB // 1024, 256)}
    ranks = Ranks(1)
    place = Checkpoints(kept(tmp_path / "kept"), TrainSpec(checkpoint="1 epochs"), 0, ranks.of(0))
    block = os.urandom(MIB)

    def plain() -> None:
        with (tmp_path / "plain").open("wb") as file:
            for _ in range(mib):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())

    times: dict[str, list[float]] = {}
    for done in range(1, ROUNDS + 1):
        times.setdefault("plain write with fsync", []).append(seconds(plain))
        times.setdefault("checkpoint written", []).append(seconds(lambda done=done: place.write(done, state)))
        times.setdefault("found again", []).append(seconds(lambda: place.last(print)))
    told = ", ".join(f"{what} {statistics.median(found):.2f} s" for what, found in times.items())
    print(f"\n{mib} MiB: {told} (medians of {ROUNDS})")
