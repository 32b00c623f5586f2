"""`harness compare` and `harness merge`: what they print, and their exit codes."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from report.fake import ENVIRONMENT, write_results

from harness.cli import main
from harness.results.record_store import ResultStore, read_at, record_places

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    methods = (("full", {}), ("bns-gcn", {"rate": 0.1}))
    return write_results(tmp_path_factory.mktemp("compare") / "a", methods=methods, parts=(2,), seeds=(0, 1))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_one(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exited:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return int(exited.value.code or 0), captured.out, captured.err

    return run_one


def changed(before: Path, after: Path, factor: float = 1.0, **fields: Any) -> Path:
    """Write the same trials with all times `factor` as long."""
    for place in record_places(before):
        record, rows = read_at(place), pd.read_parquet(place / "epochs.parquet")
        rows["epoch_time_s"] *= factor
        result = record.result | {"epoch_time_s": factor * record.result["epoch_time_s"]}
        new = record.model_copy(update={"result": result} | fields)
        ResultStore(after, "demo").commit(record.trial, new, rows.to_dict("records"), "")
    return after


def test_a_slowdown_is_told_and_fails(before: Path, tmp_path: Path, run: Run) -> None:
    after = changed(before, tmp_path / "b", 1.3, environment=ENVIRONMENT | {"commit": "f" * 40})
    code, out, err = run("compare", before, after, "--fail-on", "10%", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 1
    assert [(row["seeds"], row["verdict"]) for row in rows] == [("2", "slower"), ("2", "slower"), ("4", "slower")]
    assert all(float(row["change"]) == pytest.approx(1.3) for row in rows)
    assert all(1.1 < float(row["low"]) < 1.3 < float(row["high"]) < 1.6 for row in rows)
    assert err.splitlines() == ["code: commit: 0123456789 -> ffffffffff"]
    assert run("compare", before, after, "--fail-on", "50")[0] == 0
    assert run("compare", after, before, "--fail-on", "10%")[0] == 0
    code, out, _ = run("compare", before, after)
    assert code == 0
    assert "1.300" in out


def test_results_against_themselves_are_the_same(before: Path, run: Run) -> None:
    for metric in ("epoch_time_s", "bytes_feature", "best_val", "peak_memory_bytes"):
        code, out, _ = run("compare", before, before, "--fail-on", "0%", "--metric", metric, "--format", "csv")
        rows = list(csv.DictReader(io.StringIO(out)))
        assert code == 0
        assert {row["verdict"] for row in rows} == {"same"}


def test_times_of_other_machines_are_refused(before: Path, tmp_path: Path, run: Run) -> None:
    after = changed(before, tmp_path / "b", environment=ENVIRONMENT | {"cpu": "Another", "driver": "550"})
    code, _, err = run("compare", before, after)
    assert code == 2
    assert "times of different machines: cpu: Example CPU @ 2.4 GHz -> Another" in err
    assert run("compare", before, after, "--metric", "bytes_feature")[0] == 0
    code, out, _ = run("compare", before, after, "--any-machine")
    assert code == 0
    assert "warning: cpu: Example CPU" in out
    assert "warning: driver: unknown -> 550" in out


def test_trials_on_other_data_are_not_compared(before: Path, tmp_path: Path, run: Run) -> None:
    """Each side was run where no record was: the ids say nothing of the data."""
    prints = {"partition_fingerprint": "p"}
    one = changed(before, tmp_path / "one", dataset={"name": "digits", "fingerprint": "v1"}, **prints)
    other = changed(before, tmp_path / "other", dataset={"name": "digits", "fingerprint": "v2"}, **prints)
    code, _, err = run("compare", one, other)
    assert (code, "all trials that are on both sides ran on other data" in err) == (2, True)
    record = read_at(record_places(one)[0])
    same = record.model_copy(update={"dataset": record.dataset | {"fingerprint": "v2"}})
    ResultStore(one, "demo").commit(record.trial, same, [], "")
    code, out, _ = run("compare", one, other)
    assert code == 0
    assert out.count("(ran on other data)") == 3
    assert f"not compared: {record.label}" not in out


def test_a_trial_that_fails_now_fails(before: Path, tmp_path: Path, run: Run) -> None:
    after = changed(before, tmp_path / "b")
    place = record_places(after)[0]
    record = read_at(place).model_copy(update={"status": "oom", "reason": "rank 1"})
    ResultStore(after, "demo").commit(record.trial, record, [], "")
    code, out, _ = run("compare", before, after, "--fail-on", "5%")
    assert code == 1
    assert f"not compared: {record.label} (A: ok, B: oom, rank 1)" in out
    assert run("compare", before, after)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--metric", "epoch_time"), "did you mean 'epoch_time_s'?"),
        (("--fail-on", "much"), "'much' is no percentage (e.g. 5%)"),
        (("--fail-on", "5%", "--metric", "boundary_nodes"), "nothing says whether more or less"),
        (("--metric", "energy_gpu_j"), "has 'energy_gpu_j'"),
    ],
)
def test_mistakes(before: Path, run: Run, arguments: tuple[str, ...], said: str) -> None:
    code, _, err = run("compare", before, before, *arguments)
    assert code == 2
    assert said in err


def test_merged_results_compare(before: Path, tmp_path: Path, run: Run) -> None:
    code, out, _ = run("merge", tmp_path / "out", before / "demo", before)
    assert (code, out.splitlines()[0]) == (0, "4 trials copied, 4 were there, 0 gave way to another")
    assert run("compare", before, tmp_path / "out", "--metric", "bytes_feature", "--fail-on", "0%")[0] == 0
    changed(before, tmp_path / "b", 1.3)
    code, _, err = run("merge", tmp_path / "out", tmp_path / "b")
    assert code == 2
    assert "--keep first" in err


def test_a_history_names_the_commit_that_made_it_slower(before: Path, tmp_path: Path, run: Run) -> None:
    for i, (factor, commit) in enumerate([(1.0, "a"), (1.0, "b"), (1.5, "c")]):
        changed(
            before,
            tmp_path / f"v{i}",
            factor,
            environment=ENVIRONMENT | {"commit": commit * 40, "dirty": False},
            started=f"2026-01-0{i + 1}T00:00:00+00:00",
        )
    places = [tmp_path / f"v{i}" for i in range(3)]
    code, out, _ = run("history", *places)
    assert code == 0
    lines = [line for line in out.splitlines() if line.startswith("cccccccc")]
    assert "changed: slower" in lines[0]
    assert "1.500" in lines[0]
    assert not any("changed" in line for line in out.splitlines() if not line.startswith("cccccccc"))
    rows = list(csv.DictReader(io.StringIO(run("history", *places, "--format", "csv")[1])))
    assert [row["version"] for row in rows] == ["aaaaaaaa", "bbbbbbbb", "cccccccc"]
    assert [row["since"] for row in rows] == ["", "aaaaaaaa", "aaaaaaaa"]
    assert float(rows[2]["change"]) == pytest.approx(1.5)
    assert run("history", tmp_path / "nowhere")[0] == 2
