"""Colours, markers and dashes: a variant's in all of a report, a method's in all reports."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

# Okabe and Ito's colour-blind safe set (their yellow is too faint for lines on white), then the colours
# farthest from those already taken under simulated protanopia, deuteranopia and tritanopia.
COLOURS = (
    "#222222", "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#920000",
    "#490092", "#b66dff", "#117733", "#bbbbbb", "#ee6677", "#882e72", "#555555",
    "#999933", "#44aa99", "#6611ff", "#440055", "#443322",
)  # fmt: skip
Marker = Any  # of matplotlib, hashable: a name, or the corners of an area
HOURGLASS: Marker = ((-1, -1), (1, -1), (-1, 1), (1, 1), (-1, -1))
BOW_TIE: Marker = ((-1, -1), (-1, 1), (1, -1), (1, 1), (-1, -1))
CHEVRON: Marker = ((-1, -1), (0, 0), (1, -1), (1, 0), (0, 1), (-1, 0), (-1, -1))
BAR: Marker = ((-0.45, -1), (0.45, -1), (0.45, 1), (-0.45, 1), (-0.45, -1))
ANGLE: Marker = ((-1, -1), (1, -1), (1, -0.2), (-0.2, -0.2), (-0.2, 1), (-1, 1), (-1, -1))
ARCH: Marker = ((-1, -1), (-0.4, -1), (-0.4, 0.3), (0.4, 0.3), (0.4, -1), (1, -1), (1, 1), (-1, 1), (-1, -1))
TEE: Marker = ((-1, 1), (1, 1), (1, 0.3), (0.35, 0.3), (0.35, -1), (-0.35, -1), (-0.35, 0.3), (-1, 0.3), (-1, 1))
MARKERS: tuple[Marker, ...] = (
    "o", "s", "^", "D", "v", "P", "X", "<", ">", "*", HOURGLASS, "p", BOW_TIE, "d", "h", BAR, CHEVRON, ANGLE, ARCH,
    TEE,
)  # fmt: skip
"""Of each colour its marker for matplotlib. Those that look alike, such as "o" and "p", have unlike colours."""
OUTLINES: dict[Marker, str] = {
    "o": "M-1,0A1,1,0,1,1,1,0A1,1,0,1,1,-1,0Z", "s": "M-.9,-.9H.9V.9H-.9Z", "^": "M0,-1L1,.9H-1Z",
    "D": "M0,-1.2L1.2,0L0,1.2L-1.2,0Z", "v": "M0,1L1,-.9H-1Z", "<": "M-1,0L.9,-1V1Z", ">": "M1,0L-.9,-1V1Z",
    "P": "M-.4,-1H.4V-.4H1V.4H.4V1H-.4V.4H-1V-.4H-.4Z",
    "X": "M-1,-.5L-.5,-1L0,-.5L.5,-1L1,-.5L.5,0L1,.5L.5,1L0,.5L-.5,1L-1,.5L-.5,0Z",
    "*": "M0,-1.2L.28,-.39L1.14,-.37L.45,.15L.71,.97L0,.48L-.71,.97L-.45,.15L-1.14,-.37L-.28,-.39Z",
    HOURGLASS: "M-1,-1H1L-1,1H1Z", BOW_TIE: "M-1,-1V1L1,-1V1Z", "d": "M0,-1.2L.7,0L0,1.2L-.7,0Z",
    "p": "M0,-1L.95,-.31L.59,.81L-.59,.81L-.95,-.31Z", "h": "M0,-1L.87,-.5V.5L0,1L-.87,.5V-.5Z",
    BAR: "M-.45,-1H.45V1H-.45Z", CHEVRON: "M-1,1L0,0L1,1V0L0,-1L-1,0Z",
    ANGLE: "M-1,1H1V.2H-.2V-1H-1Z", ARCH: "M-1,1H-.4V-.3H.4V1H1V-1H-1Z", TEE: "M-1,-1H1V-.3H.35V1H-.35V-.3H-1Z",
}  # fmt: skip
"""Of each marker its path for SVG, and for Vega."""
Dash = Literal["-"] | tuple[float, tuple[float, ...]]
DASHES: tuple[Dash, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 1, 1, 1)))
# Work in blues, communication in warm hues, so that a glance distinguishes them.
PHASES = {
    "sample": "#009e73", "fetch": "#ddcc77", "forward": "#0072b2", "backward": "#7fb8da", "compress": "#661100",
    "comm": "#d55e00", "wait": "#f4b183", "reduce": "#882255", "optimize": "#8f7fc0", "explain": "#117733",
    "swap": "#cc79a7", "check": "#777777", "other": "#bbbbbb",
}  # fmt: skip
PURPOSES = {
    "feature": "#0072b2", "embedding": "#56b4e9", "gradient": "#d55e00",
    "model": "#8f7fc0", "control": "#009e73", "swap": "#ddcc77", "disk": "#777777",
}  # fmt: skip
CIVIDIS = (  # from little to much: matplotlib's map for all eyes, 13 colours of it
    "#00224e", "#003170", "#2a3f6d", "#434e6c", "#575d6d", "#6a6c71", "#7d7c78", "#918b78", "#a59c74", "#bcae6c",
    "#d2c060", "#e9d34e", "#fee838",
)  # fmt: skip
SPARE = ("#e69f00", "#cc79a7", "#117733", "#920000", "#555555")


@dataclass(frozen=True)
class Style:
    """How one method variant is drawn; of a report's first 60, colour and dash together are unique."""

    colour: str
    marker: Marker
    dash: Dash

    @property
    def outline(self) -> str | None:
        """The path of the marker; None without one."""
        return OUTLINES.get(self.marker)


