"""Groups of ranks for one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.check.training import rank_group


def run_ranks(
    function: Callable[..., Any], world: int, *arguments: Any, timeout_s: float = 120, **options: Any
) -> list[Any]:
    """Call `function` on every rank of a new group, which ends with it; see `RankGroup.call`."""
    with rank_group(world) as group:
        return group.call(function, *arguments, timeout_s=timeout_s, **options)
