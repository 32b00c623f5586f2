from __future__ import annotations

import math
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness.runtime.checkpoint import StateError, is_whole, read_state, write_state


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and bool(((one == other) | (one != one)).all())
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and (one == other or (one != one and other != other))


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    rows = torch.arange(12.0).view(3, 4)
    tree = {
        "plain": [None, True, False, 0, -1, 2**127 + 1, 0.1, math.inf, math.nan, 5e-324, "", 'a"\n\\é'],
        "containers": ((), [], {}, ((1,), [2])),
        3: {0: rows, 1: rows, 2: rows[1], 3: rows.t()},
        "types": [
            torch.tensor([1.5, -0.0], dtype=dtype)
            for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
        ],
        "integers": [
            torch.tensor([1, 0], dtype=dtype) for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool)
        ],
        "empty": [torch.empty(0, 5), torch.empty(0, dtype=torch.int64), torch.tensor(3.0)],
        "arrays": [np.arange(5, dtype=np.uint32), np.ones((2, 0)), np.array([True, False])],
        "generators": [np.random.default_rng(3).bit_generator.state, np.random.get_state(), torch.get_rng_state()],
    }
    path = write_state(tmp_path, "rank0", tree)
    assert [path] == list(tmp_path.iterdir())
    assert is_whole(path)
    assert equal(read_state(path), tree)


def test_a_scalar_of_numpy_is_a_number(tmp_path: Path) -> None:
    assert read_state(write_state(tmp_path, "a", [np.float64(0.1), np.int32(7), np.bool_(True)])) == [0.1, 7, True]


def test_a_view_takes_its_own_room_and_what_is_there_twice_that_of_one(tmp_path: Path) -> None:
    rows = torch.rand(1000, 100)
    (view, whole, twice) = (
        write_state(tmp_path, name, tree).stat().st_size
        for name, tree in {"view": rows[:1], "whole": rows, "twice": [rows, rows]}.items()
    )
    assert view < 2_000
    assert 0 <= twice - whole < 1_000


def test_what_is_no_state_is_an_error_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="Path is no state"):
        write_state(tmp_path, "a", {"x": tmp_path})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("where", [0, 1, 200, 5000, -1])
def test_a_flipped_bit_is_seen(where: int, tmp_path: Path) -> None:
    path = write_state(tmp_path, "rank0", {"rows": torch.rand(100, 100)})
    content = bytearray(path.read_bytes())
    content[where] ^= 4
    path.write_bytes(content)
    assert not is_whole(path)


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 8, b"\xff" * 8, b"\x02\0\0\0\0\0\0\0{}", b"PK\x03\x04", b"\x80\x04\x95", b"[" * 100_000]
)
def test_what_never_was_a_state_is_told_from_one(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rank0.safetensors"
    path.write_bytes(content)
    with pytest.raises(StateError, match="rank0"):
        read_state(path)


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            write_state(tmp_path, "rank0", torch.rand(100, 100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())
