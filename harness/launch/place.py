"""Place: where a rank of a group runs, and how it is reached."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """One rank of a group on this machine.

    Attributes:
        rank: of all `world` ranks of the trial.
        local_rank: among the `local_world` ranks of its node.
        world, local_world: how many there are.
        interface: the network interface its collectives use; None: the loopback.
        prefix: command that the rank's own command is given to (`ip netns exec NAME`).
    """

    rank: int
    local_rank: int
    world: int
    local_world: int
    interface: str | None = None
    prefix: tuple[str, ...] = ()


def local_places(world: int) -> list[Place]:
    """Return the places of a group whose ranks all run on this machine and talk over the loopback."""
    return [Place(rank, rank, world, world) for rank in range(world)]
