from __future__ import annotations

import numpy as np
import torch

from harness.runtime.memory import PeakMemory

BLOCK = 200 * 2**20


def test_the_peak_sees_what_was_freed_again() -> None:
    memory = PeakMemory(torch.device("cpu"))
    before = memory.bytes()
    block = np.ones(BLOCK, np.uint8)
    del block
    assert memory.bytes() - before > 0.9 * BLOCK


def test_what_is_paused_is_left_out_where_the_kernel_allows() -> None:
    memory = PeakMemory(torch.device("cpu"))
    before = memory.bytes()
    with memory.paused():
        block = np.ones(BLOCK, np.uint8)
        del block
    if memory.source == "VmHWM":
        assert memory.bytes() - before < 0.5 * BLOCK
    else:
        assert memory.source == "ru_maxrss"
