"""Which pages there are, and whether those on disk are what they should be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from harness.reference.commands import commands_page
from harness.reference.methods import index_page, method_page, shipped_methods
from harness.reference.suite import suite_page


def pages() -> dict[str, str]:
    """Return the text of every page by its path in the directory of the reference."""
    methods = {f"methods/{method.name}.md": method_page(method) for method in shipped_methods()}
    fixed = {
        "suite.md": suite_page(),
        "commands.md": commands_page(),
        "methods/index.md": index_page(),
    }
    return fixed | methods


def stale(directory: Path, named: Mapping[str, str]) -> list[Path]:
    """Return the pages that are missing, differ from `named`, or are of what is there no more."""
    wanted = {directory / path: text for path, text in named.items()}
    there = set(directory.rglob("*.md"))
    differing = [p for p, text in wanted.items() if p not in there or p.read_text(encoding="utf-8") != text]
    return sorted([*differing, *(there - set(wanted))])


def write(directory: Path, named: Mapping[str, str]) -> None:
    """Write all pages, and remove pages of what is there no more."""
    for path in set(directory.rglob("*.md")) - {directory / name for name in named}:
        path.unlink()
    for name, text in named.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
