"""Two tiers in a module: parameters whose tests are slow, and runs that only the tests which look at them start."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pytest

K = TypeVar("K")
V = TypeVar("V")


def tiered(values: Iterable[Any], quick: Container[Any]) -> list[Any]:
    """Return the values for `parametrize`; the tests of those that are not among `quick` are marked `slow`."""
    return [pytest.param(value, marks=() if value in quick else pytest.mark.slow) for value in values]


def batch_of(key: K, keys: Sequence[K], size: int) -> Sequence[K]:
    """Return which `size` keys are run together with `key`: those whose tests are its neighbours."""
    first = keys.index(key) // size * size
    return keys[first : first + size]


class Batches(Mapping[K, V]):
    """What `run` gives for each key; all keys of a batch are run together, when one of them is first asked for."""

    def __init__(self, run: Callable[[Sequence[K]], Mapping[K, V]], *batches: Sequence[K]) -> None:
        self._run, self._batches, self._found = run, batches, dict[K, V]()

    def __getitem__(self, key: K) -> V:
        if key not in self._found:
            self._found |= self._run(next(batch for batch in self._batches if key in batch))
        return self._found[key]

    def __iter__(self) -> Iterator[K]:
        return (key for batch in self._batches for key in batch)

    def __len__(self) -> int:
        return sum(map(len, self._batches))
