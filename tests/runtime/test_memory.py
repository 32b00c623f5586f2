from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.runtime.counters import HELD_BYTES, PROC, THRESHOLD, PeakMemory, resident_size, trim_heap

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


def test_mapped_files_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(BLOCK))
    memory = PeakMemory(torch.device("cpu"))
    if memory.source != "VmHWM":
        pytest.skip("the kernel does not tell (/proc/self/status)")
    before, mapped = memory.bytes(), memory.mapped()
    file = np.memmap(tmp_path / "file", np.uint8, "r")
    assert file.max() == 0  # reads all of it
    block = np.ones(BLOCK // 2, np.uint8)
    grown, of_files = memory.bytes() - before, memory.mapped()
    assert mapped is not None
    assert of_files is not None
    assert 0.9 * BLOCK < of_files - mapped < 1.1 * BLOCK
    assert 1.4 * BLOCK < grown < 1.7 * BLOCK
    assert block.size


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is asked to give back what is free")
def test_what_is_free_in_the_heap_goes_back() -> None:
    blocks = [np.ones(2**16, np.uint8) for _ in range(BLOCK >> 16)]
    last = blocks.pop()  # keeps the heap's end, so that it does not shrink by itself
    before = resident_size(PROC)
    del blocks
    trim_heap()
    assert before - resident_size(PROC) > 0.9 * BLOCK
    assert last.size


HELD = """
import numpy as np
from harness.runtime.counters import resident_size
from harness.runtime.counters import outside_heap
from harness.runtime.counters import PROC

def held(size=2**21):
    before = resident_size(PROC)
    blocks = [np.ones(size, np.uint8) for _ in range(50)]
    last = blocks.pop()  # keeps the heap's end, so that it does not shrink by itself
    del blocks
    return (resident_size(PROC) - before) // 2**20

with outside_heap():
    print(held())
    with outside_heap():  # as an exact evaluation in set-up
        pass
    print(held())
print(held(2**20 + 2**16))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told what to keep in its heap")
def test_a_ranks_heap_keeps_what_is_freed_but_for_what_was_outside() -> None:
    env = os.environ | {THRESHOLD: str(HELD_BYTES), "MALLOC_TRIM_THRESHOLD_": str(2**31)}
    done = subprocess.run([sys.executable, "-c", HELD], env=env, capture_output=True, text=True, check=True, timeout=60)
    outside, nested, inside = map(int, done.stdout.split())  # MiB
    assert outside <= 10
    assert nested <= 10
    assert inside >= 40


def test_without_proc_the_peak_is_the_whole_process_and_says_so(tmp_path: Path) -> None:
    peak = PeakMemory(torch.device("cpu"), tmp_path / "none")
    assert peak.source == "ru_maxrss"
    assert peak.bytes() > 2**20
    assert peak.mapped() is None
