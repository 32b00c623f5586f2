"""Colours, markers and dashes: a variant's in all of a report, a method's colour in all reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

# Okabe and Ito's colour-blind safe set (their yellow is too faint for lines on white), then the colours
# farthest from those already taken under simulated protanopia, deuteranopia and tritanopia.
COLOURS = (
    "#222222", "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#920000",
    "#490092", "#b66dff", "#117733", "#bbbbbb", "#ee6677", "#882e72", "#555555",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
Dash = Literal["-"] | tuple[float, tuple[float, ...]]
DASHES: tuple[Dash, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 1, 1, 1)))
# Work in blues, communication in warm hues, so that a glance distinguishes them.
PHASES = {
    "sample": "#009e73", "fetch": "#ddcc77", "forward": "#0072b2", "backward": "#7fb8da", "comm": "#d55e00",
    "wait": "#f4b183", "reduce": "#882255", "optimize": "#8f7fc0", "explain": "#117733", "swap": "#cc79a7",
    "check": "#777777", "other": "#bbbbbb",
}  # fmt: skip
PURPOSES = {
    "feature": "#0072b2", "embedding": "#56b4e9", "gradient": "#d55e00",
    "model": "#8f7fc0", "control": "#009e73", "swap": "#ddcc77",
}  # fmt: skip
CIVIDIS = (  # from little to much: matplotlib's map for all eyes, 13 colours of it
    "#00224e", "#003170", "#2a3f6d", "#434e6c", "#575d6d", "#6a6c71", "#7d7c78", "#918b78", "#a59c74", "#bcae6c",
    "#d2c060", "#e9d34e", "#fee838",
)  # fmt: skip
SPARE = ("#e69f00", "#cc79a7", "#117733", "#920000", "#555555")


@dataclass(frozen=True)
class Style:
    """How one method variant is drawn; colour, marker and dash together are unique.

    So are marker and dash of the first 44, for print without colours.
    """

    colour: str
    marker: str
    dash: Dash


def variant_styles(methods: Sequence[str], colours: Mapping[str, str] = MappingProxyType({})) -> list[Style]:
    """Return the styles of a report's variants, given the method of each, and the colours of methods.

    The first variant of a method with a colour has that, in every report; the others have colours of methods that are
    not there, black last. Markers repeat, with other dashes, after eleven, and colours only with another dash.
    """
    styles: list[Style] = []
    used: set[tuple[str, Dash]] = set()
    homes = {method: colour for method, colour in colours.items() if colour}
    kept = {homes[method] for method in methods if method in homes} | {COLOURS[0]}
    for i, method in enumerate(methods):
        dash = DASHES[i // len(MARKERS) % len(DASHES)]
        spare = [colour for colour in COLOURS if colour not in kept] + list(COLOURS)
        free = (each for each in spare if (each, dash) not in used)
        colour = homes.pop(method, None) or next(free, COLOURS[i % len(COLOURS)])  # any in turn when none is left
        kept.add(colour)
        used.add((colour, dash))
        styles.append(Style(colour, MARKERS[i % len(MARKERS)], dash))
    return styles


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
