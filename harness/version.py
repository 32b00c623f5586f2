"""Which build this is."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "gnn-harness"

try:
    __version__ = version(DISTRIBUTION)
except PackageNotFoundError:  # the files alone: nothing that is found by entry points is there either
    __version__ = "unknown"


def release() -> str:
    """Return the version without the build: "0.1.0"."""
    return __version__.partition("+")[0]


def built_from() -> tuple[str | None, bool | None]:
    """Return the first digits of the installed commit, and whether files differed; None if the version has none."""
    found = re.search(r"\+g([0-9a-f]+)(\.d\d+)?$", __version__)
    return (found.group(1), found.group(2) is not None) if found else (None, None)
