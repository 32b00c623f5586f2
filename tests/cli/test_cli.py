"""The command line: exit codes, runs, help."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.commands import harness

from harness.cli.command_options import SuiteOptions
from harness.data.catalog import Published
from harness.errors import DataUnavailable
from harness.launch import inputs, machines
from harness.suite.expand import expand
from harness.suite.schema import TrialConfig
from harness.suite.suite_file import load_suite

pytestmark = pytest.mark.timeout(90)


def test_run_plan_and_resume(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = harness(capsys, "plan", "tiny.yaml")
    assert code == 0
    took = "one after another: 6 by their arithmetic, which may be several times wrong\n"
    assert re.search(rf"\n6 trials: 0 done, 6 to run, 0 skipped\nabout [\d.]+ s {took}$", out)
    claim = "claims=[{name: a, source: b, metric: eval_s, of: {parts: 1}, expect: {at_most: 1}}]"
    claiming = harness(capsys, "plan", "tiny.yaml", "--set", claim)[1]
    assert claiming == out.replace("0 skipped\n", "0 skipped; claims: 1\n")
    code, out, err = harness(capsys, "run", "tiny.yaml", "--only", "parts=1")
    assert (code, err) == (0, "")
    assert out.startswith("3 trials, 0 done already, 3 to run\n[1/3] ring sage-2x4 full P=1 chunk seed=0\n")
    assert out.count("    ok  0.1 s/epoch  val 0.5000  test 0.5000  (") == 3
    assert out.endswith(
        "\nstatus  trials\nok           3\nresults: results/tiny\nreport:  harness report results/tiny\n"
    )
    code, out, _ = harness(capsys, "run", "tiny.yaml")
    assert code == 0
    assert out.startswith("6 trials, 3 done already, 3 to run\n[4/6] ")
    _, out, _ = harness(capsys, "plan", "tiny.yaml")
    assert out.count("done (ok)") == 6
    assert out.endswith("6 done, 0 to run, 0 skipped\n")  # nothing will take any time


def test_trials_of_changed_data_are_found_by_the_ids_in_the_suite_too(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker node without the results knows no other ids. Only what is asked for is looked at in new files."""
    trial = expand(load_suite(Path("tiny.yaml")))[1]
    changed = trial.model_copy(update={"data": "v2.p"})
    wanted: list[list[str]] = []

    def look(trials: list[TrialConfig], *rest: object, **options: Any) -> tuple[list[TrialConfig], list[str]]:
        wanted.append([own.id for own in options["making"]])
        return [changed if own.id == trial.id else own for own in trials], []

    monkeypatch.setattr("harness.launch.inputs.on_todays_data", look)
    for own in (trial, changed):
        _, found = SuiteOptions(Path("tiny.yaml"), only=f"id={own.id}").select()
        assert [each.id for each in found] == [changed.id]
    assert wanted == [[trial.id], []]


