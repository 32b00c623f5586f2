"""What an operation of the fake device means there: what it reads and writes, mixes, and has the host wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

KIND = "fake"
HOST_INDEX = ("aten::index.Tensor", "aten::index.Tensor_out", "aten::_index_put_impl_")  # may have the host's indices
INDICES = (torch.int64, torch.int32, torch.bool, torch.uint8)
SYNCHRONISE = (
    "nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive", "equal", "bincount",
    "_local_scalar_dense", "isin", "histc", "unique_dim_consecutive", "_assert_async",
)  # fmt: skip


def is_fake(value: Any) -> bool:
    """Whether a value is a tensor of the device."""
    return isinstance(value, Tensor) and value.device.type == KIND


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of an operation's arguments or results."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_of(each)
    elif isinstance(value, dict):
        yield from tensors_of([*value.values()])


def with_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return an operation's arguments or results with each tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)([with_tensors(each, change) for each in value])
    if isinstance(value, dict):
        return {key: with_tensors(each, change) for key, each in value.items()}
    return value


@dataclass(frozen=True)
class Signature:
    """An operation's arguments: of each its name, whether it is one tensor, and whether it is written to."""

    names: tuple[str, ...]
    tensors: tuple[bool, ...]
    written: tuple[bool, ...]

    def values(self, arguments: Sequence[Any], named: dict[str, Any]) -> Iterator[tuple[Any, bool]]:
        """Yield each argument that is given, and whether it is written to."""
        yield from zip(arguments, self.written, strict=False)
        if named:
            yield from ((named[n], w) for n, w in zip(self.names, self.written, strict=True) if n in named)

    def with_scalars(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Return the arguments; integers that torch had made tensors of are such again: some operations need it."""
        return tuple(
            torch.tensor(value) if tensor and type(value) is int else value
            for value, tensor in zip(arguments, self.tensors, strict=False)
        )


@cache
def signature(op: Any) -> Signature:
    """Return an operation's signature."""
    declared = op._schema.arguments
    return Signature(
        tuple(each.name for each in declared),
        tuple(each.type.kind() == "TensorType" for each in declared),
        tuple(each.alias_info is not None and each.alias_info.is_write for each in declared),
    )


def places(value: Any) -> list[int]:
    """Return the addresses of a value's tensors on the device."""
    tensors = [tensor for tensor in tensors_of(value) if is_fake(tensor)]
    return [tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.layout is torch.strided]


def check_devices(name: str, tensors: Sequence[Tensor]) -> None:
    """Raise where the host's tensors, other than scalars, are among the device's."""
    others = [tensor for tensor in tensors if not is_fake(tensor) and tensor.dim()]
    if name in HOST_INDEX:
        others = [tensor for tensor in others if tensor.dtype not in INDICES]
    if others:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {KIND}:0 and cpu! ({name})"
        )


def waits(name: str, arguments: Sequence[Any], named: dict[str, Any]) -> str | None:
    """Return why the host waits for the device before this operation returns, if it does."""
    short = name.removeprefix("aten::").split(".")[0]
    if short == "repeat_interleave":
        given = named.get("output_size") is not None
        return None if given else short
    if short == "segment_reduce":  # CUDA's checks lengths, not offsets
        return short if named.get("lengths") is not None else None
    if name in HOST_INDEX:
        indices = [index for index in arguments[1] if isinstance(index, Tensor)]
        if any(not is_fake(index) and index.dim() for index in indices):
            return f"{short} by the host's indices"
        masks = [index for index in indices if index.dtype in (torch.bool, torch.uint8)]
        filled = short == "_index_put_impl_" and arguments[2].numel() == 1 and len(indices) == 1
        return f"{short} by a mask" if masks and not filled else None
    return short if short in SYNCHRONISE else None
