"""Suites run from Python: the same records as from the command line."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

import pytest
from launch.tiny import SUITE, fake_ranks, write_suite

import harness
from harness.launch import machines
from harness.suite import document

TESTS = Path(__file__).resolve().parent
pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a suite and its data, as the working directory; ranks are fake."""
    write_suite(tmp_path, shared=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HARNESS_DATA", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    fake_ranks(monkeypatch)
    return tmp_path


def test_a_file_a_mapping_and_what_is_there_already(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = harness.run("tiny.yaml", only="parts=1", data_dir="data", overrides={"train.epochs": 5})
    assert list(first["seed"]) == [0, 1, 2]
    assert set(first["status"]) == {"ok"}
    assert "HARNESS_DATA" not in os.environ
    suite = document.parse(SUITE, "tiny").data
    before = dict(suite)
    every = harness.run(suite, data_dir="data", overrides=["train.epochs=5"])
    assert suite == before
    assert len(every) == 6
    assert "6 trials, 3 done already, 3 to run" in capsys.readouterr().out
    assert set(first["trial"]) < set(every["trial"])
    assert len(harness.load_results("results/tiny")) == 6


def test_a_mistake_is_an_exception_of_one_line(home: Path) -> None:
    with pytest.raises(harness.UserError, match=r"tiny.yaml:2: datasets.0: unknown data set 'ring'"):
        harness.run("tiny.yaml")  # without its data
    wrong = {"name": "x", "datasets": ["digits"], "methods": ["ful"]}
    with pytest.raises(harness.UserError, match=r"^methods.0: unknown method 'ful' \(did you mean 'full'\?\)$"):
        harness.run(wrong)
    with pytest.raises(harness.UserError, match=r"^--only: none of the 2 trials matches 'parts=7'$"):
        harness.run(wrong | {"methods": ["full", "bns-gcn"]}, only="parts=7")
    with pytest.raises(harness.UserError, match=r"^SUITE: neither a file nor a shipped suite: 'nowhere'"):
        harness.run("nowhere")
    with pytest.raises(harness.UserError, match=r"^epoch: unknown key"):
        harness.run({**wrong, "epoch": 3})
    assert not (home / "results").exists()


def test_an_interrupt_is_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(machines, "run_group", interrupt)
    with pytest.raises(KeyboardInterrupt):
        harness.run("tiny.yaml", data_dir="data", only="seed=0")


def test_every_argument_is_told() -> None:
    told = inspect.getdoc(harness.run)
    assert told is not None
    assert [name for name in inspect.signature(harness.run).parameters if f"\n    {name}: " not in told] == []
