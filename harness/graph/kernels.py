"""Random numbers of kernels, on the host and on devices; prefetching; which kernels a process has compiled.

Numbers depend on a seed and an index alone: not on threads, nor on the order of calls. A stream is SplitMix64
(Steele, Lea and Flood, OOPSLA 2014) from a start of its own. A kernel opens one for each row or node that it
draws for:

    state = stream(seed, row)
    state, value = next_u64(state)
    pick = below(value, degree)

Where tensors are on a device, torch's operations give the same numbers, bit for bit. int64 then holds the bits of
uint64: sums and products wrap alike, shifts to the right are of zeros.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.data.prepared import locked
from harness.deferred import Deferred, Kernel, intrinsic, numba, torch
from harness.deferred import numpy as np

if TYPE_CHECKING:
    from numba.core.dispatcher import Dispatcher
    from torch import Tensor

PACKAGES = ("harness", "harness_methods")
ir: Any = Deferred("llvmlite.ir")
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_ALL, _LOW = 2**64 - 1, 2**32 - 1
SLOPE = 0.2  # of attention's LeakyReLU below 0; here, because numba's kernels and Triton's both need it


def batch_seed(seed: int, rank: int, epoch: int, batch: int) -> int:
    """Return the seed of a rank's batch, in [0, 2^63); all arguments are non-negative."""
    return int(np.random.SeedSequence((seed, rank, epoch, batch)).generate_state(1, np.uint64)[0] >> 1)


@numba.njit(cache=True, nogil=True)
def _mix(state):  # type: ignore[no-untyped-def]
    state = (state ^ (state >> np.uint64(30))) * np.uint64(_FIRST)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(_SECOND)
    return state ^ (state >> np.uint64(31))


@numba.njit(cache=True, nogil=True)
def stream(seed, index):  # type: ignore[no-untyped-def]
    """Return the uint64 state where the stream `index` of `seed` (both int64 >= 0) starts."""
    # Mixed twice: neighbouring indices must not start neighbouring states.
    return _mix(_mix(np.uint64(seed)) + np.uint64(index) * np.uint64(_GOLDEN))


@numba.njit(cache=True, nogil=True)
def next_u64(state):  # type: ignore[no-untyped-def]
    """Return the stream's next state and 64 random bits."""
    state = state + np.uint64(_GOLDEN)
    return state, _mix(state)


@numba.njit(cache=True, nogil=True)
def uniform(value):  # type: ignore[no-untyped-def]
    """Return 64 random bits as a float64 in [0, 1), a multiple of 2^-53."""
    # 53 bits are what a float64 holds.
    return np.float64(value >> np.uint64(11)) * (1.0 / (1 << 53))


@numba.njit(cache=True, nogil=True)
def below(value, bound):  # type: ignore[no-untyped-def]
    """Return 64 random bits as an int64 in [0, bound), 0 < bound < 2^32: the product's upper 64 bits.

    The chances of two results differ by 2^-64 at most.
    """
    # Lemire's multiplication in place of a remainder, which needs a division; 64 x 32 bits by halves.
    size = np.uint64(bound)
    low = ((value & np.uint64(0xFFFFFFFF)) * size) >> np.uint64(32)
    return np.int64(((value >> np.uint64(32)) * size + low) >> np.uint64(32))


def streams(seed: int, indices: Tensor) -> Tensor:
    """Return where the streams `indices` (int64 [n]) of a seed in [0, 2^63) start, as `stream` does."""
    return _mix_on_device(indices * _signed(_GOLDEN) + _signed(_mix_one(seed)))


def stream_bits(seed: int, indices: Tensor, count: int) -> Tensor:
    """Return the first numbers of the streams `indices` (int64 [n]) of a seed in [0, 2^63): int64 [count, n]."""
    return bits_at(streams(seed, indices), torch.arange(1, count + 1, device=indices.device).unsqueeze(1))


def bits_at(starts: Tensor, places: Tensor) -> Tensor:
    """Return the numbers at `places` (int64, from 1) of streams that start at `starts` (see `streams`): int64."""
    return _mix_on_device(starts + places * _signed(_GOLDEN))


def uniform_on_device(bits: Tensor) -> Tensor:
    """Return what `uniform` does of numbers: float64 in [0, 1)."""
    return _shifted(bits, 11).double() * (1.0 / (1 << 53))


