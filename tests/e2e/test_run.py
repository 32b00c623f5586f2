"""From a suite file to tables and a report, by the command alone."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pandas as pd
import pytest
from e2e.cli import PLUGINS, CommandLine, records, stamps

import harness

pytestmark = pytest.mark.timeout(300)

EPOCHS, HIDDEN, FEATURES, FLOAT = 3, 8, 64, 4
OWN = "alternating"
SUITE = f"""\
name: small
datasets: [digits]
model: {{name: sage, layers: 2, hidden: {HIDDEN}, dropout: 0.1}}
train: {{epochs: {EPOCHS}, eval_every: 2, threads: 1}}
partition: {{parts: [1, 2]}}
plugins: alternating.py
methods:
  - full
  - bns-gcn: {{rate: 0.5}}
  - graphsage: {{fanouts: 5, batch_size: 600}}
  - {OWN}: {{every: 3}}
device: cpu
timeouts: {{trial_s: 60, collective_s: 30}}
"""

TEXT = ["suite", "trial", "label", "dataset", "dataset_note", "origin", "model", "method", "partitioner"]
TEXT += ["network", "device", "status", "peak_memory_source", "started"]
PHASES = [*("sample", "fetch", "forward", "backward", "comm", "wait", "reduce", "optimize", "explain", "swap"), "other"]
PURPOSES = ["feature", "embedding", "gradient", "model", "control", "swap", "disk"]
COUNTS = ["parts", "seed", "epochs", "peak_memory_bytes", "boundary_nodes", "inner_nodes"]
FIGURES = ["epoch_time_s", "throughput_epochs_s", "best_val", "test_at_best_val", "imbalance", "wall_s"]
FIGURES += [*(f"time_{phase}_s" for phase in PHASES), *(f"bytes_{purpose}" for purpose in PURPOSES), "setup_s"]
FIGURES += ["compile_s", "prepared_s"]
COUNTS += ["base_memory_bytes", "peak_above_base_bytes", "setup_bytes", "eval_bytes"]


@dataclass(frozen=True)
class Done:
    """A suite that was run once, with a report."""

    command: CommandLine
    process: subprocess.CompletedProcess[str]
    results: pd.DataFrame
    epochs: pd.DataFrame

    @property
    def home(self) -> Path:
        return self.command.directory / "out" / "small"

    def run(self) -> subprocess.CompletedProcess[str]:
        return self.command.run("run", "small.yaml", "--results", "out", "--report", timeout_s=200)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("small")
    (folder / "small.yaml").write_text(SUITE)
    text = (PLUGINS / "alternating.py").read_text()
    (folder / "alternating.py").write_text(text + "\nimport os\n\nos.environ['OMP_SCHEDULE'] = 'dynamic'\n")
    command = CommandLine(folder, tmp_path_factory.getbasetemp() / "cache")
    process = Done(command, None, None, None).run()
    assert process.returncode == 0, process.stdout + process.stderr
    return Done(command, process, harness.load_results(folder / "out"), harness.load_epochs(folder / "out"))


def test_every_trial_has_a_whole_record(done: Done) -> None:
    found = records(done.home)
    assert len(found) == 8
    for trial, record in found.items():
        assert (record["status"], record["reason"], record["schema_version"]) == ("ok", None, 1)
        assert record["trial"] == trial
        files = {path.name for path in (done.home / trial).iterdir()}
        assert files == {"record.json", "epochs.parquet", "log.txt"}
    assert not list((done.home / ".staging").glob("*"))
    assert re.search(r"^ok +8$", done.process.stdout, re.MULTILINE)


def test_results_have_the_documented_columns(done: Done) -> None:
    results = done.results
    assert {*TEXT, *COUNTS, *FIGURES, "options", "reason"} <= set(results.columns)
    assert len(results) == 8
    for column in TEXT:
        assert results[column].map(type).eq(str).all(), column
    for column in COUNTS:
        assert pd.api.types.is_integer_dtype(results[column]), column
    for column in FIGURES:
        assert pd.api.types.is_float_dtype(results[column]), column
        assert results[column].ge(0).all(), column  # also: none is missing
    assert results["options"].map(type).eq(dict).all()
    assert results["reason"].isna().all()
    assert not results["flags"].str.contains("compile").any()  # nothing was called for the first time in an epoch
    assert results["method"][results["flags"].str.contains("environment")].tolist() == [OWN] * 2
    assert set(zip(results["method"], results["parts"], strict=True)) == set(
        product(["full", "bns-gcn", "graphsage", OWN], [1, 2])
    )
    assert results["epochs"].eq(EPOCHS).all()
    assert results["inner_nodes"].eq(1797).all()
    assert results["best_val"].between(0.05, 1).all()


def test_options_are_complete(done: Done) -> None:
    options = {row.method: row.options for row in done.results.itertuples()}
    assert options["bns-gcn"] == {
        "rate": 0.5,
        "sampler": "bernoulli",
        "precompute": False,
        "transform_before_exchange": False,
    }
    assert options["graphsage"] == {
        "prefetch": 0,
        "storage": "sharded",
        "cache": "none",
        "capacity": 0.3,
        "feature_rate": 1.0,
        "feature_loss": 0.0,
        "batch_size": 600,
        "fanouts": 5,
        "weights": "uniform",
    }
    assert options[OWN] == {"every": 3}


def test_one_row_for_each_epoch_and_rank(done: Done) -> None:
    parts = done.results.set_index("trial")["parts"]
    for trial, rows in done.epochs.groupby("trial"):
        found = sorted(zip(rows["epoch"], rows["rank"], strict=True))
        assert found == [*product(range(EPOCHS), range(parts[trial]))]
    assert len(done.epochs) == EPOCHS * parts.sum()
    # Evaluated every second epoch and after the last; the loss is known to every rank, and is one number.
    scored = done.epochs.groupby("epoch")["val_score"].apply(lambda scores: scores.notna().all())
    assert scored.to_list() == [False, True, True]
    assert done.epochs.groupby(["trial", "epoch"])["loss"].nunique().eq(1).all()


def test_phases_add_up_to_the_epoch(done: Done) -> None:
    phases = done.epochs[[f"time_{phase}_s" for phase in PHASES]]
    assert (phases >= 0).all(axis=None)
    # Medians: a busy machine may take milliseconds between two readings of the clock, as many as an epoch has here.
    covered = phases.sum(axis=1) / done.epochs["epoch_time_s"]
    assert covered.le(1.02).all()
    # 2 %; of epochs of 5 ms, which is what they take where nothing else runs, two readings of the clock are more.
    assert ((0.98 - covered) * done.epochs["epoch_time_s"]).median() < 2e-4
    # `other` is a residue, not where the time is.
    assert (done.epochs["time_other_s"] / done.epochs["epoch_time_s"]).median() < 0.1


def test_bytes_of_full_are_the_closed_form(done: Done) -> None:
    for record in records(done.home).values():
        if record["config"]["method"]["name"] != "full":
            continue
        ranks = len(record["ranks"])
        boundary = sum(rank["boundary"] for rank in record["ranks"])
        assert (boundary > 0) == (ranks == 2)
        expected = {
            "feature": boundary * FEATURES * FLOAT,
            "embedding": boundary * HIDDEN * FLOAT,
            "gradient": boundary * HIDDEN * FLOAT,
            # All gradients and the loss; an all-reduce sends 2 (P - 1) times its size.
            "model": 2 * (ranks - 1) * (weights_of_sage(10) + 1) * FLOAT,
            "control": 0,
            "swap": 0,
            "disk": 0,
        }
        row = done.results.set_index("trial").loc[record["trial"]]
        assert {purpose: row[f"bytes_{purpose}"] for purpose in PURPOSES} == expected
        epochs = done.epochs[done.epochs["trial"] == record["trial"]].groupby("epoch")
        for purpose, size in expected.items():
            assert epochs[f"bytes_{purpose}"].sum().to_list() == [size] * EPOCHS


def weights_of_sage(classes: int) -> int:
    return 2 * FEATURES * HIDDEN + HIDDEN + 2 * HIDDEN * classes + classes


def test_a_method_of_ones_own(done: Done) -> None:
    row = done.results.set_index(["method", "parts"]).loc[(OWN, 2)]
    epochs = done.epochs[done.epochs["trial"] == row["trial"]].groupby("epoch")
    looked = epochs["stat_kept_boundary"].sum().to_list()
    assert looked == [row["boundary_nodes"], 0, 0]
    assert epochs["bytes_feature"].sum().to_list() == [n * FEATURES * FLOAT for n in looked]


def test_the_report_is_written(done: Done) -> None:
    (named,) = re.findall(r"^report: +(.+)$", done.process.stdout, re.MULTILINE)
    page = (done.command.directory / named).read_text()
    for name in ("full", "bns-gcn", "graphsage", OWN):
        assert name in page
    assert "<img" in page or "<svg" in page
    assert not re.search(r"""(src|href)=["'](https?:)?//""", page)
    folder = (done.command.directory / named).parent
    assert list(folder.rglob("*.md"))
    assert list(folder.rglob("*.csv"))


