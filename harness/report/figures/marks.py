"""Marks: which method and number of parts each drawn point or bar is of, and the number that it shows.

A figure's data are what was drawn, by construction; a page can hide what is of one method, or show it alone.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote, unquote

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.container import Container
from matplotlib.figure import Figure

_PREFIX = "mark:"
_MARKED = re.compile(rb' id="mark:([^"]*)"')


class Series(Protocol):
    """What a mark is of: a method's variant, or a line of several."""

    @property
    def label(self) -> str:
        """Its name in the legend."""

    @property
    def method(self) -> str:
        """The method's name."""


class Drawing(Figure):
    """A figure that knows what numbers its marks show, and what its legend has: handles, labels, series."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shown: list[pd.DataFrame] = []
        self.entries: tuple[Sequence[Artist], Sequence[str], Sequence[Series]] | None = None

    def data(self) -> pd.DataFrame:
        """Return a row a mark: series, method, parts, and what it shows."""
        if not self.shown:
            return pd.DataFrame(columns=["series", "method", "parts"])
        return pd.concat(self.shown, ignore_index=True)


def mark(
    artists: Artist | Iterable[Any], of: Series, parts: int | None = None, values: Mapping[str, Any] | None = None
) -> None:
    """Say what artists (containers of some included) stand for.

    `values`: columns of the figure's data by name, unit included; numbers, text, or sequences of one length;
    None for what shows no number of its own.
    """
    tag = _tag(of.label, of.method, parts)
    flat = list(_flat(artists))
    for artist in flat:
        artist.set_gid(tag)
    if values:
        rows = pd.DataFrame(_even(values))
        figure = flat[0].get_figure(root=True)
        assert isinstance(figure, Drawing)
        who = {"series": of.label, "method": of.method, "parts": parts}
        figure.shown.append(rows.assign(**who)[[*who, *rows.columns]])


def mark_panel(ax: Axes, parts: int) -> None:
    """Say that all of a panel is of one number of parts."""
    ax.set_gid(_tag("", "", parts))


def with_attributes(svg: bytes) -> bytes:
    """Return a figure with its marks as attributes of the elements instead of ids, which must be unique."""

    def attributes(found: re.Match[bytes]) -> bytes:
        series, method, parts = json.loads(unquote(found[1].decode()))
        named = {"series": series, "method": method, "parts": "" if parts is None else str(parts)}
        written = "".join(f' data-{key}="{html.escape(value)}"' for key, value in named.items())
        return f' class="mark"{written}'.encode()

    return _MARKED.sub(attributes, svg)


def _tag(series: str, method: str, parts: int | None) -> str:
    return _PREFIX + quote(json.dumps([series, method, parts]))


def _flat(artists: Artist | Iterable[Any]) -> Iterable[Artist]:
    if isinstance(artists, Container):
        yield from artists.get_children()
    elif isinstance(artists, Artist):
        yield artists
    else:
        for each in artists:
            yield from _flat(each)


def _many(value: Any) -> bool:
    return isinstance(value, list | tuple | pd.Series)


def _even(values: Mapping[str, Any]) -> dict[str, Any]:
    """Repeat what is one for all rows."""
    length = max((len(value) for value in values.values() if _many(value)), default=1)
    return {key: list(value) if _many(value) else [value] * length for key, value in values.items()}
