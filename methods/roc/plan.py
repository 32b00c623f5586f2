"""Plan: which matrices of a step leave the device, and when, so that a budget holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from harness import numpy as np
from harness.plugin import Direction

if TYPE_CHECKING:
    from numpy.typing import NDArray

Policy = Literal["dp", "lru"]
MOST_STATES, FIRST_STATES = 2000, 64


@dataclass(frozen=True)
class Moment:
    """Where a step's hooks are called, and may move matrices: its start, a load, what autograd saves or reads.

    `item`: the number of the matrix, -1 of what never leaves; `nbytes`: of its storage, where it is loaded or saved;
    `layer`: that is counted for it.
    """

    kind: Literal["start", "load", "save", "read"]
    item: int
    nbytes: int
    layer: int
    direction: Direction


@dataclass(frozen=True)
class Gap:
    """A stretch of a step in which autograd alone holds a matrix, which may be away: moments [start, end).

    `used`: the moment of its last use before; `read`: whether it is read at the end, or gone by then; `home`:
    whether it was loaded, so that the host has it anyway.
    """

    item: int
    nbytes: int
    start: int
    end: int
    used: int
    read: bool
    home: bool


@dataclass(frozen=True)
class Trace:
    """A step as the hooks see it.

    `needs`: by moment, the most bytes that are on the device until the next one if every gap's matrix is away;
    `gaps`: by their starts.
    """

    moments: tuple[Moment, ...]
    needs: tuple[int, ...]
    gaps: tuple[Gap, ...]

    @property
    def least(self) -> int:
        """Bytes of the smallest budget."""
        return max(self.needs)

    @property
    def most(self) -> int:
        """Bytes of the smallest budget under which nothing has to leave."""
        return self.peak({})

    def peak(self, away: Away) -> int:
        """Return the most bytes that are on the device at once."""
        held = np.zeros(len(self.needs) + 1, np.int64)
        for gap in self.gaps:
            held[gap.start] += gap.nbytes
            held[away.get(gap, gap.end)] -= gap.nbytes
        return int((held[:-1].cumsum() + self.needs).max())

    def moved(self, away: Away) -> tuple[int, int]:
        """Return the bytes that come to the device, loads left out, and those that leave it."""
        leaving = {gap.item: gap.nbytes for gap in away if not gap.home}
        return sum(gap.nbytes for gap in away if gap.read), sum(leaving.values())


Away = dict[Gap, int]
"""The gaps whose matrices leave, and the moments at which they do."""


@dataclass(frozen=True)
class Plan:
    """What leaves, and whether that is proven to be the fewest bytes."""

    away: Away
    best: bool = False


def make_plan(trace: Trace, budget: int | None, policy: Policy) -> Plan:
    """Return what leaves, so that no more than `budget` bytes (at least `trace.least`) are ever on the device."""
    if budget is None or budget >= trace.most:
        return Plan({}, best=True)
    if budget < trace.least:
        raise ValueError(f"a budget of {budget} bytes is less than {trace.least}")
    return POLICIES[policy](trace, budget)


def least_recently_used(trace: Trace, budget: int) -> Plan:
    """Where the next moment needs room, what was used longest ago leaves."""
    away: Away = {}
    for moment, need in enumerate(trace.needs):
        idle = [gap for gap in trace.gaps if gap.start <= moment < gap.end and gap not in away]
        excess = need + sum(gap.nbytes for gap in idle) - budget
        for gap in sorted(idle, key=lambda gap: gap.used):
            if excess <= 0:
                break
            away[gap] = moment
            excess -= gap.nbytes
    return Plan(away)


def fewest_bytes(trace: Trace, budget: int, most_states: int = MOST_STATES) -> Plan:
    """ROC's dynamic programming (Jia et al., MLSys 2020, section 5): the fewest bytes that can be moved.

    There the states are which operations are done and which tensors are on the device. Here the operations' order is
    autograd's, and a matrix that nobody uses until a moment may as well leave at once as later: so it is decided for
    one gap after the other, by their starts, whether its matrix stays. All states are followed but those that cannot
    end below the best plan known, and those that have no advantage over another one (`_Search.undominated`). Where
    more than `most_states` are left the most promising are followed, and the plan need not be the best.
    """
    known = least_recently_used(trace, budget)
    for limit in (min(FIRST_STATES, most_states), most_states):
        search = _Search(trace, budget, known)
        found, whole = search.run(limit)
        known = min(known, found, key=lambda plan: sum(trace.moved(plan.away)))
        if whole:
            return replace(known, best=True)
    return known


@dataclass(frozen=True)
class _State:
    """What has left so far, its bytes both ways, and what is left of the budget in each span."""

    cost: int
    left: frozenset[int]  # numbers of the gaps
    room: NDArray[np.int64]


class _Search:
    """Follows the states of a step's gaps; a span is a stretch in which no gap starts or ends.

    `known`: a plan; one that moves no fewer bytes is not looked for.
    """

    def __init__(self, trace: Trace, budget: int, known: Plan) -> None:
        self.gaps, self._known = trace.gaps, known
        self._most = sum(trace.moved(known.away))
        bounds = sorted({0, len(trace.needs), *(bound for gap in trace.gaps for bound in (gap.start, gap.end))})
        self._span = {bound: number for number, bound in enumerate(bounds)}
        self._free = np.array([budget - max(trace.needs[a:b]) for a, b in pairwise(bounds)], np.int64)
        # Of the gaps from a number on, bytes in each span by the least price of a byte that leaves: 0, 1 or 2 moves.
        self._coming = np.zeros((len(self.gaps) + 1, 3, len(self._free)), np.int64)
        for number, gap in reversed([*enumerate(self.gaps)]):
            self._coming[number] = self._coming[number + 1]
            copied = gap.home or any(other.item == gap.item for other in self.gaps[:number])
            self._coming[number, gap.read + (not copied), self._spans(gap)] += gap.nbytes

    def run(self, limit: int) -> tuple[Plan, bool]:
        """Return the best plan that was found, and whether no more than `limit` states were to be followed at once."""
        states, whole = [_State(0, frozenset(), self._free)], True
        for number, gap in enumerate(self.gaps):
            states = self._undominated(self._decided(states, number), number + 1, self._span[gap.start])
            whole = whole and len(states) <= limit
            states = states[:limit]
        if not states:
            return self._known, whole
        left = states[0].left
        return Plan({gap: gap.start for number, gap in enumerate(self.gaps) if number in left}), whole

    def _spans(self, gap: Gap) -> slice:
        return slice(self._span[gap.start], self._span[gap.end])

    def _decided(self, states: Iterable[_State], number: int) -> Iterator[_State]:
        """Yield what follows from states if a gap's matrix leaves, and if it stays."""
        gap, spans = self.gaps[number], self._spans(self.gaps[number])
        earlier = [i for i in range(number) if self.gaps[i].item == gap.item]
        for state in states:
            copied = gap.home or not state.left.isdisjoint(earlier)
            yield _State(state.cost + gap.nbytes * (gap.read + (not copied)), state.left | {number}, state.room)
            if (state.room[spans] >= gap.nbytes).all():
                room = state.room.copy()
                room[spans] -= gap.nbytes
                yield _State(state.cost, state.left, room)

    def _undominated(self, states: Iterable[_State], number: int, first: int) -> list[_State]:
        """Return the states, before the gap `number`, whose plans may be better than others', most promising first.

        Another state has no disadvantage if it moved no more bytes, has as much room in every span from `first` on,
        or as much as can be used there, and as many copies on the host that can be used again.
        """
        if not (found := list(states)):
            return []
        rooms, costs = np.stack([state.room for state in found]), np.array([state.cost for state in found])
        ends = costs + self._at_least(rooms, number)
        later = {gap.item for gap in self.gaps[number:] if not gap.home}
        copies = [i for i in range(number) if self.gaps[i].item in later]
        usable = np.minimum(rooms, self._coming[number].sum(0))[:, first:]
        copied = np.array([[i in state.left for i in copies] for state in found], np.int64)
        assets = np.hstack([-costs[:, None], usable, copied])
        kept = list[int]()
        for i in np.lexsort((costs, ends)):
            if ends[i] < self._most and not (assets[kept] >= assets[i]).all(1).any():
                kept.append(int(i))
        return [found[i] for i in kept]

    def _at_least(self, rooms: NDArray[np.int64], number: int) -> NDArray[np.int64]:
        """Return the fewest bytes that are still to be moved from each state on: in the span that lacks most room."""
        _, cheap, dear = self._coming[number]
        lacking = np.maximum(cheap + dear - rooms, 0)
        bytes_: NDArray[np.int64] = (np.minimum(lacking, cheap) + 2 * np.maximum(lacking - cheap, 0)).max(1)
        return bytes_


POLICIES: dict[Policy, Callable[[Trace, int], Plan]] = {"dp": fewest_bytes, "lru": least_recently_used}
