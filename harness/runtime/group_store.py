"""The run's store as torch's process groups use one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from torch.distributed import Store  # type: ignore[attr-defined]

if TYPE_CHECKING:
    from harness.runtime.run_store import StoreConnection


class GroupStore(Store):
    """Has torch exchange the addresses of ranks through the run's store, under keys that begin with `prefix`.

    torch holds the C++ half alone: whoever makes one keeps it for as long as the process group lives.
    """

    def __init__(self, connection: StoreConnection, prefix: str, limit: timedelta) -> None:
        super().__init__()
        self._connection, self._prefix, self._limit = connection, prefix, limit
        self._clones: list[GroupStore] = []

    def set(self, key: str, value: bytes | str) -> None:
        """Store a value."""
        self._connection.set(self._named(key), value.encode() if isinstance(value, str) else value)

    def get(self, key: str) -> bytes:
        """Return a value once it is there; RuntimeError if that is not in time, as of torch's own stores."""
        self.wait([key])
        return self._connection.get(self._named(key)) or b""

    def add(self, key: str, more: int) -> int:
        """Add to a counter and return it."""
        return self._connection.add(self._named(key), more)

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys exist."""
        return self._connection.has([self._named(key) for key in keys])

    def wait(self, keys: Sequence[str], limit: timedelta | None = None) -> None:
        """Wait until all keys exist; RuntimeError if they do not in time."""
        limit_s = (limit or self._limit).total_seconds()
        if not self._connection.wait([self._named(key) for key in keys], limit_s):
            raise RuntimeError(f"ranks of other machines did not come within {limit_s:g} s: connection timed out")

    def delete_key(self, key: str) -> bool:
        """Delete a key."""
        return self._connection.delete(self._named(key))

    def num_keys(self) -> int:
        """Return how many keys there are, of all who use the run's store."""
        return self._connection.count()

    def set_timeout(self, limit: timedelta) -> None:
        """Change how long `get` and `wait` wait."""
        self._limit = limit

    def clone(self) -> GroupStore:
        """Return another connection, for another thread."""
        self._clones.append(clone := GroupStore(self._connection.another(), self._prefix, self._limit))
        return clone

    def _named(self, key: str) -> str:
        return f"{self._prefix}/{key}"