@pytest.mark.slow
def test_failed_trials_are_exit_code_1(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_RANKS", '{"1": "kill"}')
    code, out, _ = harness(capsys, "run", "tiny.yaml", "--only", "seed=0")
    assert code == 1
    assert "): rank 1 was killed by signal 9 (SIGKILL)\n" in out
    (log,) = re.findall(r"status  trials\nerror        1\nok           1\nlog:     (results/tiny/.*/log.txt)\n", out)
    assert '"status": "error"' in Path(log).with_name("record.json").read_text()
    monkeypatch.setenv("FAKE_RANKS", "{}")
    code, out, _ = harness(capsys, "run", "tiny.yaml", "--only", "seed=0", "--retry", "error,timeout")
    assert (code, out.splitlines()[0]) == (0, "2 trials, 1 done already, 1 to run")


MINE = """\
from __future__ import annotations
from pydantic import Field
from harness import Method, MethodOptions

class Options(MethodOptions):
    amount: float = Field(0.5, description="how much of it")

class Mine(Method[Options]):
    '''A method of one's own.'''
    name, family, Options = "mine", "full-graph", Options

    def steps(self, epoch):
        yield from ()
"""


@pytest.mark.slow
def test_a_plugin_is_planned_run_and_run_again_when_it_has_changed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "mine.py").write_text(MINE)
    small = ["--set", "methods=[full, mine]", "--set", "partition.parts=1", "--set", "seeds=[0]"]
    asked = ["tiny.yaml", *small, "--plugin", "mine.py", "--only", "amount=0.5"]
    code, _, err = harness(capsys, "run", *asked)
    assert (code, err) == (0, "")
    (record,) = (home / "results").glob("tiny/*/record.json")
    assert json.loads(record.read_text())["config"]["plugin"]["file"] == str(home / "mine.py")
    (home / "mine.py").write_text(MINE + "# changed\n")
    _, out, _ = harness(capsys, "plan", *asked)
    assert re.search(r"done \(ok\) .* ran other code of mine.py; --fresh runs it again$", out, re.M)
    _, out, _ = harness(capsys, "run", *asked)
    assert out.startswith(f"note: 1 finished trial ran other code of {home}/mine.py; --fresh runs them again")
    assert "1 trial, 1 done already, 0 to run" in out
    harness(capsys, "run", *asked, "--fresh")
    assert "other code" not in harness(capsys, "plan", *asked)[1] + harness(capsys, "run", *asked)[1]


def test_list_shows_what_is_wrong_with_a_package_and_goes_on(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "mine.py").write_text(MINE)
    (home / "bad.py").write_text("raise ValueError('of two\\nlines')\n")
    info = home / "bad-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[harness.methods]\nbad = bad:Bad\nfull = bad:Bad\n")
    monkeypatch.syspath_prepend(home)
    code, out, _ = harness(capsys, "list", "methods", "--plugin", "mine.py")
    assert code == 0
    said = "method 'bad' does not import: ValueError: of two lines (check bad:Bad)"
    assert f"bad (broken): {home / 'bad.py'}:1: {said}\n" in out
    assert "\nmine (full-graph): A method of one's own.\n" in out
    assert "\nfull (full-graph): " in out
    assert out.endswith("not listed: full of package bad: package gnn-harness has a method of that name\n")


