"""State on disk: nested values and tensors as one file, written whole or not at all, and known by its checksum.

A file is safetensors: no code is in it. Its name ends in the checksum of its content.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.data.store import sync
from harness.deferred import numpy as np
from harness.deferred import torch

if TYPE_CHECKING:
    from torch import Tensor

SUFFIX = ".safetensors"
_TREE = "tree"  # the tensor that holds, as text, what is no tensor


class StateError(Exception):
    """A file of state is not what was written."""


def write_state(directory: Path, stem: str, tree: Any) -> Path:
    """Write `tree` as `STEM.CHECKSUM.safetensors`; returns the path.

    A tree is None, a truth value, a number, a text, a tensor, an array, or a list, tuple or dict (keys are texts or
    integers) of trees. Raises OSError, and leaves nothing, where it cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    text = json.dumps(_packed(tree, tensors, {})).encode()
    tensors[_TREE] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    temporary = directory / f".{stem}.{uuid.uuid4().hex[:10]}"
    try:
        try:
            save_file(tensors, temporary)
        except SafetensorError as error:
            raise OSError(str(error)) from error
        sync(temporary)
        final = directory / f"{stem}.{_checksum(temporary)}{SUFFIX}"
        os.replace(temporary, final)
    finally:
        temporary.unlink(missing_ok=True)
    sync(directory)
    return final


def is_whole(path: Path) -> bool:
    """Return whether a file's content is what its name says; OSError if it cannot be read."""
    return path.name.removesuffix(SUFFIX).rpartition(".")[2] == _checksum(path)


def read_state(path: Path) -> Any:
    """Return what `write_state` wrote, tensors on the CPU; `is_whole` says first whether it is that.

    Raises StateError, or OSError.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
        return _unpacked(json.loads(tensors[_TREE].numpy().tobytes()), tensors)
    except (SafetensorError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise StateError(f"{path.name}: {error}") from error


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _packed(value: Any, tensors: dict[str, Tensor], known: dict[Any, str]) -> Any:
    """Return `value` as JSON, and put its tensors into `tensors`; one that is there twice (`known`) is kept once."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return {"array": _put(torch.from_numpy(np.array(value)), tensors, known)}
    if isinstance(value, torch.Tensor):
        return {"tensor": _put(value.detach(), tensors, known)}
    if isinstance(value, Mapping):
        assert all(type(key) in (str, int) for key in value), "keys are texts or integers"
        return {"dict": [[key, _packed(each, tensors, known)] for key, each in value.items()]}
    if isinstance(value, list | tuple):
        each = [_packed(item, tensors, known) for item in value]
        return each if isinstance(value, list) else {"tuple": each}
    raise TypeError(f"a {type(value).__name__} is no state that can be kept")


def _put(tensor: Tensor, tensors: dict[str, Tensor], known: dict[Any, str]) -> str:
    key = tensor.device, tensor.dtype, tensor.data_ptr(), tuple(tensor.shape), tensor.stride()
    if tensor.numel() and key in known:
        return known[key]
    name = known[key] = str(len(tensors))
    host = tensor.cpu().contiguous()
    # A view would have the file hold what it is a view of.
    tensors[name] = host if host.untyped_storage().nbytes() == host.nbytes else host.clone()
    return name


def _unpacked(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpacked(each, tensors) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "array":
        return tensors[content].numpy()
    if kind == "tuple":
        return tuple(_unpacked(each, tensors) for each in content)
    if kind != "dict":
        raise ValueError(f"'{kind}' is no kind of value")
    return {key: _unpacked(each, tensors) for key, each in content}
