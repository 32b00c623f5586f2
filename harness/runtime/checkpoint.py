"""Checkpoints: a rank's whole state at the end of an epoch, from which another process goes on with the same bits.

Of every rank the last `KEPT` are kept: while one rank writes the next, all others still have the one before.
See docs/design/records.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.data.prepared import sync
from harness.deferred import numpy as np
from harness.deferred import torch
from harness.runtime.run_config import TrainSpec
from harness.spec import Spec

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
    """Return what `write_state` wrote, tensors on the CPU; raises StateError, or OSError."""
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


KEPT = 2
DAMAGED = ".damaged"
_NAME = re.compile(r"rank(\d+)-(\d+)-([0-9a-f]+)\.[0-9a-f]+" + re.escape(SUFFIX))

# Returns the numbers of every rank; every rank must call, with equally many.
OfAllRanks = Callable[[list[int]], list[list[int]]]


class CheckpointPlace(Spec):
    """Where the checkpoints of a trial are."""

    directory: Path  # that all ranks see; only checkpoints of this trial, on these data and by this build, are in it
    lineage: str  # hexadecimal digits that name this start of the ranks, the same on all machines
    resume: bool  # whether there may be any from an earlier start

    def shown(self) -> Path:
        """Return an empty file in the directory by which other machines see whether they see it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"start-{self.lineage}"
        path.touch()
        return path


class Checkpoints:
    """Writes a rank's checkpoints when they are due, and finds the last that all ranks have."""

    def __init__(
        self,
        place: CheckpointPlace,
        train: TrainSpec,
        rank: int,
        of_all_ranks: OfAllRanks,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place, self._rank, self._of_all_ranks, self._clock = place, rank, of_all_ranks, clock
        self.epochs, self.seconds = train.checkpoint_every
        self._done, self._at, self._ask = 0, clock(), 1

    def due(self, done: int) -> bool:
        """Return whether one is due after `done` epochs, the same on all ranks; every rank must call.

        Ranks' clocks differ: they exchange how long it has been. The next exchange is after half of
        the epochs that the rest of the time is expected to take, so that short epochs do not pay for it.
        """
        if self.epochs is not None:
            return done % self.epochs == 0
        if self.seconds is None or done < self._ask:
            return False
        own = round((self._clock() - self._at) * 1e9)
        passed = max(ns for (ns,) in self._of_all_ranks([own])) / 1e9
        if passed >= self.seconds:
            self._begin(done)
            return True
        an_epoch = passed / (done - self._done)
        left = (self.seconds - passed) / an_epoch if an_epoch else self.seconds * 1e9
        self._ask = done + max(1, int(left / 2))
        return False

    def _begin(self, done: int) -> None:
        self._done, self._at, self._ask = done, self._clock(), done + 1

    def write(self, done: int, state: Any) -> None:
        """Write the state after `done` epochs, and remove all but the last; OSError if it cannot be written."""
        self._place.directory.mkdir(parents=True, exist_ok=True)
        write_state(self._place.directory, f"rank{self._rank}-{done:08d}-{self._place.lineage}", state)
        for path, _ in self._own()[KEPT:]:
            path.unlink(missing_ok=True)

    def last(self, report: Callable[[str], None]) -> tuple[int, Any] | None:
        """Return the epochs done and the state of the last checkpoint that every rank has; every rank must call."""
        if not self._place.resume:
            return None
        # A damaged one is reported, and set aside.
        whole = [(path, key) for path, key in self._own() if self._sound(path, report)][:KEPT]
        keys = [number for _, key in whole for number in key]
        keys += [-1, 0] * (KEPT - len(whole))
        every = [set(zip(each[::2], each[1::2], strict=True)) for each in self._of_all_ranks(keys)]
        common = [(path, key) for path, key in whole if all(key in other for other in every)]
        state: Any = None
        while common and state is None:
            path, key = common.pop(0)
            with suppress(StateError, OSError):
                state = read_state(path)
            # A rank that cannot read what it has checked takes the others with it to the one before.
            if not all(read for (read,) in self._of_all_ranks([state is not None])):
                state = None
        if state is None:
            return None
        for other, newer in self._own():  # that not all have, or could read
            if newer[0] >= key[0] and newer != key:
                other.unlink(missing_ok=True)
        self._begin(key[0])
        return key[0], state

    def _own(self) -> list[tuple[Path, tuple[int, int]]]:
        """Return this rank's files, the newest first, with the epochs done and a number for the lineage."""
        found = []
        with suppress(FileNotFoundError):
            for path in self._place.directory.iterdir():
                if (parts := _NAME.fullmatch(path.name)) and int(parts[1]) == self._rank:
                    lineage = hashlib.blake2b(parts[3].encode(), digest_size=7).digest()
                    found.append((path, (int(parts[2]), int.from_bytes(lineage, "big"))))
        return sorted(found, key=lambda each: (each[1], each[0].name), reverse=True)

    def _sound(self, path: Path, report: Callable[[str], None]) -> bool:
        try:
            if is_whole(path):
                return True
            path.rename(path.with_name(path.name + DAMAGED))
            report(f"checkpoint {path.name} is damaged: it is set aside")
        except OSError as error:
            report(f"checkpoint {path.name} cannot be read: {error.strerror}")
        return False
