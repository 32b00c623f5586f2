"""What is read of others, in general: valid samples, strategies, and the reader that is tried."""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import strategies as st

from .mutate import ODD, mutated

Files = dict[str, bytes]
ODD_VALUES = st.sampled_from(ODD)
JSON = st.recursive(
    ODD_VALUES | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def as_json(value: Any) -> bytes:
    """Write JSON as anybody might: with NaN, and halves of characters."""
    return json.dumps(value, default=str).encode()


class Target(ABC):
    """A reader and what it reads. An input is a whole set of files, of which one, the victim, is changed."""

    name: ClassVar[str]

    @abstractmethod
    def samples(self, folder: Path) -> list[Files]:
        """Return valid sets of files; `folder` is empty, for whoever has to write them."""

    @abstractmethod
    def read(self, folder: Path) -> object:
        """Read the files that are in a folder."""

    def prepare(self, folder: Path) -> None:  # noqa: B027 - most have nothing to do
        """Do what is none of the reader's; files are in the folder."""

    def victims(self, files: Files) -> list[str]:
        """Return the files that may be changed."""
        return list(files)

    def strategy(self, files: Files) -> st.SearchStrategy[tuple[str, bytes]]:
        """Return a strategy of victims and their content, beside that of mutations."""
        return st.tuples(st.sampled_from(self.victims(files)), st.binary(max_size=200))

    def named(self, folder: Path) -> str:
        """Return what every line of a refusal names."""
        return str(folder)

    def mutation(self, files: Files, others: list[Files], rng: random.Random) -> tuple[str, bytes]:
        """Return a victim and its content after a few changes."""
        victim = rng.choice(self.victims(files))
        return victim, mutated(files[victim], [each[victim] for each in others if victim in each], rng)
