"""Trials in a directory whose files have the names of modules: nothing of them is imported."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = ("harness", "methods", "suites", "setup.py", "pyproject.toml", "README.md", "LICENSE")
SHADOWS = ("methods/full.py", "harness_methods/full.py", "queue.py", "random.py", "types.py", "torch.py", "numpy.py")
SUITE = """\
name: s
datasets: [digits]
model: {layers: 2, hidden: 8}
train: {epochs: 1, threads: 1}
methods: [full]
device: cpu
timing: 'off'
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=["editable", "copied"])
def variables(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of a process that imports this checkout, or its installed copy."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "HARNESS_DATA")}
    if request.param == "editable":
        return kept
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("setuptools, which builds the package, is not installed")
    place = tmp_path_factory.mktemp("copied")
    for name in INSTALLED:  # building leaves folders in the tree
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, place / "tree" / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, place / "tree" / name)
    install = ["install", "-q", "--no-deps", "--no-build-isolation", "--target", place / "site", place / "tree"]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    return kept | {"PYTHONPATH": str(place / "site")}


def test_names_of_modules_are_no_modules(variables: dict[str, str], tmp_path: Path) -> None:
    for name in SHADOWS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise ImportError('taken from the working directory')")
    (tmp_path / "s.yaml").write_text(SUITE)
    site = variables.get("PYTHONPATH")
    environment = variables | {"HARNESS_CACHE": os.environ["HARNESS_CACHE"]}

    def said(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment, text=True, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    where = said(sys.executable, "-P", "-c", "import harness as a, harness_methods as b; print(a.__file__, b.__file__)")
    assert [path.startswith(site or str(ROOT)) for path in where.split()] == [True, True]
    script = Path(site, "bin", "harness") if site else Path(sys.executable).with_name("harness")
    for number, start in enumerate([[script], ["-m", "harness"]]):
        run = said(sys.executable, *start, "run", "s.yaml", "--results", f"results-{number}")
        assert "0 done already, 1 to run" in run