def variant_styles(
    methods: Sequence[str], colours: Mapping[str, str] = MappingProxyType({}), datasets: Sequence[Collection[str]] = ()
) -> list[Style]:
    """Return the styles of a report's variants, given the method of each, and the colours of methods.

    The first variant of a method with a colour has that in every report, its marker and no dash, and so have those that
    are of other `datasets`: with tuned settings a method is another variant on each. Of methods that want one colour
    the first has it. The others have colours that are left, black last, then those of all with a dash. A marker follows
    from its colour.
    """
    homes: dict[str, str] = {}
    for method in methods:
        if (own := colours.get(method)) and own not in homes.values():
            homes[method] = own
    marks = [(colour, dash) for dash in DASHES for colour in (*COLOURS[1:], COLOURS[0])]
    free = itertools.cycle([mark for mark in marks if mark not in [(home, "-") for home in homes.values()]])
    at_home: dict[str, set[str]] = {method: set() for method in homes}
    found = []
    for method, where in zip(methods, datasets or [("one",)] * len(methods), strict=True):
        if alone := method in homes and at_home[method].isdisjoint(where):
            at_home[method].update(where)
        found.append((homes[method], DASHES[0]) if alone else next(free))
    places = {colour: COLOURS.index(colour) if colour in COLOURS else int(colour[1:], 16) for colour, _ in found}
    return [Style(colour, MARKERS[places[colour] % len(MARKERS)], dash) for colour, dash in found]


PAPER = "#14181f"  # the dark page's; its other colours are in the style sheet
_INK, _LINE = "#d5dae2", "#39414d"
_GIVEN = {"#ffffff": PAPER, "#262626": _INK, "#222222": _INK, "#000000": _INK, "#cccccc": _LINE}
_CONTRAST = 3.2  # WCAG 2.2, 1.4.11: 3 for what must be seen of a figure
_STEPS = 20


def on_dark(colour: str) -> str:
    """Return what a colour of a figure is on the dark page."""
    return _GIVEN.get(colour) or lightened(colour)


def lightened(colour: str) -> str:
    """Return a colour mixed with as much white as it takes to be seen on the dark page."""
    for step in range(_STEPS + 1):
        mixed = (round(255 * step / _STEPS + c * (1 - step / _STEPS)) for c in bytes.fromhex(colour[1:]))
        shown = f"#{bytes(mixed).hex()}"
        if contrast(shown, PAPER) >= _CONTRAST:
            break
    return shown


def contrast(a: str, b: str) -> float:
    """Return the contrast ratio of two colours, 1 to 21 (WCAG 2.2)."""
    low, high = sorted((_luminance(a), _luminance(b)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    shares = (c / 255 for c in bytes.fromhex(colour[1:]))
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
