"""A suite of somebody else's is data until it is run: what its plugins and names say is not imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli import main

CODE = """\
from pathlib import Path
from harness import Method, MethodOptions

Path("mark").touch()


class Planted(Method[MethodOptions]):
    '''Leaves a mark when it is imported.'''
    name, family, Options = "planted", "full-graph", MethodOptions

    def steps(self, epoch):
        yield from ()
"""
SUITE = """\
name: theirs
datasets: [digits]
plugins: [planted.py]
methods: [planted]
device: cpu
"""
REFUSED = (
    "error: theirs.yaml:3: plugins: planted.py is code, which is imported to run the suite alone "
    "(read it, then add --trust-plugins, or name it with --plugin)\n"
)
READERS = ("plan theirs.yaml", "report results --suite theirs.yaml", "check-claims results --suite theirs.yaml")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "planted.py").write_text(CODE)
    (tmp_path / "theirs.yaml").write_text(SUITE)
    return tmp_path


def harness(capsys: pytest.CaptureFixture[str], command: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exited:
        main(command.split())
    told = capsys.readouterr()
    return int(exited.value.code or 0), told.out, told.err


def test_a_thread_of_a_plugin_keeps_no_command_from_ending(home: Path) -> None:
    thread = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), name='mine').start()\n"
    (home / "planted.py").write_text(CODE + thread)
    command = [sys.executable, "-m", "harness", "plan", "theirs.yaml", "--trust-plugins"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "threads of a plugin still run, and end here: mine\n")
    assert "1 trial" in done.stdout


@pytest.mark.parametrize("command", READERS)
def test_who_only_reads_a_suite_runs_nothing_of_it(
    home: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    if "results" in command:
        (home / "results").mkdir()
    assert harness(capsys, command) == (2, "", REFUSED)
    assert not (home / "mark").exists()
    for trust in ("--trust-plugins", "--plugin planted.py"):
        (home / "planted.py").write_text(CODE + f"# {trust}\n")  # what was imported once is not run again
        code, _, err = harness(capsys, f"{command} {trust}")
        assert (code, err) == (0, "") or "results: holds no finished trial" in err
        (home / "mark").unlink()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("methods: [planted]", "methods: ['planted_module:Planted']"),
            "theirs.yaml:3: methods: planted_module:Planted",
        ),
        (("device: cpu", "model: {name: 'planted_module:Planted'}"), "theirs.yaml:4: model: planted_module:Planted"),
        (("device: cpu", "partition: {method: 'planted_module:P'}"), "theirs.yaml:4: partition: planted_module:P"),
        (("device: cpu", "train: {optimizer: 'planted_module:P'}"), "theirs.yaml:4: train: planted_module:P"),
    ],
)
def test_nor_a_module_that_it_names(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], said: str
) -> None:
    (home / "planted_module.py").write_text(CODE)
    monkeypatch.syspath_prepend(home)
    text = SUITE.replace("plugins: [planted.py]\n", "")
    if "device" in change[0]:
        text = text.replace("planted]", "full]")
    (home / "theirs.yaml").write_text(text.replace(*change))
    code, _, err = harness(capsys, "plan theirs.yaml")
    assert code == 2
    assert err.startswith(f"error: {said} is code, which is imported to run the suite alone")
    assert not (home / "mark").exists()
    assert "planted_module" not in sys.modules


@pytest.mark.quick(1)
@pytest.mark.parametrize("command", ["list methods", "list models", "suites"])
def test_lists_import_nothing_of_the_place_they_are_asked_in(
    home: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert harness(capsys, command)[0] == 0
    assert not (home / "mark").exists()


def test_one_of_two_that_are_named_is_not_enough(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "other.py").write_text(CODE.replace("planted", "other").replace("mark", "other-mark"))
    (home / "theirs.yaml").write_text(SUITE.replace("[planted.py]", "[planted.py, other.py]"))
    code, _, err = harness(capsys, "plan theirs.yaml --plugin planted.py")
    assert (code, "plugins: other.py is code" in err) == (2, True)
    assert not [*home.glob("*mark")]