def test_a_second_run_does_nothing(done: Done) -> None:
    before = stamps(done.home)
    kept = {path: stamp for path, stamp in before.items() if Path(path).parent.name in records(done.home)}
    assert len(kept) == 8 * 3
    again = done.command.run("run", "small.yaml", "--results", "out")
    assert again.returncode == 0
    assert "P=" not in again.stdout  # no trial is even named
    assert re.search(r"^ok +8$", again.stdout, re.MULTILINE)
    assert kept.items() <= stamps(done.home).items()


def test_a_run_that_has_nothing_left_is_planned_so(done: Done) -> None:
    planned = done.command.run("plan", "small.yaml", "--results", "out", "--trust-plugins")
    assert planned.returncode == 0
    assert "8 trials: 8 done, 0 to run, 0 skipped" in planned.stdout


@pytest.mark.slow
def test_an_error_of_a_plugins_constructor_names_its_line_and_the_log(command: CommandLine) -> None:
    text = (PLUGINS / "alternating.py").read_text()
    constructor = "    def __init__(self, *given):\n        raise KeyError('mine')\n\n"
    broken = text.replace("    def steps", f"{constructor}    def steps")
    (command.directory / "broken.py").write_text(broken)
    suite = "name: s\ndatasets: [digits]\nplugins: broken.py\nmethods: [alternating]\ntrain: {epochs: 1}\ndevice: cpu\n"
    (command.directory / "s.yaml").write_text(suite)
    done = command.run("run", "s.yaml", "--results", "out")
    assert done.returncode == 1
    line = next(n for n, each in enumerate(broken.splitlines(), 1) if "KeyError('mine')" in each)
    assert f"rank 0 said: {command.directory / 'broken.py'}:{line}: KeyError: 'mine'\n" in done.stdout
    (log,) = re.findall(r"^log:     (out/s/.*/log\.txt)$", done.stdout, re.MULTILINE)
    assert "KeyError: 'mine'" in (command.directory / log).read_text()
