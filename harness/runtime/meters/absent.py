"""Figures that cannot be had, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


class Absent(Exception):  # noqa: N818 - a counter that is not there is a state, not an error
    """A figure cannot be had on this machine; the message says why."""


class Reasons:
    """Why figures are not available: the first reason of each; after it the figure is not read again.

    Attributes:
        why: reason by the figure's name.
    """

    def __init__(self) -> None:
        self.why: dict[str, str] = {}

    def add(self, figures: Iterable[str], reason: str) -> None:
        """Give up these figures for `reason`, if they have not been already."""
        for figure in figures:
            self.why.setdefault(figure, reason)

    def attempt(self, read: Callable[[], T], *figures: str) -> T | None:
        """Return what `read` returns; None if it raises `Absent` or all of `figures` were given up before."""
        if all(figure in self.why for figure in figures):
            return None
        try:
            return read()
        except Absent as absent:
            self.add(figures, str(absent))
            return None