def test_ctrl_c(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(machines, "run_group", interrupt)
    code, _, err = harness(capsys, "run", "tiny.yaml")
    assert code == 130
    assert err == "interrupted: finished trials are kept; the same command goes on with the rest\n"


@pytest.mark.slow
def test_a_run_downloads_what_is_missing_and_says_so_first(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing could be downloaded nothing runs, which is exit code 1 and one line that names a way out."""
    asked: list[str] = []

    def fetch(entry: Published, target: Path) -> Path:
        asked.append(f"{entry.info.name} {target.name}")
        raise DataUnavailable("reddit: cannot reach x.org", "harness data get reddit")

    monkeypatch.setattr(inputs, "fetch", fetch)
    command = ["run", "tiny.yaml", "--set", "datasets=[reddit]", "--set", "seeds=[0]"]
    code, out, err = harness(capsys, *command)
    assert (code, asked) == (1, ["reddit reddit"])
    assert out.startswith("reddit is not here: downloading it, 1.211 GiB, from GraphSAGE (Hamilton et al. 2017) as ")
    assert err.splitlines() == [
        "note: reddit cannot be downloaded: reddit: cannot reach x.org; get it with: harness data get reddit",
        "error: nothing ran: reddit cannot be downloaded: reddit: cannot reach x.org; get it with: harness data get "
        "reddit; --twin runs a generated graph in its likeness",
    ]
    assert "skipped       2" in out
    assert harness(capsys, *command, "--no-download")[::2] == (
        1,
        "error: nothing ran: reddit is not here; get it with: harness data get reddit; --twin runs a generated graph "
        "in its likeness\n",
    )
    assert len(asked) == 1
    code, out, err = harness(capsys, *command, "--set", "datasets=[reddit, ring]")
    assert (code, len(asked)) == (0, 2)
    assert "nothing ran" not in err
    harness(capsys, *command, "--set", "datasets=[reddit, ring]", "--only", "dataset=ring")
    assert len(asked) == 2  # nothing that is left needs it


@pytest.mark.slow
def test_a_suite_runs_on_twins_of_its_graphs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["tiny.yaml", "--set", "datasets=[cora]", "--set", "seeds=[0]"]
    code, out, err = harness(capsys, "plan", *command, "--twin", "0.3")
    assert code == 0
    assert err.startswith("note: generated twins: cora at 0.3 of its nodes; P = 1")
    assert re.search(r"^\w{12}  run    twin\(of=cora,scale=0.3\) sage-2x4 full P=1 ", out, re.M)
    assert "0 skipped" in out
    assert harness(capsys, "plan", *command, "--twin=0.3")[1] == out
    code, out, err = harness(capsys, "run", "--twin", *command)
    assert code == 0, err
    assert "results: results/tiny-twin\n" in out
    assert harness(capsys, "plan", "tiny.yaml", "--twin", "2")[::2] == (
        2, "error: --twin: '2' is no share of a graph's nodes (above 0 and at most 1, e.g. 0.05)\n",
    )  # fmt: skip
    code, _, err = harness(capsys, "plan", "tiny.yaml", "--twin")
    assert (code, err.startswith("error: tiny.yaml: --twin: no data set of the suite has a twin (of: reddit, ")) == (
        2,
        True,
    )


def test_doctor(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = harness(capsys, "doctor")
    assert code == 0
    assert re.search(r"^gloo +ok +ranks on CPU$", out, re.M)
    assert re.search(r"^data directory +ok +.*/data \(1 \.npz\)$", out, re.M)
    (home / "file").write_text("")
    monkeypatch.setenv("HARNESS_CACHE", str(home / "file" / "cache"))
    code, out, _ = harness(capsys, "doctor")
    assert code == 1
    assert re.search(r"^cache directory +missing +.* cannot be written; HARNESS_CACHE names another$", out, re.M)


def test_every_option_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    import typer

    from harness.cli import app

    def walk(command: typer.core.TyperCommand) -> list[str]:
        bare = [f"{command.name} {p.name}" for p in command.params if not getattr(p, "help", None)]
        children = getattr(command, "commands", {}).values()
        return [*bare, *([] if command.help else [str(command.name)]), *(x for c in children for x in walk(c))]

    assert walk(typer.main.get_command(app)) == []


def test_help_imports_nothing_slow() -> None:
    script = (
        "import sys\nfrom harness.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "slow = {'torch', 'numpy', 'pandas', 'pydantic', 'numba'}\n"
        "print(sorted(slow & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.strip() == "[]"
    assert done.stdout.startswith("Usage: ")


def test_what_shows_no_results_does_without_pandas() -> None:
    modules = "harness.launch.planner, harness.launch.runner, harness.cli.progress"
    script = f"import sys, {modules}; print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=90, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_command_that_is_over_is_not_interrupted(name: str) -> None:
    """Until its process is gone, a first signal changes neither its exit code nor what it says; a second ends it."""
    code = """
import atexit, os, signal, sys, time
from harness.cli import main
from harness.launch.runner_process import end_when_asked
def at_end():
    for _ in range({times}):
        os.kill(os.getpid(), signal.{name})
        time.sleep(0.1)
atexit.register(at_end)
end_when_asked()
sys.argv = ["harness", "--version"]
main()
"""
    for times, expected in ((1, 0), (2, -signal.Signals[name])):
        command = [sys.executable, "-c", code.replace("{name}", name).replace("{times}", str(times))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
        assert (done.returncode, done.stderr) == (expected, "")