def node_uniforms(seed: int, depth: int, nodes: Tensor) -> Tensor:
    """Return what `harness.sampling.layer_kernels.node_uniform` does of nodes (int64 [n]): float64 [n]."""
    layer = _mix_one((_mix_one(seed) + depth * _GOLDEN) & _ALL) >> 1
    return uniform_on_device(streams(layer, nodes))


def below_on_device(bits: Tensor, bounds: Tensor | int) -> Tensor:
    """Return what `below` does of numbers and bounds: int64, in [0, bounds)."""
    low = _shifted((bits & _LOW) * bounds, 32)
    return _shifted(_shifted(bits, 32) * bounds + low, 32)


def _mix_on_device(state: Tensor) -> Tensor:
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


_AHEAD = 256  # entries; every one is in a cache line of its own, and to wait for it is what takes the time


def _prefetch(_typing: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of an entry of a contiguous one-dimensional array: `prefetch(array, index)`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        write_prefetch(builder, builder.gep(data, [arguments[1]]))
        return context.get_dummy_value()

    return numba.types.void(array, index), generate


prefetch: Any = intrinsic(_prefetch)


def write_prefetch(builder: Any, address: Any) -> None:
    """Write, with a builder of LLVM's, the instruction that asks for the cache line at `address`."""
    byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
    form = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
    function = builder.module.declare_intrinsic("llvm.prefetch", (byte,), form)
    read, keep_near, of_data = flag(0), flag(3), flag(1)
    builder.call(function, [builder.bitcast(address, byte), read, keep_near, of_data])


@numba.njit(cache=True, nogil=True)
def fetch_ahead(array, places, k):  # type: ignore[no-untyped-def]
    """Ask for the entry of `array` that a loop over `places`, now at `k`, comes to some time later."""
    prefetch(array, places[min(k + _AHEAD, places.size - 1)])


@numba.njit(cache=True, nogil=True)
def gather(array, places):  # type: ignore[no-untyped-def]
    """Return `array[places]`, for places all over a large array."""
    found = np.empty(places.size, array.dtype)
    for k in range(places.size):
        fetch_ahead(array, places, k)
        found[k] = array[places[k]]
    return found


Versions = dict[str, list[str]]
"""Compiled versions of kernels: by name, the types of their arguments in words."""


def load_compiled(wanted: Versions | None = None) -> Versions:
    """Load from numba's cache on disk what is `wanted` (None: all) of the imported kernels; nothing is compiled.

    Returns what this process has, as `loaded`.
    """
    for name, kernel in kernels().items():
        chosen = None if wanted is None else wanted.get(name, [])
        if chosen == []:
            continue
        for signature, *_ in kernel._cache._cache_file._load_index():  # type: ignore[attr-defined]
            if chosen is None or str(signature) in chosen:
                kernel.compile(signature)
    return loaded()


def loaded() -> Versions:
    """Return the versions that this process has loaded or compiled."""
    return {name: [*map(str, kernel.overloads)] for name, kernel in kernels().items() if kernel.overloads}


def compile_once() -> None:
    """Have each kernel that is imported compiled by one process at a time; another that needs it waits and loads it.

    Ranks call their kernels at the same time: each would compile them all.
    """
    from numba.core.compiler_lock import global_compiler_lock

    def alone(kernel: Dispatcher) -> Callable[[Any], Any]:
        compile_it, place = kernel.compile, Path(str(kernel.stats.cache_path), kernel.py_func.__qualname__)

        def compile_alone(signature: Any) -> Any:
            # A kernel is compiled with those that it calls: of two threads, each with a file, one would wait for ever.
            with global_compiler_lock, locked(place):
                return compile_it(signature)

        return compile_alone

    for kernel in kernels().values():
        kernel.compile = alone(kernel)  # type: ignore[method-assign, assignment]


def kernels() -> dict[str, Dispatcher]:
    """Return the kernels of the project, of the modules that are imported, that are kept on disk once compiled."""
    from numba.core.dispatcher import Dispatcher

    found = {}
    for name, module in sorted(sys.modules.items()):
        for value in list(vars(module).values()) if name.split(".")[0] in PACKAGES else ():
            made = value.made if isinstance(value, Kernel) else value
            if isinstance(made, Dispatcher) and made.py_func.__module__ == name and made.stats.cache_path:
                found[f"{name}.{made.py_func.__qualname__}"] = made
    return found
