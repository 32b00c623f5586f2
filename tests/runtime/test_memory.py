from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.runtime.meters import PeakMemory, ResidentPeak

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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is asked to give back what is free")
def test_small_blocks_freed_in_a_pause_are_given_back_before_training_goes_on() -> None:
    memory = PeakMemory(torch.device("cpu"))
    if memory.source != "VmHWM":
        pytest.skip("the kernel cannot reset the peak (/proc/self/clear_refs)")
    before = memory.bytes()
    with memory.paused():
        blocks = [np.ones(2**16, np.uint8) for _ in range(BLOCK >> 16)]
        last = blocks.pop()  # keeps the heap's end, so that it does not shrink by itself
        del blocks
    assert memory.bytes() - before < 0.5 * BLOCK
    assert last.size


def allocate_and_fail() -> None:
    block = np.ones(BLOCK, np.uint8)
    del block
    raise RuntimeError("freed first")


def test_a_pause_that_fails_is_left_out_too() -> None:
    memory = PeakMemory(torch.device("cpu"))
    if memory.source != "VmHWM":
        pytest.skip("the kernel cannot reset the peak (/proc/self/clear_refs)")
    before = memory.bytes()
    with pytest.raises(RuntimeError, match="freed first"), memory.paused():
        allocate_and_fail()
    assert memory.bytes() - before < 0.5 * BLOCK


def test_without_proc_the_peak_is_the_whole_process_and_says_so(tmp_path: Path) -> None:
    peak = ResidentPeak(tmp_path / "none")
    assert peak.source == "ru_maxrss"
    assert peak.bytes() > 2**20
