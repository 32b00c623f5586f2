"""Write hashes.txt: the pins of constraints.txt with the SHA-256 of every file that PyPI publishes of them.

    python -m tools.hashes constraints.txt hashes.txt

uv verifies hashes of constraints; pip refuses them next to a project that is installed from its folder, which is why
constraints.txt has none. torch has none in either: its builds for the CPU and for CUDA differ by index, not by version.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from pip._internal.models.index import PyPI  # the index that pip asks by default

BY_INDEX = frozenset({"torch"})
PYTHONS = ("py3", "cp311", "cp312", "cp313")


def pins(text: str) -> list[Requirement]:
    """Return the pins of constraints, in their order."""
    lines = (line.strip() for line in text.splitlines())
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def published(name: str) -> list[dict[str, object]]:
    """Return what PyPI says of a package's files (PEP 691)."""
    request = urllib.request.Request(
        f"{PyPI.simple_url}/{canonicalize_name(name)}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: list[dict[str, object]] = json.load(answer)["files"]
    return found


def fits(filename: str, version: str) -> bool:
    """Whether a file is of a version and for a Python that the product runs on."""
    try:
        if not filename.endswith(".whl"):
            return str(parse_sdist_filename(filename)[1]) == version
        _, found, _, tags = parse_wheel_filename(filename)
    except (InvalidSdistFilename, InvalidWheelFilename):  # of a time before names had rules
        return False
    return str(found) == version and any(tag.interpreter in PYTHONS or tag.abi == "abi3" for tag in tags)


def line_of(pin: Requirement) -> str:
    """Return a pin with the hashes of its files, sorted; ValueError if PyPI has none of them."""
    version = next(iter(pin.specifier)).version
    hashes = {
        str(each["hashes"]["sha256"])  # type: ignore[index]
        for each in published(pin.name)
        if fits(str(each["filename"]), version)
    }
    if not hashes:
        raise ValueError(f"{pin}: no file")
    return " ".join([str(pin), *(f"--hash=sha256:{each}" for each in sorted(hashes))])


def main() -> None:
    """Write the file that is named second from the one that is named first."""
    source, target = map(Path, sys.argv[1:])
    lines = [str(pin) if pin.name in BY_INDEX else line_of(pin) for pin in pins(source.read_text())]
    head = "# The pins of constraints.txt with their files' hashes, for uv (docs/security.md); made by tools/hashes.py."
    target.write_text("\n".join([head, *lines]) + "\n")


if __name__ == "__main__":
    main()
