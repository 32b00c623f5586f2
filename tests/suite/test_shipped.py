"""Suites by name: the shipped ones from any folder, a user's own file first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.scaffold import new_suite
from harness.suite.expand import expand
from harness.suite.suite_file import read_suite, shipped, suite_file

SUITES = Path(__file__).resolve().parents[2] / "suites"


def test_every_suite_is_shipped_and_its_last_part_is_a_name() -> None:
    assert set(shipped()) == {path.relative_to(SUITES).with_suffix("").as_posix() for path in SUITES.rglob("*.yaml")}
    for name, path in shipped().items():
        assert suite_file(Path(name)) == path
        assert suite_file(Path(path.stem)) == path, "two suites have the same last part"


def test_a_file_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").write_text("name: own\n")
    assert suite_file(Path("quickstart")) == Path("quickstart")
    (tmp_path / "reddit").mkdir()  # results of it, say
    assert suite_file(Path("reddit")) == shipped()["reddit"]
    assert suite_file(None) is None


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("quikstart", "SUITE: neither a file nor a shipped suite: 'quikstart' (did you mean 'quickstart'?)"),
        ("own", "SUITE: neither a file nor a shipped suite: 'own' (did you mean own.yaml?)"),
        ("zzz", "SUITE: neither a file nor a shipped suite: 'zzz' (`harness suites` lists those that are shipped)"),
        (
            "suites/fair/small.yaml",
            "suites/fair/small.yaml: no such file (the shipped suite is called fair/small, without a suffix)",
        ),
    ],
)
def test_what_is_neither_is_refused(asked: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").touch()
    with pytest.raises(UserError) as error:
        suite_file(Path(asked))
    assert str(error.value) == message


def test_a_path_that_is_no_suite_of_ours_is_left_to_be_read() -> None:
    assert suite_file(Path("nowhere/mine.yaml")) == Path("nowhere/mine.yaml")


def test_a_new_suite_expands_and_is_never_written_over(tmp_path: Path) -> None:
    file = new_suite("my-own", tmp_path)
    suite = read_suite(file)
    assert (file.name, suite.name) == ("my-own.yaml", "my-own")
    assert {trial.method.name for trial in expand(suite, device="cpu")} == {"full", "bns-gcn", "graphsage"}
    before = file.read_text()
    with pytest.raises(UserError, match="is there already"):
        new_suite("my-own", tmp_path)
    assert file.read_text() == before
    for name in ("a b", "../own", ""):
        with pytest.raises(UserError, match="bad name"):
            new_suite(name, tmp_path)
    with pytest.raises(UserError, match="--dir: cannot write there"):
        new_suite("own", tmp_path / "nowhere")


def test_the_tuning_of_a_new_suite_reads_too(tmp_path: Path) -> None:
    """What is commented out is what a user takes the `#` from."""
    file = new_suite("my-own", tmp_path)
    lines = [line.removeprefix("# ") if line[2:].startswith((" ", "tuning")) else line for line in _lines(file)]
    file.write_text("\n".join(lines))
    assert read_suite(file).tuning is not None


def test_a_plan_from_an_empty_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness", "plan", "quickstart", "--device", "cpu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert "35 trials: 0 done, 35 to run, 0 skipped" in done.stdout, done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()
