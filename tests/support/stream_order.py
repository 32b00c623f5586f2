"""What streams may do at once: an order of their work by vector clocks, and who touches memory outside of it.

The fake device does work at once; here is kept what a real one would be free to do. Two pieces of work are in order if
they are on one stream, if an event says so, or if the host has waited for the first. Memory that is given back is its
stream's again, which writes to it next: what other streams do with it must be over for that stream then, or they must
have held it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

Clock = dict[int, int]
"""Of each stream, by number, how much of its work comes before."""


@dataclass
class Access:
    """Who touched a piece of memory: the stream that made it, the last write, and reads since: (stream, time)."""

    maker: int
    write: tuple[int, int]
    freed: Callable[[], bool]
    reads: Clock = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    where: str = ""

    def others(self) -> list[tuple[int, int]]:
        """Return what streams that did not make it have done with it, and did not hold it."""
        every = [self.write, *self.reads.items()]
        return [(stream, time) for stream, time in every if stream != self.maker and stream not in self.held]


class StreamOrder:
    """Follows streams, by number, and memory, by address. `say` is told what is out of order, and where."""

    def __init__(self, say: Callable[[str], None], where: Callable[[], str]) -> None:
        self._say, self._where = say, where
        self._clocks: dict[int, Clock] = {}
        self._done: Clock = {}  # what the host has waited for
        self._memory: dict[int, Access] = {}
        self._crossed: set[int] = set()
        self._lock = threading.RLock()

    def work(
        self, stream: int, reads: Iterable[int], writes: Iterable[int], made: dict[int, Callable[[], bool]]
    ) -> None:
        """Take in a piece of work on a stream: addresses that it reads, writes and makes (with whether it is freed)."""
        with self._lock:
            clock = self._clocks.setdefault(stream, {})
            now = clock[stream] = clock.get(stream, 0) + 1
            for place in reads:
                if (access := self._memory.get(place)) is not None:
                    self._check(stream, [access.write], "read before it was written")
                    access.reads[stream] = now
                    self._note(place, access, stream)
            for place in writes:
                if (access := self._memory.get(place)) is not None:
                    self._check(stream, [access.write, *access.reads.items()], "written while it was in use")
                    access.write, access.reads = (stream, now), {}
                    self._note(place, access, stream)
            for place, freed in made.items():
                self._forget(place)
                self._memory[place] = Access(stream, (stream, now), freed)

    def hold(self, stream: int, place: int) -> None:
        """Have a stream hold memory."""
        with self._lock:
            if (access := self._memory.get(place)) is not None:
                access.held.add(stream)

    def moment(self, stream: int) -> Clock:
        """Return what comes before this moment of a stream, for an event."""
        with self._lock:
            return dict(self._clocks.setdefault(stream, {}))

    def after(self, stream: int, moment: Clock) -> None:
        """Have a stream's work from now on come after a moment."""
        with self._lock:
            self.look()
            _join(self._clocks.setdefault(stream, {}), moment)

    def waited(self, moment: Clock) -> None:
        """Take note that the host has waited for a moment."""
        with self._lock:
            self.look()
            _join(self._done, moment)

    def waited_for_all(self) -> None:
        """Take note that the host has waited for all streams."""
        for clock in list(self._clocks.values()):
            self.waited(clock)

    def look(self) -> None:
        """See what was given back since the last look: before every wait, since waits put things in order."""
        for place in [place for place in self._crossed if self._memory[place].freed()]:
            self._forget(place)

    def _forget(self, place: int) -> None:
        access = self._memory.pop(place, None)
        if access is not None and place in self._crossed:
            self._crossed.discard(place)
            self._check(access.maker, access.others(), "given back while in use", access.where)

    def _note(self, place: int, access: Access, stream: int) -> None:
        if stream != access.maker:
            self._crossed.add(place)
            access.where = self._where()

    def _check(self, stream: int, before: Iterable[tuple[int, int]], what: str, where: str = "") -> None:
        clock = self._clocks.setdefault(stream, {})
        if any(time > max(clock.get(other, 0), self._done.get(other, 0)) for other, time in before if other != stream):
            self._say(f"{what}: {where or self._where()}")


def _join(clock: Clock, other: Clock) -> None:
    for stream, time in other.items():
        clock[stream] = max(clock.get(stream, 0), time)
