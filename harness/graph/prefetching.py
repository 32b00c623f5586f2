"""Prefetch: asks for memory that a kernel will soon read, and goes on."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

_AHEAD = 256  # entries; every one is in a cache line of its own, and to wait for it is what takes the time


def _prefetch(_typing: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of an entry of a contiguous one-dimensional array: `prefetch(array, index)`.

    Nothing happens where the processor has no such instruction, nor where the address is none to be read.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        write_prefetch(builder, builder.gep(data, [arguments[1]]))
        return context.get_dummy_value()

    return types.void(array, index), generate


def write_prefetch(builder: Any, address: Any) -> None:
    """Write, with a builder of LLVM's, the instruction that asks for the cache line at `address`."""
    byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
    form = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
    function = builder.module.declare_intrinsic("llvm.prefetch", (byte,), form)
    read, keep_near, of_data = flag(0), flag(3), flag(1)
    builder.call(function, [builder.bitcast(address, byte), read, keep_near, of_data])


prefetch: Any = intrinsic(_prefetch)


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
