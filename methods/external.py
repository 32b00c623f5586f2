"""A command that trains next to the methods: `plugins: harness_methods.external` in a suite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness import Method, Step
from harness.plugin import CommandOptions, MemoryCase

if TYPE_CHECKING:
    from collections.abc import Iterator


class External(Method[CommandOptions]):
    """Any command that trains on the same graph and partition; it says itself how long epochs take and what they reach.

    Each rank runs it as torchrun would, and reads its epochs from JSON lines on its output (docs/external.md). Nothing
    of it is checked: reports show it apart.
    """

    name = "external"
    family = "external"
    Options = CommandOptions

    def steps(self, epoch: int) -> Iterator[Step]:
        """Never called: a rank runs the command in place of a training."""
        raise NotImplementedError

    @classmethod
    def memory(cls, options: Any, case: MemoryCase) -> dict[str, int]:
        """Nothing is known of a command."""
        return {}
