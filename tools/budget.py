"""Compare the product's size with the limits of budget.toml; exit code 1 where it is larger."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

PRODUCT = ("harness/*.py", "methods/*.py")


def size(root: Path) -> dict[str, int]:
    """Return how many modules and lines of the product git knows; a file that is deleted but not staged counts not."""
    listed = subprocess.run(["git", "ls-files", "-z", *PRODUCT], cwd=root, check=True, capture_output=True, text=True)
    files = [root / name for name in listed.stdout.split("\0") if name and (root / name).exists()]
    return {"modules": len(files), "lines": sum(file.read_bytes().count(b"\n") for file in files)}


def main(arguments: Sequence[str] = ()) -> int:
    """Print the size and the limits of a repository, by default this one, and return the exit code."""
    root = Path(arguments[0]) if arguments else Path(__file__).parents[1]
    limits = tomllib.loads((root / "budget.toml").read_text())
    found = size(root)
    print("product: " + ", ".join(f"{found[what]:,} of at most {limits[what]:,} {what}" for what in found))
    over = [f"{found[what]:,} {what} (limit {limits[what]:,})" for what in found if found[what] > limits[what]]
    if over:
        print(f"error: the product has {' and '.join(over)}: shrink it, or raise budget.toml", file=sys.stderr)
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
