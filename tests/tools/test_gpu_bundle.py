"""A bundle for a machine without a network: what is in it, and what it installs there."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tools.gpu import bundle, install


def wheel(place: Path, name: str, version: str, needs: str = "", text: str = "value = 1\n") -> Path:
    """Write a wheel of one module."""
    path = place / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    told = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + (f"Requires-Dist: {needs}\n" if needs else "")
    files = {
        f"{name}.py": text,
        f"{info}/METADATA": told,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, content in files.items():
            archive.writestr(file, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"]))
    return path


def test_what_the_machine_has_is_left_out() -> None:
    have = ["numba==0.68.1", "Ruamel_YAML==0.19", "llvmlite @ file:///x", ""]
    left = set(bundle.PACKAGES) - set(bundle.wanted(have))
    assert left == {"numba", "llvmlite", "ruamel.yaml"}
    assert bundle.wanted([]) == list(bundle.PACKAGES)


def test_wheels_of_any_older_glibc_will_do() -> None:
    names = bundle.platforms(28)
    assert "manylinux_2_28_x86_64" in names
    assert "manylinux_2_17_x86_64" in names
    assert "manylinux_2_29_x86_64" not in names


@pytest.mark.slow
def test_a_bundle_installs_what_is_lacking_and_sees_the_rest(tmp_path: Path) -> None:
    """One package that is nowhere, one that this Python has already."""
    place, out = tmp_path / "wheels", tmp_path / "bundle"
    place.mkdir()
    out.mkdir()
    wheel(place, "gnn_harness", "0.0.1", "psutil>=1.0", text="own = 1\n")
    wheel(place, "nowhere_else", "1.5", text="value = 42\n")
    wheel(place, "psutil", "1.0", text="value = 'the bundle'\n")
    about = bundle.described(place)
    assert about["psutil"]["least"] == "1.0"
    bundle.pack(sorted(place.glob("*.whl")), out / "wheels.tar.xz")
    with tarfile.open(out / "wheels.tar.xz") as archive:
        assert len(archive.getnames()) == 3
    (out / "bundle.json").write_text(json.dumps({"python": list(sys.version_info[:2]), "wheels": about}))
    (out / "install.py").write_bytes(Path(install.__file__).read_bytes())
    home = tmp_path / "venv"
    done = subprocess.run([sys.executable, out / "install.py", home], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "2 wheels of the bundle" in done.stdout
    code = (
        "import nowhere_else, gnn_harness, psutil, torch; print(nowhere_else.value, hasattr(psutil, 'virtual_memory'))"
    )
    seen = subprocess.run([home / "bin" / "python", "-c", code], capture_output=True, text=True, timeout=120)
    assert seen.stdout == "42 True\n", seen.stderr


def test_a_package_that_is_too_old_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "there", {"old": "1.9", "new": "1.10", "own": "9"}.get)
    wanted = {name: {"least": "1.10", "exact": False, "wheel": name} for name in ("old", "new", "absent")}
    own = {"own": {"least": "0", "exact": False, "wheel": "own", "always": True}}
    assert install.lacking(wanted | own) == ["old", "absent", "own"]
    pinned = {name: {"least": "1.9", "exact": True, "wheel": name} for name in ("old", "new")}
    assert install.lacking(pinned) == ["new"]
    assert install.version("2.11.0+cu130") == (2, 11, 0)
    assert install.version("2.1.0rc1") == (2, 1, 0)


def test_a_bundle_for_another_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bundle.json").write_text(json.dumps({"python": [3, 1], "wheels": {}}))
    with pytest.raises(SystemExit, match=r"the bundle is for Python 3\.1"):
        install.make(tmp_path / "venv", tmp_path)
    assert not (tmp_path / "venv").exists()
