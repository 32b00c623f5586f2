"""The streams of `harness.graph.kernels` by torch's operations: the same numbers, bit for bit, wherever tensors are.

int64 holds the bits of uint64: sums and products wrap alike, shifts to the right are of zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.deferred import torch

if TYPE_CHECKING:
    from torch import Tensor

_ALL, _LOW = 2**64 - 1, 2**32 - 1
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def streams(seed: int, indices: Tensor) -> Tensor:
    """Return where the streams `indices` (int64 [n]) of a seed in [0, 2^63) start, as `kernels.stream` does."""
    return _mix(indices * _signed(_GOLDEN) + _signed(_mix_one(seed)))


def stream_bits(seed: int, indices: Tensor, count: int) -> Tensor:
    """Return the first numbers of the streams `indices` (int64 [n]) of a seed in [0, 2^63): int64 [count, n]."""
    return bits_at(streams(seed, indices), torch.arange(1, count + 1, device=indices.device).unsqueeze(1))


def bits_at(starts: Tensor, places: Tensor) -> Tensor:
    """Return the numbers at `places` (int64, from 1) of streams that start at `starts` (see `streams`): int64."""
    return _mix(starts + places * _signed(_GOLDEN))


def uniform_on_device(bits: Tensor) -> Tensor:
    """Return what `kernels.uniform` does of numbers: float64 in [0, 1)."""
    return _shifted(bits, 11).double() * (1.0 / (1 << 53))


def node_uniforms(seed: int, depth: int, nodes: Tensor) -> Tensor:
    """Return what `layer_kernels.node_uniform` does of nodes (int64 [n]): float64 [n]."""
    layer = _mix_one((_mix_one(seed) + depth * _GOLDEN) & _ALL) >> 1
    return uniform_on_device(streams(layer, nodes))


def below_on_device(bits: Tensor, bounds: Tensor | int) -> Tensor:
    """Return what `kernels.below` does of numbers and bounds: int64, in [0, bounds)."""
    low = _shifted((bits & _LOW) * bounds, 32)
    return _shifted(_shifted(bits, 32) * bounds + low, 32)


def _mix(state: Tensor) -> Tensor:
    state = (state ^ _shifted(state, 30)) * _signed(_FIRST)
    state = (state ^ _shifted(state, 27)) * _signed(_SECOND)
    return state ^ _shifted(state, 31)


def _mix_one(state: int) -> int:
    state = (state ^ (state >> 30)) * _FIRST & _ALL
    state = (state ^ (state >> 27)) * _SECOND & _ALL
    return state ^ (state >> 31)


def _shifted(bits: Tensor, count: int) -> Tensor:
    return (bits >> count) & ((1 << (64 - count)) - 1)


def _signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits
