from __future__ import annotations

import json
import platform
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from harness import version
from harness.results import environment


def test_collect_is_json_and_tells_versions_and_hardware() -> None:
    found = json.loads(json.dumps(environment.collect()))
    assert found["python"] == platform.python_version()
    assert found["packages"]["torch"] == torch.__version__
    assert found["memory_bytes"] > 1 << 28
    assert found["usable_cores"] >= 1
    assert {"harness", "commit", "dirty", "cpu", "gpus", "driver", "nccl"} <= set(found)
    assert (found["gpus"] is None) == (not torch.cuda.is_available())


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch is asked about the GPU that is here")
def test_torch_is_not_imported_to_say_that_there_is_no_gpu() -> None:
    script = (
        "import json, sys\nfrom harness.results.environment import collect\n"
        "found = collect()\nassert 'torch' not in sys.modules\nprint(json.dumps(found))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["cuda"] == torch.version.cuda


def test_the_hosts_name_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "a-very-telling-host-name"
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    monkeypatch.setattr(platform, "node", lambda: name)
    assert name not in json.dumps(environment.collect())


@pytest.mark.parametrize(
    ("installed", "told"),
    [
        ("0.1.0+g65468d7ab", ("65468d7ab", False)),
        ("0.1.0+g65468d7ab.d20261123", ("65468d7ab", True)),
        ("0.1.0+d20261123", (None, None)),
        ("0.1.0", (None, None)),
    ],
)
def test_an_installed_copy_tells_its_commit_by_its_version(
    installed: str, told: tuple[str | None, bool | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version, "__version__", installed)
    monkeypatch.setattr(environment, "checkout", lambda _: (None, None))
    assert environment.collect(3)["usable_cores"] == 3  # a quota
    found = environment.collect()
    assert (found["commit"], found["dirty"]) == told
    assert found["harness"] == "0.1.0"


def git(directory: Path, *arguments: str) -> None:
    who = ["-c", "user.name=n", "-c", "user.email=e@x"]
    subprocess.run(["git", "-C", str(directory), *who, *arguments], check=True, capture_output=True)


def test_commit_and_dirty_of_a_checkout(tmp_path: Path) -> None:
    package = tmp_path / "harness"
    package.mkdir()
    assert environment.checkout(package.parent) == (None, None)
    git(tmp_path, "init", "-q")
    (package / "a.py").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "x")
    commit, dirty = environment.checkout(package.parent)
    assert commit is not None
    assert len(commit) == 40
    assert dirty is False
    (tmp_path / "new.py").write_text("")  # results and notes beside the code do not change it
    assert environment.checkout(package.parent)[1] is False
    (package / "a.py").write_text("2")
    assert environment.checkout(package.parent) == (commit, True)


def test_an_installed_copy_inside_another_repository_has_no_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    package = tmp_path / "venv" / "harness"
    package.mkdir(parents=True)
    assert environment.checkout(package.parent) == (None, None)


def test_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "harness").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment.checkout(tmp_path) == (None, None)


def test_a_missing_package_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "PACKAGES", ["surely-not-installed-anywhere", "torch"])
    assert environment.collect()["packages"] == {"surely-not-installed-anywhere": None, "torch": torch.__version__}
