"""Gather in one folder what a GPU machine without a network lacks: `python -m tools.gpu.bundle`, or `make gpu-bundle`.

The folder has the wheels (solid, in wheels.tar.xz), this project's among them, what they are (bundle.json) and
install.py, which makes an environment there. See docs/design/gpus.md.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from email.parser import Parser
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.files import write_whole

ROOT = Path(__file__).parents[2]
LIMIT = 64_000_000  # bytes of the folder
# What running trials and their tests imports (found by looking at the modules of a run's processes), but for torch and
# numpy with what these need. fastparquet writes the epochs where the machine has no pyarrow (55 MB).
PACKAGES = (
    *("numba", "llvmlite", "threadpoolctl", "psutil", "nvidia-ml-py", "packaging", "pymetis"),
    *("pydantic", "pydantic_core", "annotated-types", "typing-inspection", "typing_extensions", "ruamel.yaml"),
    *("typer", "rich", "markdown-it-py", "mdurl", "pygments", "shellingham", "annotated-doc", "click"),
    *("pandas", "python-dateutil", "six", "fastparquet", "cramjam", "fsspec"),
    *("pytest", "pytest-timeout", "pytest-xdist", "execnet", "iniconfig", "pluggy", "hypothesis", "sortedcontainers"),
)
OWN = "gnn-harness"


def platforms(glibc: int) -> list[str]:
    """Return pip's names of the platforms whose wheels run on x86-64 Linux with glibc 2.`glibc`."""
    return [f"manylinux_2_{minor}_x86_64" for minor in range(glibc, 4, -1)] + ["manylinux2014_x86_64"]


def normal(name: str) -> str:
    """Return a package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def wanted(have: Iterable[str]) -> list[str]:
    """Return the packages to gather: all but those named in lines of `pip list --format=freeze`."""
    there = {normal(re.split(r"[=<>@ ]", line.strip())[0]) for line in have if line.strip()}
    return [name for name in PACKAGES if normal(name) not in there]


def download(names: Sequence[str], python: str, glibc: int, place: Path) -> None:
    """Fetch a wheel of each, of the pinned versions where they are pinned."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    only = ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
    tags = [word for name in platforms(glibc) for word in ("--platform", name)]
    pins = ["--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, *only, *tags, *pins, "--dest", str(place), *names], check=True)


def build_own(place: Path) -> None:
    """Build this checkout's wheel, which is pure Python."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--wheel-dir", str(place), str(ROOT)], check=True)


def described(place: Path) -> dict[str, dict[str, Any]]:
    """Return of each wheel its file, version, hash, bytes, and the oldest version that does (`exact`: only it)."""
    about: dict[str, dict[str, Any]] = {}
    least: dict[str, str] = {}
    exact = set[str]()
    for wheel in sorted(place.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            told = Parser().parsestr(archive.read(metadata).decode("utf-8"))
        for needed in told.get_all("Requires-Dist") or []:
            if (found := re.match(r"([\w.-]+)[^;]*?(?:>=|==)\s*([\d.]+)[^;]*$", needed)) and "extra" not in needed:
                name, version = normal(found[1]), found[2]
                least[name] = max(least.get(name, "0"), version, key=_numbers)
                exact |= {name} if "==" in needed else set()
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        about[normal(told["Name"])] = {
            "wheel": wheel.name, "version": told["Version"], "sha256": digest, "bytes": wheel.stat().st_size,
        }  # fmt: skip
    for name, entry in about.items():
        entry |= {"least": least.get(name, "0"), "exact": name in exact}
    about[OWN]["always"] = True
    return about


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def pack(wheels: Sequence[Path], out: Path) -> None:
    """Write the wheels into one xz archive, each as a zip that is not compressed, so that xz sees what is in them."""
    with tempfile.TemporaryDirectory() as place, tarfile.open(out, "w:xz", preset=9) as archive:
        for wheel in wheels:
            plain = Path(place) / wheel.name
            with zipfile.ZipFile(wheel) as packed, zipfile.ZipFile(plain, "w", zipfile.ZIP_STORED) as unpacked:
                for entry in packed.infolist():
                    unpacked.writestr(_stored(entry), packed.read(entry))
            archive.add(plain, wheel.name, recursive=False)
            plain.unlink()


def _stored(entry: zipfile.ZipInfo) -> zipfile.ZipInfo:
    copy = zipfile.ZipInfo(entry.filename, entry.date_time)
    copy.external_attr = entry.external_attr
    return copy


def main(
    out: Annotated[Path, typer.Option(help="The folder; made anew.")] = Path("gpu-bundle"),
    python: Annotated[str, typer.Option(help="Python of the machine.")] = "3.12",
    glibc: Annotated[int, typer.Option(help="The machine's glibc is 2.N.")] = 28,
    have: Annotated[
        Path | None, typer.Option(help="What the machine has: `pip list --format=freeze` of it, in a file.")
    ] = None,
) -> None:
    """Gather the wheels. Exit code 1 if the folder is larger than 64 MB."""
    names = wanted(have.read_text(encoding="utf-8").splitlines() if have else ())
    with tempfile.TemporaryDirectory() as place:
        if names:
            download(names, python, glibc, Path(place))
        build_own(Path(place))
        about = described(Path(place))
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        pack([Path(place) / entry["wheel"] for entry in about.values()], out / "wheels.tar.xz")
    numbers = [int(part) for part in python.split(".")]
    write_whole(out / "bundle.json", json.dumps({"python": numbers, "wheels": about}, indent=1) + "\n")
    shutil.copyfile(Path(__file__).with_name("install.py"), out / "install.py")
    size = sum(path.stat().st_size for path in out.iterdir())
    typer.echo(f"{out}: {len(about)} wheels, {size / 1e6:.1f} MB; there: python3 {out.name}/install.py")
    if size > LIMIT:
        typer.echo(f"error: more than {LIMIT / 1e6:g} MB (--have FILE leaves out what the machine has)", err=True)
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
