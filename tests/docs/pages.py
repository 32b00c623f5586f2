"""The tutorials' pages: what of them is code."""

from __future__ import annotations

import re
from pathlib import Path

TUTORIALS = Path(__file__).resolve().parents[2] / "docs" / "tutorials"


def block(page: str, language: str) -> str:
    """Return the only block of a language on a page."""
    text = (TUTORIALS / f"{page}.md").read_text()
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return str(found)
