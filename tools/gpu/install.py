"""Make an environment on a machine without a network: `python3 install.py [VENV]`, in the folder of the bundle.

The environment sees what this Python sees, torch among it, and gets of the bundle's wheels those that it lacks or has
too old; nothing else on the machine is changed. Needs nothing but Python and pip.
"""

from __future__ import annotations

import json
import os
import re
import site
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

NEEDED = ("torch", "numpy")  # of the machine: too large to carry
ELSE = {"scipy": "no generated graphs", "scikit-learn": "no `digits`", "pyarrow": "fastparquet writes the epochs"}


def version(text: str) -> tuple[int, ...]:
    """Return the numbers of a release, which compare as versions do."""
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[+a-z]", text)[0]))


def there(name: str) -> str | None:
    """Return the version of a package that this Python sees; None if it sees none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def lacking(wanted: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the wheels of packages that are not here, older than their `least` or another than it; ours always."""
    found = []
    for name, entry in wanted.items():
        own = there(name)
        does = own is not None and version(own) >= version(entry["least"])
        does &= not entry["exact"] or own == entry["least"]
        if not does or entry.get("always"):
            found.append(entry["wheel"])
    return found


def make(home: Path, bundle: Path) -> Sequence[str]:
    """Make the environment `home`; return the wheels that it got."""
    about = json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))
    if list(sys.version_info[:2]) != about["python"]:
        sys.exit(
            f"error: the bundle is for Python {'.'.join(map(str, about['python']))}: make one for this, PYTHON=3.N"
        )
    if missing := [name for name in NEEDED if there(name) is None]:
        sys.exit(f"error: this Python has no {' and no '.join(missing)}; run the one that has")
    wheels = lacking(about["wheels"])
    venv.create(home, clear=True, with_pip=False, symlinks=True)
    python = str(home / "bin" / "python")
    asked = [python, "-c", "import site; print(site.getsitepackages()[0])"]
    own = Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())
    # What this Python sees comes behind: a link by path, because it may be an environment itself.
    places = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    (own / "machine.pth").write_text("".join(f"import site; site.addsitedir({place!r})\n" for place in places))
    with tempfile.TemporaryDirectory() as place, tarfile.open(bundle / "wheels.tar.xz") as archive:
        archive.extractall(place, filter="data")
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps"]
        paths = [os.path.join(place, wheel) for wheel in wheels]
        subprocess.run(
            [*pip, "--no-cache-dir", "--ignore-installed", "--disable-pip-version-check", *paths], check=True
        )
    return wheels


def main(arguments: Sequence[str]) -> None:
    """Make the environment and say how to use it."""
    home = Path(arguments[0] if arguments else "gpu-venv").absolute()
    wheels = make(home, Path(__file__).parent)
    print(f"{home}: {len(wheels)} wheels of the bundle, the rest is the machine's")
    for name, without in ELSE.items():
        if there(name) is None:
            print(f"no {name}: {without}")
    print(f"in the repository: {home / 'bin' / 'python'} -m tools.gpu")


if __name__ == "__main__":
    main(sys.argv[1:])
