"""What `harness new` writes: a package that works as it is, or one line that says why not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from harness.cli import main
from harness.errors import UserError
from harness.registry import find_plugins
from harness.runtime.method import METHODS, Family
from harness.scaffold import new_method

FAMILIES: tuple[Family, ...] = ("full-graph", "mini-batch")
FILES = ["README.md", "my_own.py", "pyproject.toml", "tests/test_my_own.py"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_package_is_what_it_says(tmp_path: Path, family: Family) -> None:
    files = new_method("my-own", family, tmp_path)
    home = tmp_path / "my-own"
    assert sorted(str(path.relative_to(home)) for path in files) == FILES
    assert sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()) == FILES
    assert list(tmp_path.iterdir()) == [home]
    assert not any(word in path.read_text() for path in files for word in ("new-method", "new_method", "NewMethod"))
    source = find_plugins([str(home / "my_own.py")])["method", "my-own"]
    found = METHODS.find("my-own", {("method", "my-own"): source}).value
    assert (found.__name__, found.family) == ("MyOwn", family)
    assert all(field.description for field in found.Options.model_fields.values())
    project = tomllib.loads((home / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["harness.methods"] == {"my-own": "my_own:MyOwn"}
    compile((home / "tests" / "test_my_own.py").read_text(), "test_my_own.py", "exec")


def test_pip_registers_it(tmp_path: Path) -> None:
    """As `pip install` does it, but into a directory of its own and without a network."""
    if importlib.util.find_spec("setuptools") is None:  # an import of it here would replace distutils
        pytest.skip("setuptools is not installed: pip would fetch it")
    new_method("my-own", "full-graph", tmp_path)
    target = tmp_path / "installed"
    quiet = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    install = [sys.executable, "-m", "pip", "install", *quiet, "--target", target, tmp_path / "my-own"]
    done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (package,) = importlib.metadata.distributions(path=[str(target)])
    (point,) = package.entry_points
    assert (point.group, point.name, point.value) == ("harness.methods", "my-own", "my_own:MyOwn")
    assert (target / "my_own.py").read_text() == (tmp_path / "my-own" / "my_own.py").read_text()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "bad name ''"),
        ("MyOwn", "bad name 'MyOwn'"),
        ("../own", "bad name '../own'"),
        ("2fast", "bad name '2fast'"),
        ("own-", "bad name 'own-'"),
        ("a\n", "bad name"),
        ("a" * 51, "bad name"),
        ("bns-gcn", "method 'bns-gcn' is installed already"),
        ("class", "'class' is a module of Python or of a package"),
        ("torch", "'torch' is a module of Python or of a package"),
        ("step", "its class would be called Step"),
    ],
)
def test_a_bad_name_is_one_line_and_writes_nothing(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        new_method(name, "full-graph", tmp_path)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    with pytest.raises(UserError, match=r"own: is there already"):
        new_method("own", "full-graph", tmp_path)
    assert list(tmp_path.rglob("*")) == [tmp_path / "own"]
    with pytest.raises(UserError, match=r"nowhere: --dir: cannot write there: No such file"):
        new_method("own", "full-graph", tmp_path / "nowhere")


def test_the_command_says_what_is_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["new", "method", "my-own", "--family", "mini-batch", "--dir", str(tmp_path)])
    assert not exited.value.code
    out = capsys.readouterr().out
    assert f"harness check my-own --plugin {tmp_path}/my-own/my_own.py\n" in out
    assert f"pip install -e {tmp_path}/my-own\n" in out
