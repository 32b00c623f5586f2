"""Text in LaTeX: any string as itself, never as a command."""

from __future__ import annotations

import re

_WRITTEN = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    "[": "{[}",  # after \\ it would begin an argument
    "]": "{]}",
    "*": "{*}",  # so would this
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": "$-$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "≈": r"$\approx$",
    "∞": r"$\infty$",
    "\u2009": r"\,",
    "\u202f": r"\,",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "τ": r"$\tau$",
    "μ": r"$\mu$",
    "Δ": r"$\Delta$",
}
_UNSET = set("ĦħĸĿŀŉŦŧſ")  # of the Latin letters those that the T1 fonts lack
_PLAIN = set("–—‘’“”…†‡•€‰→↑↓")
_LIGATURE = re.compile(r"([-'!?,])(?=\1|`)")


def escape(value: object) -> str:
    r"""Return text that LaTeX prints as it is, on one line; needs T1 fonts (`\usepackage[T1]{fontenc}`).

    A character that these do not have is written as its number, [U+6570].
    """
    line = _LIGATURE.sub("\\1\0", " ".join(str(value).split()))  # 0: nothing, but it stands between
    return "".join(_character(each) for each in line)


def _character(each: str) -> str:
    if each == "\0":
        return "{}"
    if each in _WRITTEN:
        return _WRITTEN[each]
    latin = "¡" <= each <= "ſ" and each not in _UNSET
    return each if " " <= each <= "}" or latin or each in _PLAIN else f"{{[}}U+{ord(each):04X}{{]}}"
