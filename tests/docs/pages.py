"""The tutorials' pages: what of them is code."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
TUTORIALS = DOCS / "tutorials"


def block(page: str, language: str) -> str:
    """Return the only block of a language on a page."""
    (found,) = blocks(TUTORIALS / f"{page}.md", language)
    return found


def blocks(file: Path, language: str) -> list[str]:
    """Return all blocks of a language on a page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", file.read_text(), re.DOTALL | re.MULTILINE)
