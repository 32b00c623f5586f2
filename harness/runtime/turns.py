"""Turns: one order of collectives on all ranks, where several threads of a rank start them (docs/design/turns.md)."""

from __future__ import annotations

import threading
from collections import deque


class Turn:
    """The place, in a rank's order, of all that one work beside the trainer exchanges. `over`: it exchanges no more."""

    def __init__(self) -> None:
        self.over = False


class Turns:
    """Lets the trainer and works beside it start collectives in an order that is the same on all ranks.

    A work's come after those that the trainer had started when it admitted the work, before the trainer's next ones,
    and behind those of works that were admitted before. The trainer admits at the same places of its program on all
    ranks, whatever their speeds, so that nothing need be agreed on.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._admitted: deque[Turn] = deque()

    def admit(self, turn: Turn) -> None:
        """Give a work its place; the trainer's thread alone may. A second call, or one after its end, does nothing."""
        with self._changed:
            if not turn.over and turn not in self._admitted:
                self._admitted.append(turn)
                self._changed.notify_all()

    def take(self, turn: Turn | None) -> None:
        """Wait until the work's next collective is to be started; None: until the trainer's is."""
        with self._changed:
            if turn is None:
                self._changed.wait_for(lambda: not self._admitted)
            else:
                self._changed.wait_for(lambda: bool(self._admitted) and self._admitted[0] is turn)

    def end(self, turn: Turn) -> None:
        """Say that a work has started its last collective, or failed."""
        with self._changed:
            turn.over = True
            if turn in self._admitted:
                self._admitted.remove(turn)
            self._changed.notify_all()
