"""The command line: exit codes, and the exact text a user's mistake is told in."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launch.tiny import fake_ranks, write_ring, write_star, write_suite

from harness.cli import main
from harness.cli.command_options import SuiteOptions
from harness.data.catalog import Published
from harness.errors import DataUnavailable
from harness.launch import inputs, machines
from harness.launch.hardware import Capacity
from harness.suite.expand import expand
from harness.suite.schema import TrialConfig
from harness.suite.suite_file import load_suite

TESTS = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a suite and its data, as the working directory; ranks are fake."""
    write_suite(tmp_path, shared=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    monkeypatch.setenv("COLUMNS", "200")
    fake_ranks(monkeypatch)
    return tmp_path


def harness(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exited:
        main(arguments)
    captured = capsys.readouterr()
    return int(exited.value.code or 0), captured.out, captured.err


NO_GPU = "torch can use no GPU here: it is built without CUDA (install its CUDA build, or --device cpu)"
MISTAKES = {
    "run nowhere.yaml": "nowhere.yaml: ",
    "run tiny": "SUITE: neither a file nor a shipped suite: 'tiny' (did you mean tiny.yaml?)",
    "check-claims . --suite tiny": "SUITE: neither a file nor a shipped suite: 'tiny' (did you mean tiny.yaml?)",
    "run tiny.yaml --device gqu": "--device: unknown device 'gqu' (known: auto, cpu, cuda)",
    "run tiny.yaml --device gpu": f"device cuda: {NO_GPU}",
    "new suite tiny": "tiny.yaml: is there already (choose another name, or another --dir)",
    "run tiny.yaml --retry errors": "--retry: unknown status 'errors' (did you mean 'error'?)",
    "run tiny.yaml --data-dir nowhere": "--data-dir (or HARNESS_DATA): 'nowhere' is not a directory",
    "run tiny.yaml --device cuda": f"device cuda: {NO_GPU}",
    "run tiny.yaml --results tiny.yaml": "tiny.yaml/tiny: --results: cannot write there: Not a directory",
    "run quickstart --results r": "/proc/x: HARNESS_CACHE: cannot write there: No such file or directory",
    "run tiny.yaml --results /proc/x": "/proc/x/tiny: --results: cannot write there: No such file",
    "run tiny.yaml --only method=bns-gcn": "tiny.yaml: --only: none of the 6 trials matches 'method=bns-gcn' "
    "(see `harness plan tiny.yaml`)",
    "run tiny.yaml --only metod=full": "--only metod=full: ",
    "run tiny.yaml --set train.epochs=many": "--set train.epochs=many: ",
    "run tiny.yaml --set datasets=[rin]": "--set datasets=[rin]: ",
    "run tiny.yaml --epochs 3": "--epochs: no option, but a key of the suite (--set train.epochs=3)",
    "run --seeds=3 tiny.yaml": "--seeds: no option, but a key of the suite (--set 'seeds=[0, 1, 2]')",
    "plan tiny.yaml --model gat": "--model: no option, but a key of the suite (--set model.name=gat)",
    "tune tiny.yaml --weight-decay": "--weight-decay: no option, but a key of the suite "
    "(--set train.weight_decay=VALUE)",
    "run tiny.yaml --parts 1,2": "--parts: no option, but a key of the suite (--set 'partition.parts=[1, 2]')",
    "run tiny.yaml --plugin mine.py": "/",
    "list methods --plugin no.such": "module 'no.such' does not import: ModuleNotFoundError: ",
    "plan tiny.yaml --set plugins=no.py": "--set plugins=no.py: plugins.0: /",
    "plan tiny.yaml --set methods=[ful]": "--set methods=[ful]: ",
    "report nowhere": "'nowhere' is not a directory (name a directory that `harness run` wrote)",
    "data info redit": "datasets: unknown data set 'redit' (did you mean 'reddit'?)",
    "data info sbm --option nodes": "--option: 'nodes' is not KEY=VALUE (e.g. --option scale=0.02)",
    "partition ring --parts 2,x": "--parts: '2,x' is not a list of positive numbers (e.g. 2,4,8)",
    "partition ring --parts 0": "--parts: '0' is not a list of positive numbers (e.g. 2,4,8)",
    "partition ring --method meits": "--method: unknown partitioner 'meits' (did you mean 'metis'?)",
    "partition ring --objective volum": "--objective: 'volum': Input should be 'volume' or 'cut'",
    "partition reddit": "reddit is not here; get it with: harness data get reddit",
}


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.version.cuda", None)
    if "HARNESS_CACHE" in MISTAKES[command]:
        monkeypatch.setenv("HARNESS_CACHE", "/proc/x")
    code, out, err = harness(capsys, *command.split())
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {MISTAKES[command]}")
    assert err.count("\n") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["run", "no-such-command", "run tiny.yaml --no-such-option", "list"])
def test_wrong_usage_is_exit_code_2(home: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert harness(capsys, *command.split())[0] == 2


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


def test_plan_says_what_does_not_fit_and_of_what_memory_consists(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.launch.executors.local.capacity", lambda: Capacity(1 << 30))
    large = ["--set", "datasets=[reddit]", "--set", "seeds=[0]"]
    _, out, _ = harness(capsys, "plan", "tiny.yaml", *large, "--set", "model.hidden=2048")
    assert re.search(r"may not fit: needs up to \S+ GiB, this machine has 1 GiB", out)
    gpus = Capacity(1 << 40, (1 << 30, 1 << 40), names=("A", "A"))
    monkeypatch.setattr("harness.launch.executors.local.capacity", lambda: gpus)
    gpu = ["--device", "gpu", "--set", "partition.parts=[2]"]
    _, out, _ = harness(capsys, "plan", "tiny.yaml", *large, *gpu, "--set", "model.hidden=4096")
    assert re.search(r"may not fit: needs up to \S+ GiB, GPU 0 has 1 GiB", out)
    monkeypatch.setattr("harness.launch.executors.local.capacity", lambda: Capacity(1 << 30))
    _, out, _ = harness(capsys, "plan", "tiny.yaml", "--memory", "--only", "seed=0")
    assert "fit:" not in out
    components = re.findall(r"^(input features|layers \(Eq\. 3\)|adjacency|together) +\S+ [KMG]?i?B$", out, re.M)
    assert {"input features", "layers (Eq. 3)", "adjacency", "together"} == set(components)


def test_plan_says_what_options_come_to_on_the_graph(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The ring has 12 nodes; -1 is meant, and the default is a share of it."""
    for size, whole in (("12", True), ("11", False), ("-1", False)):
        methods = f"methods=[{{graphsaint: {{size: {size}, frontier: 2}}}}]"
        code, out, _ = harness(capsys, "plan", "tiny.yaml", "--set", methods, "--only", "seed=0")
        said = "size 12 is no less than the 12 nodes there are: every subgraph is the whole graph\n"
        assert (code, said in out) == (0, whole)
    _, out, _ = harness(capsys, "plan", "tiny.yaml", "--set", "methods=[graphsaint]", "--only", "seed=0")
    assert "whole graph" not in out


@pytest.mark.slow
def test_plan_tells_how_long_by_what_ran_here(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*options: str) -> str:
        return harness(capsys, "plan", "tiny.yaml", *options)[1].splitlines()[-1]

    assert harness(capsys, "run", "tiny.yaml", "--only", "parts=1")[0] == 0
    assert told("--set", "seeds=[3,4]", "--only", "parts=1").endswith("s one after another: 2 ran here before")
    longer = ["--set", "train.epochs=1000", "--set", "seeds=[0]"]
    # The fake ranks say 0.1 s an epoch, whatever they take.
    like = re.fullmatch(
        r"about 1 min (\d\d) s: 1 by trials of their method that ran here", told(*longer, "--only", "P=1")
    )
    assert like, told(*longer, "--only", "P=1")
    assert 40 <= int(like.group(1)) <= 45
    assert "1 by trials of their method that ran here, 1 by their arithmetic" in told(*longer)
    assert "ran here" not in told("--results", "other")


def test_plan_works_beside_results_of_no_suite(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("results").mkdir()
    Path("results", "README.md").write_text("not yet")
    code, out, err = harness(capsys, "plan", "tiny.yaml")
    assert (code, err) == (0, "")
    assert "6 by their arithmetic" in out.splitlines()[-1]


def test_plan_warns_of_what_is_hardly_meant(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.launch.planner.cores", lambda: 2)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.version.cuda", None)
    one_seed = ["plan", "tiny.yaml", "--set", "seeds=[0]"]

    def notes(*options: str) -> list[str]:
        _, out, err = harness(capsys, *one_seed, *options)
        return [line for line in (out + err).splitlines() if line.startswith("note: ")]

    assert notes() == []
    assert notes("--set", "partition.parts=[2,12]") == [
        "note: 1 trial: 12 ranks on 2 cores: times are of ranks that wait for one another"
    ]
    assert notes("--device", "gpu") == [f"note: 2 trials: device cuda, and {NO_GPU}"]
    assert notes("--executor", "slurm", "--set", "partition.parts=[4]") == []  # not this machine's cores
    excluded = "exclude=[{parts: 1}, {parts: 3}]"
    assert notes("--set", excluded) == [f"note: --set {excluded}: exclude.1: excludes no trial of the suite"]


def test_what_no_machine_could_hold_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is planned for it, by `plan` and `run` alike; a line for each mistake."""
    monkeypatch.setattr("harness.launch.executors.local.capacity", lambda: Capacity(30 << 20))
    wide = ["--set", "partition.parts=[2,11,12]", "--set", "model.hidden=10000000", "--set", "seeds=[0]"]
    lines = (
        "error: --set partition.parts=[2,11,12]: bad value 11: this machine has memory for 10 processes "
        "(fewer parts, or more machines)\n"
        "error: --set partition.parts=[2,11,12]: bad value 12: this machine has memory for 10 processes "
        "(fewer parts, or more machines)\n"
        "error: --set model.hidden=10000000: bad value 10000000: weights, gradients and moments of a rank take "
    )
    for command in ("plan", "run"):
        code, _, err = harness(capsys, command, "tiny.yaml", *wide)
        assert code == 2
        assert err.startswith(lines)
        assert err.endswith(", this machine has 30 MiB (make it smaller)\n")
        assert len(err.splitlines()) == 3
    assert harness(capsys, "plan", "tiny.yaml", *wide, "--nnodes", "2")[2].startswith("error: --set model.hidden")
    parts = ["--set", "partition.parts=[2,13]"]
    assert harness(capsys, "run", "tiny.yaml", *parts)[::2] == (
        2,
        "error: --set partition.parts=[2,13]: bad value 13: ring has 12 nodes (at most 12)\n",
    )


def test_plan_without_data(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = harness(capsys, "plan", "tiny.yaml", "--set", "datasets=[reddit]", "--set", "seeds=[0]")
    assert code == 0
    row = re.compile(r"^\w{12}  skip   reddit sage-2x4 full P=1 chunk seed=0  [\d.]+ GiB +reddit is not here$", re.M)
    assert row.search(out)
    assert out.endswith("\n2 trials: 0 done, 0 to run, 2 skipped\nget the missing data: harness data get reddit\n")


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


def test_partition_of_ones_own_data(
    home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HARNESS_DATA")
    write_ring(tmp_path / "elsewhere", "My_Graph")
    options = ("--parts", "2", "--method", "chunk", "--data-dir")
    for name in ("My_Graph", "my-graph"):
        code, out, err = harness(capsys, "partition", name, *options, str(tmp_path / "elsewhere"))
        assert (code, err) == (0, "")
        assert out.startswith("My_Graph, chunk, 2 parts\n")


def test_partition_table(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A ring of 12 cut into contiguous parts: two cut edges for 2 parts, three for 3."""
    code, out, _ = harness(capsys, "partition", "ring", "--parts", "2,3", "--method", "chunk")
    assert code == 0
    assert out == (
        "ring, chunk, 2 parts\n"
        "part  inner  boundary   ratio  edges  edges_cut  train_nodes\n"
        "   0      6         2  0.3333     12          2            2\n"
        "   1      6         2  0.3333     12          2            2\n"
        "\n"
        "ring, chunk, 3 parts\n"
        "part  inner  boundary  ratio  edges  edges_cut  train_nodes\n"
        "   0      4         2    0.5      8          2            2\n"
        "   1      4         2    0.5      8          2            1\n"
        "   2      4         2    0.5      8          2            1\n"
        "\n"
        "ring: partitions\n"
        "parts  method  imbalance  edge imbalance  cut edges  cut share  volume  boundary imbalance\n"
        "    2  chunk           1               1          2     0.1667       4                   1\n"
        "    3  chunk           1               1          3       0.25       6                   1\n"
    )


def test_unbalanced_boundaries_are_shown_and_warned_of(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A star of 12 in contiguous parts: the hub's part has all leaves elsewhere as its boundary, others the hub."""
    write_star(home / "data")
    star = ["--set", "datasets=[star]", "--set", "seeds=[0]", "--set", "partition.parts=[2,4]"]
    known = [
        "data set  parts  method  objective  volume  boundary imbalance",
        "star  2  chunk  7  1.714",
        "star  4  chunk  12  3",
    ]
    warned = (
        "note: star, chunk, 4 parts: the largest boundary is 3 times the mean, and a synchronous epoch waits for it"
    )
    warned += " (try `method: metis`)"

    def lines(*arguments: str) -> list[str]:
        code, out, _ = harness(capsys, *arguments)
        assert code == 0
        return [re.sub(" {2,}", "  ", line) for line in out.splitlines()]

    before = lines("plan", "tiny.yaml", *star)
    assert not [line for line in before if "volume" in line or "boundary" in line]
    shown = lines("partition", "star", "--parts", "2,4", "--method", "chunk")
    assert [line.split("  ")[-2:] for line in shown[-3:-1]] == [["7", "1.714"], ["12", "3"]]
    assert shown[-1] == warned
    after = lines("plan", "tiny.yaml", *star)
    start = after.index(known[0])
    assert after[start : start + 4] == [*known, warned]
    assert after.count(warned) == 1


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("list datasets", ["reddit", "114,615,892", "ring"]),
        ("data list", ["reddit ", "no, 1.21 GiB to get", "sbm ", "made when needed", "ring "]),
        ("list methods", ["bns-gcn (full-graph): ", "rate", "0.1", "bernoulli|fixed", "graphsage (mini-batch): "]),
        ("list models", ["gat ", "gcn ", "mixhop ", "sage ", "heads"]),
        ("list optimizers", ["adam ", "sgd ", "momentum"]),
        ("list schedules", ["constant ", "cosine ", "plateau ", "steps ", "patience"]),
        ("list partitioners", ["metis", "random", "chunk", "volume|cut"]),
        ("suites", ["quickstart ", "papers/bns-table2 ", "reddit, ogbn-products, yelp", "nothing"]),
        ("suites --ready", ["quickstart "]),
        ("data info Ring", ["nodes", "12", "yes, or made when it is needed"]),
        ("data info ring", ["nodes", "12", "yes, or made when it is needed"]),
        ("partition Ring --parts 2 --method CHUNK", ["ring: partitions"]),
        ("data info reddit", ["232,965", "inductive", "harness data get reddit"]),
        ("data get ring", ["datasets/ring-"]),
        ("--version", ["harness 0.1.0"]),
    ],
)
def test_what_there_is(home: Path, capsys: pytest.CaptureFixture[str], command: str, expected: list[str]) -> None:
    code, out, _ = harness(capsys, *command.split())
    assert code == 0
    assert [text for text in expected if text not in out] == []


def test_a_damaged_graph_hides_no_other(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = home / "data" / "bad.npz"
    bad.write_text("no graph")
    said = f"{bad}: damaged or foreign, expected an .npz file (File is not a zip file)"
    for command in ("data list", "list datasets"):
        code, out, err = harness(capsys, *command.split())
        assert (code, err) == (0, "")
        assert re.search(r"^ring +yes +12 ", out, re.M)
        assert out.splitlines()[-1] == f"not listed: {said}"
    assert harness(capsys, "plan", "tiny.yaml")[0] == 0
    assert harness(capsys, "run", "tiny.yaml", "--only", "parts=1,method=full")[0] == 0
    code, out, err = harness(capsys, "plan", "tiny.yaml", "--set", "datasets=[ring, bad]")
    assert (code, out, err) == (2, "", f"error: --set datasets=[ring, bad]: datasets.1: {said}\n")


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ("model: {name: sage, heads: 8}", "4: model.heads: bad value 8: sage has no heads (remove it, or name "
         "a model that has: gat)"),
        ("model: {name: gat, order: 2}", "4: model.order: bad value 2: gat has no order (remove it, or name a "
         "model that has: mixhop)"),
        ("per_dataset: {sbm: {model: {heads: 2}}}", "4: per_dataset.sbm.model.heads: bad value 2: sage has no "
         "heads (remove it, or name a model that has: gat)"),
        ("methods: [full, graphsage: {fanouts: [[5, 5], [3, 4, 5]]}]", "4: methods.1.graphsage.fanouts: bad "
         "value [3, 4, 5]: 3 numbers for 2 graph layers (give 2, or one number for all; a layer of mixhop counts "
         "`order` times)"),
        ("methods: [graphsage]\nper_method: {graphsage: {options: {fanouts: [3]}}}", "5: per_method.graphsage."
         "options.fanouts: bad value [3]: 1 numbers for 2 graph layers (give 2, or one number for all; a layer of "
         "mixhop counts `order` times)"),
        ("methods: [full: {epochs: 3}]", "4: methods.0.full.epochs: unknown key (write `train: {epochs: 3}`)"),
        ("methods: [bns-gcn: {rate: 10}]", "4: methods.0.bns-gcn.rate: bad value 10: must be less than or "
         "equal to 1 (write `methods: {bns-gcn: {rate: 0.1}}`)"),
    ],
)  # fmt: skip
def test_what_fits_no_model_is_refused_before_a_run(
    home: Path, capsys: pytest.CaptureFixture[str], sections: str, message: str
) -> None:
    methods = "" if sections.startswith("methods") else "\nmethods: [full]"
    (home / "tiny.yaml").write_text(f"# a suite\nname: tiny\ndatasets: [sbm]\n{sections}{methods}\n")
    for command in ("plan", "run"):
        assert harness(capsys, command, "tiny.yaml") == (2, "", f"error: tiny.yaml:{message}\n")


def test_a_key_that_one_of_several_models_reads_multiplies_that_one_alone(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "name: s\ndatasets: [sbm]\nmethods: [full]\nmodel: {name: [sage, gat], heads: [2, 8]}\n"
    (home / "s.yaml").write_text(text)
    labels = re.findall(r"sbm (\S+) full", harness(capsys, "plan", "s.yaml")[1])
    assert labels == ["sage-2x64", "gat-2x64h2", "gat-2x64h8"]


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
