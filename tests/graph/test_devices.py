"""The fake device of tests behaves towards the host as CUDA does: what is wrong there raises, what waits is noted."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.fake_device import in_place_of_cuda, is_fake, memory, note_wait, recorded, register
from support.ranks import run_ranks
from torch import Tensor

from harness.graph.devices import HELD_FROM, KINDS, Arena, fresh, kind_of, upload
from harness.runtime.counters import PROC, resident_size

Probe = Callable[[Tensor], Any]
LIKE = torch.zeros(0)
PLACES = torch.tensor([2, 0])
# Of a vector of three floats on the device.
RAISES: dict[str, Probe] = {
    "numpy": Tensor.numpy,
    "a vector of the host": lambda x: x + torch.ones(3),
    "into a vector of the host": lambda x: torch.ones(3).add_(x),
    "a matrix of the host": lambda x: x @ torch.ones(3, 3),
    "rows of the host": lambda x: torch.ones(3).index_select(0, x.long()),
    "places of the host": lambda x: x.index_select(0, PLACES),
    "joined": lambda x: torch.cat([x, torch.ones(3)]),
    "written by values of the host": lambda x: x.index_copy_(0, x.long(), torch.ones(3)),
}
WAITS: dict[str, Probe] = {
    "item": lambda x: x[1].item(),
    "tolist": Tensor.tolist,
    "bool": lambda x: bool(x[0] == 0),
    "float": lambda x: float(x.sum()),
    "cpu": Tensor.cpu,
    "nonzero": Tensor.nonzero,
    "mask": lambda x: x[x > 0],
    "unique": torch.unique,
    "equal": lambda x: torch.equal(x, x + 1),
    "places of the host, brought": lambda x: x[PLACES],
    "pageable copy": lambda x: torch.ones(3).to(x.device),
    "made of a list": lambda x: torch.tensor([1.0], device=x.device),
    "pinned copy, waited for": lambda x: memory.pin(torch.ones(3)).to(x.device),
    "repeated": lambda x: x.repeat_interleave(x.long()),
    "synchronize": lambda x: kind_of(x.device).synchronize(),
    "stream": lambda x: kind_of(x.device).current_stream().synchronize(),
}
FREE: dict[str, Probe] = {
    "a scalar of the host": lambda x: x * torch.tensor(2.0),
    "arithmetic": lambda x: (x + 1).relu().sum(),
    "rows": lambda x: x[torch.tensor(1)],
    "filled by a mask": lambda x: operator.setitem(x.clone(), x > 0, 0.0),
    "upload": lambda x: upload(np.ones(3), x.device),
    "upload of what is there": lambda x: upload(x, x.device),
    "to pinned memory": lambda x: kind_of(x.device).pinned(3, dtype=x.dtype).copy_(x, non_blocking=True),
    "repeated to a size": lambda x: x.repeat_interleave(x.long(), output_size=3),
    "drawn": lambda x: torch.rand(3, device=x.device, generator=kind_of(x.device).generator(x.device, 1)),
}


def probed(rank: int, world: int) -> dict[str, str | list[str]]:
    """Return what each probe raised, or what it waited for."""
    found: dict[str, str | list[str]] = {}
    with in_place_of_cuda() as device:
        x = upload(np.array([0.0, 1.0, 2.0], np.float32), device)
        for name, probe in (RAISES | WAITS | FREE).items():
            with recorded() as record:
                try:
                    probe(x)
                except (RuntimeError, TypeError) as error:
                    found[name] = str(error)
                    continue
            found[name] = [wait.what for wait in record.waits]
        assert x.cpu().tolist() == [0, 1, 2]
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, str | list[str]]:
    """What the probes found, in a process of its own."""
    result: dict[str, str | list[str]]
    [result] = run_ranks(probed, 1)
    return result


@pytest.mark.parametrize("name", RAISES)
def test_what_raises(found: dict[str, str | list[str]], name: str) -> None:
    assert "device" in found[name]
    assert isinstance(found[name], str)


@pytest.mark.parametrize("name", WAITS)
def test_what_the_host_waits_for(found: dict[str, str | list[str]], name: str) -> None:
    assert isinstance(found[name], list), found[name]
    assert found[name]


@pytest.mark.parametrize("name", FREE)
def test_what_the_host_need_not_wait_for(found: dict[str, str | list[str]], name: str) -> None:
    assert found[name] == []


def sharing(rank: int, world: int) -> None:
    """Views share memory, gradients flow in a thread of the device, and freed memory is given back."""
    device = register()
    x = torch.arange(6.0).view(2, 3).to(device)
    row = x[1]
    row += 10
    assert x.cpu().tolist() == [[0, 1, 2], [13, 14, 15]]
    assert row.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    weight = torch.nn.Parameter(x.clone())
    (weight[:, 1:].square().sum() / 2).backward()
    assert weight.grad is not None
    assert is_fake(weight.grad)
    assert weight.grad.cpu().tolist() == [[0, 1, 2], [0, 14, 15]]
    before = memory.bytes()
    for _ in range(2000):
        torch.empty(2**20, device=device)
    assert memory.bytes() == before


def test_memory_is_shared_and_given_back() -> None:
    run_ranks(sharing, 1)


def test_a_wait_names_the_line_of_ours() -> None:
    with recorded() as record:
        partial(note_wait, "nothing")()
    assert [wait.where for wait in record.waits] == ["?"]  # no line of the project asked


def test_uploads_share_memory_on_a_cpu() -> None:
    host = np.arange(3.0)
    assert upload(host, torch.device("cpu")).data_ptr() == host.ctypes.data
    assert upload(host, torch.device("cpu"), torch.float32).dtype == torch.float32
    assert kind_of(torch.device("cpu")) is KINDS["cpu"]


def test_an_arena_never_gives_to_two_and_gives_again_what_was_left() -> None:
    """Blocks of random sizes, half of them let go at random: each keeps its bytes as long as it is referred to."""
    rng, arena = np.random.default_rng(0), Arena(1 << 26)
    held: list[tuple[int, np.ndarray]] = []
    most = 0
    for step in range(2000):
        if held and rng.random() < 0.5:
            value, block = held.pop(rng.integers(len(held)))
            assert (block == value).all()
            del block
        elif len(held) < 20:
            block = arena.take(int(rng.integers(1, 200_000)))
            assert block is not None
            block[:] = step % 251
            held.append((step % 251, block))
            most = max(most, sum(each.size for _, each in held))
            del block
    assert all((block == value).all() for value, block in held)
    places = [block.__array_interface__["data"][0] for _, block in held]
    assert max(places) - min(places) < 2 * most  # gaps are filled before the end moves


def test_an_arena_without_room_gives_nothing() -> None:
    arena = Arena(1 << 16)
    first = arena.take(1 << 15)
    assert first is not None
    assert arena.take((1 << 15) + 1) is None
    del first
    assert arena.take(1 << 16) is not None


def test_what_nobody_refers_to_in_an_arena_goes_back_to_the_kernel() -> None:
    arena = Arena(1 << 26)
    kept, left = arena.take(1 << 22), arena.take(1 << 24)
    assert kept is not None
    assert left is not None
    kept[:], left[:] = 1, 1
    before = resident_size(PROC)
    del left
    assert resident_size(PROC) > before - (1 << 22)
    arena.give_back()
    assert resident_size(PROC) < before - (1 << 23)
    assert (kept == 1).all()


def test_a_matrix_of_the_arena_is_held_by_all_that_read_it() -> None:
    """A view, numpy's array and what autograd saves: the memory is not another's before the last of them is gone."""
    shape = (HELD_FROM // 4, 1)
    for reader in (lambda x: x[5:], lambda x: x.numpy(), lambda x: torch.exp(x.requires_grad_()).sum().grad_fn):
        matrix = fresh(LIKE, *shape)
        place, reading = matrix.data_ptr(), reader(matrix)
        del matrix
        other = fresh(LIKE, *shape)
        assert (other.data_ptr() == place) == (reading is None)
        del reading, other
        assert fresh(LIKE, *shape).data_ptr() == place


def test_a_matrix_of_the_arena_may_be_changed_in_place() -> None:
    matrix = fresh(LIKE, HELD_FROM // 8, 2)
    assert matrix.is_contiguous()
    assert not matrix._is_view()
    assert matrix.numpy().ctypes.data == matrix.data_ptr()
