"""Colours of figures on a dark page: the same hues, as light as it takes to be seen."""

from __future__ import annotations

from collections.abc import Iterable

PAPER = "#14181f"  # the dark page's; its other colours are in the style sheet
_INK, _LINE = "#d5dae2", "#39414d"
_CONTRAST = 3.2  # WCAG 2.2, 1.4.11: 3 for what must be seen of a figure
_STEPS = 20
_GIVEN = {"#ffffff": PAPER, "#262626": _INK, "#222222": _INK, "#000000": _INK, "#cccccc": _LINE}


def dark_rules(colours: Iterable[str]) -> str:
    """Return CSS that gives the fills and strokes of figures the colours of a dark page where it is dark.

    `colours`: as `#rrggbb`. Those that can be seen on dark paper as they are have no rule.
    """
    rules = []
    for colour in sorted(set(colours)):
        dark = _GIVEN.get(colour) or lightened(colour)
        if dark != colour:
            rules += [f'.plot [{name}="{colour}"]{{{name}:light-dark({colour},{dark})}}' for name in ("fill", "stroke")]
    return "\n".join(rules)


def lightened(colour: str) -> str:
    """Return a colour mixed with as much white as it takes to be seen on the dark page."""
    channels = _channels(colour)
    for step in range(_STEPS + 1):
        mixed = [round(255 * step / _STEPS + c * (1 - step / _STEPS)) for c in channels]
        shown = f"#{mixed[0]:02x}{mixed[1]:02x}{mixed[2]:02x}"
        if contrast(shown, PAPER) >= _CONTRAST:
            break
    return shown


def contrast(a: str, b: str) -> float:
    """Return the contrast ratio of two colours, 1 to 21 (WCAG 2.2)."""
    low, high = sorted((_luminance(a), _luminance(b)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (value / 255 for value in _channels(colour))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
