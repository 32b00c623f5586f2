"""What nodes say to each other, as bytes: JSON, packed; read without trust in who sent it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

from harness.errors import UserError

LARGEST = 256 << 20  # of one packed message, because the coordinator holds it in memory
UNPACKED = 1 << 30  # a thousand times as much could be in it
T = TypeVar("T")


def packed(value: Any) -> bytes:
    """Return JSON packed; ValueError if it is too large for others to read."""
    data = zlib.compress(json.dumps(value).encode())
    if len(data) > LARGEST:
        raise ValueError(f"a message of {len(data) >> 20} MiB, {LARGEST >> 20} are allowed")
    return data


def unpacked(key: str, first: bytes, more: Callable[[int], bytes]) -> Any:
    """Return the JSON of a message.

    Args:
        key: what it lies under, for messages.
        first: how many pieces follow, a colon, and the first piece.
        more: returns the piece of a number, from 1.

    Raises:
        UserError: it is damaged, or larger than a message may be.
    """
    said, colon, data = first.partition(b":")
    if not colon or not said.isdigit() or len(said) > 4:
        raise _damaged(key, "it does not say in how many pieces it is, 9999 at most")
    for number in range(1, int(said) + 1):
        data += more(number)
        if len(data) > LARGEST:
            raise _damaged(key, f"it has more than {LARGEST >> 20} MiB")
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(data, UNPACKED)
        if not unpacker.eof:
            raise _damaged(key, f"it ends early, or unpacks to more than {UNPACKED >> 20} MiB")
        return json.loads(text)
    except (zlib.error, ValueError, RecursionError) as error:
        raise _damaged(key, (str(error).splitlines() or [type(error).__name__])[0]) from error


def told(kind: type[T], said: Any, types: dict[str, type]) -> T:
    """Return what a node says as an object of a dataclass whose fields have these types; UserError for another."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(said, dict) or said.keys() != names:
        raise _damaged(kind.__name__, f"its keys are not {', '.join(sorted(names))}")
    for name, type_ in types.items():
        if not isinstance(said[name], type_):
            raise _damaged(kind.__name__, f"{name} is no {type_.__name__}")
    return kind(**said)


def _damaged(what: str, why: str) -> UserError:
    fix = "is it `harness run` of this version on every node?"
    return UserError(f"a message of another node is damaged: {why}", key=what, fix=fix)
