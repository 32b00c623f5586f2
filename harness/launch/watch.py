"""The other nodes as the head sees them: whether they live, and what they have said."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from harness.launch.local import RankFailure
from harness.launch.nodes import POLL_S, WATCH_S, Seat
from harness.launch.pulse import beat_key, gone_key
from harness.launch.rendezvous import Link


class Watch:
    """Tells which nodes live, by this machine's clock: clocks of two machines are never compared."""

    def __init__(self, link: Link, timeout_s: float) -> None:
        self._link, self._timeout_s = link, timeout_s
        self._beats: dict[str, tuple[str | None, float]] = {}

    def lost(self, session: str) -> str | None:
        """Return what became of a node whose runner has ended or is silent; None if it lives."""
        if self._link.has(gone_key(session)):
            return "was lost: its runner ended or was killed"
        now, beat = time.monotonic(), self._link.text(beat_key(session))
        last, since = self._beats.get(session, (None, now))
        if beat != last or session not in self._beats:
            self._beats[session] = beat, now
        elif now - since > self._timeout_s:
            return f"was lost: no heartbeat for {self._timeout_s:g} s (--node-timeout)"
        return None


class Ears:
    """What the other nodes of one trial say; `members` are their ranks, node 1's first.

    Lists that are returned have an entry a member: what it said, or the RankFailure that it was lost.
    """

    def __init__(self, seat: Seat, watch: Watch, members: Sequence[int]) -> None:
        self._seat, self._watch, self._members = seat, watch, members
        self._sessions: list[str] = []  # known once the nodes have said who they are
        self._words: dict[tuple[str, int], Any] = {}
        self._failed, self._next = False, 0.0

    def watch(self, sessions: Sequence[str]) -> None:
        """From now on, look whether the members with these `sessions` live."""
        self._sessions = [*sessions]

    def seats(self, shares: Sequence[range]) -> dict[str, list[int]]:
        """Return number, first rank and end of ranks of each member, by the rank the rendezvous gave it."""
        return {
            str(member): [node, share.start, share.stop]
            for node, (member, share) in enumerate(zip(self._members, shares, strict=True), 1)
        }

    def hear(self, what: str, limit_s: float, late: str) -> list[Any]:
        """Wait until all members have said `what` or are lost; after `limit_s` the others fail: `late`."""
        deadline = time.monotonic() + limit_s
        while None in (words := self._now(what)) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return [
            RankFailure(None, "timeout", late, node=node) if word is None else word
            for node, word in enumerate(words, 1)
        ]

    def failed(self) -> bool:
        """Return whether a member is lost or has said that its ranks failed."""
        now = time.monotonic()
        if not self._failed and now >= self._next:
            self._next = now + WATCH_S
            ends = [word for word in self._now("end") if word is not None]
            self._failed = bool(failures_in(ends)) or any(_ran_out(word) for word in ends)
        return self._failed

    def _now(self, what: str) -> list[Any]:
        return [self._word(what, node) for node in range(1, len(self._members) + 1)]

    def _word(self, what: str, node: int) -> Any:
        if (what, node) not in self._words:
            # Looked at first: what a node said before it ended is heard after it.
            lost = self._watch.lost(self._sessions[node - 1]) if self._sessions else None
            word = self._seat.heard(what, self._members[node - 1])
            if word is None and lost is not None:
                word = RankFailure(None, "error", lost, node=node)
            if word is None:
                return None
            self._words[what, node] = word
        return self._words[what, node]


def failures_in(words: Sequence[Any]) -> list[RankFailure]:
    """Return the failures in what the members said, node 1's first."""
    found: list[RankFailure] = []
    for node, word in enumerate(words, 1):
        if isinstance(word, RankFailure):
            found.append(word)
        else:
            found += [replace(RankFailure(**failure), node=node) for failure in word.get("failures", ())]
    return found


def _ran_out(word: Any) -> bool:
    return isinstance(word, dict) and word["limit_s"] is not None
